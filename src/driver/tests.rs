//! The guard around a driver that follows a script.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::{BoxFuture, join_all};
use serde_json::json;
use tokio::time::{Instant, advance, sleep};

use super::driver_client::NOT_LEADER;
use super::*;
use cmi_driver::{
    Code, CreateMachineRequest, DeclaredCapabilities, DeleteMachineRequest, DeleteMachineResponse,
    GetMachineStatusRequest, Machine, MachineClass, MachineRef, Operation, PluginInfo, ProviderSpec,
    Readiness, SecretValue, SpecSchema, Status,
};

/// The grace period before an outage is reported.
const GRACE: Duration = Duration::from_mins(1);

type Script<T> = Box<dyn Fn() -> BoxFuture<'static, Result<T>> + Send + Sync>;

/// A driver that answers as scripted, and records its calls.
pub(crate) struct FakeDriver {
    pub connection_generation: Arc<AtomicU64>,
    pub capabilities: Arc<Mutex<Result<Capabilities>>>,
    /// The delay of the answer with its capabilities.
    pub takes: Duration,
    pub create: Script<Machine>,
    pub probe: Script<Readiness>,
    pub prepare: Script<()>,
    pub calls: Arc<Mutex<Vec<Operation>>>,
}

impl Default for FakeDriver {
    fn default() -> Self {
        Self {
            connection_generation: Arc::default(),
            capabilities: saying(Ok(Capabilities::minimal())),
            takes: Duration::ZERO,
            create: Box::new(|| Box::pin(async { Ok(machine()) })),
            probe: Box::new(|| Box::pin(async { Ok(Readiness::Ready) })),
            prepare: Box::new(|| Box::pin(async { Ok(()) })),
            calls: Arc::default(),
        }
    }
}

fn saying(answer: Result<Capabilities>) -> Arc<Mutex<Result<Capabilities>>> {
    Arc::new(Mutex::new(answer))
}

impl FakeDriver {
    fn creating<F>(create: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Machine>> + Send + 'static,
    {
        Self {
            create: Box::new(move || Box::pin(create())),
            ..Self::default()
        }
    }

    fn record(&self, operation: Operation) {
        self.calls.lock().unwrap().push(operation);
    }
}

#[async_trait]
impl Driver for FakeDriver {
    fn connection_generation(&self) -> u64 {
        self.connection_generation.load(Ordering::SeqCst)
    }

    async fn get_plugin_info(&self) -> Result<PluginInfo> {
        Err(Status::unimplemented(Operation::GetPluginInfo))
    }

    async fn get_plugin_capabilities(&self) -> Result<DeclaredCapabilities> {
        self.record(Operation::GetPluginCapabilities);
        if !self.takes.is_zero() {
            sleep(self.takes).await;
        }
        match &*self.capabilities.lock().unwrap() {
            Ok(capabilities) => Ok(DeclaredCapabilities {
                capabilities: Arc::new(capabilities.clone()),
                connection_generation: self.connection_generation(),
            }),
            Err(status) => Err(Status::new(status.code(), status.message())),
        }
    }

    async fn probe(&self) -> Result<Readiness> {
        self.record(Operation::Probe);
        (self.probe)().await
    }

    async fn prepare_call(&self, _operation: Operation) -> Result<()> {
        (self.prepare)().await
    }

    async fn create_machine(&self, _request: CreateMachineRequest) -> Result<Machine> {
        self.record(Operation::CreateMachine);
        (self.create)().await
    }

    async fn delete_machine(&self, _request: DeleteMachineRequest) -> Result<DeleteMachineResponse> {
        self.record(Operation::DeleteMachine);
        Ok(DeleteMachineResponse::default())
    }
}

pub(crate) fn configured_driver_with(
    settings: Settings,
    driver: impl Driver + 'static,
    leadership: Leadership,
) -> ConfiguredDriver {
    ConfiguredDriver::new(settings, Arc::new(driver), leadership, Arc::new(Metrics::new()))
}

/// Returns a driver that allows one call at a time.
pub(crate) fn driver_with_one_permit(driver: FakeDriver) -> ConfiguredDriver {
    let limits = Limits {
        max_concurrent_calls: std::num::NonZeroU32::MIN,
        ..Limits::default()
    };
    configured_driver_with(settings(limits), driver, Leadership::unelected())
}

fn settings(limits: Limits) -> Settings {
    Settings {
        credentials: None,
        create_settle_time: None,
        name: "pool".to_owned(),
        namespaces: Namespaces::All,
        limits,
    }
}

/// No permit is reserved for another namespace.
fn of_one_namespace(limits: Limits) -> Settings {
    Settings {
        namespaces: Namespaces::Only(["ns".to_owned()].into()),
        ..settings(limits)
    }
}

/// As [`configured_driver`], with the provider's own credentials.
fn configured_driver_with_credentials(driver: FakeDriver, directory: &std::path::Path) -> ConfiguredDriver {
    let settings = Settings {
        credentials: Some(CredentialsDirectory::new(directory.to_owned())),
        ..settings(Limits::default())
    };
    configured_driver_with(settings, driver, Leadership::unelected())
}

/// The driver `pool`, with default limits.
pub(crate) fn configured_driver(driver: impl Driver + 'static) -> ConfiguredDriver {
    configured_driver_with(settings(Limits::default()), driver, Leadership::unelected())
}

fn machine() -> Machine {
    Machine::new("sim://1".parse().unwrap(), "node")
}

fn class() -> MachineClass {
    MachineClass {
        secrets: [("token".to_owned(), SecretValue::from(b"canary-4711".to_vec()))]
            .into_iter()
            .collect(),
        ..MachineClass::default()
    }
}

fn create() -> CreateMachineRequest {
    CreateMachineRequest {
        machine: MachineRef::new("m", class()),
        last_known_state: None,
    }
}

fn delete() -> DeleteMachineRequest {
    DeleteMachineRequest {
        machine: MachineRef::new("m", class()),
        provider_id: None,
        last_known_state: None,
    }
}

async fn create_in_turn(driver: &ConfiguredDriver) -> Result<Machine> {
    let permit = driver.acquire(Priority::Upkeep, "test").await;
    permit.driver().create_machine(create()).await
}

fn status_of<T: std::fmt::Debug>(answer: Result<T>) -> (Code, String) {
    let status = answer.unwrap_err();
    (status.code(), status.message().to_owned())
}

#[tokio::test]
async fn a_replica_that_does_not_lead_never_reaches_the_driver() {
    let driver = FakeDriver::default();
    let calls = Arc::clone(&driver.calls);
    let driver = configured_driver_with(settings(Limits::default()), driver, Leadership::elected());
    let refused = (Code::Canceled, NOT_LEADER.to_owned());
    assert_eq!(
        status_of(
            driver
                .acquire(Priority::Upkeep, "test")
                .await
                .driver()
                .create_machine(create())
                .await
        ),
        refused
    );
    assert_eq!(
        status_of(
            driver
                .acquire(Priority::Upkeep, "test")
                .await
                .driver()
                .delete_machine(delete())
                .await
        ),
        refused
    );
    assert_eq!(
        status_of(
            driver
                .acquire(Priority::Upkeep, "test")
                .await
                .driver()
                .probe()
                .await
        ),
        refused
    );
    assert_eq!(
        status_of(
            driver
                .acquire(Priority::Upkeep, "test")
                .await
                .fetch_capabilities()
                .await
        ),
        refused
    );
    assert!(calls.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waited_longer_than_the_lease_is_not_made() {
    let leadership = Leadership::elected();
    leadership.renew(Instant::now() + Duration::from_secs(15));
    let limits = Limits {
        calls_per_second: std::num::NonZeroU32::MIN,
        burst: std::num::NonZeroU32::MIN,
        ..Limits::default()
    };
    let driver = configured_driver_with(settings(limits), FakeDriver::default(), leadership);
    let answers = join_all((0..20).map(|_| create_in_turn(&driver))).await;
    let (made, refused) = answers.split_at(15);
    assert!(made.iter().all(Result::is_ok));
    for answer in refused {
        let status = answer.as_ref().unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Canceled, NOT_LEADER));
    }
}

#[tokio::test]
async fn what_the_driver_does_not_offer_is_unimplemented_without_a_round_trip() {
    let driver = FakeDriver::default();
    let calls = Arc::clone(&driver.calls);
    let request = GetMachineStatusRequest {
        machine: MachineRef::new("m", class()),
        provider_id: None,
    };
    let driver = configured_driver(driver);
    let permit = driver.acquire(Priority::Upkeep, "test").await;
    let answer = permit.driver().get_machine_status(request).await;
    assert_eq!(answer.unwrap_err().code(), Code::Unimplemented);
    assert_eq!(*calls.lock().unwrap(), [Operation::GetPluginCapabilities]);
}

/// DRV-30: the answer to another call must not lead to a create.
#[tokio::test]
async fn a_driver_with_unknown_capabilities_is_unavailable_and_not_called() {
    let driver = FakeDriver {
        capabilities: saying(Err(Status::new(Code::NotFound, "what?"))),
        ..FakeDriver::default()
    };
    let calls = Arc::clone(&driver.calls);
    let driver = configured_driver(driver);
    let answer = driver
        .acquire(Priority::Upkeep, "test")
        .await
        .driver()
        .create_machine(create())
        .await;
    assert_eq!(answer.unwrap_err().code(), Code::Unavailable);
    assert_eq!(*calls.lock().unwrap(), [Operation::GetPluginCapabilities]);
}

/// No record is written for a create that could not leave this process.
#[tokio::test]
async fn prepare_call_reports_an_unreachable_driver() {
    let driver = configured_driver(FakeDriver {
        prepare: Box::new(|| Box::pin(async { Err(Status::new(Code::Unavailable, "down")) })),
        ..FakeDriver::default()
    });
    let permit = driver.acquire(Priority::Create, "test").await;
    let prepared = permit.driver().prepare_call(Operation::CreateMachine).await;
    assert_eq!(status_of(prepared).0, Code::Unavailable);
}

#[tokio::test]
async fn exhausted_holds_back_creates_of_the_class_but_no_delete() {
    let driver = FakeDriver::creating(|| async { Err(Status::new(Code::ResourceExhausted, "full")) });
    let calls = Arc::clone(&driver.calls);
    let driver = configured_driver(driver);
    let permit = driver.acquire(Priority::Create, "test").await;
    let admit = || permit.admit_create_or_wait(&create().machine.class, "u", false, Waker::new(|| {}));
    let answer = permit.driver().create_machine(create()).await;
    admit().unwrap().record(&answer);
    assert!(admit().is_none());
    permit.driver().delete_machine(delete()).await.unwrap();
    let asked = calls.lock().unwrap().clone();
    assert_eq!(
        asked,
        [
            Operation::GetPluginCapabilities,
            Operation::CreateMachine,
            Operation::DeleteMachine
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn no_more_calls_run_at_once_than_the_cap_allows() {
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    let driver = FakeDriver::creating(move || {
        let (running, most) = (Arc::clone(&running), Arc::clone(&most));
        async move {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            sleep(Duration::from_secs(1)).await;
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(machine())
        }
    });
    let limits = Limits {
        max_concurrent_calls: std::num::NonZeroU32::new(4).unwrap(),
        ..Limits::default()
    };
    let driver = configured_driver_with(of_one_namespace(limits), driver, Leadership::unelected());
    let driver = &driver;
    let answers = join_all((0..20).map(async |n| {
        let permit = driver.acquire(Priority::Upkeep, &n.to_string()).await;
        permit.driver().create_machine(create()).await
    }))
    .await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(seen.load(Ordering::SeqCst), 4);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_takes_too_long_is_dropped_and_its_slot_is_free_again() {
    let driver = driver_with_one_permit(FakeDriver::creating(std::future::pending));
    let (code, message) = status_of(
        driver
            .acquire(Priority::Upkeep, "test")
            .await
            .driver()
            .create_machine(create())
            .await,
    );
    assert_eq!(code, Code::DeadlineExceeded);
    assert_eq!(message, "the driver did not answer CreateMachine within 600 s");
    driver
        .acquire(Priority::Upkeep, "test")
        .await
        .driver()
        .delete_machine(delete())
        .await
        .unwrap();
}

/// A deletion that knows only the record counts the create as abandoned by then.
#[tokio::test(start_paused = true)]
async fn a_create_delayed_by_the_rate_limit_gets_its_whole_timeout() {
    const PERMITS: u32 = 300;
    let limits = Limits {
        max_concurrent_calls: std::num::NonZeroU32::new(PERMITS).unwrap(),
        calls_per_second: std::num::NonZeroU32::MIN,
        burst: std::num::NonZeroU32::MIN,
        ..Limits::default()
    };
    let timeout = limits.timeouts.of(Operation::CreateMachine);
    let driver = FakeDriver::creating(std::future::pending);
    let driver = configured_driver_with(of_one_namespace(limits), driver, Leadership::unelected());
    let driver = &driver;
    let given_up = join_all((0..PERMITS).map(async |n| {
        let permit = driver.acquire(Priority::Upkeep, &n.to_string()).await;
        let noted = Instant::now();
        let create = permit.driver().create_machine(create());
        let (code, _) = status_of(driver.give_up_in_time(noted, create).await);
        assert_eq!(code, Code::DeadlineExceeded);
        noted.elapsed()
    }))
    .await;
    let last = given_up.into_iter().max().unwrap();
    let DriverState::Known(known) = driver.state("test", Waker::new(|| {})).await else {
        panic!("it has said what it can do");
    };
    let waited = Duration::from_secs(u64::from(PERMITS) - 1);
    assert!(last >= waited + timeout, "{last:?}");
    assert!(last <= known.create_given_up_after, "{last:?}");
}

#[test]
fn create_waits_for_at_most_one_call_of_each_permit() {
    let limits = Limits {
        max_concurrent_calls: std::num::NonZeroU32::new(30).unwrap(),
        calls_per_second: std::num::NonZeroU32::new(5).unwrap(),
        ..Limits::default()
    };
    let timeout = limits.timeouts.of(Operation::CreateMachine);
    let in_turn = Duration::from_secs(6);
    assert_eq!(
        limits.create_given_up_after(),
        Duration::from_mins(1) + in_turn + timeout
    );
}

/// The API server takes long to write the record, and the process was suspended.
#[tokio::test(start_paused = true)]
async fn a_delayed_create_times_out_and_is_not_sent_later() {
    let longest = Limits::default().create_given_up_after();
    let driver = FakeDriver::creating(std::future::pending);
    let calls = Arc::clone(&driver.calls);
    let driver = configured_driver(driver);
    let permit = driver.acquire(Priority::Upkeep, "test").await;
    let noted = Instant::now();
    let create = || driver.give_up_in_time(noted, permit.driver().create_machine(create()));
    advance(longest.saturating_sub(Duration::from_secs(1))).await;
    let given_up = create().await.unwrap_err();
    assert_eq!(given_up.code(), Code::DeadlineExceeded);
    assert!(!given_up.is_never_sent() && noted.elapsed() == longest);
    let sent = calls.lock().unwrap().clone();
    assert_eq!(sent, [Operation::GetPluginCapabilities, Operation::CreateMachine]);
    let not_sent = create().await.unwrap_err();
    assert!(not_sent.is_never_sent());
    assert_eq!(*calls.lock().unwrap(), sent);
}

#[tokio::test]
async fn a_driver_that_panics_is_internal_for_that_call_and_no_more() {
    let driver = FakeDriver::creating(|| async { panic!("lost canary-4711") });
    let driver = configured_driver(driver);
    let (code, message) = status_of(
        driver
            .acquire(Priority::Upkeep, "test")
            .await
            .driver()
            .create_machine(create())
            .await,
    );
    assert_eq!(code, Code::Internal);
    assert_eq!(message, "the driver panicked in CreateMachine; see its log");
    driver
        .acquire(Priority::Upkeep, "test")
        .await
        .driver()
        .delete_machine(delete())
        .await
        .unwrap();
}

/// OPS-11: this includes the provider's own credentials, even if the call carries none.
#[tokio::test]
async fn the_providers_own_credentials_are_in_no_message() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("token"), "magpie-0815").unwrap();
    let driver = FakeDriver::creating(|| async { Err(Status::new(Code::Unauthenticated, "no magpie-0815")) });
    let driver = configured_driver_with_credentials(driver, directory.path());
    let permit = driver.acquire(Priority::Create, "test").await;
    let (_, message) = status_of(permit.driver().create_machine(create()).await);
    assert_eq!(message, "no [redacted]");
}

#[tokio::test]
async fn secrets_that_a_driver_echoes_are_in_neither_message_nor_source() {
    let driver = FakeDriver::creating(|| async {
        Err(Status::new(Code::Unauthenticated, "no canary-4711").with_source("bad canary-4711"))
    });
    let driver = configured_driver(driver);
    let status = driver
        .acquire(Priority::Create, "test")
        .await
        .driver()
        .create_machine(create())
        .await
        .unwrap_err();
    let shown = format!("{status} {status:?}") + &format!("{:?}", anyhow::Error::from(status));
    assert!(
        !shown.contains("canary") && shown.contains("bad [redacted]"),
        "{shown}"
    );
}

#[tokio::test]
async fn a_driver_that_was_asked_is_known_by_the_schema_that_it_publishes() {
    let mut capabilities = Capabilities::minimal();
    capabilities.provider_spec_schema = Some(SpecSchema::new(json!({"required": ["vmPool"]})));
    let driver = configured_driver(FakeDriver {
        capabilities: saying(Ok(capabilities)),
        ..FakeDriver::default()
    });
    let DriverState::Known(known) = driver.state("m", Waker::new(|| {})).await else {
        panic!("the driver was asked");
    };
    let status = known
        .capabilities
        .check_spec(&ProviderSpec::default())
        .unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}

/// How often a driver is asked for its capabilities.
fn capabilities_asked(driver: &FakeDriver) -> impl Fn() -> usize + use<> {
    let calls = Arc::clone(&driver.calls);
    move || {
        let calls = calls.lock().unwrap();
        let asked = calls.iter().filter(|op| **op == Operation::GetPluginCapabilities);
        asked.count()
    }
}

/// A driver that is probed, and has answered.
async fn reachable(driver: FakeDriver) -> (Arc<ConfiguredDriver>, watch::Receiver<Reachability>) {
    let driver = Arc::new(configured_driver(driver));
    let mut reachability = driver.reachability();
    assert_eq!(*reachability.borrow(), Reachability::Unsettled);
    let prober = Arc::clone(&driver);
    tokio::spawn(async move { prober.run(GRACE).await });
    reachability
        .wait_for(|r| *r == Reachability::Reachable)
        .await
        .unwrap();
    (driver, reachability)
}

#[tokio::test(start_paused = true)]
async fn probes_report_outages_and_the_capabilities_are_read_again() {
    let up = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let is_up = Arc::clone(&up);
    let driver = FakeDriver {
        probe: Box::new(move || {
            let up = is_up.load(Ordering::SeqCst);
            Box::pin(async move {
                if up {
                    Ok(Readiness::Ready)
                } else {
                    Err(Status::new(Code::Unavailable, "no route"))
                }
            })
        }),
        ..FakeDriver::default()
    };
    let generation = Arc::clone(&driver.connection_generation);
    let asked = capabilities_asked(&driver);
    let (_driver, mut reachability) = reachable(driver).await;
    assert_eq!(asked(), 1);
    up.store(false, Ordering::SeqCst);
    reachability
        .wait_for(|r| *r == Reachability::Unreachable("no route".into()))
        .await
        .unwrap();
    up.store(true, Ordering::SeqCst);
    generation.store(1, Ordering::SeqCst);
    reachability
        .wait_for(|r| *r == Reachability::Reachable)
        .await
        .unwrap();
    assert_eq!(asked(), 2);
    advance(Duration::from_mins(1)).await;
    assert_eq!(asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn only_lasting_outages_and_recoveries_are_reported() {
    let lost = Arc::new(Mutex::new(None));
    let why = Arc::clone(&lost);
    let driver = FakeDriver {
        probe: Box::new(move || {
            let why: Option<&str> = *why.lock().unwrap();
            let answer = why.map_or(Ok(Readiness::Ready), |why| {
                Err(Status::new(Code::Unavailable, why))
            });
            Box::pin(async { answer })
        }),
        ..FakeDriver::default()
    };
    let driver = Arc::new(configured_driver(driver));
    let stable = driver.stable_reachability();
    tokio::spawn(async move { driver.run(GRACE).await });
    let after = async |state: Option<&'static str>, time: Duration| {
        *lost.lock().unwrap() = state;
        sleep(time).await;
        stable.borrow().clone()
    };
    assert_eq!(after(None, GRACE / 2).await, Reachability::Unsettled);
    assert_eq!(after(None, GRACE).await, Reachability::Reachable);
    // A plugin that restarts repeatedly.
    for _ in 0..10 {
        let lost = after(Some("restarting"), GRACE * 8 / 10).await;
        assert_eq!(lost, Reachability::Reachable);
        assert_eq!(after(None, GRACE / 5).await, Reachability::Reachable);
    }
    assert_eq!(after(Some("refused"), GRACE / 2).await, Reachability::Reachable);
    let timed_out = Reachability::Unreachable("timed out".into());
    let same = after(Some("timed out"), GRACE).await;
    assert_eq!(same, timed_out, "for another reason it is the same outage");
    let again = after(Some("refused"), GRACE * 2).await;
    assert_eq!(again, timed_out, "it is reported once");
    assert_eq!(after(None, GRACE / 2).await, timed_out);
    assert_eq!(after(None, GRACE).await, Reachability::Reachable);
}

/// A driver that hangs on every call holds only its permits, and hanging creates block no deletion.
#[tokio::test(start_paused = true)]
async fn creates_that_hang_leave_permits_for_deletions_and_a_waiter_is_woken() {
    let limits = Limits {
        max_concurrent_calls: std::num::NonZeroU32::new(4).unwrap(),
        ..Limits::default()
    };
    let driver = FakeDriver::creating(std::future::pending);
    let driver = configured_driver_with(of_one_namespace(limits), driver, Leadership::unelected());
    let woken = Arc::new(AtomicUsize::new(0));
    let permit = |priority, key: &str| {
        let woken = Arc::clone(&woken);
        driver.try_acquire(
            priority,
            key,
            "ns",
            Waker::new(move || {
                woken.fetch_add(1, Ordering::SeqCst);
            }),
        )
    };
    let creating: Vec<_> = (0..4)
        .filter_map(|n| permit(Priority::Create, &format!("create-{n}")))
        .collect();
    assert_eq!(creating.len(), 3);
    let hanging = join_all(
        creating
            .iter()
            .map(|permit| permit.driver().create_machine(create())),
    );
    let deleted = async {
        let permit = permit(Priority::Upkeep, "delete").unwrap();
        permit.driver().delete_machine(delete()).await
    };
    tokio::select! {
        _ = hanging => panic!("a create that hangs does not answer"),
        deleted = deleted => assert!(deleted.is_ok()),
    }
    assert_eq!(
        woken.load(Ordering::SeqCst),
        0,
        "the permit of the deletion is no permit for a create"
    );
    drop(creating);
    assert_eq!(
        woken.load(Ordering::SeqCst),
        1,
        "the fourth create is woken, once"
    );
}

/// Most look-ups lead to a create.
#[tokio::test]
async fn look_up_permit_serves_a_create_if_one_is_left_for_deletions() {
    let limits = Limits {
        max_concurrent_calls: std::num::NonZeroU32::new(2).unwrap(),
        ..Limits::default()
    };
    let settings = of_one_namespace(limits);
    let driver = configured_driver_with(settings, FakeDriver::default(), Leadership::unelected());
    let permit = |key: &str| {
        driver
            .try_acquire(Priority::Upkeep, key, "ns", Waker::new(|| {}))
            .unwrap()
    };
    let (mut first, mut second) = (permit("first"), permit("second"));
    assert!(first.may_create("first", Waker::new(|| {})));
    assert!(first.may_create("first", Waker::new(|| {})), "from now on");
    assert!(
        !second.may_create("second", Waker::new(|| {})),
        "it is the one for deletions"
    );
    drop(first);
    assert!(second.may_create("second", Waker::new(|| {})));
}

/// An object without a finalizer may be deleted while its reconcile is on the way to the queue: no reconcile
/// of it follows. A machine that has published its wait is not woken again for that.
#[tokio::test(start_paused = true)]
async fn an_unclaimed_permit_goes_to_the_next_waiter() {
    let driver = driver_with_one_permit(FakeDriver::default());
    let held = driver.acquire(Priority::Upkeep, "first").await;
    assert!(
        driver
            .try_acquire(Priority::Upkeep, "gone", "ns", Waker::new(|| {}))
            .is_none()
    );
    let mut next = std::pin::pin!(driver.acquire(Priority::Upkeep, "next"));
    tokio::select! {
        _ = &mut next => panic!("the permit is held"),
        () = driver.run(GRACE) => panic!("a driver is probed for ever"),
        () = sleep(Duration::from_secs(20)) => {}
    }
    assert!(driver.should_report_wait("next"));
    drop(held);
    let start = Instant::now();
    tokio::select! {
        _ = next => {}
        () = driver.run(GRACE) => panic!("a driver is probed for ever"),
    }
    let waited = start.elapsed();
    assert!(waited < Duration::from_secs(7), "{waited:?}");
}

/// Otherwise each machine of a hanging driver would wait for the same answer, one after the other.
#[tokio::test(start_paused = true)]
async fn a_failure_to_read_capabilities_is_cached_for_a_moment() {
    let driver = FakeDriver {
        capabilities: saying(Err(Status::new(Code::Unavailable, "down"))),
        ..FakeDriver::default()
    };
    let calls = Arc::clone(&driver.calls);
    let driver = configured_driver(driver);
    let permit = driver.acquire(Priority::Upkeep, "test").await;
    for _ in 0..3 {
        assert_eq!(
            permit.fetch_capabilities().await.unwrap_err().code(),
            Code::Unavailable
        );
    }
    assert_eq!(calls.lock().unwrap().len(), 1);
    advance(Duration::from_secs(4)).await;
    assert!(permit.fetch_capabilities().await.is_err());
    assert_eq!(calls.lock().unwrap().len(), 2);
}

/// CMI-37
#[tokio::test(start_paused = true)]
async fn a_driver_that_became_another_unseen_is_asked_anew_and_reported() {
    let driver = FakeDriver::default();
    let connection_generation = Arc::clone(&driver.connection_generation);
    let asked = capabilities_asked(&driver);
    let (driver, mut reachability) = reachable(driver).await;
    create_in_turn(&driver).await.unwrap();
    assert_eq!(asked(), 1);

    connection_generation.store(1, Ordering::SeqCst);
    create_in_turn(&driver).await.unwrap();
    assert_eq!(asked(), 2);
    connection_generation.store(2, Ordering::SeqCst);
    reachability.changed().await.unwrap();
    assert_eq!(
        (reachability.borrow().clone(), asked()),
        (Reachability::Reachable, 3)
    );
}

/// The driver is a plugin: the call for its capabilities makes the connection.
#[tokio::test(start_paused = true)]
async fn the_call_that_connects_to_a_driver_is_not_repeated() {
    let driver = FakeDriver {
        takes: Duration::from_secs(1),
        ..FakeDriver::default()
    };
    let met = Arc::clone(&driver.connection_generation);
    let asked = capabilities_asked(&driver);
    let driver = Arc::new(configured_driver(driver));
    let asks = tokio::spawn({
        let driver = Arc::clone(&driver);
        async move { driver.state("m", Waker::new(|| {})).await }
    });
    tokio::task::yield_now().await;
    met.store(1, Ordering::SeqCst);
    assert!(is_current(&asks.await.unwrap()));
    create_in_turn(&driver).await.unwrap();
    assert_eq!(asked(), 1);
}

/// All readers of a large schema share one copy.
#[tokio::test]
async fn what_a_driver_declares_is_kept_once() {
    let driver = configured_driver(FakeDriver::default());
    let permit = driver.acquire(Priority::Upkeep, "test").await;
    let declared = permit
        .driver()
        .get_plugin_capabilities()
        .await
        .unwrap()
        .capabilities;
    assert!(Arc::ptr_eq(
        &declared,
        &permit.fetch_capabilities().await.unwrap()
    ));
    assert!(Arc::ptr_eq(&declared, &permit.known_capabilities()));
}

/// Otherwise, after a restart, a whole fleet would queue for this one answer and delay a machine that needs a
/// call.
#[tokio::test(start_paused = true)]
async fn one_caller_reads_the_capabilities_and_the_others_wait_for_it() {
    let driver = FakeDriver {
        takes: Duration::from_secs(1),
        ..FakeDriver::default()
    };
    let calls = Arc::clone(&driver.calls);
    let driver = Arc::new(driver_with_one_permit(driver));
    let woken = Arc::new(AtomicUsize::new(0));
    let waker = || -> Waker {
        let woken = Arc::clone(&woken);
        Waker::new(move || {
            woken.fetch_add(1, Ordering::SeqCst);
        })
    };
    let asks = tokio::spawn({
        let (driver, waker) = (Arc::clone(&driver), waker());
        async move { driver.state("first", waker).await }
    });
    tokio::task::yield_now().await;
    for n in 0..300 {
        let answer = driver.state(&n.to_string(), waker()).await;
        assert!(matches!(answer, DriverState::Pending), "{answer:?}");
    }
    assert!(is_current(&asks.await.unwrap()));
    assert_eq!(woken.load(Ordering::SeqCst), 300);
    assert!(is_current(&driver.state("0", waker()).await));
    assert_eq!(*calls.lock().unwrap(), [Operation::GetPluginCapabilities]);
    assert!(
        driver
            .try_acquire(Priority::Create, "create", "ns", waker())
            .is_some(),
        "no place in the line is taken"
    );
}

#[tokio::test(start_paused = true)]
async fn waiters_for_capabilities_wake_also_after_a_failed_or_dropped_call() {
    let driver = FakeDriver {
        takes: Duration::from_hours(1),
        ..FakeDriver::default()
    };
    let driver = Arc::new(configured_driver(driver));
    let woken = Arc::new(AtomicUsize::new(0));
    let waker = || -> Waker {
        let woken = Arc::clone(&woken);
        Waker::new(move || {
            woken.fetch_add(1, Ordering::SeqCst);
        })
    };
    for (round, is_given_up) in [(1, true), (2, false)] {
        let asks = tokio::spawn({
            let (driver, waker) = (Arc::clone(&driver), waker());
            async move { driver.state("first", waker).await }
        });
        tokio::task::yield_now().await;
        assert!(matches!(
            driver.state("second", waker()).await,
            DriverState::Pending
        ));
        if is_given_up {
            asks.abort();
            assert!(asks.await.is_err());
        } else {
            assert!(matches!(asks.await.unwrap(), DriverState::Unknown(_)));
        }
        assert_eq!(woken.load(Ordering::SeqCst), round);
    }
}

/// An upgraded plugin may accept a spec that its predecessor would have refused.
#[tokio::test(start_paused = true)]
async fn what_a_driver_said_before_it_became_another_is_not_current() {
    let driver = FakeDriver::default();
    let (says, connection_generation) = (
        Arc::clone(&driver.capabilities),
        Arc::clone(&driver.connection_generation),
    );
    let driver = configured_driver(driver);
    let ask = async || driver.state("m", Waker::new(|| {})).await;
    assert!(is_current(&ask().await));

    *says.lock().unwrap() = Err(Status::new(Code::Unavailable, "down"));
    connection_generation.store(1, Ordering::SeqCst);
    let state = ask().await;
    assert!(
        matches!(state, DriverState::Known(_)) && !is_current(&state),
        "{state:?}"
    );

    *says.lock().unwrap() = Ok(Capabilities::minimal());
    advance(Duration::from_secs(4)).await;
    assert!(is_current(&ask().await));
}

fn is_current(state: &DriverState) -> bool {
    matches!(state, DriverState::Known(known) if known.is_current)
}
