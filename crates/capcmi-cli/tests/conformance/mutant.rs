//! A driver with one flaw, on the cloud of the simulated driver.

mod driver;
mod lifetime;
mod optional_calls;
mod reads;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io::Write as _;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD, Engine as _};
use cmi_driver::{
    Code, ListedMachine, Machine, MachineClass, Operation, ProviderId, Result, Status, USER_DATA, tags,
};
use cmi_simulated::{CloudConsole, Instant, PlantedVm, SimulatedDriver, Vm};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::flaw::{Flaw, Writing};

/// The delay that lets the caller of a flawed call act.
const MOMENT: Duration = Duration::from_millis(20);

pub struct Mutant {
    inner: Arc<SimulatedDriver>,
    console: CloudConsole,
    flaw: Flaw,
    offered: BTreeSet<Operation>,
    turns: AtomicU32,
    running: AtomicU32,
    memory: Mutex<BTreeMap<String, ProviderId>>,
    /// The last list, by cluster.
    listed: Mutex<BTreeMap<String, Vec<ListedMachine>>>,
    /// The number of restarts before the VM of a machine was created.
    ages: Mutex<BTreeMap<String, u64>>,
    /// The permits of its calls.
    workers: Semaphore,
    /// The file that it writes to in addition to the log of calls.
    log: Option<PathBuf>,
}

impl Mutant {
    pub fn new(inner: Arc<SimulatedDriver>, flaw: Flaw) -> Self {
        Self::offering(Operation::ALL, inner, flaw)
    }

    /// Creates a mutant that offers only these optional calls.
    pub fn offering(
        offered: impl IntoIterator<Item = Operation>,
        inner: Arc<SimulatedDriver>,
        flaw: Flaw,
    ) -> Self {
        Self {
            offered: offered.into_iter().collect(),
            console: inner.console(),
            inner,
            flaw,
            turns: AtomicU32::new(0),
            running: AtomicU32::new(0),
            memory: Mutex::default(),
            listed: Mutex::default(),
            ages: Mutex::default(),
            workers: Semaphore::new(match flaw {
                Flaw::RunsAtATime(most) => most.try_into().unwrap(),
                _ => 1,
            }),
            log: None,
        }
    }

    pub fn logging_to(mut self, log: &Path) -> Self {
        self.log = Some(log.to_owned());
        self
    }

    fn logs(&self, line: &str) {
        let mut options = std::fs::OpenOptions::new();
        let log = options.append(true).create(true).open(self.log.as_ref().unwrap());
        writeln!(log.unwrap(), "{line}").unwrap();
    }

    /// Whether the VM of a machine was created before the last restart.
    fn is_old(&self, class: &MachineClass, name: &str) -> bool {
        let made = self.ages.lock().unwrap().get(&key(class, name)).copied();
        made.is_some_and(|made| made < self.inner.restarts())
    }

    /// Records the VM of a machine, if it is new.
    fn is_made(&self, class: &MachineClass, name: &str) {
        let mut ages = self.ages.lock().unwrap();
        ages.entry(key(class, name))
            .or_insert_with(|| self.inner.restarts());
    }

    /// Whether a request has ended the driver, and so all running requests.
    fn is_dead(&self) -> bool {
        self.turns.load(Ordering::SeqCst) > 0
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    /// 0, 1, 2, …
    fn turn(&self) -> u32 {
        self.turns.fetch_add(1, Ordering::SeqCst)
    }

    fn vms(&self, fits: impl Fn(&Vm) -> bool) -> Vec<Vm> {
        self.console.vms().unwrap().into_iter().filter(fits).collect()
    }

    /// Returns the tag with the VM's machine object, if any.
    fn machine_tag(&self, id: &str) -> Option<String> {
        let vms = self.vms(|vm| vm.provider_id() == id);
        vms.first()?.tags.get(tags::MACHINE).cloned()
    }

    /// Whether a VM has such a tag and the caller does not name it.
    fn is_unknown_to(&self, class: &MachineClass, id: Option<&ProviderId>) -> bool {
        let has_tag = id.is_some_and(|id| self.machine_tag(id.as_str()).is_some());
        has_tag && tag(class, tags::MACHINE).is_empty()
    }

    fn plant(&self, class: &MachineClass, name: &str) -> ProviderId {
        let planted = PlantedVm::new(&tag(class, tags::CLUSTER), name, &tag(class, tags::MACHINE));
        self.console.plant(planted).unwrap().parse().unwrap()
    }

    fn vanish(&self, fits: impl Fn(&Vm) -> bool) {
        for vm in self.vms(fits) {
            self.console.vanish(vm.id).unwrap();
        }
    }

    /// Fails the call if the driver is dead.
    async fn lives(&self, name: &str) -> Result<()> {
        match self.flaw {
            Flaw::DiesAfter(calls) if self.turn() > calls => Err(gone()),
            Flaw::DiesOfDots if self.is_dead() => Err(gone()),
            Flaw::DiesOfDots if name.contains('.') => {
                // If possible, at the same time as another request.
                for _ in 0..50 {
                    if self.running.load(Ordering::SeqCst) > 1 {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                self.turns.store(1, Ordering::SeqCst);
                Err(gone())
            }
            _ => Ok(()),
        }
    }

    /// Reacts to a value whose type differs from the type that the driver reads.
    fn takes(&self, operation: Operation, class: &MachineClass) -> Result<()> {
        let holds = |field: &str, what: fn(&Value) -> bool| {
            let value = class.provider_spec.0.get(field);
            value.is_none_or(what)
        };
        match self.flaw {
            Flaw::ChokesOnNull(of) if of == operation && has(class, Value::is_null) => {
                Err(broken("invalid memory address or nil pointer dereference"))
            }
            Flaw::ChokesOnLists(of) if of == operation && has(class, Value::is_array) => {
                Err(Status::new(Code::Unknown, "list object has no attribute strip"))
            }
            Flaw::ChokesOnRootFsSize(of) if of == operation && !holds("rootFsSize", Value::is_number) => {
                Err(broken("unsupported operand type(s) for *"))
            }
            Flaw::ChokesOnFailureDomain(of)
                if of == operation && !holds("failureDomain", Value::is_string) =>
            {
                Err(broken("a zone has no attribute lower"))
            }
            Flaw::ChokesOnTags(of) if of == operation && !all_other_tags(class, Value::is_string) => {
                Err(broken("a tag has no attribute strip"))
            }
            Flaw::ChokesOnUmlauts if !all_other_tags(class, is_ascii) => {
                Err(broken("'ascii' codec can't encode character"))
            }
            _ => Ok(()),
        }
    }

    /// The flaws that every call may have.
    async fn call<T>(
        &self,
        operation: Operation,
        class: &MachineClass,
        name: &str,
        call: impl Future<Output = Result<T>>,
        pretended: impl FnOnce() -> T,
    ) -> Result<T> {
        let at_once = self.running.fetch_add(1, Ordering::SeqCst) > 0;
        let _running = Running(&self.running);
        if !self.offered.contains(&operation) {
            return Err(Status::unimplemented(operation));
        }
        let _worker = match self.flaw {
            Flaw::RunsAtATime(_) => Some(self.workers.acquire().await.unwrap()),
            _ => None,
        };
        self.lives(name).await?;
        self.takes(operation, class)?;
        match self.flaw {
            Flaw::Boasts(of) if of == operation => return Err(Status::unimplemented(operation)),
            Flaw::Hides(of) if of == operation => {}
            Flaw::Wavers(of) if of == operation && !self.turn().is_multiple_of(2) => {
                return Err(Status::unimplemented(operation));
            }
            Flaw::Hangs(of) if of == operation => std::future::pending().await,
            // The hook of a panic would keep the folders of all tests that run beside.
            Flaw::Panics(of) if of == operation => {
                panic::resume_unwind(Box::new("a driver that is not written well"))
            }
            Flaw::LeavesHalf(of) if of == operation => {
                let half = self.plant(class, &format!("{name}-half"));
                tokio::time::sleep(MOMENT).await;
                let result = call.await;
                self.vanish(|vm| vm.provider_id() == half.as_str());
                return result;
            }
            Flaw::FailsAtOnce(of) if of == operation => {
                tokio::time::sleep(MOMENT).await;
                if at_once {
                    return Err(broken("another call is here"));
                }
            }
            Flaw::OnlyOnce(of) if of == operation => {
                let mut memory = self.memory.lock().unwrap();
                let key = format!("{}/{name}", tag(class, tags::CLUSTER));
                if memory.insert(key, "once".parse().unwrap()).is_some() {
                    return Err(broken("that was done before"));
                }
            }
            _ => {}
        }
        let answer = call.await;
        if self.has(Flaw::DiesOfDots) && self.is_dead() {
            return Err(gone());
        }
        let status = match answer {
            Ok(response) => return Ok(response),
            Err(status) => status,
        };
        let code = status.code();
        match self.flaw {
            Flaw::LogsWhenBroken if code == Code::Internal => {
                self.logs(&BASE64_STANDARD.encode(text(class, USER_DATA)));
            }
            Flaw::LogsRefused if code == Code::Unauthenticated => self.logs(&text(class, "token")),
            _ => {}
        }
        Err(match self.flaw {
            Flaw::Says(of, wrong, said) if of == operation && code == wrong => {
                Status::new(said, status.message())
            }
            Flaw::Pretends(of, wrong) if of == operation && code == wrong => return Ok(pretended()),
            Flaw::Mute(of) if of == operation => status.with_message(""),
            Flaw::Parrots(of) if of == operation => status.with_message(code.name()),
            Flaw::SecretInMessage => {
                let said = format!("{}: {}", status.message(), text(class, "token"));
                status.with_message(said)
            }
            Flaw::SecretOfUserData => {
                let data = text(class, USER_DATA);
                let word = data.split([' ', '}']).find(|word| word.starts_with("canary-"));
                let said = format!("{}: {}", status.message(), word.unwrap_or_default());
                status.with_message(said)
            }
            Flaw::SecretWritten(writing) => {
                let said = format!(
                    "{}: {}",
                    status.message(),
                    written(&text(class, USER_DATA), writing)
                );
                status.with_message(said)
            }
            Flaw::SecretEncoded => {
                let said = format!(
                    "{}: {}",
                    status.message(),
                    BASE64_STANDARD.encode(text(class, USER_DATA))
                );
                status.with_message(said)
            }
            _ => status,
        })
    }
}

/// Counts a running call, also if its caller gives up.
struct Running<'a>(&'a AtomicU32);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The lock of a machine. A killed process leaves it behind.
struct Lock<'a> {
    mutant: &'a Mutant,
    key: String,
    restarts: u64,
}

impl<'a> Lock<'a> {
    fn take(mutant: &'a Mutant, key: String) -> Result<Self> {
        let owner = "simulated://zone-a/the-lock".parse().unwrap();
        if mutant.memory.lock().unwrap().insert(key.clone(), owner).is_some() {
            return Err(Status::new(
                Code::Aborted,
                "another call on the machine is under way",
            ));
        }
        let restarts = mutant.inner.restarts();
        Ok(Self {
            mutant,
            key,
            restarts,
        })
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        if self.mutant.inner.restarts() == self.restarts {
            self.mutant.memory.lock().unwrap().remove(&self.key);
        }
    }
}

/// Returns whether all tags except for the cluster's satisfy the predicate.
fn all_other_tags(class: &MachineClass, what: fn(&Value) -> bool) -> bool {
    let tags = class.provider_spec.0.get("tags").and_then(Value::as_object);
    let mut others = tags
        .into_iter()
        .flatten()
        .filter(|(tag, _)| *tag != tags::CLUSTER);
    others.all(|(_, value)| what(value))
}

fn is_ascii(value: &Value) -> bool {
    value.as_str().is_none_or(str::is_ascii)
}

/// A field of the provider spec itself.
fn has(class: &MachineClass, what: fn(&Value) -> bool) -> bool {
    class.provider_spec.0.values().any(what)
}

fn key(class: &MachineClass, name: &str) -> String {
    format!("{}/{name}", tag(class, tags::CLUSTER))
}

fn written(text: &str, writing: Writing) -> String {
    let bytes =
        |write: fn(u8) -> String, between: &str| text.bytes().map(write).collect::<Vec<_>>().join(between);
    match writing {
        Writing::Decimal => format!("[{}]", bytes(|byte| byte.to_string(), " ")),
        Writing::Hexadecimal => bytes(|byte| format!("{byte:02x}"), ""),
        Writing::Capitals => bytes(|byte| format!("{byte:02X}"), ""),
        Writing::PercentEncoded => utf8_percent_encode(text, NON_ALPHANUMERIC).to_string(),
        Writing::Base64Url => BASE64_URL_SAFE_NO_PAD.encode(text),
        Writing::InLines => {
            let encoded = BASE64_URL_SAFE_NO_PAD.encode(text);
            let lines = encoded.as_bytes().chunks(16).map(String::from_utf8_lossy);
            lines.collect::<Vec<_>>().join("\\n")
        }
        Writing::InBase64 => BASE64_STANDARD.encode(format!("{{\"userData\": {text}}}")),
    }
}

fn gone() -> Status {
    Status::new(Code::Unavailable, "no server listens there")
}

fn broken(message: &str) -> Status {
    Status::new(Code::Internal, message)
}

fn tag(class: &MachineClass, name: &str) -> String {
    let tags = class.provider_spec.0.get("tags");
    let value = tags.and_then(|tags| tags.get(name)).and_then(Value::as_str);
    value.unwrap_or_default().to_owned()
}

/// The requested failure domain.
fn zone(class: &MachineClass) -> Option<&str> {
    let zone = class.provider_spec.0.get(tags::FAILURE_DOMAIN);
    zone.and_then(Value::as_str)
}

fn text(class: &MachineClass, key: &str) -> String {
    let value = class.secrets.get(key).map(|value| value.expose().to_vec());
    String::from_utf8(value.unwrap_or_default()).unwrap()
}

/// The id of a VM since the driver was restarted.
fn again(id: &ProviderId) -> ProviderId {
    format!("{id}-again").parse().unwrap()
}

fn machine(vm: &Vm) -> Machine {
    Machine::new(vm.provider_id().parse().unwrap(), &vm.name)
}

fn listed(vm: &Vm) -> ListedMachine {
    vm.listed(Instant::from_millis(0)).unwrap()
}

fn made_up(name: &str) -> Machine {
    Machine::new("simulated://zone-a/made-up".parse().unwrap(), name)
}
