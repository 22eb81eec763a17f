//! The guests of the simulated cloud. They are no part of the driver: it makes VMs, and what boots in them is seen here.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use capcmi::drivers::simulated::{CloudView, Vm, WallClock};
use futures::Stream;
use management_cluster::hollow_kubelet::{Guest, GuestEvent};

/// How often the guests are looked after.
const LOOK: Duration = Duration::from_millis(50);

/// What happens to the guests of the cloud that lives in this state file.
pub fn guests(state: &Path) -> impl Stream<Item = GuestEvent> + Send + 'static {
    let view = CloudView::open(state, Arc::new(WallClock));
    let start = (view, BTreeSet::<String>::new(), VecDeque::new());
    futures::stream::unfold(start, |(mut view, mut known, mut news)| async move {
        loop {
            if let Some(event) = news.pop_front() {
                return Some((event, (view, known, news)));
            }
            if let Ok((cloud, now)) = view.now() {
                let running: Vec<_> = cloud.vms().filter(|vm| vm.is_running(now)).collect();
                let ids: BTreeSet<_> = running.iter().map(|vm| vm.provider_id()).collect();
                let booted = running.iter().filter(|vm| !known.contains(&vm.provider_id()));
                news.extend(booted.map(|vm| GuestEvent::Booted(guest(vm))));
                news.extend(known.difference(&ids).map(|id| GuestEvent::Gone {
                    provider_id: id.clone(),
                }));
                known = ids;
            }
            if news.is_empty() {
                tokio::time::sleep(LOOK).await;
            }
        }
    })
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
