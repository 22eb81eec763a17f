//! What the lists of a Cluster show.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use kube::Client;

use super::owner::Scope;
use super::plan::each_once;
use super::scope::{Class, ClassId, Watched};
use crate::configured_driver::ConfiguredDriver;
use crate::listing::{self, ListError};
use cmi_driver::{ListedMachine, ProviderId};

/// The key under which a look waits for its permits.
pub(super) const REQUESTER: &str = "orphans";

/// The VMs that the lists of a Cluster show.
#[derive(Clone, Debug)]
pub struct ClusterListing {
    /// The Cluster.
    pub scope: Scope,
    /// When the first list was asked for.
    pub asked: Instant,
    /// Each VM once.
    pub vms: Vec<ListedMachine>,
    /// The class in whose list a VM was: that list is whole, whatever became of others.
    pub classes: HashMap<ProviderId, Class>,
    /// The classes whose list is not known now: nothing follows from it that a VM is in none of the others.
    pub unknown: HashSet<ClassId>,
    /// Those of them whose list can't be made until an operator acts, and why.
    pub impossible: Vec<(Class, String)>,
    /// Why a list is missing that was asked for.
    pub failures: Vec<String>,
}

impl ClusterListing {
    fn failed(&mut self, class: ClassId, why: String) {
        self.unknown.insert(class);
        self.failures.push(why);
    }
}

/// Makes the lists of a Cluster that are due. One class that fails must not keep the others from
/// being looked at (CTL-LM-03).
pub async fn lists(
    client: &Client,
    driver: &ConfiguredDriver,
    watched: &Watched,
    is_due: impl Fn(ClassId) -> bool,
) -> ClusterListing {
    let mut listed = ClusterListing {
        scope: watched.scope.clone(),
        asked: Instant::now(),
        vms: Vec::new(),
        classes: HashMap::new(),
        unknown: HashSet::new(),
        impossible: Vec::new(),
        failures: Vec::new(),
    };
    let namespace = watched.scope.cluster.namespace();
    for class in &watched.classes {
        let id = class.id();
        if !is_due(id) {
            listed.unknown.insert(id);
            continue;
        }
        let secret = class.secret.as_deref();
        match listing::list(client, driver, REQUESTER, namespace, secret, &class.spec).await {
            Ok(vms) => {
                for vm in &vms {
                    let known = listed.classes.entry(vm.provider_id.clone());
                    known.or_insert_with(|| class.clone());
                }
                listed.vms.extend(vms);
            }
            Err(ListError::NotOffered) => {}
            Err(error) => {
                let why = error.message();
                if error.is_permanent() {
                    listed.impossible.push((class.clone(), why.clone()));
                }
                listed.failed(id, why);
            }
        }
    }
    listed.vms = each_once(std::mem::take(&mut listed.vms));
    listed
}
