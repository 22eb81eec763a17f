//! The simulated driver: a small cloud with VMs that boot, stop and disappear, and with configurable faults.
//!
//! It obeys the driver contract like any other driver. Its cloud lives in the process. With a state file, it
//! is shared by all processes that name the file, and survives them.

mod access;
mod call_log;
mod calls;
mod checks;
mod clock;
mod cloud;
mod commands;
mod config;
mod console;
mod faults;
mod journal;
mod migration;
mod schema;
mod spec;
mod subnet;
#[cfg(test)]
mod tests;
mod vm;
mod volumes;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use access::TOKEN;
pub use call_log::{CallLine, CallLog, KEPT_LINES, OpenCall, Phase, Subject};
pub use clock::{Clock, Instant, TimerClock, WallClock};
pub use cloud::{Cloud, Entry, Event};
pub use config::{Credentials, Pool, SimulatedConfig, Size};
pub use console::{CloudConsole, PlantedVm};
pub use faults::{Fault, Faults, Hang};
pub use journal::{CloudView, Decision, Journal, JournalError};
pub use subnet::{ParseSubnetError, Subnet};
pub use vm::{Condition, ParseVmIdError, UserData, Vm, VmId};

use cmi_driver::{Code, Machine, Operation, Result, Status};
use commands::VmSelector;

/// Name of the driver, and of the CSI driver of its volumes.
pub const NAME: &str = "simulated.capcmi.io";

/// The polling interval of a held call.
const HELD_INTERVAL: Duration = Duration::from_millis(50);

/// The simulated driver. It creates VMs in a simulated cloud.
pub struct SimulatedDriver {
    config: SimulatedConfig,
    journal: Journal,
    faults: Faults,
    calls: CallLog,
    restarts: AtomicU64,
}

/// The subject of a call, for faults and the log.
struct Call {
    operation: Operation,
    subject: Subject,
    selector: Option<VmSelector>,
}

impl SimulatedDriver {
    /// Returns a driver whose cloud follows the time of the computer. A cloud that no other process shares
    /// follows the timers of tokio, as [`TimerClock`] does.
    ///
    /// # Errors
    /// When the configuration is not valid, or one of its files can't be used.
    pub fn new(config: SimulatedConfig) -> anyhow::Result<Self> {
        let clock: Arc<dyn Clock> = if config.state_file.is_some() {
            Arc::new(WallClock)
        } else {
            Arc::new(TimerClock::start())
        };
        Self::with_clock(config, clock)
    }

    /// Returns a driver whose cloud follows `clock`: with [`TimerClock`], tests with paused time need not
    /// wait.
    ///
    /// # Errors
    /// The configuration is invalid, or one of its files cannot be used.
    pub fn with_clock(config: SimulatedConfig, clock: Arc<dyn Clock>) -> anyhow::Result<Self> {
        config.check()?;
        let journal = match &config.state_file {
            Some(path) => Journal::open(path, Arc::clone(&clock))?,
            None => Journal::in_memory(Arc::clone(&clock)),
        };
        let faults = Faults::new(config.faults.clone(), config.faults_file.clone())?;
        let calls = CallLog::new(config.call_log.as_deref(), clock)?;
        Ok(Self {
            config,
            journal,
            faults,
            calls,
            restarts: AtomicU64::new(0),
        })
    }

    /// Forgets how often each fault has happened, as a process does that ends and is started again.
    /// The cloud is not in the process.
    pub fn restart(&self) {
        self.faults.forget();
        self.restarts.fetch_add(1, Ordering::SeqCst);
    }

    /// How often it was restarted.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::SeqCst)
    }

    /// The console of the driver's cloud.
    pub fn console(&self) -> CloudConsole {
        CloudConsole::of(self.journal.clone())
    }

    /// The calls of this driver so far.
    pub fn calls(&self) -> &CallLog {
        &self.calls
    }

    /// Runs a call with its faults, and logs it. The work has no await point between reading the cloud and
    /// changing it, so a dropped call has either changed the cloud or not.
    async fn run<T>(&self, call: Call, work: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let open = self.calls.start(call.operation, call.subject.clone());
        let result = self.answer(&call, work).await;
        open.end(&result);
        result
    }

    async fn answer<T>(&self, call: &Call, work: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if !self.config.supports(call.operation) {
            return Err(Status::unimplemented(call.operation));
        }
        wait(self.config.latency_ms).await;
        let Some(fault) = self.faults.next(call.operation, &call.subject.machine) else {
            return work.await;
        };
        wait(fault.latency_ms).await;
        match fault.hang {
            Some(Hang::Before) => hang(call).await,
            Some(Hang::Held) => self.hold(call, &fault).await,
            Some(Hang::After) | None => {}
        }
        if let Some(code) = fault.code {
            return Err(self.failure(call, &fault, code));
        }
        let halved = fault.half.zip(call.selector.as_ref());
        let before =
            halved.map(|(_, selector)| self.journal.read(|cloud, _| commands::labels(cloud, selector)));
        let before = before.transpose()?;
        let result = work.await;
        if let (Some((code, selector)), Some(before), Ok(_)) = (halved, &before, &result) {
            self.journal
                .change(|cloud, _| Ok(commands::take_half_back(cloud, selector, before)))?;
            return Err(self.failure(call, &fault, code));
        }
        if let (Some(millis), Some(selector)) = (fault.carry_out_after_ms, &call.selector) {
            let later = Duration::from_millis(millis);
            self.journal
                .change(|cloud, now| Ok(commands::defer(cloud, selector, now.after(later))))?;
        }
        if fault.vanish
            && let Some(selector) = &call.selector
        {
            self.journal
                .change(|cloud, _| Ok(commands::vanish(cloud, selector)))?;
        }
        if fault.hang == Some(Hang::After) {
            hang(call).await;
        }
        match (result, fault.lose_response) {
            (Ok(_), Some(code)) => Err(self.failure(call, &fault, code)),
            (result, _) => result,
        }
    }

    /// Ends when the fault is taken back.
    async fn hold(&self, call: &Call, fault: &Fault) {
        tracing::info!(operation = %call.operation, machine = call.subject.machine, "a fault holds the call");
        while self.faults.has(fault) {
            tokio::time::sleep(HELD_INTERVAL).await;
        }
    }

    /// Returns the error of a fault. Uninitialized carries the machine, as in real drivers (INI-18).
    fn failure(&self, call: &Call, fault: &Fault, code: Code) -> Status {
        let status = fault.status(code);
        match (code == Code::Uninitialized)
            .then(|| self.machine(call.selector.as_ref()?))
            .flatten()
        {
            Some(machine) => status.with_machine(machine),
            None => status,
        }
    }

    fn machine(&self, selector: &VmSelector) -> Option<Machine> {
        self.journal
            .read(|cloud, now| commands::machine(cloud, now, selector))
            .ok()
            .flatten()
    }
}

/// Never ends, and logs so: the test that ordered the fault can wait for the line.
async fn hang(call: &Call) {
    tracing::info!(operation = %call.operation, machine = call.subject.machine, "a fault lets the call hang");
    std::future::pending::<()>().await;
}

async fn wait(millis: u64) {
    if millis > 0 {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}
