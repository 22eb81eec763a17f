//! The addresses of running guests on a host, from leases, agents, neighbour tables and static addresses.
//!
//! libvirt lists the leases of a whole network in one call. It queries agents and the ARP table one domain at
//! a time. A list of machines therefore limits these queries. It trusts an answer of a few seconds ago, and
//! does not query an agent that was just silent. It stops querying when its time is over. Until a
//! guest stops, the last answers of its agent and the neighbour tables fill the gaps.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use uuid::Uuid;
use virt::connect::Connect;
use virt::domain::Domain;
use virt::network::Network;

use crate::addresses::{Sightings, merged};
use crate::library::{self, Source};
use crate::neighbours;

/// How long a list uses the answer of an agent without querying it again. The provider lists each class of a
/// cluster separately.
const FRESH: Duration = Duration::from_secs(20);
/// How long a list does not query an agent that did not answer.
const QUIET: Duration = Duration::from_mins(10);
/// How long a list may take for the queries of agents on a host.
const LIST_BUDGET: Duration = Duration::from_secs(10);
/// An agent that fails only after this time is frozen. A missing agent fails immediately.
const FROZEN: Duration = Duration::from_secs(1);

/// The last known addresses of running guests.
#[derive(Debug, Default)]
pub struct Guests(Mutex<HashMap<Uuid, Known>>);

/// The last answers about a running guest.
#[derive(Clone, Debug, Default)]
struct Known {
    host: String,
    /// libvirt's number of the running domain: another start has another one.
    run: u32,
    agent: Sightings,
    /// When the agent last answered.
    answered: Option<Instant>,
    /// Whether the agent's last query failed.
    is_silent: bool,
    /// When the agent's last query failed, if that took long.
    froze: Option<Instant>,
    arp: Sightings,
    neighbours: Sightings,
}

impl Guests {
    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last answers about this run of a guest.
    fn recall(&self, host: &str, uuid: Uuid, run: u32) -> Known {
        let known = self.lock().get(&uuid).cloned();
        known
            .filter(|known| known.run == run && known.host == host)
            .unwrap_or_else(|| Known {
                host: host.to_owned(),
                run,
                ..Known::default()
            })
    }

    /// Forgets the guests of a host that are not in this set.
    pub fn keep(&self, host: &str, running: &HashSet<Uuid>) {
        self.lock()
            .retain(|uuid, guest| guest.host != host || running.contains(uuid));
    }
}

/// The purpose of a look at guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One machine: its agent is always queried.
    Machine,
    /// All machines of a host: the queries of agents are limited.
    List,
}

/// A running guest.
pub struct RunningGuest<'a> {
    /// Its domain.
    pub domain: &'a Domain,
    /// The UUID of its domain.
    pub uuid: Uuid,
    /// Whether its processors run. The agent of a paused guest cannot answer.
    pub may_answer: bool,
    /// Its static addresses. The seed has them, but the guest may have no cloud-init that applies them.
    pub given: Sightings,
}

/// A look at the guests of a host.
pub struct Look<'a> {
    guests: &'a Guests,
    leases: Sightings,
    neighbours: Sightings,
    scope: Scope,
    /// How long agents have taken to answer.
    spent: Cell<Duration>,
}

impl<'a> Look<'a> {
    /// Reads the leases of all networks of the host, and the neighbours of the driver's own computer.
    pub fn new(connect: &Connect, guests: &'a Guests, scope: Scope) -> Self {
        Self {
            guests,
            leases: leases(connect),
            neighbours: neighbours::sightings().unwrap_or_else(|error| {
                tracing::debug!(%error, "cannot read the table of neighbours");
                Sightings::default()
            }),
            scope,
            spent: Cell::default(),
        }
    }

    /// Returns the addresses of a guest's interfaces. A domain that has stopped has none.
    pub fn addresses(&self, host: &str, guest: &RunningGuest<'_>, macs: &[String]) -> Vec<IpAddr> {
        let Some(run) = guest.domain.get_id() else {
            return Vec::new();
        };
        let mut known = self.guests.recall(host, guest.uuid, run);
        if guest.may_answer && self.is_agent_due(&known, macs, Instant::now()) {
            self.query_agent(guest.domain, macs, &mut known);
        }
        known.note_neighbours(&self.neighbours, macs);
        let is_known = |mac: &String| {
            let sources = [&self.leases, &known.agent, &guest.given, &known.neighbours];
            sources.iter().any(|source| source.has_ipv4(mac))
        };
        if !known.has_answer() && !macs.iter().all(is_known) {
            match library::sightings(guest.domain, Source::Arp) {
                Ok(seen) => known.arp.update(&seen, macs),
                Err(error) => tracing::trace!(%error, "cannot read the ARP table"),
            }
        }
        let found = known.merged_with(&self.leases, &guest.given, macs);
        self.guests.lock().insert(guest.uuid, known);
        found
    }

    /// Whether the look may query the agent of this guest.
    fn is_agent_due(&self, known: &Known, macs: &[String], now: Instant) -> bool {
        match self.scope {
            Scope::Machine => true,
            Scope::List => {
                let is_complete = macs.iter().all(|mac| known.agent.has(mac));
                let is_fresh = is_complete && is_within(known.answered, now, FRESH);
                !is_fresh && !is_within(known.froze, now, QUIET) && self.spent.get() < LIST_BUDGET
            }
        }
    }

    fn query_agent(&self, domain: &Domain, macs: &[String], known: &mut Known) {
        library::bound_agent(domain);
        let began = Instant::now();
        let answer = library::sightings(domain, Source::Agent);
        let took = began.elapsed();
        self.spent.set(self.spent.get() + took);
        match answer {
            Ok(mut seen) => {
                seen.retain(macs);
                known.note_answer(seen, Instant::now());
            }
            // Common: the guest may have no agent.
            Err(error) => {
                tracing::trace!(%error, "the guest agent does not answer");
                known.note_silence(took, Instant::now());
            }
        }
    }
}

impl Known {
    fn note_answer(&mut self, seen: Sightings, now: Instant) {
        self.agent = seen;
        self.answered = Some(now);
        self.froze = None;
        self.is_silent = false;
    }

    fn note_silence(&mut self, took: Duration, now: Instant) {
        self.is_silent = true;
        self.froze = (took >= FROZEN).then_some(now);
    }

    /// Whether the agent answered the last query.
    fn has_answer(&self) -> bool {
        self.answered.is_some() && !self.is_silent
    }

    /// The last entries stay, because the kernel forgets neighbours that are silent for a minute. A virtual
    /// address moves from guest to guest.
    fn note_neighbours(&mut self, table: &Sightings, macs: &[String]) {
        self.neighbours.update(table, macs);
        self.neighbours.drop_moved(table);
    }

    /// A silent agent's last answer may be outdated, so a lease comes before it. A static address comes after
    /// both: a guest that did not apply it shows another one. Neighbour tables come last: an interface also
    /// answers for addresses that are not its machine's, such as those of Services.
    fn merged_with(&self, leases: &Sightings, given: &Sightings, macs: &[String]) -> Vec<IpAddr> {
        let [first, second] = if self.is_silent {
            [leases, &self.agent]
        } else {
            [&self.agent, leases]
        };
        merged(macs, &[first, second, given, &self.neighbours, &self.arp])
    }
}

/// Reads the leases of all active networks of a host. A host without libvirt's network driver has none.
fn leases(connect: &Connect) -> Sightings {
    let networks = connect.list_all_networks(virt_sys::VIR_CONNECT_LIST_NETWORKS_ACTIVE);
    let networks = networks.unwrap_or_else(|error| {
        tracing::debug!(%error, "cannot list the networks of a host: its leases are unknown");
        Vec::new()
    });
    let of_network = |network: &Network| {
        library::leases(network).unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot read the leases of a network");
            Vec::new()
        })
    };
    Sightings::of_leases(networks.iter().flat_map(of_network))
}

fn is_within(time: Option<Instant>, now: Instant, limit: Duration) -> bool {
    time.is_some_and(|time| now.saturating_duration_since(time) < limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: &str = "52:00:00:00:00:0a";

    fn seen(addresses: &[&str]) -> Sightings {
        let mut sightings = Sightings::default();
        for address in addresses {
            sightings.add(MAC, address);
        }
        sightings
    }

    fn shown(known: &Known, leases: &Sightings) -> Vec<String> {
        shown_with(known, leases, &Sightings::default())
    }

    fn shown_with(known: &Known, leases: &Sightings, given: &Sightings) -> Vec<String> {
        let all = known.merged_with(leases, given, &[MAC.to_owned()]).into_iter();
        all.map(|address| address.to_string()).collect()
    }

    #[test]
    fn a_static_address_is_shown_unless_the_guest_has_another() {
        let (mut known, given) = (Known::default(), seen(&["10.0.0.9"]));
        let (none, lease) = (Sightings::default(), seen(&["10.0.0.6"]));
        assert_eq!(shown_with(&known, &none, &given), ["10.0.0.9"]);
        assert_eq!(shown_with(&known, &lease, &given), ["10.0.0.6"]);
        // The second one may be that of a Service.
        known.arp = seen(&["10.0.0.9", "10.0.0.200"]);
        assert_eq!(shown_with(&known, &none, &given), ["10.0.0.9"]);
        known.note_answer(seen(&["10.0.0.5"]), Instant::now());
        assert_eq!(shown_with(&known, &none, &given), ["10.0.0.5"]);
        known.note_answer(seen(&["fd00::5"]), Instant::now());
        assert_eq!(shown_with(&known, &none, &given), ["10.0.0.9", "fd00::5"]);
    }

    #[test]
    fn a_silent_agent_does_not_empty_the_list() {
        let (mut known, now) = (Known::default(), Instant::now());
        let (none, lease) = (Sightings::default(), seen(&["10.0.0.6"]));
        known.note_answer(seen(&["10.0.0.5", "fd00::5"]), now);
        assert_eq!(shown(&known, &lease), ["10.0.0.5", "fd00::5"]);
        for took in [Duration::ZERO, FROZEN * 2] {
            known.note_silence(took, now);
            assert_eq!(shown(&known, &none), ["10.0.0.5", "fd00::5"]);
            assert_eq!(
                shown(&known, &lease),
                ["10.0.0.6", "fd00::5"],
                "the lease is current"
            );
        }
        known.note_answer(none.clone(), now);
        assert_eq!(
            shown(&known, &none),
            Vec::<String>::new(),
            "the guest has no address"
        );
    }

    #[test]
    fn neighbours_stay_until_another_guest_has_their_address() {
        let table = |entries: &[(&str, &str)]| {
            let mut table = Sightings::default();
            for (mac, address) in entries {
                table.add(mac, address);
            }
            table
        };
        let (mut known, macs) = (Known::default(), [MAC.to_owned()]);
        let mut next = |entries: &[(&str, &str)]| {
            known.note_neighbours(&table(entries), &macs);
            shown(&known, &Sightings::default())
        };
        let other = "52:00:00:00:00:0b";
        let first = [
            (MAC, "10.0.0.5"),
            (MAC, "10.0.0.100"),
            (MAC, "fd00::5"),
            (other, "10.0.0.7"),
        ];
        assert_eq!(next(&first), ["10.0.0.5", "10.0.0.100", "fd00::5"]);
        assert_eq!(next(&[]), ["10.0.0.5", "10.0.0.100", "fd00::5"]);
        assert_eq!(next(&[(MAC, "fd00::6")]), ["10.0.0.5", "10.0.0.100", "fd00::6"]);
        assert_eq!(next(&[(other, "10.0.0.100")]), ["10.0.0.5", "fd00::6"]);
        assert_eq!(next(&[(MAC, "10.0.0.6")]), ["10.0.0.6", "fd00::6"]);
    }

    #[test]
    fn answers_about_another_run_or_host_are_forgotten() {
        let (guests, uuid) = (Guests::default(), Uuid::from_u128(1));
        let mut known = guests.recall("host-a", uuid, 7);
        known.note_answer(seen(&["10.0.0.5"]), Instant::now());
        guests.lock().insert(uuid, known);
        let is_known = |host: &str, run: u32| !guests.recall(host, uuid, run).agent.is_empty();
        assert!(is_known("host-a", 7));
        assert!(!is_known("host-a", 8) && !is_known("host-b", 7));
        guests.keep("host-b", &HashSet::new());
        assert!(is_known("host-a", 7));
        guests.keep("host-a", &HashSet::from([uuid]));
        assert!(is_known("host-a", 7));
        guests.keep("host-a", &HashSet::new());
        assert!(!is_known("host-a", 7));
    }

    #[test]
    fn a_list_limits_the_queries_of_agents() {
        let (guests, macs) = (Guests::default(), [MAC.to_owned()]);
        let look = |scope, spent| Look {
            guests: &guests,
            leases: Sightings::default(),
            neighbours: Sightings::default(),
            scope,
            spent: Cell::new(spent),
        };
        let now = Instant::now();
        let (unknown, mut known) = (Known::default(), Known::default());
        let list = look(Scope::List, Duration::ZERO);
        assert!(list.is_agent_due(&unknown, &macs, now));
        known.note_answer(seen(&["10.0.0.5"]), now);
        assert!(!list.is_agent_due(&known, &macs, now));
        assert!(list.is_agent_due(&known, &macs, now + FRESH));
        known.note_answer(Sightings::default(), now);
        assert!(
            list.is_agent_due(&known, &macs, now),
            "an interface has no address yet"
        );
        known.note_silence(Duration::ZERO, now);
        assert!(
            list.is_agent_due(&known, &macs, now),
            "a missing agent costs no time"
        );
        known.note_silence(FROZEN, now);
        assert!(!list.is_agent_due(&known, &macs, now));
        assert!(list.is_agent_due(&known, &macs, now + QUIET));
        let late = look(Scope::List, LIST_BUDGET);
        assert!(!late.is_agent_due(&unknown, &macs, now));
        let machine = look(Scope::Machine, LIST_BUDGET);
        assert!(machine.is_agent_due(&known, &macs, now));
    }
}
