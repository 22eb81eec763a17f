//! Creates the objects of a [`Migration`], and skips those of an earlier run.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};

use super::controller::Stopped;
use super::error::WriteError;
use super::plan::{
    DISABLE_MACHINE_CREATE, Group, MIGRATED_FROM, MIGRATED_TO, Migration, Object, UNDOING, UNFINISHED,
};
use super::source::{GROUP, VERSION, condition, text};
use capcmi::api::{annotations, labels};
use capcmi::apiserver::dynamic;

/// How long core may take to adopt or pause the next Machine, and how long the provider may take to adopt or
/// release the next VM.
const TAKE_OVER: Duration = Duration::from_mins(2);
/// The delay between two checks for remaining objects.
pub(super) const PAUSE: Duration = Duration::from_millis(500);

/// The progress of earlier runs.
#[derive(Debug, Default)]
pub struct MigrationProgress {
    /// The objects that an earlier run created, by kind and name.
    made: BTreeSet<(&'static str, String)>,
    /// The groups that are done, by their original owner.
    done: BTreeSet<String>,
    /// Machines of done groups that have no object: created after the migration, or deleted since.
    unknown: BTreeSet<String>,
}

impl MigrationProgress {
    /// Whether an earlier run created the object.
    pub fn has(&self, object: &Object) -> bool {
        self.made.contains(&(object.kind, object.name.clone()))
    }

    /// Whether a group is done: later changes of its objects are Cluster API's affair.
    pub fn is_done(&self, group: &Group) -> bool {
        self.done.contains(&group.from)
    }

    /// Returns the machines of a done group that were created after the migration or deleted since. No mark
    /// tells the two cases apart.
    pub fn unknown<'a>(&'a self, group: &'a Group) -> impl Iterator<Item = &'a str> {
        let machines = group
            .originals
            .iter()
            .filter(|original| original.kind == "Machine");
        let names = machines.map(|machine| machine.name.as_str());
        names.filter(|name| self.unknown.contains(*name))
    }

    /// Whether every group is done.
    pub fn is_complete(&self, migration: &Migration) -> bool {
        migration.groups.iter().all(|group| self.is_done(group))
    }

    /// Whether a class is used by a group that is not done.
    pub fn needs(&self, migration: &Migration, class: &super::source::McmClassKey) -> bool {
        let mut left = migration.groups.iter().filter(|group| !self.is_done(group));
        left.any(|group| group.classes.contains(class))
    }
}

/// Reads the progress of earlier runs. `marks` says whether the old objects can be marked as migrated.
///
/// # Errors
/// The obstacle to the migration, or an error of the API server.
pub async fn progress(
    client: &Client,
    migration: &Migration,
    marks: bool,
) -> Result<MigrationProgress, WriteError> {
    let mut progress = MigrationProgress::default();
    let (mut taken, mut differ, mut late) = (Vec::new(), Vec::new(), Vec::new());
    let mut undone = Vec::new();
    for group in &migration.groups {
        let (mut is_unfinished, mut of_group) = (false, Vec::new());
        for object in group.objects() {
            if let Some(found) = find(client, object, &mut progress, &mut taken).await? {
                is_unfinished |= found.annotations().contains_key(UNFINISHED);
                if found.annotations().contains_key(UNDOING) {
                    undone.push(object.to_string());
                }
                of_group.extend(differences(object, &found.data));
            }
        }
        let is_done = match group.head() {
            Some(head) if progress.has(head) => !is_unfinished,
            // It was deleted since, and is not created again.
            Some(_) => group.is_marked(),
            None if marks => group.is_marked(),
            None => group.objects().all(|object| progress.has(object)),
        };
        if !is_done {
            differ.append(&mut of_group);
            continue;
        }
        progress.done.insert(group.from.clone());
        let lost = group
            .of_kind("InfraMachine")
            .filter(|object| !progress.has(object) && !group.has_marked(&object.name));
        let lost: Vec<_> = lost.map(|object| object.name.clone()).collect();
        if marks {
            late.extend(lost);
        } else {
            progress.unknown.extend(lost);
        }
    }
    for class in &migration.classes {
        if progress.needs(migration, &class.key) {
            for object in &class.objects {
                if let Some(found) = find(client, object, &mut progress, &mut taken).await? {
                    differ.extend(differences(object, &found.data));
                }
            }
        }
    }
    if !taken.is_empty() {
        return Err(WriteError::AlreadyExists(taken.join(", ")));
    }
    if !undone.is_empty() {
        return Err(WriteError::BeingUndone(undone.join(", ")));
    }
    if !late.is_empty() {
        return Err(WriteError::MachinesAddedSince(late.join(", ")));
    }
    if !differ.is_empty() {
        return Err(WriteError::Differs(differ.join("; ")));
    }
    Ok(progress)
}

/// The fields that must match the plan, so that core creates, deletes and rolls out no machine.
const OF_SETS: [&str; 11] = [
    "/spec/clusterName",
    "/spec/replicas",
    "/spec/selector/matchLabels",
    "/spec/selector/matchExpressions",
    "/spec/template/spec/clusterName",
    "/spec/template/spec/version",
    "/spec/template/spec/bootstrap/dataSecretName",
    "/spec/template/spec/bootstrap/configRef",
    "/spec/template/spec/infrastructureRef/name",
    "/spec/template/spec/failureDomain",
    "/spec/template/spec/minReadySeconds",
];
/// The fields that must match the plan and the migrated state. Then the provider finds and deletes the right
/// VM by its original spec, and machine-controller-manager can take over the unchanged VM.
pub(super) const OF_INFRA_MACHINES: [&str; 4] = [
    "/spec/driver",
    "/spec/providerID",
    "/spec/providerSpec",
    "/spec/secretRef/name",
];
/// The fields that must match the plan, so that later machines are like the existing ones.
const OF_TEMPLATES: [&str; 3] = [
    "/spec/template/spec/driver",
    "/spec/template/spec/providerSpec",
    "/spec/template/spec/secretRef/name",
];

/// Returns the differences between an object of an earlier run and the planned object.
pub(super) fn differences(object: &Object, live: &Value) -> Vec<String> {
    match object.kind {
        "MachineDeployment" | "MachineSet" => differences_at(&OF_SETS, object, live),
        "InfraMachine" => differences_at(&OF_INFRA_MACHINES, object, live),
        "InfraMachineTemplate" => differences_at(&OF_TEMPLATES, object, live),
        "Secret" => differences_of_secrets(object, live),
        _ => Vec::new(),
    }
}

/// Returns the keys of a Secret whose values differ from the plan; the values are left out.
fn differences_of_secrets(object: &Object, live: &Value) -> Vec<String> {
    let data = |of: &Value| {
        of.get("data")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default()
    };
    let (is, wanted) = (data(live), data(&object.body));
    let names: BTreeSet<_> = is.keys().chain(wanted.keys()).collect();
    let other = names
        .into_iter()
        .filter(|name| is.get(*name) != wanted.get(*name));
    other
        .map(|name| format!("Secret {}: data.{name} has another value", object.name))
        .collect()
}

/// The fields among `places` that are not as planned.
pub(super) fn differences_at(places: &[&str], object: &Object, live: &Value) -> Vec<String> {
    // The API server may add the zero value of a field that is not given.
    let said = |value: Option<&Value>| {
        let nothing = [json!(null), json!(""), json!(0), json!([]), json!({})];
        value.filter(|value| !nothing.contains(value)).cloned()
    };
    let mut all = Vec::new();
    for place in places {
        let (is, wanted) = (said(live.pointer(place)), said(object.body.pointer(place)));
        if is != wanted {
            let text =
                |value: Option<Value>| value.map_or_else(|| "nothing".to_owned(), |value| value.to_string());
            let place = place.trim_start_matches('/').replace('/', ".");
            all.push(format!(
                "{object}: {place} is {}, expected {}",
                text(is),
                text(wanted)
            ));
        }
    }
    let labels = "/spec/template/metadata/labels";
    for (label, wanted) in object
        .body
        .pointer(labels)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        // Labels of others do not matter.
        if live.pointer(labels).and_then(|labels| labels.get(label)) != Some(wanted) {
            all.push(format!("{object}: the template lacks label {label}: {wanted}"));
        }
    }
    all
}

async fn find(
    client: &Client,
    object: &Object,
    progress: &mut MigrationProgress,
    taken: &mut Vec<String>,
) -> Result<Option<DynamicObject>, WriteError> {
    let found = read(client, object).await?;
    if let Some(found) = &found {
        if is_made_from(found, object) {
            progress.made.insert((object.kind, object.name.clone()));
        } else {
            taken.push(object.to_string());
        }
    }
    Ok(found)
}

pub(super) async fn read(client: &Client, object: &Object) -> Result<Option<DynamicObject>, WriteError> {
    let found = api(client, &object.body).get_opt(&object.name).await;
    found.map_err(|error| WriteError::api(format!("looking for {object}"), error))
}

/// Creates the missing objects; `print_line` reports each of them. With `old`, marks the originals there as
/// migrated to `to`, each group before Cluster API may reconcile it.
///
/// # Guarantees
/// Machines are created before the MachineSet that adopts them, and belong to the MachineSet before it may
/// create any. No controller of Cluster API creates or deletes a machine in between.
///
/// # Errors
/// The first failure, which stops the migration.
pub async fn write(
    client: &Client,
    migration: &Migration,
    progress: &MigrationProgress,
    old: Option<&Stopped>,
    to: &str,
    print_line: impl Fn(&str),
) -> Result<(), WriteError> {
    for class in migration
        .classes
        .iter()
        .filter(|class| progress.needs(migration, &class.key))
    {
        for object in &class.objects {
            create(client, object, progress, &print_line).await?;
        }
    }
    for group in migration.groups.iter().filter(|group| !progress.is_done(group)) {
        for object in group
            .machines
            .iter()
            .filter(|object| !group.has_marked(&object.name))
        {
            create(client, object, progress, &print_line).await?;
        }
        for object in group.deployment.iter().chain(&group.set) {
            create(client, object, progress, &print_line).await?;
        }
        if let Some(set) = &group.set {
            taken_over(client, set, group).await?;
        }
        adopted(client, group).await?;
        unchanged(client, group).await?;
        if let Some(old) = old {
            old.confirm().await?;
            mark_group(&old.client, &old.namespace, group, to).await?;
        }
        if let Some(head) = group.head() {
            finish(client, head).await?;
        }
    }
    Ok(())
}

/// Ensures that the objects that core is about to reconcile are as planned.
async fn unchanged(client: &Client, group: &Group) -> Result<(), WriteError> {
    let mut differ = Vec::new();
    for object in group.deployment.iter().chain(&group.set) {
        match read(client, object).await? {
            Some(found) => differ.extend(differences(object, &found.data)),
            None => differ.push(format!("{object} does not exist")),
        }
    }
    if differ.is_empty() {
        return Ok(());
    }
    Err(WriteError::Differs(differ.join("; ")))
}

/// Waits until the provider has adopted the VM of every InfraMachine: Cluster API replaces a Machine without
/// a VM as soon as it may.
async fn adopted(client: &Client, group: &Group) -> Result<(), WriteError> {
    let infra: Vec<_> = group.of_kind("InfraMachine").collect();
    let Some(first) = infra.first() else {
        return Ok(());
    };
    let cluster = text(&first.body, "/metadata/labels/cluster.x-k8s.io~1cluster-name");
    let of_cluster = ListParams::default().labels(&format!("{}={cluster}", labels::CLUSTER_NAME));
    let names: BTreeSet<_> = infra.iter().map(|object| object.name.as_str()).collect();
    let left = async || {
        let all = api(client, &first.body).list(&of_cluster).await;
        let all = all.map_err(|error| WriteError::api("listing the InfraMachines", error))?;
        // An operator has deleted an InfraMachine that no longer exists.
        let own = all
            .iter()
            .filter(|found| names.contains(found.name_any().as_str()));
        Ok(own
            .filter_map(|found| not_adopted(&found.name_any(), &found.data))
            .collect())
    };
    until_none(PAUSE, left, |left| WriteError::VmsNotAdopted(left.join("; "))).await
}

/// Waits until nothing is left. Times out after [`TAKE_OVER`] without progress.
pub(super) async fn until_none(
    pause: Duration,
    mut left: impl AsyncFnMut() -> Result<Vec<String>, WriteError>,
    late: impl FnOnce(Vec<String>) -> WriteError,
) -> Result<(), WriteError> {
    let (mut before, mut deadline) = (usize::MAX, Instant::now() + TAKE_OVER);
    loop {
        let left = left().await?;
        if left.is_empty() {
            return Ok(());
        }
        if left.len() < before {
            (before, deadline) = (left.len(), Instant::now() + TAKE_OVER);
        }
        if Instant::now() >= deadline {
            return Err(late(left));
        }
        sleep(pause).await;
    }
}

/// Returns the name of an InfraMachine without a VM, with its condition Ready.
pub(super) fn not_adopted(name: &str, infra: &Value) -> Option<String> {
    if infra.pointer("/status/initialization/provisioned") == Some(&Value::Bool(true)) {
        return None;
    }
    let why = condition(infra, "Ready").map_or_else(
        || "no status yet".to_owned(),
        |ready| format!("{}: {}", text(ready, "/reason"), text(ready, "/message")),
    );
    Some(format!("{name} ({why})"))
}

/// Lets core reconcile a group whose Machines all exist.
async fn finish(client: &Client, head: &Object) -> Result<(), WriteError> {
    let all = [UNFINISHED, DISABLE_MACHINE_CREATE, annotations::PAUSED];
    // An annotation that the migration did not set stays.
    let own = |key: &&str| head.body["metadata"]["annotations"].get(*key).is_some();
    let none: Map<_, _> = all
        .into_iter()
        .filter(own)
        .map(|key| (key.to_owned(), Value::Null))
        .collect();
    let body = json!({"metadata": {"annotations": none}});
    let params = PatchParams::default();
    let patched = api(client, &head.body)
        .patch(&head.name, &params, &Patch::Merge(&body))
        .await;
    let action = || format!("resuming {head}");
    patched
        .map(drop)
        .map_err(|error| WriteError::api(action(), error))
}

async fn create(
    client: &Client,
    object: &Object,
    progress: &MigrationProgress,
    print_line: &impl Fn(&str),
) -> Result<(), WriteError> {
    if progress.has(object) {
        return Ok(());
    }
    let name = object.to_string();
    let body = serde_json::from_value(object.body.clone());
    let body: DynamicObject = body.map_err(|source| WriteError::Encode {
        name: name.clone(),
        source,
    })?;
    let created = api(client, &object.body)
        .create(&PostParams::default(), &body)
        .await;
    created.map_err(|error| WriteError::api(format!("creating {name}"), error))?;
    print_line(&format!("created {name}"));
    Ok(())
}

/// Waits until core has made the MachineSet the controller of all Machines.
async fn taken_over(client: &Client, set: &Object, group: &Group) -> Result<(), WriteError> {
    let deadline = Instant::now() + TAKE_OVER;
    loop {
        let mut left = Vec::new();
        for machine in group.of_kind("Machine") {
            let found = api(client, &machine.body).get_opt(&machine.name).await;
            let found =
                found.map_err(|error| WriteError::api(format!("reading Machine {}", machine.name), error))?;
            // An operator has deleted a Machine that no longer exists.
            let owners = found.iter().flat_map(kube::ResourceExt::owner_references);
            let is_owned = owners
                .into_iter()
                .any(|owner| owner.controller == Some(true) && owner.name == set.name);
            if found.is_some() && !is_owned {
                left.push(machine.name.clone());
            }
        }
        // The MachineDeployment would create another MachineSet before core has seen this one.
        if group.machines.is_empty() && !is_seen(client, set).await? {
            left.push("the MachineSet itself, which has not been reconciled".to_owned());
        }
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let set = set.name.clone();
            return Err(WriteError::MachinesNotAdopted {
                set,
                left: left.join(", "),
            });
        }
        sleep(PAUSE).await;
    }
}

/// Whether core has observed the current generation of the object.
async fn is_seen(client: &Client, set: &Object) -> Result<bool, WriteError> {
    let found = read(client, set).await?;
    Ok(found.is_some_and(|found| {
        let observed = found
            .data
            .pointer("/status/observedGeneration")
            .and_then(Value::as_i64);
        observed.is_some() && observed >= found.metadata.generation
    }))
}

/// Marks the originals as migrated, in the cluster that they were read from. Skips originals that are already
/// marked or deleted.
///
/// # Errors
/// The API server's.
pub async fn mark(
    client: &Client,
    namespace: &str,
    migration: &Migration,
    to: &str,
) -> Result<(), WriteError> {
    for group in &migration.groups {
        mark_group(client, namespace, group, to).await?;
    }
    for class in &migration.classes {
        mark_one(client, namespace, &class.key.kind, &class.key.name, to).await?;
    }
    Ok(())
}

/// Removes the mark from one object. Leaves an object without a mark, or with another mark, as it is.
///
/// # Errors
/// The API server's.
pub(super) async fn unmark_one(
    client: &Client,
    namespace: &str,
    kind: &str,
    name: &str,
    to: &str,
) -> Result<(), WriteError> {
    let api = old_api(client, namespace, kind);
    match mark_of(&api, kind, name).await? {
        Some(Some(mark)) if mark == to => set_mark(&api, kind, name, None).await,
        Some(_) | None => Ok(()),
    }
}

/// The original that keeps the machines is last: its mark says that the whole group is done.
async fn mark_group(client: &Client, namespace: &str, group: &Group, to: &str) -> Result<(), WriteError> {
    let left = group
        .originals
        .iter()
        .rev()
        .filter(|original| !original.is_marked);
    for original in left {
        mark_one(client, namespace, original.kind, &original.name, to).await?;
    }
    Ok(())
}

async fn mark_one(
    client: &Client,
    namespace: &str,
    kind: &str,
    name: &str,
    to: &str,
) -> Result<(), WriteError> {
    let api = old_api(client, namespace, kind);
    match mark_of(&api, kind, name).await? {
        Some(mark) if mark.as_deref() != Some(to) => set_mark(&api, kind, name, Some(to)).await,
        Some(_) | None => Ok(()),
    }
}

/// The API of a kind of machine-controller-manager.
fn old_api(client: &Client, namespace: &str, kind: &str) -> Api<DynamicObject> {
    dynamic(client, namespace, GROUP, VERSION, kind)
}

/// The mark of an object, if the object exists and has one.
async fn mark_of(
    api: &Api<DynamicObject>,
    kind: &str,
    name: &str,
) -> Result<Option<Option<String>>, WriteError> {
    let found = api.get_metadata_opt(name).await;
    let found = found.map_err(|error| WriteError::api(format!("reading {kind} {name}"), error))?;
    Ok(found.map(|found| found.annotations().get(MIGRATED_TO).cloned()))
}

async fn set_mark(
    api: &Api<DynamicObject>,
    kind: &str,
    name: &str,
    to: Option<&str>,
) -> Result<(), WriteError> {
    let body = json!({"metadata": {"annotations": {MIGRATED_TO: to}}});
    let patched = api
        .patch(name, &PatchParams::default(), &Patch::Merge(&body))
        .await;
    let action = match to {
        Some(_) => format!("marking {kind} {name} as migrated"),
        None => format!("removing annotation {MIGRATED_TO} of {kind} {name}"),
    };
    patched.map(drop).map_err(|error| WriteError::api(action, error))
}

/// Returns whether the found object was created by this migration.
pub(super) fn is_made_from(found: &DynamicObject, object: &Object) -> bool {
    found.annotations().get(MIGRATED_FROM) == Some(&marker(&object.body))
}

pub(super) fn marker(body: &Value) -> String {
    body["metadata"]["annotations"][MIGRATED_FROM]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

pub(super) fn api(client: &Client, body: &Value) -> Api<DynamicObject> {
    let version = text(body, "/apiVersion");
    let (group, version) = version.split_once('/').unwrap_or(("", &version));
    let (namespace, kind) = (text(body, "/metadata/namespace"), text(body, "/kind"));
    dynamic(client, &namespace, group, version, &kind)
}
