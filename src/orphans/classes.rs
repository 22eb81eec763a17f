//! The classes of machines that ended.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use super::plan::Key;
use super::scope::Class;

/// The most that are remembered of a Cluster.
const MOST_OF_CLUSTER: usize = 32;
/// The most bytes that are remembered of all Clusters.
const MOST_BYTES: usize = 8 * 1024 * 1024;
/// What a class costs beside its provider spec.
const BESIDE: usize = 1024;
/// So many looks in a row have to find that the list can't be made: a Secret that is
/// replaced is away for a moment.
const MOST_FAILURES: u8 = 2;

/// The class of a machine that ended: its list shows the VM that may have been left behind, also when it
/// was the last of its class.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndedClass {
    /// The configured driver.
    pub driver: String,
    /// The Cluster.
    pub cluster: Key,
    /// The class.
    pub class: Class,
}

/// The classes of machines that ended, as many of each Cluster as there is room for.
///
/// # Guarantees
/// * What one Cluster has does not push out what another has, as long as there is room for both. Where there
///   is not, it goes from the namespace that holds the most: a tenant with many classes loses its own.
/// * A class whose list can't be made is forgotten, and remembered again when another machine of it ends.
#[derive(Debug, Default)]
pub(super) struct EndedClasses {
    /// The oldest first.
    known: BTreeMap<Key, VecDeque<Known>>,
    bytes: usize,
    count: u64,
}

#[derive(Debug)]
struct Known {
    class: EndedClass,
    /// Counts up: the higher, the later.
    seen: u64,
    /// Looks in a row that found that the list can't be made.
    failures: u8,
}

impl Known {
    fn bytes(&self) -> usize {
        self.class.class.spec.len() + BESIDE
    }
}

impl EndedClasses {
    /// Remembers a class: the last to be seen is the last of its Cluster to be forgotten.
    pub fn keep(&mut self, class: EndedClass) {
        self.forget(&class);
        self.count += 1;
        let cluster = class.cluster.clone();
        let known = Known {
            class,
            seen: self.count,
            failures: 0,
        };
        self.bytes += known.bytes();
        let of_cluster = self.known.entry(cluster.clone()).or_default();
        of_cluster.push_back(known);
        if of_cluster.len() > MOST_OF_CLUSTER {
            self.forget_oldest(&cluster);
        }
        while self.bytes > MOST_BYTES
            && let Some(cluster) = self.largest()
        {
            self.forget_oldest(&cluster);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &EndedClass> {
        self.known.values().flatten().map(|known| &known.class)
    }

    /// The list of a class was made.
    pub fn listed(&mut self, class: &EndedClass) {
        if let Some(known) = self.find(class) {
            known.failures = 0;
        }
    }

    /// The list of a class can't be made. Whether that was so often enough, and the class is forgotten.
    pub fn unlistable(&mut self, class: &EndedClass) -> bool {
        let Some(known) = self.find(class) else {
            return false;
        };
        known.failures += 1;
        let is_over = known.failures >= MOST_FAILURES;
        if is_over {
            self.forget(class);
        }
        is_over
    }

    fn find(&mut self, class: &EndedClass) -> Option<&mut Known> {
        let of_cluster = self.known.get_mut(&class.cluster)?;
        of_cluster.iter_mut().find(|known| known.class == *class)
    }

    fn forget(&mut self, class: &EndedClass) {
        let index = |of_cluster: &VecDeque<Known>| of_cluster.iter().position(|known| known.class == *class);
        if let Some(index) = self.known.get(&class.cluster).and_then(index) {
            self.remove(&class.cluster, index);
        }
    }

    fn forget_oldest(&mut self, cluster: &Key) {
        self.remove(cluster, 0);
    }

    fn remove(&mut self, cluster: &Key, index: usize) {
        let Some(of_cluster) = self.known.get_mut(cluster) else {
            return;
        };
        let removed = of_cluster.remove(index);
        self.bytes -= removed.map_or(0, |known| known.bytes());
        if of_cluster.is_empty() {
            self.known.remove(cluster);
        }
    }

    /// The Cluster that holds the most of the namespace that holds the most; of several the
    /// one with the oldest class.
    fn largest(&self) -> Option<Key> {
        let mut of_namespaces: BTreeMap<&str, usize> = BTreeMap::new();
        let bytes = |of_cluster: &VecDeque<Known>| of_cluster.iter().map(Known::bytes).sum::<usize>();
        for (cluster, of_cluster) in &self.known {
            *of_namespaces.entry(&cluster.namespace).or_default() += bytes(of_cluster);
        }
        let rank = |(cluster, of_cluster): &(&Key, &VecDeque<Known>)| {
            let of_namespace = of_namespaces.get(cluster.namespace.as_str()).copied();
            let oldest = of_cluster.front().map(|known| Reverse(known.seen));
            (of_namespace, bytes(of_cluster), oldest)
        };
        self.known
            .iter()
            .max_by_key(rank)
            .map(|(cluster, _)| cluster.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(namespace: &str, cluster: &str, number: usize, bytes: usize) -> EndedClass {
        EndedClass {
            driver: "pool".to_owned(),
            cluster: Key {
                namespace: namespace.to_owned(),
                name: cluster.to_owned(),
            },
            class: Class {
                secret: None,
                spec: format!("{number:0>bytes$}"),
            },
        }
    }

    fn has(classes: &EndedClasses, class: &EndedClass) -> bool {
        classes.iter().any(|known| known == class)
    }

    #[test]
    fn many_classes_of_a_cluster_push_out_the_oldest_of_its_own_and_none_of_another() {
        let mut classes = EndedClasses::default();
        let other = class("b", "c", 0, 8);
        classes.keep(other.clone());
        for number in 0..5_000 {
            classes.keep(class("a", "c", number, 8));
        }
        assert!(has(&classes, &other));
        assert_eq!(classes.iter().count(), 1 + MOST_OF_CLUSTER);
        assert!(has(&classes, &class("a", "c", 4_999, 8)) && !has(&classes, &class("a", "c", 4_000, 8)));
    }

    #[test]
    fn a_tenant_with_many_clusters_loses_its_own_classes_and_fills_no_memory() {
        let mut classes = EndedClasses::default();
        let others: Vec<_> = (0..100)
            .map(|number| class(&format!("b{number}"), "c", 0, 300))
            .collect();
        for other in &others {
            classes.keep(other.clone());
        }
        for number in 0..500 {
            classes.keep(class("a", &format!("c{number}"), number, 60_000));
            let bytes: usize = classes.iter().map(|known| known.class.spec.len() + BESIDE).sum();
            assert!(bytes == classes.bytes && bytes <= MOST_BYTES, "{bytes}");
        }
        assert!(others.iter().all(|other| has(&classes, other)));
        assert!(has(&classes, &class("a", "c499", 499, 60_000)));
        assert!(!has(&classes, &class("a", "c0", 0, 60_000)), "the oldest goes");
    }

    #[test]
    fn a_class_that_cannot_be_listed_twice_in_a_row_is_forgotten_until_a_machine_of_it_ends_again() {
        let mut classes = EndedClasses::default();
        let lost = class("a", "c", 0, 8);
        classes.keep(lost.clone());
        assert!(!classes.unlistable(&lost));
        classes.listed(&lost);
        assert!(!classes.unlistable(&lost), "its Secret was replaced");
        assert!(classes.unlistable(&lost) && !has(&classes, &lost));
        assert!(!classes.unlistable(&lost), "it is told once");
        assert_eq!(classes.bytes, 0);
        classes.keep(lost.clone());
        assert!(has(&classes, &lost));
    }
}
