//! Watches that update a cache for ever, report the changes, and log outages.

use std::sync::Arc;

use futures::StreamExt as _;
use kube::Resource;
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube_fleet::{Stored, Update, Writer, reflector, watcher};
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;

use crate::apiserver::{OutageLog, outage_log};

/// Updates a cache for ever, and reports the changes in turn with other watches.
pub(super) async fn watch<K>(
    api: Api<K>,
    config: watcher::Config,
    writer: Writer<K>,
    slim: fn(&mut K),
    notify: impl Fn(&Update<K>) + Send,
    turn: Arc<Mutex<()>>,
) where
    K: Stored + DeserializeOwned,
{
    let outages = OutageLog::new();
    let events = watcher(api, config).modify(slim);
    let events = events.inspect(|event| log(&outages, event));
    let mut updates = std::pin::pin!(reflector(writer, events));
    while let Some(update) = updates.next().await {
        // Errors are logged above, and the watch goes on.
        if let Ok(update) = update {
            let _turn = turn.lock().await;
            notify(&update);
        }
    }
}

/// Logs the beginning and the end of an outage.
pub(super) fn log<K: Resource<DynamicType = ()>>(
    outages: &OutageLog,
    event: &Result<Event<K>, watcher::Error>,
) {
    let kind = K::kind(&());
    match event {
        // It comes before the list is requested.
        Ok(Event::Init) => {}
        Ok(Event::InitApply(_) | Event::InitDone | Event::Apply(_) | Event::Delete(_)) => {
            if outages.answered() {
                tracing::info!(%kind, "watch restored");
            }
            outage_log::log_answered();
        }
        Err(error) if is_not_served(error) => {
            let group = K::group(&());
            if let Some(unreported) = outages.failed() {
                tracing::error!(
                    %kind,
                    %group,
                    "the API server does not serve a kind: install its CRD, see docs/how-to/install.md; \
                        retrying{unreported}"
                );
            }
        }
        Err(error) => {
            let is_unanswered = source(error).is_some_and(outage_log::is_unanswered);
            let error = error as &dyn std::error::Error;
            tracing::debug!(%kind, error, "watch failed; retrying");
            if is_unanswered {
                outage_log::log_unanswered(error);
            } else if let Some(unreported) = outages.failed() {
                tracing::warn!(%kind, error, "watch failed; retrying{unreported}");
            }
        }
    }
}

/// Whether the kind has no definition: the list of a served kind never answers 404.
fn is_not_served(error: &watcher::Error) -> bool {
    matches!(source(error), Some(kube::Error::Api(status)) if status.code == 404)
}

/// The error of the request; `None` if the API server reported the error within a watch.
fn source(error: &watcher::Error) -> Option<&kube::Error> {
    match error {
        watcher::Error::InitialListFailed(source)
        | watcher::Error::WatchStartFailed(source)
        | watcher::Error::WatchFailed(source) => Some(source),
        watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::cluster_api::Machine;

    #[test]
    fn a_list_that_begins_ends_no_outage() {
        let outages = OutageLog::new();
        let refused = kube::core::Status::failure("no", "Forbidden").with_code(403);
        let refused = watcher::Error::InitialListFailed(kube::Error::Api(refused.boxed()));
        log::<Machine>(&outages, &Err(refused));
        log::<Machine>(&outages, &Ok(Event::Init));
        assert!(outages.answered(), "the outage lasts");
        assert!(outages.failed().is_none(), "it was logged a moment ago");
    }

    #[test]
    fn a_list_that_is_not_found_is_of_a_kind_without_a_definition() {
        let of = |code| {
            let status = kube::core::Status::failure("the server could not find it", "X").with_code(code);
            is_not_served(&watcher::Error::InitialListFailed(kube::Error::Api(
                status.boxed(),
            )))
        };
        assert!(of(404) && !of(403) && !of(500));
    }
}
