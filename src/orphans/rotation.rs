//! Chooses the lists of a scan where there are more than it may make.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::scope::WatchedCluster;
use crate::caches::NamespacedName;
use crate::listing::ClassId;

/// The most lists of a scan and driver.
pub(super) const MAX_LISTS: usize = 512;

/// Chooses the lists of each scan.
///
/// # Guarantees
/// Each namespace has the same share as long as it has something to list, and each Cluster the same share of
/// that: many classes of one Cluster take longer to be listed, and those of the others do not. The classes
/// that were not listed for longest come first.
#[derive(Debug, Default)]
pub(super) struct Rotation {
    scan: u64,
    /// When each class was listed the last time.
    listed: HashMap<(NamespacedName, ClassId), u64>,
}

impl Rotation {
    /// Returns the lists that this scan makes, at most `most`.
    pub fn next(&mut self, watched: &[WatchedCluster], most: usize) -> HashSet<(NamespacedName, ClassId)> {
        self.scan += 1;
        let mut by_namespace: BTreeMap<&str, Vec<(usize, u64, &NamespacedName, ClassId)>> = BTreeMap::new();
        for watched in watched.iter().filter(|watched| !watched.is_paused) {
            let cluster = &watched.scope.cluster;
            let mut classes: Vec<_> = watched
                .classes
                .iter()
                .map(|class| (self.last(cluster, class.id()), class.id()))
                .collect();
            classes.sort_unstable();
            let ranked = classes.into_iter().enumerate();
            let of_namespace = by_namespace.entry(cluster.namespace()).or_default();
            of_namespace.extend(ranked.map(|(rank, (last, class))| (rank, last, cluster, class)));
        }
        let mut all = Vec::new();
        for mut of_namespace in by_namespace.into_values() {
            of_namespace.sort_unstable();
            let ranked = of_namespace.into_iter().enumerate();
            all.extend(ranked.map(|(rank, (_, last, cluster, class))| (rank, last, cluster, class)));
        }
        all.sort_unstable();
        let is_watched: HashSet<_> = all
            .iter()
            .map(|(_, _, cluster, class)| (*cluster, *class))
            .collect();
        self.listed
            .retain(|(cluster, class), _| is_watched.contains(&(cluster, *class)));
        let next: HashSet<_> = all
            .into_iter()
            .take(most)
            .map(|(_, _, cluster, class)| (cluster.clone(), class))
            .collect();
        let scan = self.scan;
        self.listed.extend(next.iter().map(|list| (list.clone(), scan)));
        next
    }

    fn last(&self, cluster: &NamespacedName, class: ClassId) -> u64 {
        self.listed
            .get(&(cluster.clone(), class))
            .copied()
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::owner::Scope;
    use super::*;
    use crate::listing::ClassRef;

    /// A Cluster with so many classes.
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
    fn a_scan_makes_so_many_lists_and_one_tenant_takes_none_of_another() {
        let all = [
            watched("crowd", "a", 5_000),
            watched("crowd", "b", 1),
            watched("small", "c", 3),
        ];
        let mut rotation = Rotation::default();
        for _ in 0..3 {
            let lists = rotation.next(&all, 100);
            assert_eq!((of(&lists, "small"), of(&lists, "crowd")), (3, 97));
            assert!(lists.iter().any(|(key, _)| key.name() == "b"));
        }
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
