//! The context of a case: the driver, machines of the case's cluster, and the hooks.

mod calls;
mod faults;
mod observation;
mod repeats;
mod vms;
mod watch;

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use super::answer::{CaseError, CaseResult};
use super::answer_checker::{AnswerChecker, SECRET_RULES};
use super::config::{Config, Migration, Setting, secrets};
use super::hooks::{Hook, HookCall, Hooks, MAX_COMMAND};
use super::in_flight::{InFlight, Waiting};
use super::ledger::Ledger;
use super::liveness::Liveness;
use super::machine_request::MachineRequest;
use super::need::Need;
use super::target::Target;
use super::tracker::Tracker;
use super::wire::RawAnswer;
use cmi_driver::{Capabilities, LastKnownState, MachineClass, Operation, ProviderId, tags};
use faults::Fault;
pub use observation::Conflict;

/// The state that all cases of a run share.
pub struct Shared {
    /// The driver under test.
    pub target: Target,
    /// The configuration by the driver's author.
    pub config: Config,
    /// The source of faults.
    pub hooks: Arc<dyn Hooks>,
    /// The capabilities that the driver declared at the start of the run.
    pub capabilities: Arc<Capabilities>,
    /// Text that no other run has.
    pub run: String,
    /// Checks every answer.
    pub answer_checker: AnswerChecker,
    /// Whether the driver can still be reached.
    pub liveness: Liveness,
    /// The running calls.
    pub in_flight: Arc<InFlight>,
    /// The VMs that the run may have made.
    pub ledger: Arc<Ledger>,
    /// The difference that makes a request conflict if no call shows VMs. It is determined once.
    pub conflict: OnceCell<Conflict>,
    /// Cancelled when the run is to end early.
    pub stop: CancellationToken,
}

/// Returns the secret text in the bootstrap data of a run.
pub fn canary(run: &str) -> String {
    format!("canary-{run}-of-conformance")
}

/// The context of a case. Clones share the machines.
#[derive(Clone)]
pub struct TestContext {
    shared: Arc<Shared>,
    case: String,
    cluster: String,
    tracker: Arc<Tracker>,
    warnings: Arc<Mutex<Vec<String>>>,
    missing: Arc<Mutex<BTreeSet<String>>>,
    fault: Arc<Mutex<Option<Fault>>>,
}

impl TestContext {
    /// Creates the context of one case, with a separate cluster.
    pub fn new(shared: Arc<Shared>, case: &str) -> Self {
        let cluster = format!("{}-{case}", shared.run);
        let tracker = Tracker::new(Arc::clone(&shared.ledger));
        Self {
            shared,
            case: case.to_owned(),
            cluster,
            tracker: Arc::new(tracker),
            warnings: Arc::default(),
            missing: Arc::default(),
            fault: Arc::default(),
        }
    }

    /// Returns the configuration by the driver's author.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Returns the driver under test, for calls that the usual rules do not check.
    pub fn target(&self) -> &Target {
        &self.shared.target
    }

    /// Returns the capabilities that the driver declared.
    pub fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    /// Whether the driver declared a call.
    pub fn supports(&self, operation: Operation) -> bool {
        self.shared.capabilities.supports(operation)
    }

    /// Whether the hook is available.
    pub fn has(&self, hook: Hook) -> bool {
        self.shared.hooks.supports(hook)
    }

    /// Returns the secret text in the bootstrap data.
    pub fn canary(&self) -> String {
        canary(&self.shared.run)
    }

    /// Checks an answer as it was on the wire.
    pub fn look_raw(&self, answer: &RawAnswer) {
        let secrets = secrets(&self.shared.config.secrets);
        self.shared.answer_checker.check_raw(&secrets, answer);
    }

    /// Returns a second cluster id.
    pub fn other_cluster(&self) -> String {
        format!("{}-other", self.cluster)
    }

    /// Returns the machines of this case.
    pub fn tracker(&self) -> &Tracker {
        &self.tracker
    }

    /// Returns the suspicious observations that break no rule.
    pub fn warnings(&self) -> Vec<String> {
        self.warnings.lock().clone()
    }

    /// Records a suspicious observation that breaks no rule.
    pub fn warn(&self, message: impl Into<String>) {
        self.warnings.lock().push(message.into());
    }

    /// Records that the case runs, but tries less than it could if the configuration had this setting.
    pub fn goes_only_so_far_without(&self, setting: Setting) {
        if !self.config().says(setting) {
            self.goes_only_so_far_for_want_of(Need::Setting(setting).to_string());
        }
    }

    /// Records that the case runs, but tries less than it could, and the missing need.
    pub fn goes_only_so_far_for_want_of(&self, what: impl Into<String>) {
        self.missing.lock().insert(what.into());
    }

    /// Returns the settings that would let the case try more.
    pub fn missing(&self) -> Vec<String> {
        self.missing.lock().iter().cloned().collect()
    }

    /// Returns a machine in the case's cluster. Its name is unique over all cases, for back ends where names
    /// are global.
    pub fn machine_request(&self, label: &str) -> MachineRequest {
        let (config, capabilities) = (&self.shared.config, &self.shared.capabilities);
        let name = format!("{}-{label}", self.short());
        MachineRequest::new(config, capabilities, &self.cluster, &name, &self.canary())
    }

    /// Returns the configuration's class, without tags, for requests before there is a machine.
    pub fn sample(&self) -> MachineClass {
        self.shared.config.class()
    }

    /// Returns the sample class of the back end's own kind.
    ///
    /// # Errors
    /// [`CaseError::Skipped`] when the configuration has none.
    pub fn migration(&self) -> CaseResult<&Migration> {
        let sample = self.config().migration.as_ref();
        sample.ok_or_else(|| CaseError::Skipped("the configuration has no `migration`".to_owned()))
    }

    fn short(&self) -> String {
        let hash = self
            .cluster
            .bytes()
            .fold(5381_u32, |hash, byte| hash.wrapping_mul(33) ^ u32::from(byte));
        format!("c{hash:08x}")
    }

    /// Records a machine that a call may create, so that it is deleted after the case, with valid
    /// credentials.
    pub fn track(&self, request: &MachineRequest) {
        self.tracker.record(&self.with_own_secrets(request));
    }

    /// Records that a VM certainly exists, with its known attributes.
    fn made(&self, request: &MachineRequest, id: Option<ProviderId>, state: Option<LastKnownState>) {
        self.tracker.made(&self.with_own_secrets(request), id, state);
    }

    /// Returns the running calls of this case.
    pub fn in_flight(&self) -> Vec<Waiting> {
        self.shared.in_flight.of(&self.case)
    }

    /// Ends a case when the run is to end early.
    ///
    /// # Errors
    /// [`CaseError::Skipped`] then.
    pub fn goes_on(&self) -> CaseResult {
        if self.shared.stop.is_cancelled() {
            return Err(CaseError::Skipped("the run is to end early".to_owned()));
        }
        Ok(())
    }

    fn with_own_secrets(&self, request: &MachineRequest) -> MachineRequest {
        request.clone().with_secrets(&self.shared.config.secrets)
    }

    /// Returns where a secret has leaked so far, in this case or another.
    pub fn leaks(&self) -> Vec<String> {
        let violations = self.shared.answer_checker.violations().into_iter();
        violations
            .filter(|violation| violation.rules == SECRET_RULES)
            .map(|violation| violation.message)
            .collect()
    }

    /// Runs a hook that is about nothing.
    ///
    /// # Errors
    /// [`CaseError::Inconclusive`] when the hook does not work.
    pub async fn run_hook(&self, call: HookCall) -> CaseResult<Vec<u8>> {
        let name = call.hook;
        let named = self.waits_for(&format!("the hook `{name}` to end"), MAX_COMMAND);
        let ran = self.shared.hooks.run(&call).await;
        drop(named);
        self.hook_ran(name);
        ran.map_err(|error| CaseError::Inconclusive(format!("hook `{name}` does not work: {error:#}")))
    }

    /// Runs a hook that is about a machine.
    ///
    /// # Errors
    /// [`CaseError::Inconclusive`] when the hook does not work.
    pub async fn run_hook_on(&self, hook: Hook, request: &MachineRequest) -> CaseResult<Vec<u8>> {
        self.run_hook(HookCall {
            machine: request.name.clone(),
            cluster: request.cluster(),
            identity: request.tag(tags::MACHINE),
            ..HookCall::new(hook)
        })
        .await
    }

    /// Undoes every hook that lasts.
    ///
    /// # Errors
    /// [`CaseError::Inconclusive`] when the hook does not work.
    pub async fn restore(&self) -> CaseResult {
        self.run_hook(HookCall::new(Hook::Restore)).await.map(|_| ())
    }
}
