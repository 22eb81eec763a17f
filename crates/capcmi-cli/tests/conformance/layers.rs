//! The two layers stay apart: the published contract, and the additional demands of this provider.

use std::sync::Arc;

use async_trait::async_trait;
use capcmi_cli::commands::conformance::simulated::Simulated;
use cmi_conformance::{
    Compliance, Config, Hook, HookCall, Hooks, Layer, NoHooks, Report, Selection, Target, report, run,
};
use cmi_driver::{
    Capabilities, Code, CreateMachineRequest, DeclaredCapabilities, DeleteMachineRequest,
    DeleteMachineResponse, Driver, GetMachineStatusRequest, GetVolumeIdsRequest, ListMachinesRequest,
    ListedMachine, Machine, MachineRef, Operation, PluginInfo, Readiness, Result, ShutDownMachineRequest,
    ShutDownMachineResponse, tags,
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::flaw::Flaw;
use crate::mutant::Mutant;
use crate::served::{RestartingHooks, served};
use crate::variants::Variant;

/// A driver of the published interface alone: it identifies a machine by cluster and name, and ignores this
/// provider's tags.
struct Plain {
    inner: Arc<dyn Driver>,
    offered: Vec<Operation>,
}

/// The calls that are published and need not be there.
const OPTIONAL: [Operation; 4] = [
    Operation::GetMachineStatus,
    Operation::ListMachines,
    Operation::ShutDownMachine,
    Operation::GetVolumeIds,
];

/// The machine without the tag.
fn untagged(mut machine: MachineRef) -> MachineRef {
    if let Some(Value::Object(tags)) = machine.class.provider_spec.0.get_mut("tags") {
        tags.remove(tags::MACHINE);
    }
    machine
}

#[async_trait]
impl Driver for Plain {
    async fn get_plugin_info(&self) -> Result<PluginInfo> {
        self.inner.get_plugin_info().await
    }

    async fn get_plugin_capabilities(&self) -> Result<DeclaredCapabilities> {
        let mut capabilities = Capabilities::minimal();
        capabilities.operations.extend(self.offered.iter().copied());
        Ok(capabilities.into())
    }

    async fn probe(&self) -> Result<Readiness> {
        self.inner.probe().await
    }

    async fn create_machine(&self, mut request: CreateMachineRequest) -> Result<Machine> {
        request.machine = untagged(request.machine);
        self.inner.create_machine(request).await
    }

    async fn delete_machine(&self, mut request: DeleteMachineRequest) -> Result<DeleteMachineResponse> {
        request.machine = untagged(request.machine);
        self.inner.delete_machine(request).await
    }

    async fn get_machine_status(&self, mut request: GetMachineStatusRequest) -> Result<Machine> {
        if !self.offered.contains(&Operation::GetMachineStatus) {
            return Err(cmi_driver::Status::unimplemented(Operation::GetMachineStatus));
        }
        request.machine = untagged(request.machine);
        self.inner.get_machine_status(request).await
    }

    async fn list_machines(&self, request: ListMachinesRequest) -> Result<Vec<ListedMachine>> {
        if !self.offered.contains(&Operation::ListMachines) {
            return Err(cmi_driver::Status::unimplemented(Operation::ListMachines));
        }
        self.inner.list_machines(request).await
    }

    async fn shut_down_machine(
        &self,
        mut request: ShutDownMachineRequest,
    ) -> Result<ShutDownMachineResponse> {
        if !self.offered.contains(&Operation::ShutDownMachine) {
            return Err(cmi_driver::Status::unimplemented(Operation::ShutDownMachine));
        }
        request.machine = untagged(request.machine);
        self.inner.shut_down_machine(request).await
    }

    async fn get_volume_ids(&self, request: GetVolumeIdsRequest) -> Result<Vec<String>> {
        if !self.offered.contains(&Operation::GetVolumeIds) {
            return Err(cmi_driver::Status::unimplemented(Operation::GetVolumeIds));
        }
        self.inner.get_volume_ids(request).await
    }
}

/// The hooks of such a driver: no VM of the back end has the tag.
struct PlainHooks(Arc<dyn Hooks>);

#[async_trait]
impl Hooks for PlainHooks {
    fn supports(&self, hook: Hook) -> bool {
        self.0.supports(hook)
    }

    async fn run(&self, call: &HookCall) -> anyhow::Result<Vec<u8>> {
        let mut call = call.clone();
        call.identity.clear();
        self.0.run(&call).await
    }
}

async fn tested(offered: Vec<Operation>, hooks: bool) -> (Simulated, Report) {
    let simulated = Simulated::new().unwrap();
    let inner = simulated.driver.clone();
    let (target, server) = served(Arc::new(Plain { inner, offered }));
    let mut config = simulated.config.clone();
    // Without InitializeMachine nothing switches the check.
    config.provider_spec.remove("sourceDestCheck");
    config.many_machines = Some(8);
    let hooks: Arc<dyn Hooks> = if hooks {
        let cloud = Arc::new(PlainHooks(Arc::clone(&simulated.hooks)));
        Arc::new(RestartingHooks { cloud, server })
    } else {
        Arc::new(NoHooks)
    };
    let everything = Selection::default();
    let stop = CancellationToken::new();
    let report = run(target, config, hooks, &everything, &(), stop).await.unwrap();
    (simulated, report)
}

fn keeps_what_is_published_and_not_the_tag(simulated: &Simulated, report: &Report) {
    let broken: Vec<_> = report.broken().collect();
    assert_eq!(
        report.compliance(Layer::Published),
        Compliance::Yes,
        "{broken:#?}"
    );
    assert_eq!(report.compliance(Layer::Provider), Compliance::No, "{broken:#?}");
    assert!(
        broken.iter().all(|rule| rule.id.starts_with("CAP-")),
        "{broken:#?}"
    );
    // The rows that a plain plugin was once called broken for.
    for row in [
        "DRV-20",
        "DRV-28",
        "DRV-CR-06",
        "CMI-101",
        "CMI-115",
        "CMI-116",
        "CMI-121",
        "CMI-122",
        "PLG-CR-06",
        "PLG-GS-00",
        "PLG-GS-05",
    ] {
        let verdict = &report.rule(row).unwrap().verdict;
        assert!(!verdict.is_failure(), "{row}: {verdict:?}");
    }
    let text = report::text(report);
    let (_, last) = text.split_once("\ncmi.v1: yes\n").unwrap();
    assert!(
        last.starts_with("capcmi: no (identity tag not kept: CAP-01, CAP-02"),
        "{last}"
    );
    assert!(report.leftovers.is_empty(), "{:?}", report.leftovers);
    assert_eq!(simulated.driver.console().vms().unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_published_plugin_complies_and_learns_what_the_provider_needs() {
    let (simulated, report) = tested(OPTIONAL.to_vec(), true).await;
    keeps_what_is_published_and_not_the_tag(&simulated, &report);
}

/// Its VMs cannot be listed: only the requests show them.
#[tokio::test(start_paused = true)]
async fn so_does_one_with_create_and_delete_alone() {
    let (simulated, report) = tested(Vec::new(), false).await;
    keeps_what_is_published_and_not_the_tag(&simulated, &report);
}

async fn mutant(flaw: Flaw, only: &[&str]) -> Report {
    let simulated = Simulated::new().unwrap();
    let mutant = Arc::new(Mutant::new(simulated.driver.clone(), flaw));
    crate::tested(&simulated, mutant, only).await
}

/// OPS-11 is a SHOULD in its source, and UPD-03 has no keyword.
#[tokio::test(start_paused = true)]
async fn leaked_secrets_and_ineffective_updates_break_the_provider_layer() {
    for (flaw, rule) in [
        (Flaw::SecretInAddress, "OPS-11"),
        (Flaw::UpdateDoesNothing, "UPD-03"),
    ] {
        let report = mutant(flaw, &[rule, "DRV-10"]).await;
        assert!(!report.passed, "{flaw:?}");
        assert_eq!(report.compliance(Layer::Provider), Compliance::No, "{flaw:?}");
        assert_ne!(report.compliance(Layer::Published), Compliance::No, "{flaw:?}");
    }
}

/// CMI-13, OPS-11: the rules for every answer are part of each run, regardless of the chosen cases.
#[tokio::test(start_paused = true)]
async fn a_leaked_secret_fails_a_run_of_other_rules() {
    let report = mutant(Flaw::SecretInAddress, &["create-again"]).await;
    assert!(report.rule("OPS-11").unwrap().verdict.is_failure());
    assert!(!report.passed, "{:#?}", report.layers);
    let text = report::text(&report);
    assert!(
        text.contains("secrets leak: ") && text.contains("OPS-11"),
        "{text}"
    );
}

/// Half of the rules that such a list breaks are about other calls.
#[tokio::test(start_paused = true)]
async fn of_all_that_a_list_of_every_cluster_breaks_the_list_is_named_first() {
    let report = mutant(Flaw::ListLeaks, &[]).await;
    assert!(report.broken().count() > 20);
    let text = report::text(&report);
    let (_, summary) = text.split_once("failed, the most telling first:\n").unwrap();
    let first = summary.lines().next().unwrap_or_default();
    assert!(first.contains("list-other-cluster"), "{summary}");
}

/// Whether the provider's layer lacks this, and did not try the rule in full for that.
#[track_caller]
fn assert_lacks(report: &Report, lacks: bool, what: &str, rule: &'static str) {
    assert!(report.passed, "{:#?}", report.cases);
    let provider = report.layers.last().unwrap();
    assert_eq!(provider.missing.contains(what), lacks, "{provider:?}");
    assert_eq!(provider.untried.contains(&rule), lacks, "{provider:?}");
}

/// OPS-11: a run cannot check a log that the driver does not write.
#[tokio::test(start_paused = true)]
async fn where_the_log_is_empty_leaks_were_not_tried_in_full() {
    for (lines, is_missing) in [("", true), ("listening\n", false)] {
        let simulated = Simulated::new().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("driver.log");
        std::fs::write(&log, lines).unwrap();
        let driver = simulated.driver.clone();
        let report = crate::tested_with(&simulated, driver, &["OPS-11"], |config| {
            config.logs = vec![log];
        })
        .await;
        assert_lacks(&report, is_missing, "lines in `logs`", "OPS-11");
    }
}

/// DRV-30: only a hook reveals the worst possible fault. Without the hook, the grade says that nothing tested
/// for it.
#[tokio::test(start_paused = true)]
async fn only_a_hook_reveals_that_an_outage_is_answered_as_not_found() {
    let flaw = Flaw::Says(Operation::GetMachineStatus, Code::Unavailable, Code::NotFound);
    let report = without_hooks(flaw, "", Selection::default()).await;
    assert_eq!(report.compliance(Layer::Provider), Compliance::Basic);
    assert_lacks(&report, true, "hook `unavailable`", "DRV-30");
    let report = mutant(flaw, &[]).await;
    assert_eq!(report.compliance(Layer::Provider), Compliance::No);
    assert!(report.rule("DRV-30").unwrap().verdict.is_failure());
}

/// A run with a configuration of two lines, and these.
async fn without_hooks(flaw: Flaw, settings: &str, selection: Selection) -> Report {
    let config = format!(
        "providerSpec: {{vmPool: default, size: small}}\nsecrets: {{token: \
         conformance-token-of-an-operator}}\n{settings}"
    );
    let simulated = Simulated::new().unwrap();
    let mutant = Mutant::new(simulated.driver.clone(), flaw);
    let target = Target::in_process("the driver", Arc::new(mutant));
    let config = Config::read(&config).unwrap();
    let stop = CancellationToken::new();
    run(target, config, Arc::new(NoHooks), &selection, &(), stop)
        .await
        .unwrap()
}

/// DRV-34: a list that is shorter than a page does not test the pages, unless its author knows their size,
/// even if VMs are created fast.
#[tokio::test(start_paused = true)]
async fn where_pages_are_not_known_lists_were_not_tried_in_full() {
    for (takes, many, is_missing) in [(700, None, true), (700, Some(3), false), (0, None, true)] {
        let simulated = Simulated::new().unwrap();
        let creation = std::time::Duration::from_millis(takes);
        let driver = Arc::new(Variant::late(simulated.driver.clone(), creation));
        let report = crate::tested_with(&simulated, driver, &["list-all"], |config| {
            crate::patiently(config);
            config.many_machines = many;
        })
        .await;
        assert_lacks(&report, is_missing, "`manyMachines`", "DRV-34");
    }
}

/// CMI-83: a driver may cut names that are longer than the longest tried name.
#[tokio::test(start_paused = true)]
async fn where_the_longest_name_is_not_known_names_were_not_tried_in_full() {
    for (setting, is_missing) in [("", true), ("longestName: 63", false)] {
        let only = Selection::only(["create-similar-names"]);
        let report = without_hooks(Flaw::CutsNames(63), setting, only).await;
        assert_lacks(&report, is_missing, "`longestName`", "CMI-83");
    }
}
