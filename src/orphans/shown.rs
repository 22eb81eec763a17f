//! What the lists of a Cluster show.

use std::collections::HashMap;
use std::time::Instant;

use kube::Client;

use super::plan::{Scope, each_once};
use super::scope::{Class, Watched};
use crate::driver::{ListedMachine, ProviderId};
use crate::listing::{self, Unlisted};
use crate::provider::{Provider, Share};

/// The name under which a look waits for its turn.
pub(super) const LINE: &str = "orphans";

/// The VMs that the lists of a Cluster show.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The Cluster.
    pub scope: Scope,
    /// When the first list was asked for.
    pub asked: Instant,
    /// Each VM once.
    pub vms: Vec<ListedMachine>,
    /// The class in whose list a VM was.
    pub classes: HashMap<ProviderId, Class>,
    /// Why a list is missing, for each that is: what the others lack may be in it.
    pub failures: Vec<String>,
}

impl Shown {
    /// Whether no list is missing.
    pub fn is_complete(&self) -> bool {
        self.failures.is_empty()
    }
}

/// Makes the lists of a Cluster. One class that fails must not keep the others from being looked at (CTL-LM-03).
pub async fn lists(client: &Client, provider: &Provider, watched: &Watched) -> Shown {
    let mut shown = Shown {
        scope: watched.scope.clone(),
        asked: Instant::now(),
        vms: Vec::new(),
        classes: HashMap::new(),
        failures: Vec::new(),
    };
    let namespace = &watched.scope.cluster.namespace;
    for class in &watched.classes {
        // A turn for each: others get theirs in between.
        let turn = provider.turn(Share::Upkeep, LINE).await;
        let secret = class.secret.as_deref();
        match listing::list(client, &turn, namespace, secret, &class.spec).await {
            Ok(vms) => {
                for vm in &vms {
                    let known = shown.classes.entry(vm.provider_id.clone());
                    known.or_insert_with(|| class.clone());
                }
                shown.vms.extend(vms);
            }
            Err(Unlisted::NotOffered) => {}
            Err(Unlisted::Failed(why)) => shown.failures.push(why),
        }
    }
    shown.vms = each_once(std::mem::take(&mut shown.vms));
    shown
}
