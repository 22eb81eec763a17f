//! Chooses the lists of a scan when there are more lists than it may make.

use kube_fleet::NamespacedName;
use std::collections::{HashMap, HashSet};

use super::scope::WatchedCluster;
use crate::driver::listing::ClassId;

/// The most lists of a scan and driver.
pub(super) const MAX_LISTS: usize = 512;

/// Chooses the lists of each scan: the lists that have waited longest come first.
#[derive(Debug, Default)]
pub(super) struct Rotation {
    scan: u64,
    /// The scan that last listed each class.
    listed: HashMap<(NamespacedName, ClassId), u64>,
}

impl Rotation {
    /// Returns the lists of this scan, at most `most`.
    pub fn next(&mut self, watched: &[WatchedCluster], most: usize) -> HashSet<(NamespacedName, ClassId)> {
        self.scan += 1;
        let watched = watched.iter().filter(|watched| !watched.is_paused);
        let mut all: Vec<_> = watched
            .flat_map(|watched| {
                watched
                    .classes
                    .iter()
                    .map(|class| (&watched.scope.cluster, class.id()))
            })
            .map(|(cluster, class)| (cluster.clone(), class))
            .collect();
        let watched: HashSet<_> = all.iter().cloned().collect();
        self.listed.retain(|list, _| watched.contains(list));
        all.sort_by_cached_key(|list| self.listed.get(list).copied().unwrap_or_default());
        let next: HashSet<_> = all.into_iter().take(most).collect();
        self.listed
            .extend(next.iter().map(|list| (list.clone(), self.scan)));
        next
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::owner::Scope;
    use super::*;
    use crate::driver::listing::ClassRef;

    /// A Cluster with this number of classes.
    fn watched(namespace: &str, cluster: &str, classes: usize) -> WatchedCluster {
        let class = |number: usize| ClassRef {
            secret: None,
            spec: format!("{namespace}/{cluster}/{number}"),
        };
        WatchedCluster {
            scope: Scope {
                cluster: NamespacedName::new(namespace, cluster),
                uid: cluster.to_owned(),
                cluster_id: cluster.to_owned(),
            },
            is_paused: false,
            classes: (0..classes).map(class).collect(),
            retained: BTreeSet::new(),
        }
    }

    fn of(lists: &HashSet<(NamespacedName, ClassId)>, namespace: &str) -> usize {
        lists
            .iter()
            .filter(|(key, _)| key.namespace() == namespace)
            .count()
    }

    #[test]
    fn what_a_scan_leaves_out_comes_next() {
        let all = [watched("ns", "a", 7), watched("other", "b", 5)];
        let mut rotation = Rotation::default();
        let mut seen = HashSet::new();
        for _ in 0..3 {
            let lists = rotation.next(&all, 4);
            assert_eq!(lists.len(), 4);
            seen.extend(lists);
        }
        seen.extend(rotation.next(&all, 4));
        assert_eq!(seen.len(), 12);
        let mut paused = all.to_vec();
        paused[0].is_paused = true;
        assert_eq!(of(&rotation.next(&paused, 12), "ns"), 0);
        assert_eq!(
            rotation.listed.len(),
            5,
            "what is not watched any more is forgotten"
        );
    }
}
