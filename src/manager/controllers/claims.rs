//! The watch of IPAddressClaims. It keeps nothing: a reconcile that needs a claim reads it.

use futures::StreamExt as _;
use kube::api::Api;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use kube_fleet::watcher;

use super::watch::log;
use super::{Controllers, in_pages};
use crate::api::ipam::{IPAddressClaim, owner_of};
use crate::api::{ObjectMetaExt as _, labels};
use crate::apiserver::OutageLog;

impl Controllers {
    /// Enqueues the machines whose claims change, with a VM only at the end of a claim. The watch begins when
    /// the first machine waits for an address, so an installation without static addresses has no watch, and
    /// needs no such kind.
    pub(super) async fn follow_claims(&self) {
        self.machine_context.claims_wanted.notified().await;
        let api: Api<IPAddressClaim> = self.api();
        let (outages, config) = (OutageLog::new(), in_pages().labels(labels::ADDRESS_CLAIM));
        let mut events = std::pin::pin!(watcher(api, config));
        while let Some(event) = events.next().await {
            log(&outages, &event);
            match event {
                Ok(Event::InitApply(claim) | Event::Apply(claim) | Event::Delete(claim)) => {
                    self.enqueue_owner(&claim);
                }
                Ok(Event::Init | Event::InitDone) | Err(_) => {}
            }
        }
    }

    fn enqueue_owner(&self, claim: &IPAddressClaim) {
        let Some((name, _)) = owner_of(&claim.metadata) else {
            return;
        };
        let machine = ObjectRef::new(name).within(claim.metadata.namespace());
        let cache = &self.caches.infra_machines;
        let is_ending = claim.metadata.deletion_timestamp.is_some();
        let is_waiting = cache.look_at(&machine, |entry| is_ending || !entry.facts().is_provisioned);
        if is_waiting == Some(true) {
            self.infra_machine_queue.enqueue(machine);
        }
    }
}
