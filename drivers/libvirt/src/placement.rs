//! Chooses the host of a machine.

mod reservations;

use std::cmp::Reverse;

use cmi_driver::{Code, Result, Status};
use uuid::Uuid;

pub use reservations::{FreeMemory, Held, Reservations};

/// A host for the machine, and its memory that belongs to no domain, MiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The host's name.
    pub host: String,
    /// The memory that is free for machines.
    pub free_mib: u64,
}

/// Chooses the host with the most free memory among those with enough.
///
/// Free memory is compared by powers of two of the machine's memory. A hash of machine and host orders hosts
/// with about equal memory, and spreads machines over them. Two processes that place the same machine
/// therefore usually choose the same host, even if they see slightly different amounts. Only a returned
/// placement record guarantees it.
///
/// # Errors
/// RESOURCE_EXHAUSTED when no host has enough.
fn choose(mut candidates: Vec<Candidate>, needed_mib: u64, machine: Uuid) -> Result<String> {
    // `None` if the machine does not fit.
    let room = |candidate: &Candidate| (candidate.free_mib / needed_mib.max(1)).checked_ilog2();
    let fit = candidates
        .iter()
        .filter_map(|candidate| Some((candidate, room(candidate)?)));
    let order = |host: &str| Uuid::new_v5(&machine, host.as_bytes());
    if let Some((first, _)) = fit.min_by_key(|(candidate, room)| (Reverse(*room), order(&candidate.host))) {
        return Ok(first.host.clone());
    }
    candidates.sort_by(|a, b| b.free_mib.cmp(&a.free_mib).then_with(|| a.host.cmp(&b.host)));
    let free: Vec<_> = candidates
        .iter()
        .map(|candidate| format!("{} {} MiB", candidate.host, candidate.free_mib))
        .collect();
    Err(Status::new(
        Code::ResourceExhausted,
        format!("no host has {needed_mib} MiB of free memory: {}", free.join(", ")),
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
    fn among_similar_hosts_placement_is_stable_and_machines_are_spread() {
        let mut placed = BTreeMap::new();
        for machine in 0..100 {
            let machine = Uuid::from_u128(machine);
            let place = |free: &[(&str, u64)]| choose(candidates(free), 1, machine).unwrap();
            let first = place(&[("a", 8), ("b", 15), ("c", 11)]);
            assert_eq!(place(&[("c", 9), ("a", 14), ("b", 8)]), first);
            *placed.entry(first).or_insert(0) += 1;
        }
        assert!(
            placed.len() == 3 && placed.values().all(|count| *count > 20),
            "{placed:?}"
        );
    }

    #[test]
    fn a_host_with_far_more_memory_is_chosen() {
        for machine in 0..20 {
            let machine = Uuid::from_u128(machine);
            let free = candidates(&[("a", 7_000), ("b", 64_000), ("c", 16_000)]);
            assert_eq!(choose(free, 2_000, machine).unwrap(), "b");
        }
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
    fn without_enough_memory_the_error_lists_the_free_memory_of_hosts() {
        let status = choose(candidates(&[("a", 1), ("b", 3)]), 4, Uuid::nil()).unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(status.message().contains("b 3 MiB, a 1 MiB"), "{status}");
    }
}
