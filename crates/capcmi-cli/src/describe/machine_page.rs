//! The page about a machine. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::Value;

use super::advice;
use super::bootstrap::{BootstrapSource, ReadyCondition};
use super::event_table::event_table;
use super::machine::{ClusterSummary, MachineReport};
use super::owners::{Owner, OwnerState};
use super::page::{Page, ago, or_none, span};
use super::vm::VmAnswer;
use crate::observed_vm::ObservedVm;
use capcmi::api::identity::{self, VmRecord, VmState};
use capcmi::api::v1alpha1::{InfraCluster, InfraMachine, OperationState};
use capcmi::api::{ObjectMetaExt as _, conditions};
use capcmi::machine::phase;
use cmi_driver::{Code, Operation};

/// Renders the facts about a machine and the next steps as one page.
pub fn page(facts: &MachineReport, now: Timestamp) -> String {
    let mut page = Page::default();
    let machine = &facts.machine;
    head(&mut page, machine, now);
    page.section("What to do next");
    for step in advice::steps(facts, now) {
        page.line(&step);
    }
    owners(&mut page, facts);
    bootstrap(&mut page, facts.bootstrap.as_ref());
    page.section("Conditions");
    let shown = machine.status.as_ref().map(|status| status.conditions.as_slice());
    table_of(&mut page, shown.unwrap_or_default(), now);
    missing_node(&mut page, shown.unwrap_or_default());
    last_operation(&mut page, machine, now);
    record(&mut page, machine, now);
    driver(&mut page, machine);
    vm(&mut page, &facts.vm);
    events(&mut page, facts, now);
    page.text()
}

fn head(page: &mut Page, machine: &InfraMachine, now: Timestamp) {
    let meta = &machine.metadata;
    let name = |part: &Option<String>| part.clone().unwrap_or_default();
    page.section(&format!(
        "InfraMachine {}/{}",
        name(&meta.namespace),
        name(&meta.name)
    ));
    page.row("Phase", phase(machine).name());
    if let Some(created) = &meta.creation_timestamp {
        page.row("Age", &span(now.duration_since(created.0).as_secs()));
    }
    if let Some(deleted) = &meta.deletion_timestamp {
        page.row("Deleted", &ago(deleted.0, now));
        let holders = meta.finalizers.as_deref().unwrap_or_default();
        page.row("Finalizers", or_none(&holders.join(", ")));
    }
    let id = or_none(machine.spec.provider_id.as_deref().unwrap_or_default());
    page.row("Provider ID", id);
    let status = machine.status.clone().unwrap_or_default();
    if let (Some(reason), message) = (&status.failure_reason, status.failure_message.as_deref()) {
        page.row("Failed", &format!("{reason}: {}", message.unwrap_or_default()));
    }
    let observed = status.observed_generation.filter(|generation| *generation >= 0);
    if observed.is_some() && observed != meta.generation {
        page.row(
            "Note",
            "the spec changed after the provider last wrote the status",
        );
    }
}

fn owners(page: &mut Page, facts: &MachineReport) {
    page.section("Owners");
    // The Cluster has its own row.
    let below_cluster = facts.owners.iter();
    let below_cluster = below_cluster.filter(|owner| facts.cluster.is_err() || owner.kind != "Cluster");
    for owner in below_cluster {
        page.row(&owner.kind, &format!("{}{}", owner.name, state_of(owner)));
    }
    if facts.owners.is_empty() {
        page.line("none: no Machine controls the object");
    }
    match &facts.cluster {
        Err(why) => page.row("Cluster", why),
        Ok(cluster) => {
            let paused = if cluster.paused { ", paused" } else { "" };
            let infrastructure = if cluster.provisioned { "" } else { "not " };
            page.row(
                "Cluster",
                &format!(
                    "{}{paused}, infrastructure {infrastructure}provisioned",
                    cluster.name
                ),
            );
            infra_cluster(page, cluster);
        }
    }
}

/// The object that has to make the bootstrap data.
fn bootstrap(page: &mut Page, source: Option<&BootstrapSource>) {
    let Some(source) = source else { return };
    page.section("Source of the missing bootstrap data");
    match source {
        BootstrapSource::User => {
            page.line(
                "none: the Machine has no spec.bootstrap.configRef, so set spec.bootstrap.dataSecretName",
            );
        }
        BootstrapSource::Unread(why) => page.row("Machine", &format!("cannot be read: {why}")),
        BootstrapSource::Config { kind, name, ready } => {
            let state = match ready {
                Err(why) => format!("cannot be read: {why}"),
                Ok(None) => "no condition Ready: check that its bootstrap provider runs".to_owned(),
                Ok(Some(ready)) => readiness(ready),
            };
            page.row(kind, &format!("{name}; {state}"));
        }
    }
}

fn readiness(ready: &ReadyCondition) -> String {
    let state = format!("Ready is {}, {}", ready.status, or_none(&ready.reason));
    if ready.message.is_empty() {
        return state;
    }
    format!("{state}: {}", ready.message)
}

fn state_of(owner: &Owner) -> String {
    match &owner.state {
        OwnerState::There { phase, deleting } => {
            let phase = phase
                .as_ref()
                .map(|phase| format!(", {phase}"))
                .unwrap_or_default();
            let deleting = if *deleting { ", being deleted" } else { "" };
            format!("{phase}{deleting}")
        }
        OwnerState::Gone => ", does not exist".to_owned(),
        OwnerState::Unread(why) => format!(", cannot be read: {why}"),
    }
}

fn infra_cluster(page: &mut Page, cluster: &ClusterSummary) {
    match &cluster.infra {
        None => page.row("InfraCluster", "none of this provider"),
        Some(Err(why)) => page.row("InfraCluster", why),
        Some(Ok(infra)) => page.row("InfraCluster", &summary(infra)),
    }
}

/// Returns the name, the `Ready` condition and the other problems of an InfraCluster.
pub(super) fn summary(infra: &InfraCluster) -> String {
    let name = infra.metadata.name();
    let all = infra.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let wrong = [
        conditions::READY,
        conditions::DRIVER_REACHABLE,
        conditions::FAILURE_DOMAINS_UP_TO_DATE,
    ];
    let wrong = wrong
        .into_iter()
        .filter_map(|type_| conditions::get(all, type_))
        .filter(|shown| shown.status == "False")
        .map(|shown| format!("{} is False, {}: {}", shown.type_, shown.reason, shown.message));
    let paused = conditions::is_true(all, conditions::PAUSED).then(|| "paused".to_owned());
    let said: Vec<_> = paused.into_iter().chain(wrong).collect();
    match (said.is_empty(), conditions::is_true(all, conditions::READY)) {
        (false, _) => format!("{name}; {}", said.join("; ")),
        (true, true) => format!("{name}, Ready"),
        (true, false) => format!("{name}, no status yet"),
    }
}

fn table_of(page: &mut Page, shown: &[Condition], now: Timestamp) {
    let rows: Vec<_> = shown
        .iter()
        .map(|condition| {
            [
                condition.type_.clone(),
                condition.status.clone(),
                condition.reason.clone(),
                ago(condition.last_transition_time.0, now),
                first_line(&condition.message),
            ]
        })
        .collect();
    if rows.is_empty() {
        page.line("none: the provider has not reported a status yet");
    }
    page.table(&rows);
}

/// The first line of a message. The condition `NodeJoined` has more lines, from the console.
fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().to_owned()
}

/// The last lines of the console, if no Node has joined.
fn missing_node(page: &mut Page, shown: &[Condition]) {
    let message = conditions::get(shown, conditions::NODE_JOINED).map(|shown| shown.message.as_str());
    let mut console = message.unwrap_or_default().lines().skip(1).peekable();
    if console.peek().is_some() {
        page.section("Console, when the provider last looked for the Node");
    }
    console.for_each(|line| page.line(line));
}

fn last_operation(page: &mut Page, machine: &InfraMachine, now: Timestamp) {
    page.section("Last operation");
    let last = machine
        .status
        .as_ref()
        .and_then(|status| status.last_operation.as_ref());
    let Some(last) = last else {
        page.line("none");
        return;
    };
    let call = last.operation.as_deref().unwrap_or("no call");
    page.row(
        "What",
        &format!(
            "{:?}, {call}, {:?}, {}",
            last.type_,
            last.state,
            ago(last.last_update_time.0, now)
        ),
    );
    if let Some(code) = &last.code {
        page.row("Code", code);
    }
    if let Some(message) = &last.message {
        page.row("Message", message);
    }
    if last.state == OperationState::Failed {
        page.row("Attempts", &last.attempts.to_string());
        let next = match &last.next_retry_time {
            None => "none until something changes".to_owned(),
            Some(time) if time.0 > now => {
                format!("{:.0}, in {}", time.0, span(time.0.duration_since(now).as_secs()))
            }
            Some(time) => format!(
                "{:.0}, {}; repeated failures are recorded less often, so there may have been more attempts",
                time.0,
                ago(time.0, now)
            ),
        };
        page.row("Next try", &next);
    }
}

fn record(page: &mut Page, machine: &InfraMachine, now: Timestamp) {
    page.section("Record of the VM");
    let record = match VmRecord::of(machine) {
        Ok(Some(record)) => record,
        Ok(None) => return page.row("State", "none: no create was issued"),
        Err(invalid) => return page.row("Invalid", &invalid.to_string()),
    };
    page.row("State", &state_of_vm(record.state, now));
    if let Some(issued) = record.state.unanswered() {
        let when = format!("{}, {issued:.0}", ago(issued, now));
        match answer(machine, record.state) {
            Some(code) => page.row(
                "Last create",
                &format!("{when}; the last recorded answer is {code}"),
            ),
            None => page.row(
                "Unanswered",
                &format!("a create of {when}: its VM may still appear"),
            ),
        }
    }
    page.row("Machine id", record.machine.tag());
    page.row("Cluster id", &record.cluster);
    if let Some(made) = &record.made_from {
        let secret = made
            .secret
            .as_deref()
            .map_or("no Secret".to_owned(), |name| format!("Secret `{name}`"));
        page.row("Made with", &format!("driver `{}`, {secret}", made.driver));
        page.row("Spec", &Value::Object(made.provider_spec.0.clone()).to_string());
    }
    if let Some(state) = &record.last_known_state {
        page.row("Driver's state", &format!("{} bytes", state.as_bytes().len()));
    }
    if record.adopted {
        page.row("Adopted", "yes");
    }
    if let Some(at) = record.last_start {
        page.row("Last start", &format!("{}, {at:.0}: it was off", ago(at, now)));
    }
}

/// Returns the code of the refusal of the only create, if the status shows one. The record
/// does not change with this answer. A repeated refusal is recorded less often than the create.
fn answer(machine: &InfraMachine, state: VmState) -> Option<&str> {
    let last = machine.status.as_ref()?.last_operation.as_ref()?;
    let code = last.code.as_deref()?;
    let is_of_create = last.operation.as_deref() == Some(Operation::CreateMachine.name());
    let is_refused =
        last.state == OperationState::Failed && code.parse::<Code>().is_ok_and(Code::is_final_for_create);
    let is_only = matches!(state, VmState::Creating { several: false, .. });
    (is_of_create && is_refused && is_only).then_some(code)
}

fn state_of_vm(state: VmState, now: Timestamp) -> String {
    match state {
        VmState::Creating { several: true, .. } => {
            format!("{}: several creates have no recorded answer", state.name())
        }
        VmState::ShuttingDown { accepted, .. } => {
            format!("{}: accepted {}", state.name(), ago(accepted, now))
        }
        VmState::None
        | VmState::Creating { .. }
        | VmState::Refused
        | VmState::Exists { .. }
        | VmState::Updating { .. } => state.name().to_owned(),
    }
}

fn driver(page: &mut Page, machine: &InfraMachine) {
    page.section("Driver");
    page.row("Name", or_none(&identity::driver_name(machine)));
    let all = machine
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    let reachable = match conditions::get(all, conditions::DRIVER_REACHABLE) {
        None => "not reported yet".to_owned(),
        Some(shown) if shown.message.is_empty() => format!("{}, {}", shown.status, shown.reason),
        Some(shown) => format!("{}, {}: {}", shown.status, shown.reason, shown.message),
    };
    page.row("Reachable", &reachable);
    let secret = identity::credentials(machine);
    page.row(
        "Secret",
        secret
            .as_deref()
            .unwrap_or("none: the provider's own credentials, if the driver has any"),
    );
}

fn vm(page: &mut Page, vm: &VmAnswer) {
    page.section("VM, as the driver reports it now");
    match vm {
        VmAnswer::NotCalled(why) => page.row("Not called", why),
        VmAnswer::Observed(ObservedVm::Absent) => page.line("The driver has no VM of this machine."),
        VmAnswer::Listed(Some(id)) => {
            page.row("Listed", &format!("{id}; this driver reports nothing more"));
        }
        VmAnswer::Listed(None) => page.line("The driver lists no VM with this name."),
        VmAnswer::Failed {
            operation,
            code,
            message,
        } => page.row("Failed", &format!("{operation}: {code}: {message}")),
        VmAnswer::Observed(ObservedVm::Present(vm)) => seen(page, vm, "yes"),
        VmAnswer::Observed(ObservedVm::Uninitialized(vm)) => seen(page, vm, "no"),
    }
}

fn seen(page: &mut Page, vm: &cmi_driver::Machine, initialized: &str) {
    page.row("Provider ID", vm.provider_id.as_str());
    page.row("Node name", or_none(&vm.node_name));
    let addresses: Vec<_> = vm
        .addresses
        .iter()
        .map(|it| format!("{:?} {}", it.kind, it.address))
        .collect();
    page.row("Addresses", or_none(&addresses.join(", ")));
    page.row(
        "Power",
        vm.power_state.map_or("not reported", |power| power.name()),
    );
    page.row("Zone", or_none(vm.failure_domain.as_deref().unwrap_or_default()));
    page.row("Initialized", initialized);
}

fn events(page: &mut Page, facts: &MachineReport, now: Timestamp) {
    page.section("Newest events");
    match &facts.events {
        Err(why) => page.line(&format!("cannot read events: {why}")),
        Ok(events) if events.is_empty() => {
            page.line("none; the API server usually keeps events for one hour");
        }
        Ok(events) => event_table(page, events, now),
    }
}
