//! The checks of every call before it does anything: name, provider spec, tags.

use serde_json::{Map, json};

use super::secrets::speaks;
use super::{cases, family};
use crate::answer::{CaseResult, ensure};
use crate::{Case, MachineRequest, Need, Setting, TestContext};
use cmi_driver::{Code, Operation, ProviderSpec, tags};

/// Longer than any name that a back end or Kubernetes accepts.
const TOO_LONG: usize = 1000;

pub(super) const BLANK_NAME: &[Case] = family! {
    "-blank-name": "a blank name is INVALID_ARGUMENT" [] => blank_name;
    "create" CreateMachine
        ["DRV-CR-03", "PLG-CR-03", "DRV-16", "CMI-96", "CMI-15", "CMI-19", "CMI-28", "CMI-87"];
    "delete" DeleteMachine ["DRV-DE-03", "PLG-DE-03", "DRV-24", "CMI-112", "CMI-28", "CMI-105"];
    "status" GetMachineStatus ["DRV-GS-03", "PLG-GS-03", "DRV-31", "CMI-124", "CMI-28", "CMI-118"];
    "shut-down" ShutDownMachine ["PLG-SD-03", "CMI-134", "CMI-28", "CMI-130"];
};

pub(super) const TOO_LONG_NAME: &[Case] = cases! {
    "create-too-long-name": "a name that is too long is INVALID_ARGUMENT and creates nothing"
        ["DRV-CR-03", "PLG-CR-03", "DRV-16", "CMI-96"], [] => too_long_name;
};

pub(super) const EMPTY_SPEC: &[Case] = family! {
    "-empty-spec": "an empty provider spec is INVALID_ARGUMENT" [] => empty_spec;
    "create" CreateMachine ["DRV-CR-03", "PLG-CR-03", "DRV-16", "CMI-96", "CMI-28", "CMI-88", "CMI-89"];
    "delete" DeleteMachine ["DRV-DE-03", "PLG-DE-03", "DRV-24", "CMI-112", "CMI-28", "CMI-106"];
    "status" GetMachineStatus ["DRV-GS-03", "PLG-GS-03", "DRV-31", "CMI-124", "CMI-28", "CMI-119"];
    "list" ListMachines ["DRV-LM-03", "PLG-LM-03", "DRV-38", "CMI-143", "CMI-28", "CMI-139"];
    "shut-down" ShutDownMachine ["PLG-SD-03", "CMI-134", "CMI-28", "CMI-131"];
};

pub(super) const NO_CLUSTER: &[Case] = family! {
    "-cluster-tag": "a spec without a cluster is INVALID_ARGUMENT and changes nothing" [] => no_cluster;
    "create" CreateMachine ["CMI-27", "DRV-04", "CMI-48", "DRV-CR-03", "PLG-CR-03", "DRV-16", "CMI-96"];
    "delete" DeleteMachine ["DRV-04", "CMI-48", "DRV-DE-03", "PLG-DE-03", "DRV-24", "CMI-112"];
    "status" GetMachineStatus ["DRV-04", "CMI-48", "DRV-GS-03", "PLG-GS-03", "DRV-31", "CMI-124"];
    "list" ListMachines ["DRV-04", "CMI-48", "DRV-LM-03", "PLG-LM-03", "DRV-38", "CMI-143"];
    "shut-down" ShutDownMachine ["CMI-48", "PLG-SD-03", "CMI-134"];
};

pub(super) const MANDATORY_FIELDS: &[Case] = family! {
    "-mandatory-fields": "a missing mandatory field is INVALID_ARGUMENT, and the message names it"
        [Need::Setting(Setting::MandatoryFields)] => mandatory_fields;
    "create" CreateMachine ["CMI-27", "DRV-04", "CMI-48", "DRV-CR-03", "PLG-CR-03", "DRV-16", "CMI-96"];
    "delete" DeleteMachine ["DRV-04", "CMI-48", "DRV-DE-03", "PLG-DE-03", "DRV-24", "CMI-112"];
    "status" GetMachineStatus ["DRV-04", "CMI-48", "DRV-GS-03", "PLG-GS-03", "DRV-31", "CMI-124"];
    "list" ListMachines ["DRV-04", "CMI-48", "DRV-LM-03", "PLG-LM-03", "DRV-38", "CMI-143"];
};

pub(super) const MISSING_FIELDS: &[Case] = family! {
    "-missing-fields":
    "a blank name, an empty spec, or a spec without cluster or mandatory field is INVALID_ARGUMENT"
        [] => missing_fields;
    "initialize" InitializeMachine ["CAP-21"];
    "update" UpdateMachine ["CAP-21"];
    "restart-machine" RestartMachine ["CAP-21"];
    "console" GetConsole ["CAP-21"];
};

pub(super) const INVALID_SPECS: &[Case] = cases! {
    "create-invalid-specs": "an invalid spec is INVALID_ARGUMENT and creates nothing"
        ["DRV-CR-03", "PLG-CR-03", "DRV-16", "CMI-96", "CMI-30"],
        [Need::Setting(Setting::InvalidSpecs)] => invalid_specs;
    "create-out-of-range": "a size that does not exist is OUT_OF_RANGE and creates nothing"
        ["DRV-CR-11", "PLG-CR-11"], [Need::Setting(Setting::OutOfRangeSpecs)] => out_of_range;
};

pub(super) const MESSAGES: &[Case] = family! {
    "-messages": "an error has a message that explains it" [] => messages;
    "create" CreateMachine ["DRV-06", "DRV-17", "CMI-40", "CMI-98"];
    "delete" DeleteMachine ["DRV-25", "CMI-113"];
    "status" GetMachineStatus ["DRV-32", "CMI-125"];
    "list" ListMachines ["DRV-39", "CMI-145"];
    "shut-down" ShutDownMachine ["CMI-135"];
};

/// Checks that the call is refused as invalid, and that a refused create has made nothing.
async fn refused(t: &TestContext, operation: Operation, wrong: &MachineRequest) -> CaseResult {
    let right = t.machine_request("a");
    if operation == Operation::CreateMachine {
        t.create(wrong).await?.refused(Code::InvalidArgument)?;
        return t.has_none(&right).await;
    }
    t.invoke(operation, wrong, None)
        .await?
        .refused(Code::InvalidArgument)
        .map(|_| ())
}

async fn blank_name(t: TestContext, operation: Operation) -> CaseResult {
    let request = t.machine_request("a");
    for blank in ["", " ", "\t"] {
        refused(&t, operation, &request.clone().named(blank)).await?;
    }
    Ok(())
}

async fn too_long_name(t: TestContext) -> CaseResult {
    let request = t.machine_request("a").named("a".repeat(TOO_LONG));
    refused(&t, Operation::CreateMachine, &request).await
}

async fn empty_spec(t: TestContext, operation: Operation) -> CaseResult {
    let mut request = t.machine_request("a");
    request.class.provider_spec = ProviderSpec(Map::new());
    refused(&t, operation, &request).await
}

async fn no_cluster(t: TestContext, operation: Operation) -> CaseResult {
    let (there, id) = t.prepare_vm("b").await?;
    for (how, request) in without_cluster(&t, &there) {
        let refused = t
            .invoke(operation, &request, None)
            .await?
            .refused(Code::InvalidArgument);
        refused.map_err(|error| error.after(&format!("by a provider spec {how}")))?;
    }
    t.has_only(&there, &id).await
}

/// Returns requests whose spec names no cluster, each with a description.
fn without_cluster(t: &TestContext, request: &MachineRequest) -> Vec<(String, MachineRequest)> {
    let tags = &t.capabilities().tag_path;
    let tag = format!("{tags}/{}", tags::CLUSTER.replace('/', "~1"));
    let mut all = vec![
        (
            format!("without the tag {}", tags::CLUSTER),
            request.clone().untagged(tags::CLUSTER),
        ),
        (
            format!("with an empty tag {}", tags::CLUSTER),
            request.clone().in_cluster(""),
        ),
        (format!("without {tags}"), request.clone().without(tags)),
    ];
    for value in [json!(null), json!("a text"), json!(["a text"]), json!(7)] {
        let how = format!("with {value} as {tags}");
        all.push((how, request.clone().with_value(tags, value)));
    }
    if let Ok(tag) = tag.parse() {
        for value in [json!(null), json!(7), json!(["a text"]), json!({})] {
            let how = format!("with {value} as the tag {}", tags::CLUSTER);
            all.push((how, request.clone().with_value(&tag, value)));
        }
    }
    let renamed = request.clone().in_other_case(tags);
    all.extend(renamed.map(|request| (format!("with {tags} in another case"), request)));
    all
}

/// Sends wrong requests about an existing VM, which must stay unchanged.
async fn missing_fields(t: TestContext, operation: Operation) -> CaseResult {
    let (there, id) = t.prepare_vm("b").await?;
    let mut empty = there.clone();
    empty.class.provider_spec = ProviderSpec(Map::new());
    let mut wrong = vec![
        ("with an empty name".to_owned(), there.clone().named("")),
        ("with a blank name".to_owned(), there.clone().named(" ")),
        ("by an empty provider spec".to_owned(), empty),
    ];
    let clusterless = without_cluster(&t, &there).into_iter();
    wrong.extend(clusterless.map(|(how, request)| (format!("by a provider spec {how}"), request)));
    for field in t.config().mandatory() {
        let what = format!("by a provider spec without {field}");
        wrong.push((what, there.clone().without(&field)));
        let renamed = there.clone().in_other_case(&field);
        let what = format!("by a provider spec that has {field} in another case alone");
        wrong.extend(renamed.map(|request| (what, request)));
    }
    for (what, request) in wrong {
        let answer = t.invoke(operation, &request, Some(&id)).await?;
        let refused = answer.refused(Code::InvalidArgument);
        speaks(&refused.map_err(|error| error.after(&what))?)?;
    }
    t.has_only(&there, &id).await
}

async fn mandatory_fields(t: TestContext, operation: Operation) -> CaseResult {
    let request = t.machine_request("a");
    for field in t.config().mandatory() {
        let wrong = request.clone().without(&field);
        let status = t
            .invoke(operation, &wrong, None)
            .await?
            .refused(Code::InvalidArgument)?;
        let name = field.segments().last().cloned().unwrap_or_default();
        ensure(status.message().contains(&name), || {
            format!("the message has to name the field {field}: {}", status.message())
        })?;
        if let Some(renamed) = request.clone().in_other_case(&field) {
            let refused = t
                .invoke(operation, &renamed, None)
                .await?
                .refused(Code::InvalidArgument);
            let what = format!("by a provider spec that has {field} in another case alone");
            refused.map_err(|error| error.after(&what))?;
        }
    }
    t.has_none(&request).await
}

async fn invalid_specs(t: TestContext) -> CaseResult {
    for change in t.config().invalid_specs.clone() {
        let request = t.machine_request("a").changed(&change);
        t.create(&request).await?.refused(Code::InvalidArgument)?;
    }
    t.has_none(&t.machine_request("a")).await
}

async fn out_of_range(t: TestContext) -> CaseResult {
    for change in t.config().out_of_range_specs.clone() {
        let request = t.machine_request("a").changed(&change);
        let status = t
            .create(&request)
            .await?
            .refused_with(&[Code::OutOfRange, Code::InvalidArgument])?;
        if status.code() == Code::InvalidArgument {
            t.warn(format!(
                "{change} should be OUT_OF_RANGE: the field is there, and its value is not"
            ));
        }
    }
    t.has_none(&t.machine_request("a")).await
}

async fn messages(t: TestContext, operation: Operation) -> CaseResult {
    let request = t.machine_request("a");
    let wrong = request.untagged(tags::CLUSTER);
    speaks(
        &t.invoke(operation, &wrong, None)
            .await?
            .refused(Code::InvalidArgument)?,
    )
}
