//! The guests of the simulated cloud. They are not part of the driver: the driver makes VMs, and this module
//! reports their guests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cmi_simulated::{CloudView, Vm, WallClock};
use futures::Stream;
use management_cluster::hollow_kubelet::{Guest, GuestEvent};

/// The poll interval of the guests.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// The events of the guests of the cloud in this state file.
pub fn guests(state: &Path) -> impl Stream<Item = GuestEvent> + Send + 'static {
    let view = CloudView::open(state, Arc::new(WallClock));
    let start = (view, Seen::default(), BTreeMap::new(), VecDeque::new());
    futures::stream::unfold(start, |(mut view, mut seen, mut boots, mut events)| async move {
        loop {
            if let Some(event) = events.pop_front() {
                return Some((event, (view, seen, boots, events)));
            }
            if let Ok((cloud, now)) = view.now() {
                let running = cloud.vms().filter(|vm| vm.is_running(now));
                let running: BTreeMap<_, _> = running.map(|vm| (vm.provider_id(), vm)).collect();
                // Between two polls a VM may have been restarted.
                for (id, vm) in &running {
                    let before = boots.insert(id.clone(), vm.boots_at);
                    if before.is_some_and(|before| before != vm.boots_at) {
                        seen.forget(id);
                    }
                }
                events.extend(seen.events(&running, |vm| guest(vm)));
            }
            if events.is_empty() {
                tokio::time::sleep(LOOK).await;
            }
        }
    })
}

/// The guests that ran at the last poll, by provider id.
#[derive(Default)]
pub(crate) struct Seen(BTreeSet<String>);

impl Seen {
    /// Returns the events since the last poll, given the guests that run now.
    pub(crate) fn events<V>(
        &mut self,
        running: &BTreeMap<String, V>,
        guest: impl Fn(&V) -> Guest,
    ) -> Vec<GuestEvent> {
        let booted = running.iter().filter(|(id, _)| !self.0.contains(*id));
        let mut events: Vec<_> = booted.map(|(_, vm)| GuestEvent::Booted(guest(vm))).collect();
        let gone = self.0.iter().filter(|id| !running.contains_key(*id));
        events.extend(gone.map(|id| GuestEvent::Gone {
            provider_id: id.clone(),
        }));
        self.0 = running.keys().cloned().collect();
        events
    }

    /// Makes a guest boot again, although it runs as at the last poll.
    fn forget(&mut self, id: &str) {
        self.0.remove(id);
    }
}

fn guest(vm: &Vm) -> Guest {
    let address = vm
        .address
        .map(|address| ("InternalIP".to_owned(), address.to_string()));
    Guest {
        provider_id: vm.provider_id(),
        node_name: vm.name.clone(),
        user_data: vm.user_data.expose().to_vec(),
        addresses: address
            .into_iter()
            .chain([("Hostname".to_owned(), vm.name.clone())])
            .collect(),
    }
}
