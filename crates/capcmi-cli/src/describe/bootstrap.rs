//! The object that makes the bootstrap data of a machine, while the machine waits for it.

use kube::Client;
use kube::api::DynamicObject;

use capcmi::api::ObjectMetaExt as _;
use capcmi::api::cluster_api::{self, ObjectReference};
use capcmi::api::conditions;
use capcmi::api::reason;
use capcmi::api::v1alpha1::InfraMachine;
use capcmi::apiserver::{dynamic, error_message};

/// Where the missing bootstrap data of a machine has to come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootstrapSource {
    /// `spec.bootstrap` of the Machine names no config, so a user provides the Secret.
    User,
    /// The object in `spec.bootstrap.configRef` of the Machine.
    Config {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
        /// Its condition `Ready`, if it has one, or why it cannot be read.
        ready: Result<Option<ReadyCondition>, String>,
    },
    /// The Machine cannot be read.
    Unread(String),
}

/// The condition `Ready` of an object of another provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyCondition {
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// The reason; may be empty.
    pub reason: String,
    /// The message; may be empty.
    pub message: String,
}

/// Returns the source of the bootstrap data if the machine waits for it.
pub(super) async fn of(client: &Client, machine: &InfraMachine) -> Option<BootstrapSource> {
    let status = machine.status.as_ref()?;
    let ready = conditions::get(&status.conditions, conditions::READY)?;
    if ready.reason != reason::WAITING_FOR_BOOTSTRAP_DATA {
        return None;
    }
    let mut owners = machine.metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.kind == "Machine")?;
    let namespace = machine.metadata.namespace();
    let machines = dynamic(client, namespace, cluster_api::GROUP, "v1beta2", "Machine");
    let read = machines.get(&owner.name).await;
    Some(match read {
        Err(error) => BootstrapSource::Unread(error_message(&error)),
        Ok(found) => match config_of(&found) {
            None => BootstrapSource::User,
            Some(reference) => BootstrapSource::Config {
                ready: ready_of(client, namespace, &reference).await,
                kind: reference.kind,
                name: reference.name,
            },
        },
    })
}

/// Returns `spec.bootstrap.configRef` of a Machine.
fn config_of(machine: &DynamicObject) -> Option<ObjectReference> {
    let reference = machine.data["spec"]["bootstrap"]["configRef"].clone();
    let reference: ObjectReference = serde_json::from_value(reference).ok()?;
    (!reference.name.is_empty()).then_some(reference)
}

async fn ready_of(
    client: &Client,
    namespace: &str,
    reference: &ObjectReference,
) -> Result<Option<ReadyCondition>, String> {
    let groups = client.list_api_groups().await;
    let groups = groups.map_err(|error| error_message(&error))?.groups;
    let group = groups.into_iter().find(|group| group.name == reference.api_group);
    let version = group.and_then(|group| {
        let preferred = group
            .preferred_version
            .or_else(|| group.versions.into_iter().next());
        preferred.map(|version| version.version)
    });
    let version = version.ok_or_else(|| format!("the API server has no group {}", reference.api_group))?;
    let objects = dynamic(client, namespace, &reference.api_group, &version, &reference.kind);
    let found = objects.get_opt(&reference.name).await;
    let found = found.map_err(|error| error_message(&error))?;
    Ok(readiness(&found.ok_or("does not exist")?))
}

fn readiness(object: &DynamicObject) -> Option<ReadyCondition> {
    let all = object.data["status"]["conditions"].as_array()?;
    let ready = all
        .iter()
        .find(|condition| condition["type"] == conditions::READY)?;
    let text = |field: &str| ready[field].as_str().unwrap_or_default().to_owned();
    Some(ReadyCondition {
        status: text("status"),
        reason: text("reason"),
        message: text("message"),
    })
}
