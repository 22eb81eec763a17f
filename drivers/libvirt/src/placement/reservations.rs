//! Reserves memory for machines that have no domain yet. Many machines are placed and created concurrently,
//! and must not share the same memory.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cmi_driver::Result;
use uuid::Uuid;

use super::{Candidate, choose};

/// How long the memory of a placed machine stays reserved while no call creates it.
const PLACED_FOR: Duration = Duration::from_mins(1);

/// The free memory in a host's answer.
#[derive(Clone, Debug)]
pub struct FreeMemory {
    /// The memory that no domain had, MiB.
    pub free_mib: u64,
    /// The domains that the host counted as used memory.
    pub domains: HashSet<Uuid>,
    /// A time before the request to the host.
    pub asked_at: Instant,
}

/// The reserved memory by machine UUID.
#[derive(Debug, Default)]
pub struct Reservations(Mutex<HashMap<Uuid, Reserved>>);

#[derive(Debug)]
struct Reserved {
    host: String,
    mib: u64,
    /// The end of the reservation: it counts for answers to earlier requests. `None` while the machine is
    /// being created.
    until: Option<Instant>,
}

/// A reservation that lasts while the machine is created. Afterwards its domain counts, or the create has
/// failed.
#[derive(Debug)]
pub struct Held {
    all: Arc<Reservations>,
    machine: Uuid,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(reserved) = self.all.lock().get_mut(&self.machine) {
            reserved.until = Some(Instant::now());
        }
    }
}

impl Reservations {
    /// Places a machine, and reserves its memory for a while.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when no host has enough.
    pub fn place(&self, hosts: Vec<(String, FreeMemory)>, mib: u64, machine: Uuid) -> Result<String> {
        let mut all = self.lock();
        let candidates = hosts.into_iter().map(|(host, memory)| Candidate {
            free_mib: free(&all, &host, &memory, machine),
            host,
        });
        let host = choose(candidates.collect(), mib, machine)?;
        let reserved = Reserved {
            host: host.clone(),
            mib,
            until: Some(Instant::now() + PLACED_FOR),
        };
        all.insert(machine, reserved);
        Ok(host)
    }

    /// Reserves the memory of a machine while it is created.
    ///
    /// # Errors
    /// The free memory in MiB, when it is not enough for the machine.
    pub fn hold(
        self: &Arc<Self>,
        machine: Uuid,
        host: &str,
        mib: u64,
        memory: &FreeMemory,
    ) -> std::result::Result<Held, u64> {
        let mut all = self.lock();
        all.remove(&machine);
        let free = free(&all, host, memory, machine);
        if free < mib {
            return Err(free);
        }
        let reserved = Reserved {
            host: host.to_owned(),
            mib,
            until: None,
        };
        all.insert(machine, reserved);
        Ok(Held {
            all: Arc::clone(self),
            machine,
        })
    }

    /// Drops the reservation of a machine that will not be created.
    pub fn forget(&self, machine: Uuid) {
        self.lock().remove(&machine);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Reserved>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A longer wait for a host's answer is not possible.
        all.retain(|_, reserved| reserved.until.is_none_or(|until| until.elapsed() < PLACED_FOR));
        all
    }
}

/// The host's free memory for a machine, less the reservations of other machines. A machine whose domain is
/// in the host's answer needs no reservation.
fn free(all: &HashMap<Uuid, Reserved>, host: &str, memory: &FreeMemory, machine: Uuid) -> u64 {
    let others = all.iter().filter(|(other, reserved)| {
        **other != machine
            && reserved.host == host
            && !memory.domains.contains(*other)
            && reserved.until.is_none_or(|until| memory.asked_at < until)
    });
    let taken = others.map(|(_, reserved)| reserved.mib).sum();
    memory.free_mib.saturating_sub(taken)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cmi_driver::Code;

    use super::*;

    fn memory(free_mib: u64) -> FreeMemory {
        FreeMemory {
            free_mib,
            domains: HashSet::new(),
            asked_at: Instant::now(),
        }
    }

    /// All of them read the free memory before any domain exists.
    #[test]
    fn machines_that_are_placed_at_once_have_room_where_they_are_placed() {
        let all = Reservations::default();
        let (one, other) = (memory(12), memory(20));
        let mut placed = BTreeMap::new();
        for machine in 0..16 {
            let hosts = vec![("a".to_owned(), one.clone()), ("b".to_owned(), other.clone())];
            let host = all.place(hosts, 2, Uuid::from_u128(machine)).unwrap();
            *placed.entry(host).or_insert(0) += 1;
        }
        assert_eq!(
            placed,
            BTreeMap::from([("a".to_owned(), 6), ("b".to_owned(), 10)])
        );
        let status = all
            .place(vec![("a".to_owned(), one)], 2, Uuid::from_u128(16))
            .unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
    }

    #[test]
    fn memory_is_counted_once_while_a_machine_is_made_and_when_it_is_there() {
        let all = Arc::new(Reservations::default());
        let (first, second) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let before = memory(3);
        let held = all.hold(first, "a", 2, &before).unwrap();
        assert_eq!(all.hold(second, "a", 2, &before).unwrap_err(), 1);
        assert!(all.hold(second, "b", 2, &before).is_ok());
        drop(held);
        // The first answer is older than the domain of the first machine; the second one includes it.
        assert_eq!(all.hold(second, "a", 2, &before).unwrap_err(), 1);
        let with_first = FreeMemory {
            domains: HashSet::from([first]),
            ..before
        };
        assert!(all.hold(second, "a", 3, &with_first).is_ok());
        // A failed create holds no memory in a later answer.
        assert!(all.hold(second, "a", 3, &memory(3)).is_ok());
    }

    #[test]
    fn a_machine_that_was_placed_has_its_own_memory_and_gives_it_back() {
        let all = Arc::new(Reservations::default());
        let (first, second) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let place = |machine| all.place(vec![("a".to_owned(), memory(3))], 2, machine);
        place(first).unwrap();
        place(first).unwrap();
        assert_eq!(place(second).unwrap_err().code(), Code::ResourceExhausted);
        drop(all.hold(first, "a", 2, &memory(3)).unwrap());
        place(second).unwrap();
        all.forget(second);
        place(first).unwrap();
    }
}
