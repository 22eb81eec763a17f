//! Queries all hosts for one machine, and derives the result.
//!
//! A host that does not answer may have the VM. Other hosts need not answer when a ProviderID, a failure
//! domain or a placement record names the host. Otherwise all hosts must answer: a host that is down must not
//! lead to a second VM on another host.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cmi_driver::{Code, Machine, Result, Status};
use futures::future::join_all;
use tokio::time::timeout;
use virt::connect::Connect;

use super::MachineCall;
use crate::connection::Host;
use crate::identity::MachineKey;
use crate::machines::{self, Guests, Observation};

/// How long a call waits for a host that need not answer.
const OPTIONAL_TIMEOUT: Duration = Duration::from_secs(2);

/// The hosts that may have the VM of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PossibleHosts {
    /// Only this host, if any.
    One(String),
    /// Any host.
    All,
}

impl PossibleHosts {
    /// Whether this host may have the VM.
    pub fn contains(&self, host: &str) -> bool {
        match self {
            Self::One(name) => name == host,
            Self::All => true,
        }
    }
}

/// The answers of the hosts.
#[derive(Debug, Default)]
pub struct Survey {
    found: Vec<Found>,
    /// Domains with the machine's name that belong to another machine object.
    others: Vec<String>,
    /// Domains that may be the machine's.
    doubtful: Vec<String>,
    /// The error of a host that may have the VM and did not answer.
    silent: Option<Status>,
}

/// A machine that was found on a host.
#[derive(Clone, Debug)]
pub struct Found {
    /// The host that has it.
    pub host: String,
    /// The machine as the driver contract reports it.
    pub machine: Machine,
    /// Whether the VM was ever started.
    pub started: bool,
}

/// Runs a job on a host, with a short timeout if the host need not answer.
pub async fn query<T: Send + 'static>(
    host: &Arc<Host>,
    required: bool,
    job: impl FnOnce(&Connect) -> Result<T> + Send + 'static,
) -> Result<T> {
    if required {
        return host.run(job).await;
    }
    let asked = timeout(OPTIONAL_TIMEOUT, host.run_unless_down(job)).await;
    asked.unwrap_or_else(|_elapsed| Err(Status::new(Code::Unavailable, "an optional host did not answer")))
}

impl Survey {
    /// Queries all hosts concurrently.
    pub async fn of(
        hosts: &BTreeMap<String, Arc<Host>>,
        guests: &Arc<Guests>,
        key: &MachineKey,
        possible: &PossibleHosts,
    ) -> Self {
        let answers = hosts.iter().map(|(name, host)| {
            let required = possible.contains(name);
            let (key, guests) = (key.clone(), Arc::clone(guests));
            async move {
                let seen = query(host, required, move |connect| {
                    machines::see(connect, &guests, &key)
                });
                (name.clone(), required, seen.await)
            }
        });
        let mut survey = Self::default();
        for (host, required, answer) in join_all(answers).await {
            survey.record(host, required, answer);
        }
        survey
    }

    fn record(&mut self, host: String, required: bool, answer: Result<Observation>) {
        match answer {
            Ok(Observation::Nothing) => {}
            Ok(Observation::Other(what)) => self.others.push(what),
            Ok(Observation::Doubtful(what)) => self.doubtful.push(what),
            Ok(Observation::Ours(machine, started)) => self.found.push(Found {
                host,
                machine: *machine,
                started,
            }),
            Err(status) if required => self.silent = Some(status),
            Err(status) => tracing::debug!(host, %status, "an optional host did not answer"),
        }
    }

    /// Returns the machine's VM.
    ///
    /// # Errors
    /// OUT_OF_RANGE: there are several VMs. FAILED_PRECONDITION: a domain may be the machine's. NOT_FOUND:
    /// every host that may have the VM has answered that it does not exist. In all other cases, the error of
    /// a host that did not answer.
    pub fn one(self, asked: &MachineCall) -> Result<Found> {
        let ids = self.ids();
        let mut found = self.found.into_iter();
        match (found.next(), found.next(), self.doubtful.first(), self.silent) {
            (Some(found), None, _, _) => Ok(found),
            (Some(_), Some(_), _, _) => Err(several(&asked.key, Code::OutOfRange, &ids)),
            (None, _, Some(what), _) => Err(machines::doubtful(&asked.key, what)),
            (None, _, None, Some(status)) => Err(status),
            (None, _, None, None) => Err(asked.not_found()),
        }
    }

    /// Returns the host that already has the machine, or `None` if the machine may be created.
    ///
    /// # Errors
    /// FAILED_PRECONDITION: there are several VMs. ALREADY_EXISTS: a domain belongs to another machine
    /// object, or may be the machine's. In all other cases, the error of a host that may have the VM and did
    /// not answer.
    pub fn for_create(self, key: &MachineKey, possible: &PossibleHosts) -> Result<Option<String>> {
        let ids = self.ids();
        if self.found.len() > 1 {
            return Err(several(key, Code::FailedPrecondition, &ids));
        }
        if let Some(found) = self.found.into_iter().next() {
            return Ok(Some(found.host));
        }
        if let Some(what) = self.others.first().or(self.doubtful.first()) {
            let message = format!("cannot create machine `{}`: there is {what}", key.name);
            return Err(Status::new(Code::AlreadyExists, message));
        }
        let Some(status) = self.silent else {
            return Ok(None);
        };
        if *possible != PossibleHosts::All {
            return Err(status);
        }
        let what = format!(
            "{}: the machine may exist on that host, so it is not created on another one",
            status.message()
        );
        Err(status.with_message(what))
    }

    fn ids(&self) -> String {
        let mut ids: Vec<_> = self
            .found
            .iter()
            .map(|found| format!("{} on host `{}`", found.machine.provider_id, found.host))
            .collect();
        ids.sort();
        ids.join(", ")
    }
}

fn several(key: &MachineKey, code: Code, ids: &str) -> Status {
    Status::new(code, format!("machine `{}` has several VMs: {ids}", key.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Names as _;
    use cmi_driver::{ProviderSpec, tags};

    fn asked() -> MachineCall {
        let spec = serde_json::json!({"vmPool": "p", "size": "s", "tags": {
            tags::CLUSTER: "c", tags::ROLE: "node", tags::MACHINE: "i"
        }});
        let class = cmi_driver::MachineClass {
            provider_spec: serde_json::from_value::<ProviderSpec>(spec).unwrap(),
            ..Default::default()
        };
        MachineCall::read(&cmi_driver::MachineRef::new("m", class), None).unwrap()
    }

    fn machine(host: &str) -> Observation {
        let id = asked().key.vm_id(host).provider_id().unwrap();
        Observation::Ours(Box::new(Machine::new(id, "m")), true)
    }

    fn down() -> Result<Observation> {
        Err(Status::new(Code::Unavailable, "host `b` can't be reached"))
    }

    fn surveyed(answers: Vec<(bool, Result<Observation>)>) -> Survey {
        let mut survey = Survey::default();
        for (required, answer) in answers {
            survey.record("a".to_owned(), required, answer);
        }
        survey
    }

    fn code<T>(answer: Result<T>) -> Option<Code> {
        answer.err().map(|status| status.code())
    }

    /// DRV-30
    #[test]
    fn a_vm_is_not_found_only_when_every_host_that_may_have_it_said_so() {
        for (answers, expected) in [
            (
                vec![(true, Ok(Observation::Nothing)), (true, Ok(Observation::Nothing))],
                Some(Code::NotFound),
            ),
            (
                vec![(true, Ok(Observation::Nothing)), (true, down())],
                Some(Code::Unavailable),
            ),
            (
                vec![(true, Ok(Observation::Nothing)), (false, down())],
                Some(Code::NotFound),
            ),
            (vec![(true, Ok(machine("a"))), (true, down())], None),
            (
                vec![(true, Ok(Observation::Nothing)), (false, Ok(machine("b")))],
                None,
            ),
            (
                vec![(true, Ok(machine("a"))), (true, Ok(machine("b")))],
                Some(Code::OutOfRange),
            ),
            (
                vec![(true, Ok(Observation::Other("x".to_owned())))],
                Some(Code::NotFound),
            ),
            (
                vec![(true, Ok(Observation::Doubtful("x".to_owned())))],
                Some(Code::FailedPrecondition),
            ),
        ] {
            let shown = format!("{answers:?}");
            assert_eq!(code(surveyed(answers).one(&asked())), expected, "{shown}");
        }
    }

    /// DRV-10, DRV-CR-06
    #[test]
    fn a_host_that_is_down_never_leads_to_a_second_vm_elsewhere() {
        let key = asked().key;
        let on = PossibleHosts::One("a".to_owned());
        let any = PossibleHosts::All;
        for (answers, possible, expected) in [
            (
                vec![(true, Ok(Observation::Nothing)), (true, Ok(Observation::Nothing))],
                &any,
                Ok(None),
            ),
            (
                vec![(true, Ok(Observation::Nothing)), (true, down())],
                &any,
                Err(Code::Unavailable),
            ),
            (
                vec![(true, Ok(Observation::Nothing)), (false, down())],
                &on,
                Ok(None),
            ),
            (
                vec![(true, down()), (false, Ok(Observation::Nothing))],
                &on,
                Err(Code::Unavailable),
            ),
            (
                vec![(true, Ok(machine("a"))), (true, down())],
                &any,
                Ok(Some("a".to_owned())),
            ),
            (
                vec![
                    (true, Ok(Observation::Nothing)),
                    (false, Ok(Observation::Other("x".to_owned()))),
                ],
                &on,
                Err(Code::AlreadyExists),
            ),
            (
                vec![(true, Ok(machine("a"))), (true, Ok(machine("b")))],
                &any,
                Err(Code::FailedPrecondition),
            ),
            (
                vec![(true, Ok(Observation::Doubtful("x".to_owned())))],
                &any,
                Err(Code::AlreadyExists),
            ),
        ] {
            let shown = format!("{answers:?} {possible:?}");
            let answer = surveyed(answers).for_create(&key, possible);
            assert_eq!(answer.map_err(|status| status.code()), expected, "{shown}");
        }
    }
}
