//! The classes of deleted machines.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use super::scope::RetainedClass;
use crate::caches::NamespacedName;

/// The most classes that are remembered of a Cluster.
const MAX_PER_CLUSTER: usize = 32;
/// The most bytes that are remembered of all Clusters.
const MAX_BYTES: usize = 8 * 1024 * 1024;
/// What a class costs beside its provider spec.
const BESIDE: usize = 1024;
/// The number of scans in a row that have to find that the list can't be made: a Secret that is replaced is
/// away for a moment.
const MAX_FAILURES: u8 = 2;

/// The classes of deleted machines, as many of each Cluster as there is room for.
///
/// # Guarantees
/// * The classes of one Cluster do not push out those of another, as long as there is room for both. Where
///   there is not, classes of the namespace that holds the most are forgotten: a tenant with many classes
///   loses its own.
/// * A class whose list can't be made is forgotten, and kept again when another machine of it is deleted.
#[derive(Debug, Default)]
pub(super) struct RetainedClasses {
    /// The oldest first.
    by_cluster: BTreeMap<NamespacedName, VecDeque<Entry>>,
    bytes: usize,
    count: u64,
}

#[derive(Debug)]
struct Entry {
    class: RetainedClass,
    /// Counts up: the higher, the later.
    seen: u64,
    /// Scans in a row that found that the list can't be made.
    failures: u8,
}

impl Entry {
    fn bytes(&self) -> usize {
        self.class.class.spec.len() + BESIDE
    }
}

impl RetainedClasses {
    /// Remembers a class: the last to be seen is the last of its Cluster to be forgotten.
    pub fn insert(&mut self, class: RetainedClass) {
        self.forget(&class);
        self.count += 1;
        let cluster = class.cluster.clone();
        let entry = Entry {
            class,
            seen: self.count,
            failures: 0,
        };
        self.bytes += entry.bytes();
        let of_cluster = self.by_cluster.entry(cluster.clone()).or_default();
        of_cluster.push_back(entry);
        if of_cluster.len() > MAX_PER_CLUSTER {
            self.forget_oldest(&cluster);
        }
        while self.bytes > MAX_BYTES
            && let Some(cluster) = self.largest()
        {
            self.forget_oldest(&cluster);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &RetainedClass> {
        self.by_cluster.values().flatten().map(|entry| &entry.class)
    }

    /// Records that the list of a class was made.
    pub fn listed(&mut self, class: &RetainedClass) {
        if let Some(entry) = self.find(class) {
            entry.failures = 0;
        }
    }

    /// Records that the list of a class can't be made. Returns whether that was so often enough, and the
    /// class is forgotten.
    pub fn unlistable(&mut self, class: &RetainedClass) -> bool {
        let Some(entry) = self.find(class) else {
            return false;
        };
        entry.failures += 1;
        let is_over = entry.failures >= MAX_FAILURES;
        if is_over {
            self.forget(class);
        }
        is_over
    }

    fn find(&mut self, class: &RetainedClass) -> Option<&mut Entry> {
        let of_cluster = self.by_cluster.get_mut(&class.cluster)?;
        of_cluster.iter_mut().find(|entry| entry.class == *class)
    }

    fn forget(&mut self, class: &RetainedClass) {
        let index = |of_cluster: &VecDeque<Entry>| of_cluster.iter().position(|entry| entry.class == *class);
        if let Some(index) = self.by_cluster.get(&class.cluster).and_then(index) {
            self.remove(&class.cluster, index);
        }
    }

    fn forget_oldest(&mut self, cluster: &NamespacedName) {
        self.remove(cluster, 0);
    }

    fn remove(&mut self, cluster: &NamespacedName, index: usize) {
        let Some(of_cluster) = self.by_cluster.get_mut(cluster) else {
            return;
        };
        let removed = of_cluster.remove(index);
        self.bytes -= removed.map_or(0, |entry| entry.bytes());
        if of_cluster.is_empty() {
            self.by_cluster.remove(cluster);
        }
    }

    /// The largest Cluster of the namespace that holds the most; of several, the one with the oldest class.
    fn largest(&self) -> Option<NamespacedName> {
        let mut of_namespaces: BTreeMap<&str, usize> = BTreeMap::new();
        let bytes = |of_cluster: &VecDeque<Entry>| of_cluster.iter().map(Entry::bytes).sum::<usize>();
        for (cluster, of_cluster) in &self.by_cluster {
            *of_namespaces.entry(cluster.namespace()).or_default() += bytes(of_cluster);
        }
        let rank = |(cluster, of_cluster): &(&NamespacedName, &VecDeque<Entry>)| {
            let of_namespace = of_namespaces.get(cluster.namespace()).copied();
            let oldest = of_cluster.front().map(|entry| Reverse(entry.seen));
            (of_namespace, bytes(of_cluster), oldest)
        };
        self.by_cluster
            .iter()
            .max_by_key(rank)
            .map(|(cluster, _)| cluster.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listing::ClassRef;

    fn class(namespace: &str, cluster: &str, number: usize, bytes: usize) -> RetainedClass {
        RetainedClass {
            driver: "pool".to_owned(),
            cluster: NamespacedName::new(namespace, cluster),
            class: ClassRef {
                secret: None,
                spec: format!("{number:0>bytes$}"),
            },
        }
    }

    fn has(classes: &RetainedClasses, class: &RetainedClass) -> bool {
        classes.iter().any(|entry| entry == class)
    }

    #[test]
    fn many_classes_of_a_cluster_push_out_the_oldest_of_its_own_and_none_of_another() {
        let mut classes = RetainedClasses::default();
        let other = class("b", "c", 0, 8);
        classes.insert(other.clone());
        for number in 0..5_000 {
            classes.insert(class("a", "c", number, 8));
        }
        assert!(has(&classes, &other));
        assert_eq!(classes.iter().count(), 1 + MAX_PER_CLUSTER);
        assert!(has(&classes, &class("a", "c", 4_999, 8)) && !has(&classes, &class("a", "c", 4_000, 8)));
    }

    #[test]
    fn a_tenant_with_many_clusters_loses_its_own_classes_and_fills_no_memory() {
        let mut classes = RetainedClasses::default();
        let others: Vec<_> = (0..100)
            .map(|number| class(&format!("b{number}"), "c", 0, 300))
            .collect();
        for other in &others {
            classes.insert(other.clone());
        }
        for number in 0..500 {
            classes.insert(class("a", &format!("c{number}"), number, 60_000));
            let bytes: usize = classes.iter().map(|entry| entry.class.spec.len() + BESIDE).sum();
            assert!(bytes == classes.bytes && bytes <= MAX_BYTES, "{bytes}");
        }
        assert!(others.iter().all(|other| has(&classes, other)));
        assert!(has(&classes, &class("a", "c499", 499, 60_000)));
        assert!(!has(&classes, &class("a", "c0", 0, 60_000)), "the oldest goes");
    }

    #[test]
    fn a_class_that_cannot_be_listed_twice_in_a_row_is_forgotten_until_a_machine_of_it_is_deleted_again() {
        let mut classes = RetainedClasses::default();
        let lost = class("a", "c", 0, 8);
        classes.insert(lost.clone());
        assert!(!classes.unlistable(&lost));
        classes.listed(&lost);
        assert!(!classes.unlistable(&lost), "its Secret was replaced");
        assert!(classes.unlistable(&lost) && !has(&classes, &lost));
        assert!(!classes.unlistable(&lost), "it is reported once");
        assert_eq!(classes.bytes, 0);
        classes.insert(lost.clone());
        assert!(has(&classes, &lost));
    }
}
