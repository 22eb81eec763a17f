//! CreateMachine.

use futures::future::try_join_all;

use super::cases;
use crate::answer::{CaseResult, ensure, names};
use crate::{Case, CaseError, Hook, MachineRequest, Need, Setting, TestContext};
use cmi_driver::{Code, LastKnownState, Machine, Operation, SecretValue, USER_DATA, is_dns_subdomain, tags};

const STATUS: Need = Need::Call(Operation::GetMachineStatus);
/// As many bytes as kubeadm needs, and fewer than the limit of any back end.
const LONG_USER_DATA: usize = 12 << 10;
/// User data that is not UTF-8, with a NUL and with white space at both ends.
const NO_TEXT: &[u8] = b"\x1f\x8b\x08\x00\xff\xfe\xc3\x28 conformance \r\n\x00\x80 ";

pub(super) const CASES: &[Case] = cases! {
    "create-makes-a-vm": "a valid request creates a VM"
        ["DRV-09", "DRV-CR-00", "DRV-CR-12", "PLG-CR-00", "PLG-CR-12", "CMI-90"], [] => makes_a_vm;
    "create-ids": "the provider ID is unique and stable"
        ["DRV-13", "CMI-85", "CMI-92"], [] => ids;
    "create-node-name": "the node name is a stable DNS subdomain"
        ["DRV-14", "CMI-93"], [] => node_name;
    "create-longest-name": "a name at the length limit can be created, found and deleted"
        ["DRV-CR-00", "PLG-CR-00", "CMI-14"], [] => longest_name;
    "create-defaults": "optional spec fields can be omitted"
        ["DRV-02"], [Need::Setting(Setting::MandatoryFields)] => defaults;
    "create-again": "a repeated request returns the existing VM"
        ["DRV-10", "CMI-82"], [] => |t| again(t, 1);
    "create-ten-times": "ten repeated requests return the existing VM"
        ["DRV-12", "CMI-84"], [] => |t| again(t, 10);
    "create-renewed-user-data": "a request with renewed bootstrap data returns the existing VM"
        ["CAP-29"], [] => renewed_user_data;
    "create-control-plane": "a control plane machine is created like any other"
        ["CAP-32"], [] => control_plane;
    "create-different-names": "eight concurrent creates with different names make eight VMs"
        ["DRV-11", "CMI-83"], [] => different_names;
    "create-id-last-segment":
        "the last segment of the provider ID differs between names, and between clusters"
        ["CAP-38"], [] => last_segment;
    "create-two-clusters": "the same name in two clusters makes two VMs"
        ["DRV-08", "CMI-80"], [] => two_clusters;
    "create-other-parameters": "a request that does not match the existing VM is ALREADY_EXISTS"
        ["DRV-CR-06", "PLG-CR-06", "CMI-02"],
        [Need::Setting(Setting::IncompatibleChange)] => other_parameters;
    "create-hot-update": "a request that differs only in hot-updatable fields returns the existing VM"
        ["CAP-27"], [Need::Call(Operation::UpdateMachine), Need::Setting(Setting::HotUpdates)] => hot_update;
    "create-other-identity": "a VM of the same name with another machine tag is ALREADY_EXISTS"
        ["CAP-01"], [] => other_identity;
    "create-after-delete": "a deleted VM leaves nothing behind, and its name can be used again"
        ["DRV-DE-00", "PLG-DE-00", "DRV-23", "CMI-111"], [] => after_delete;
    "create-any-state": "an unknown LastKnownState is accepted"
        ["CMI-91", "CMI-94"], [] => any_state;
    "create-quota": "a request beyond the quota is RESOURCE_EXHAUSTED and creates nothing"
        ["DRV-CR-08", "PLG-CR-08", "DRV-15", "CMI-95"], [Need::Setting(Setting::QuotaBreakingSpec)] => quota;
    "create-user-data": "the VM gets the exact bootstrap data"
        ["DRV-05"], [Need::Hook(Hook::UserData)] => user_data;
    "create-user-data-of-any-bytes":
        "the VM gets the exact bootstrap data if it is long or has special characters; binary data may be \
            INVALID_ARGUMENT"
        ["DRV-05", "CMI-44"], [Need::Hook(Hook::UserData)] => user_data_of_any_bytes;
    "create-after-a-refusal": "a rejected machine is created after its spec is corrected"
        ["DRV-CR-00", "PLG-CR-00"], [Need::Setting(Setting::InvalidSpecs)] => after_a_refusal;
    "create-finds-a-planted-vm": "a planted VM with another machine tag is not adopted"
        ["CAP-01"], [STATUS, Need::Hook(Hook::Plant)] => planted;
};

async fn makes_a_vm(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let machine = t.make(&request).await?;
    t.has_only(&request, &machine.provider_id).await
}

async fn ids(t: TestContext) -> CaseResult {
    let (one, two) = (t.machine_request("a"), t.machine_request("b"));
    let (first, second) = (t.make(&one).await?, t.make(&two).await?);
    ensure(first.provider_id != second.provider_id, || {
        format!("two VMs have the id `{}`", first.provider_id)
    })?;
    let again = t.create(&one).await?.ok()?;
    ensure(again.provider_id == first.provider_id, || {
        format!(
            "the id changed from `{}` to `{}`",
            first.provider_id, again.provider_id
        )
    })?;
    if t.supports(Operation::GetMachineStatus) {
        t.is_there(&one, &first.provider_id).await?;
    }
    let wanted = [(&one, &first.provider_id), (&two, &second.provider_id)];
    t.has_exactly(&one, &wanted).await
}

async fn node_name(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let made = t.prepare(&request).await?;
    ensure(is_dns_subdomain(&made.node_name), || {
        format!("the node name `{}` is no DNS subdomain", made.node_name)
    })?;
    let same = |what: &str, machine: &Machine| {
        ensure(machine.node_name == made.node_name, || {
            format!(
                "{what} names the node `{}`; CreateMachine named it `{}`",
                machine.node_name, made.node_name
            )
        })
    };
    same("a repeated CreateMachine", &t.create(&request).await?.ok()?)?;
    if t.supports(Operation::GetMachineStatus) {
        same("GetMachineStatus", &t.status(&request, None).await?.ok()?)?;
    }
    Ok(())
}

async fn longest_name(t: TestContext) -> CaseResult {
    t.goes_only_so_far_without(Setting::LongestName);
    let request = t.machine_request("a");
    let missing = t.config().longest_name().saturating_sub(request.name.len());
    let name = format!("{}{}", request.name, "x".repeat(missing));
    let request = request.named(name);
    let machine = t.make(&request).await?;
    t.has_only(&request, &machine.provider_id).await?;
    t.remove(&request, Some(&machine.provider_id)).await?;
    t.is_gone(&request).await
}

async fn defaults(t: TestContext) -> CaseResult {
    // The tags stay: the cluster's tag is mandatory even if the configuration does not list it (DRV-04), and
    // the author's tags stand beside it.
    let mut needed = t.config().mandatory();
    needed.push(t.capabilities().tag_path.clone());
    let mut request = t.machine_request("a");
    for key in t.config().provider_spec.keys() {
        let needed = needed
            .iter()
            .any(|field| field.segments().first().is_some_and(|first| first == key));
        if !needed {
            request = request.changed(&serde_json::json!({ key: null }));
        }
    }
    t.make(&request).await.map(|_| ())
}

async fn again(t: TestContext, times: usize) -> CaseResult {
    let request = t.machine_request("a");
    let first = t.prepare(&request).await?;
    for _ in 0..times {
        let next = t.create(&request).await?.ok()?;
        ensure(names(&next) == names(&first), || {
            format!(
                "the VM was `{}`, and is `{}` now",
                first.provider_id, next.provider_id
            )
        })?;
    }
    t.has_only(&request, &first.provider_id).await
}

/// The token in the bootstrap data lives for minutes, and every later attempt has another token.
async fn renewed_user_data(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    let data = format!("#cloud-config {{token: {}-renewed}}", t.canary());
    let renewed = request.clone().with_user_data(data.into_bytes());
    let again = t.create(&renewed).await?.ok()?.provider_id;
    ensure(again == id, || {
        format!("the VM was `{id}`, and with renewed bootstrap data it is `{again}`")
    })?;
    t.has_only(&request, &id).await
}

async fn control_plane(t: TestContext) -> CaseResult {
    let request = t.machine_request("a").tagged(tags::ROLE, "control-plane");
    let id = t.make(&request).await?.provider_id;
    t.has_only(&request, &id).await?;
    t.remove(&request, Some(&id)).await?;
    t.is_gone(&request).await
}

async fn different_names(t: TestContext) -> CaseResult {
    let requests: Vec<_> = (0..8).map(|n| t.machine_request(&format!("n{n}"))).collect();
    let machines = try_join_all(requests.iter().map(|request| t.make(request))).await?;
    let ids: std::collections::BTreeSet<_> = machines.iter().map(|machine| &machine.provider_id).collect();
    ensure(ids.len() == requests.len(), || {
        format!("{} names have only {} VMs", requests.len(), ids.len())
    })?;
    let wanted: Vec<_> = requests
        .iter()
        .zip(&machines)
        .map(|(request, machine)| (request, &machine.provider_id))
        .collect();
    t.has_exactly(&requests[0], &wanted).await
}

async fn last_segment(t: TestContext) -> CaseResult {
    let here = t.machine_request("a");
    let there = here.clone().in_cluster(&t.other_cluster());
    let beside = t.machine_request("b");
    let machines = try_join_all([&here, &there, &beside].map(|request| t.make(request))).await?;
    let mut known = std::collections::BTreeMap::new();
    for id in machines.iter().map(|machine| machine.provider_id.as_str()) {
        let last = id.rsplit('/').next().unwrap_or_default();
        ensure(!last.is_empty(), || format!("the provider ID `{id}` ends in `/`"))?;
        let other = known.insert(last, id);
        ensure(other.is_none(), || {
            format!(
                "`{id}` and `{}` end in the same segment",
                other.unwrap_or_default()
            )
        })?;
    }
    Ok(())
}

async fn two_clusters(t: TestContext) -> CaseResult {
    let here = t.machine_request("a");
    let there = here.clone().in_cluster(&t.other_cluster());
    let (one, two) = (t.make(&here).await?, t.make(&there).await?);
    ensure(one.provider_id != two.provider_id, || {
        format!("two clusters share the VM `{}`", one.provider_id)
    })?;
    t.remove(&here, Some(&one.provider_id)).await?;
    t.survives(&there, &two.provider_id).await
}

async fn other_parameters(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    let change = t.config().incompatible_change.clone().unwrap_or_default();
    t.create(&request.clone().changed(&change))
        .await?
        .refused(Code::AlreadyExists)?;
    t.has_only(&request, &id).await?;
    let again = t.create(&request).await?.ok()?;
    ensure(again.provider_id == id, || {
        "the VM is another one since a request that it does not fit".to_owned()
    })
}

/// If the driver refused the create, a tag would end the machine. If it made another VM, that VM would leak.
async fn hot_update(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let first = t.prepare(&request).await?;
    for change in t.config().hot_updates.clone() {
        let wanted = request.clone().changed(&change);
        let again = t.created(&wanted).await.map_err(|error| {
            error.after(&format!(
                "the request differs from the VM by the change {change} alone, which is `hot_updatable`"
            ))
        })?;
        ensure(names(&again) == names(&first), || {
            format!(
                "the VM was `{}` of the node `{}`, and with the change {change} alone CreateMachine \
                 answered `{}` of `{}`",
                first.provider_id, first.node_name, again.provider_id, again.node_name
            )
        })?;
    }
    t.has_only(&request, &first.provider_id).await
}

async fn other_identity(t: TestContext) -> CaseResult {
    let (request, id) = t.prepare_vm("a").await?;
    let other = request.clone().with_identity("another-machine");
    t.create(&other).await?.refused(Code::AlreadyExists)?;
    t.has_only(&request, &id).await
}

async fn after_delete(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let first = t.prepare(&request).await?;
    t.remove(&request, Some(&first.provider_id)).await?;
    t.is_gone(&request).await?;
    let second = t.make(&request).await?;
    if second.provider_id == first.provider_id {
        t.warn(format!(
            "a new VM has the id `{}` of the one that is gone: a caller that kept that id takes one for the \
                other",
            first.provider_id
        ));
    }
    t.has_only(&request, &second.provider_id).await
}

async fn any_state(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let state = LastKnownState::new(vec![0, 159, 146, 150, 255]);
    let answer = t.create_with(&request, state).await?;
    let refused = answer.code() == Some(Code::InvalidArgument);
    answer.ok_or(&[Code::InvalidArgument, Code::Aborted])?;
    let machine = t.make(&request).await?;
    if refused {
        t.warn("a LastKnownState that is not the driver's own is refused");
    }
    t.has_only(&request, &machine.provider_id).await
}

async fn quota(t: TestContext) -> CaseResult {
    let change = t.config().quota_breaking_spec.clone().unwrap_or_default();
    let request = t.machine_request("a").changed(&change);
    t.create(&request).await?.refused(Code::ResourceExhausted)?;
    t.has_none(&t.machine_request("a")).await
}

async fn user_data(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    t.prepare(&request).await?;
    was_given(&t, &request).await
}

/// Fails unless the VM was given the bootstrap data of its request.
async fn was_given(t: &TestContext, request: &MachineRequest) -> CaseResult {
    let found = t.run_hook_on(Hook::UserData, request).await?;
    let Some(wanted) = request.class.secrets.get(USER_DATA).map(SecretValue::expose) else {
        return Err(CaseError::failed("the suite gave no user data"));
    };
    let differ = wanted
        .iter()
        .zip(&found)
        .position(|(wanted, found)| wanted != found);
    ensure(wanted == found, || {
        format!(
            "the VM was given other user data: {} bytes instead of {}, which differ from byte {} on",
            found.len(),
            wanted.len(),
            differ.unwrap_or(wanted.len().min(found.len()))
        )
    })
    .map_err(|error| match found.as_slice() {
        [] => error.before(&format!("; or {}", t.may_have_done_nothing(Hook::UserData))),
        _ => error,
    })
}

async fn user_data_of_any_bytes(t: TestContext) -> CaseResult {
    let long = "# what kubeadm needs is longer than this\n".repeat(LONG_USER_DATA / 40);
    let odd = "#cloud-config\n# ${HOME} $(id) %s {{ name }} \\n 'a' \"b\" schön \t\r\n \n\n".to_owned();
    for (label, what, data) in [
        ("long", "long user data", format!("#cloud-config\n{long}")),
        (
            "odd",
            "user data with characters that mean something to programs",
            odd,
        ),
    ] {
        let request = t.machine_request(label).with_user_data(data.into_bytes());
        t.prepare(&request).await?;
        was_given(&t, &request).await.map_err(|error| error.after(what))?;
    }
    let request = t.machine_request("bytes").with_user_data(NO_TEXT.to_vec());
    t.track(&request);
    let answer = t.create(&request).await?;
    if answer.code() == Some(Code::InvalidArgument) {
        t.warn("user data that is no text, such as what gzip writes, is refused");
        return t.has_none(&t.machine_request("bytes")).await;
    }
    answer.ok_or(&[Code::Aborted])?;
    t.make(&request).await?;
    was_given(&t, &request)
        .await
        .map_err(|error| error.after("user data that is no text"))
}

/// Resources that a driver has reserved for a refused spec must not block the next create.
async fn after_a_refusal(t: TestContext) -> CaseResult {
    let right = t.machine_request("a");
    for change in t.config().invalid_specs.clone() {
        let wrong = right.clone().changed(&change);
        // ALREADY_EXISTS may stem from the previous spec; the create below then shows the mistake.
        let codes = [Code::InvalidArgument, Code::AlreadyExists];
        let refused = t.create(&wrong).await?.refused_with(&codes);
        refused.map_err(CaseError::in_preparation)?;
    }
    let made = t
        .make(&right)
        .await
        .map_err(|error| error.after("after refusals of other specs"))?;
    t.has_only(&right, &made.provider_id).await
}

async fn planted(t: TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let foreign = request.clone().with_identity("another-machine");
    t.track(&foreign);
    t.run_hook_on(Hook::Plant, &foreign).await?;
    t.settle().await;
    t.create(&request).await?.refused(Code::AlreadyExists)?;
    ensure(t.seen(&request).await?.is_none(), || {
        "the VM of another machine object is taken for ours".to_owned()
    })
}
