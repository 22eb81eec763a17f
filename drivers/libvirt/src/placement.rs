//! Which host a machine is placed on.

use cmi_driver::{Code, Result, Status};

/// A host that a machine may be placed on, and the memory that no domain has, MiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its name.
    pub host: String,
    /// The memory that is free for machines.
    pub free_mib: u64,
}

/// The host with the most free memory that has as much as the machine needs. Of two that are alike, the one
/// whose name comes first.
///
/// # Errors
/// RESOURCE_EXHAUSTED when none has as much.
pub fn choose(mut candidates: Vec<Candidate>, needed_mib: u64) -> Result<String> {
    candidates.sort_by(|a, b| b.free_mib.cmp(&a.free_mib).then_with(|| a.host.cmp(&b.host)));
    match candidates.first() {
        Some(first) if first.free_mib >= needed_mib => Ok(first.host.clone()),
        _ => {
            let free: Vec<_> = candidates
                .iter()
                .map(|candidate| format!("{} {} MiB", candidate.host, candidate.free_mib))
                .collect();
            Err(Status::new(
                Code::ResourceExhausted,
                format!(
                    "no host has {needed_mib} MiB of memory free; free are: {}",
                    free.join(", ")
                ),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(free: &[(&str, u64)]) -> Vec<Candidate> {
        free.iter()
            .map(|(host, free_mib)| Candidate {
                host: (*host).to_owned(),
                free_mib: *free_mib,
            })
            .collect()
    }

    #[test]
    fn the_emptiest_host_is_chosen_and_the_first_of_two_that_are_alike() {
        assert_eq!(
            choose(candidates(&[("a", 1), ("b", 3), ("c", 2)]), 1).unwrap(),
            "b"
        );
        assert_eq!(choose(candidates(&[("b", 3), ("a", 3)]), 3).unwrap(), "a");
    }

    /// DRV-CR-08
    #[test]
    fn a_machine_for_which_no_host_has_memory_is_resource_exhausted_with_what_there_is() {
        let status = choose(candidates(&[("a", 1), ("b", 3)]), 4).unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(status.message().contains("b 3 MiB, a 1 MiB"), "{status}");
    }
}
