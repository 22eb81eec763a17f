//! VMs that may be left behind.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use cmi_driver::ProviderId;

/// A VM that may be left behind, and why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Leftover {
    /// The reason why it may exist.
    pub reason: String,
    /// The VM's cluster; `None` if the leftover is not about a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The machine's name; `None` for all VMs of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// The VM's id, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
}

impl Leftover {
    /// Returns the leftover VM of a machine.
    pub fn of(cluster: &str, machine: &str, id: Option<&ProviderId>, reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            cluster: Some(cluster.to_owned()),
            machine: Some(machine.to_owned()),
            provider_id: id.map(ToString::to_string),
        }
    }

    /// Returns the leftover VMs of a whole cluster.
    pub fn cluster(cluster: &str, reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            cluster: Some(cluster.to_owned()),
            machine: None,
            provider_id: None,
        }
    }

    /// Returns the leftover of a back end that is not as it was before.
    pub fn back_end(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            cluster: None,
            machine: None,
            provider_id: None,
        }
    }

    /// Returns a description of the VM.
    fn subject(&self) -> String {
        let id = self
            .provider_id
            .as_ref()
            .map(|id| format!(" ({id})"))
            .unwrap_or_default();
        match (&self.cluster, &self.machine) {
            (Some(cluster), Some(machine)) => format!("`{machine}` of cluster `{cluster}`{id}"),
            (Some(cluster), None) => format!("whatever cluster `{cluster}` has"),
            (None, _) => "the back end".to_owned(),
        }
    }
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject(), self.reason)
    }
}

/// Returns one line for each reason, with all remaining VMs for it.
pub fn lines(leftovers: &[Leftover]) -> Vec<String> {
    let mut by_reason: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for leftover in leftovers {
        by_reason
            .entry(&leftover.reason)
            .or_default()
            .push(leftover.subject());
    }
    let line = |(reason, subjects): (&str, Vec<String>)| match subjects.as_slice() {
        [one] => format!("left behind: {one}: {reason}"),
        several => format!("left behind, {}: {reason}: {}", several.len(), several.join(", ")),
    };
    by_reason.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_for_one_reason_is_one_line_that_names_all_of_it() {
        let id = "test://b".parse().unwrap();
        let left = [
            Leftover::of("c", "a", None, "the driver is gone"),
            Leftover::of("c", "b", Some(&id), "the driver is gone"),
            Leftover::cluster("d", "ListMachines answered Internal"),
        ];
        let lines = lines(&left);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(
            lines[1].contains("`a` of cluster `c`") && lines[1].contains("(test://b)"),
            "{lines:?}"
        );
    }
}
