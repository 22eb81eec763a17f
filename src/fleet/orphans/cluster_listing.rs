//! The results of a Cluster's lists.

use std::collections::HashSet;
use std::sync::Arc;

use kube::Client;
use tokio::time::Instant;

use super::owner::Scope;
use super::plan::each_once;
use super::scope::WatchedCluster;
use crate::driver::ConfiguredDriver;
use crate::driver::listing::{self, ClassId, ClassRef, ListError};
use cmi_driver::ListedMachine;

/// The name of a scan in the driver's permit queue.
pub(super) const REQUESTER: &str = "orphans";

/// The VMs in the lists of a Cluster.
#[derive(Clone, Debug)]
pub struct ClusterListing {
    /// The Cluster.
    pub scope: Scope,
    /// When the first list was requested.
    pub requested_at: Instant,
    /// Each VM once, in the order of their ids.
    pub vms: Vec<ListedMachine>,
    /// The class of each VM's list. That list is complete, even if other lists failed.
    pub classes: Vec<Arc<ClassRef>>,
    /// The classes without a current list. A VM that is in no other list may be in theirs.
    pub unknown: HashSet<ClassId>,
    /// The unknown classes whose list needs an operator first, with the cause.
    pub impossible: Vec<(ClassRef, String)>,
    /// Why due lists are missing.
    pub failures: Vec<String>,
}

impl ClusterListing {
    /// The class of the list that has a VM; `None` if the VM is not listed.
    pub fn class_of(&self, provider_id: &str) -> Option<&ClassRef> {
        let place = |vm: &ListedMachine| vm.provider_id.as_str().cmp(provider_id);
        let index = self.vms.binary_search_by(place).ok()?;
        self.classes.get(index).map(|class| &**class)
    }

    fn failed(&mut self, class: ClassId, why: String) {
        self.unknown.insert(class);
        self.failures.push(why);
    }
}

/// Makes the due lists of a Cluster. A failing class must not block the others (CTL-LM-03).
pub async fn lists(
    client: &Client,
    driver: &ConfiguredDriver,
    watched: &WatchedCluster,
    is_due: impl Fn(ClassId) -> bool,
) -> ClusterListing {
    let mut listed = ClusterListing {
        scope: watched.scope.clone(),
        requested_at: Instant::now(),
        vms: Vec::new(),
        classes: Vec::new(),
        unknown: HashSet::new(),
        impossible: Vec::new(),
        failures: Vec::new(),
    };
    let namespace = watched.scope.cluster.namespace();
    let mut found = Vec::new();
    for class in &watched.classes {
        let id = class.id();
        if !is_due(id) {
            listed.unknown.insert(id);
            continue;
        }
        match listing::list(client, driver, REQUESTER, namespace, class).await {
            Ok(vms) => {
                let class = Arc::new(class.clone());
                found.extend(vms.into_iter().map(|vm| (vm, Arc::clone(&class))));
            }
            Err(ListError::NotSupported) => {}
            Err(error) => {
                let why = error.message();
                if error.is_permanent() {
                    listed.impossible.push((class.clone(), why.clone()));
                }
                listed.failed(id, why);
            }
        }
    }
    (listed.vms, listed.classes) = each_once(found).into_iter().unzip();
    listed
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube_fleet::NamespacedName;

    /// An orphan is deleted with the credentials of its class.
    #[test]
    fn a_vm_belongs_to_the_first_class_that_lists_it() {
        let vm = |id: &str| ListedMachine::new(id.parse().unwrap(), "n");
        let class = |spec: &str| {
            Arc::new(ClassRef {
                secret: None,
                spec: spec.to_owned(),
            })
        };
        let (first, second) = (class("first"), class("second"));
        let found = vec![
            (vm("c"), Arc::clone(&first)),
            (vm("a"), Arc::clone(&first)),
            (vm("b"), Arc::clone(&second)),
            (vm("a"), second),
        ];
        let (vms, classes) = each_once(found).into_iter().unzip();
        let listed = ClusterListing {
            scope: Scope {
                cluster: NamespacedName::new("ns", "c"),
                uid: "u".to_owned(),
                cluster_id: "c-1".to_owned(),
            },
            requested_at: Instant::now(),
            vms,
            classes,
            unknown: HashSet::new(),
            impossible: Vec::new(),
            failures: Vec::new(),
        };
        let specs = ["a", "b", "c", "d"].map(|id| listed.class_of(id).map(|class| class.spec.as_str()));
        assert_eq!(specs, [Some("first"), Some("second"), Some("first"), None]);
    }
}
