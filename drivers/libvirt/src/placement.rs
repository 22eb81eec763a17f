//! Which host a machine is placed on.

mod reservations;

use cmi_driver::{Code, Result, Status};
use uuid::Uuid;

pub use reservations::{FreeMemory, Held, Reservations};

/// A host that a machine may be placed on, and the memory that no domain has, MiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its name.
    pub host: String,
    /// The memory that is free for machines.
    pub free_mib: u64,
}

/// Of the hosts that have the memory which the machine needs, the one that comes first in an order of the
/// machine's own: two processes that place the same machine agree, and many machines are spread.
///
/// # Errors
/// RESOURCE_EXHAUSTED when none has as much.
fn choose(mut candidates: Vec<Candidate>, needed_mib: u64, machine: Uuid) -> Result<String> {
    let fit = candidates
        .iter()
        .filter(|candidate| candidate.free_mib >= needed_mib);
    if let Some(first) = fit.min_by_key(|candidate| Uuid::new_v5(&machine, candidate.host.as_bytes())) {
        return Ok(first.host.clone());
    }
    candidates.sort_by(|a, b| b.free_mib.cmp(&a.free_mib).then_with(|| a.host.cmp(&b.host)));
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn candidates(free: &[(&str, u64)]) -> Vec<Candidate> {
        free.iter()
            .map(|(host, free_mib)| Candidate {
                host: (*host).to_owned(),
                free_mib: *free_mib,
            })
            .collect()
    }

    /// DRV-10
    #[test]
    fn a_machine_has_its_place_whatever_the_memory_and_many_machines_are_spread() {
        let mut placed = BTreeMap::new();
        for machine in 0..100 {
            let machine = Uuid::from_u128(machine);
            let place = |free: &[(&str, u64)]| choose(candidates(free), 1, machine).unwrap();
            let first = place(&[("a", 1), ("b", 9), ("c", 5)]);
            assert_eq!(place(&[("c", 1), ("a", 7), ("b", 1)]), first);
            *placed.entry(first).or_insert(0) += 1;
        }
        assert!(
            placed.len() == 3 && placed.values().all(|count| *count > 20),
            "{placed:?}"
        );
    }

    #[test]
    fn a_host_without_the_memory_is_not_chosen() {
        for machine in 0..20 {
            let machine = Uuid::from_u128(machine);
            assert_eq!(
                choose(candidates(&[("a", 1), ("b", 3)]), 3, machine).unwrap(),
                "b"
            );
        }
    }

    /// DRV-CR-08
    #[test]
    fn a_machine_for_which_no_host_has_memory_is_resource_exhausted_with_what_there_is() {
        let status = choose(candidates(&[("a", 1), ("b", 3)]), 4, Uuid::nil()).unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(status.message().contains("b 3 MiB, a 1 MiB"), "{status}");
    }
}
