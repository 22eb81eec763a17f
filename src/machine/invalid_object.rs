//! An InfraMachine that can't be read. The API server's schema keeps such objects out, but a schema changes,
//! and what was stored before stays as it is.
//!
//! Nothing is made for such an object. It can be deleted, with its VM: the identity, the driver and the spec
//! that the VM was made from are annotations, which can be read whatever the spec says.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Resource as _;
use kube::api::GetParams;
use kube::core::Request;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::controller::Action;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::execute::execute;
use super::object::Object;
use super::outcome::Outcome;
use super::publish::{events, record_failure};
use super::{Context, gather_and_plan};
use crate::api::v1alpha1::{InfraMachine, InfraMachineSpec};
use crate::api::{self, DeserializeGuard};
use crate::apiserver::{Error, Note};

/// One reconcile of an InfraMachine that can't be read. Its status can't be written either: an event says
/// once what is wrong with it, and events and the log what becomes of its deletion.
pub async fn reconcile(invalid: &InvalidObject, ctx: &Context) -> Result<Action, Error> {
    let name = invalid.metadata.name.as_deref().unwrap_or_default();
    tracing::error!(name, error = invalid.error, "an InfraMachine can't be read");
    let guarded = DeserializeGuard::<InfraMachine>(Err(invalid.clone()));
    ctx.events
        .publish_once(&guarded, Note::unreadable(&invalid.error))
        .await;
    if invalid.metadata.deletion_timestamp.is_none() {
        return Ok(Action::await_change());
    }
    let machine = Arc::new(live(ctx, invalid).await?);
    let (gathered, plan) = gather_and_plan(ctx, &machine).await;
    let mut object = Object::new(ctx, Arc::clone(&machine));
    let execution = execute(ctx, &mut object, &gathered, plan).await?;
    let outcome = &execution.outcome;
    // There is no status that could report it later.
    let moment = record_failure(ctx, &machine, &gathered, outcome, None);
    let note = events::of(&machine, outcome, moment.attempts);
    if matches!(outcome, Outcome::Gone | Outcome::RemoveFinalizer(_)) {
        object.remove_finalizer().await?;
        ctx.states.forget(object.uid());
    } else {
        let why = note.as_ref().map(|note| note.text.as_str());
        tracing::warn!(name, why, "deleting an InfraMachine that can't be read");
    }
    if let Some(note) = note {
        ctx.events.publish(&*machine, note).await;
    }
    Ok(moment.wait.map_or_else(Action::await_change, Action::requeue))
}

/// The object as it is now, with the fields of the spec that can be read: the deletion
/// may need the credentials.
async fn live(ctx: &Context, invalid: &InvalidObject) -> Result<InfraMachine, Error> {
    let action = "reading an InfraMachine that can't be parsed";
    let namespace = invalid.metadata.namespace.as_deref().unwrap_or_default();
    let name = invalid.metadata.name.as_deref().unwrap_or_default();
    let request = Request::new(InfraMachine::url_path(&(), Some(namespace)))
        .get(name, &GetParams::default())
        .map_err(|error| Error::api(action, kube::Error::BuildRequest(error)))?;
    let text = ctx.client.request_text(request).await;
    let text = text.map_err(|error| Error::api(action, error))?;
    let live = api::metadata(&text).map_err(|error| Error::api(action, kube::Error::SerdeError(error)))?;
    if live.uid != invalid.metadata.uid || live.deletion_timestamp.is_none() {
        // Another object came under this name: the cache will say so.
        return Err(Error::Conflict { action });
    }
    Ok(InfraMachine {
        spec: legible(&text),
        metadata: live,
        status: None,
    })
}

/// The fields of an object's spec that can be read. As text: a field may be nested deeper than JSON is read.
fn legible(object: &str) -> InfraMachineSpec {
    #[derive(Deserialize)]
    struct Object {
        spec: BTreeMap<String, Box<RawValue>>,
    }
    let Ok(Object { spec }) = serde_json::from_str(object) else {
        return InfraMachineSpec::default();
    };
    let (mut fields, mut read) = (Vec::new(), InfraMachineSpec::default());
    for (name, value) in &spec {
        fields.push(format!("{}:{value}", Value::from(name.as_str())));
        match serde_json::from_str(&format!("{{{}}}", fields.join(","))) {
            Ok(more) => read = more,
            Err(_) => drop(fields.pop()),
        }
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_spec_that_cannot_be_read_every_field_that_can_is_kept() {
        let deep = format!("{}1{}", r#"{"a":"#.repeat(300), "}".repeat(300));
        let spec = legible(&format!(
            r#"{{"spec": {{"shutdownTimeoutSeconds": "soon", "secretRef": {{"name": "s"}}, "providerSpec": {deep},
                "provider": [], "providerID": "sim://1"}}}}"#
        ));
        assert_eq!(spec.secret_ref.map(|secret| secret.name).as_deref(), Some("s"));
        assert_eq!(spec.provider_id.as_deref(), Some("sim://1"));
        assert_eq!(spec.shutdown_timeout_seconds, None);
        for nothing in ["{}", r#"{"spec": "text"}"#, r#"{"spec": {"secretRef": 1}}"#] {
            assert!(legible(nothing).secret_ref.is_none());
        }
    }
}
