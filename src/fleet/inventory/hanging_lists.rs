//! Finds the namespaces whose lists hang. Pure.

use std::collections::HashMap;
use std::time::Duration;

/// A list that fails after this long counts as hanging.
const HANGS_AFTER: Duration = Duration::from_secs(10);
/// The most lists of a namespace that may hang in a scan.
const MAX_HANGING: u32 = 3;

/// The lists of one scan that hung, by namespace. If there are too many, the scan skips the other lists of
/// the namespace, so that machines of other namespaces are covered. The order of groups differs in each scan,
/// so no list is skipped for ever.
#[derive(Debug, Default)]
pub struct HangingLists(HashMap<String, u32>);

impl HangingLists {
    /// Records how long a list of this namespace took to fail.
    pub fn record(&mut self, namespace: &str, took: Duration) {
        if took >= HANGS_AFTER {
            *self.0.entry(namespace.to_owned()).or_default() += 1;
        }
    }

    /// Whether no more lists of this namespace are made.
    pub fn are_too_many(&self, namespace: &str) -> bool {
        self.0.get(namespace).is_some_and(|count| *count >= MAX_HANGING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CTL-LM-03: a failing class must not block the others.
    #[test]
    fn only_a_namespace_with_several_hanging_lists_is_skipped() {
        let mut hanging = HangingLists::default();
        for _ in 0..MAX_HANGING {
            assert!(!hanging.are_too_many("a"));
            hanging.record("a", HANGS_AFTER);
            hanging.record("b", Duration::from_secs(1));
        }
        assert!(hanging.are_too_many("a"));
        assert!(!hanging.are_too_many("b") && !hanging.are_too_many("c"));
    }
}
