//! Finds VMs that vanished: one list per driver and class at an interval, instead of a call per machine.
//!
//! Layer 2. Nothing is deleted and nothing is written here: what lists say of a machine is only handed to its reconciler,
//! which asks the driver about it.

mod plan;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Client;
use kube::runtime::reflector::ObjectRef;

pub use self::plan::Word;
use self::plan::{Absences, Expected, List, judge};
use crate::api::cluster_api::Cluster;
use crate::api::conditions::{self, reason};
use crate::api::labels::{self, Instance};
use crate::api::v1alpha1::InfraMachine;
use crate::apiserver::secrets;
use crate::caches::Caches;
use crate::driver::{Code, JsonPointer, ListMachinesRequest, MachineClass, Operation, ProviderSpec, tags};
use crate::provider::{Provider, Providers, Share};

/// What a survey works with.
pub struct Context {
    /// Reads credentials.
    pub client: Client,
    /// The machines.
    pub caches: Caches,
    /// The configured drivers.
    pub providers: Providers,
}

/// The name under which a survey waits for its turn.
const LINE: &str = "inventory";

/// The machines that one list answers for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Group {
    namespace: String,
    secret: Option<String>,
    /// The provider spec without the machine's own tag, as JSON.
    class: String,
}

/// Surveys for ever, every driver once per interval; tells what its lists say of every machine that they are sure of.
///
/// Each driver is surveyed by itself: one that hangs keeps nobody from looking after the VMs of the others.
pub async fn run(ctx: Context, interval: Duration, tell: impl Fn(&InfraMachine, Word) + Send + Sync) {
    let surveys = ctx
        .providers
        .iter()
        .map(|provider| keep_surveying(&ctx, provider, interval, &tell));
    futures::future::join_all(surveys).await;
    // Without a driver there is nothing to do, and what never ends must not.
    futures::future::pending::<()>().await;
}

async fn keep_surveying(
    ctx: &Context,
    provider: &Provider,
    interval: Duration,
    tell: &(impl Fn(&InfraMachine, Word) + Send + Sync),
) {
    let mut absences = Absences::new();
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // The first tick comes at once, and a restart is no reason to list.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        survey(ctx, provider, &mut absences, tell).await;
    }
}

async fn survey(
    ctx: &Context,
    provider: &Provider,
    absences: &mut Absences,
    tell: &(impl Fn(&InfraMachine, Word) + Send + Sync),
) {
    let (groups, window) = {
        let turn = provider.turn(Share::Upkeep, LINE).await;
        match turn.contact().await {
            Ok(capabilities) if capabilities.offers(Operation::ListMachines) => {
                let groups = groups(&ctx.caches, provider.name(), &capabilities.tag_path);
                (groups, capabilities.consistency_window)
            }
            Ok(_) | Err(_) => return,
        }
    };
    let alive: HashSet<_> = groups
        .values()
        .flatten()
        .filter_map(|machine| machine.metadata.uid.clone())
        .collect();
    absences.retain(|uid, _| alive.contains(uid));
    for (group, machines) in groups {
        // One class that fails must not keep the others from being looked after (CTL-LM-03).
        let asked = Instant::now();
        let Some(ids) = list(ctx, provider, &group).await else {
            continue;
        };
        let list = List {
            ids: &ids,
            asked,
            window,
        };
        let expected: Vec<_> = machines.iter().filter_map(|machine| expected(machine)).collect();
        let words: HashMap<_, _> = judge(&expected, list, absences).into_iter().collect();
        for machine in machines {
            let uid = machine.metadata.uid.as_deref().unwrap_or_default();
            let Some(word) = words.get(uid).copied() else {
                continue;
            };
            if word != Word::AsItWas {
                tracing::info!(
                    name = machine.metadata.name,
                    ?word,
                    "the driver's list says otherwise; asking about the VM"
                );
            }
            tell(&machine, word);
        }
    }
}

/// The ids of all VMs of a class; `None` when they can't be had, and nothing follows from that.
async fn list(ctx: &Context, provider: &Provider, group: &Group) -> Option<HashSet<String>> {
    let turn = provider.turn(Share::Upkeep, LINE).await;
    let secret = group.secret.as_deref();
    let secrets = match secrets::credentials(&ctx.client, &group.namespace, secret, secrets::SECRET_REF).await
    {
        Ok(Ok(secrets)) => secrets,
        Ok(Err(cause)) => return skipped(provider, &cause.to_string()),
        Err(error) => return skipped(provider, &error.to_string()),
    };
    let provider_spec: ProviderSpec = serde_json::from_str(&group.class).ok()?;
    let request = ListMachinesRequest {
        class: MachineClass {
            provider_spec,
            secrets,
        },
    };
    match turn.driver().list_machines(request).await {
        Ok(machines) => Some(
            machines
                .into_iter()
                .map(|machine| machine.provider_id.to_string())
                .collect(),
        ),
        // A driver that turns out not to list has the feature off, without noise (CTL-LM-12).
        Err(status) if status.code() == Code::Unimplemented => None,
        Err(status) => skipped(provider, status.message()),
    }
}

fn skipped(provider: &Provider, why: &str) -> Option<HashSet<String>> {
    tracing::warn!(
        provider = provider.name(),
        why,
        "VMs can't be listed; trying again at the next interval"
    );
    None
}

/// The provisioned machines of a driver, by the list that answers for them.
fn groups(caches: &Caches, driver: &str, tag_path: &JsonPointer) -> HashMap<Group, Vec<Arc<InfraMachine>>> {
    let mut groups: HashMap<Group, Vec<Arc<InfraMachine>>> = HashMap::new();
    for guarded in caches.infra_machines.state() {
        let Ok(machine) = &guarded.0 else { continue };
        // What a list says while hands are off is too old when they are on again.
        if cluster_of(caches, machine).is_some_and(|cluster| cluster.is_paused()) {
            continue;
        }
        if let Some(group) = group(machine, driver, tag_path) {
            groups.entry(group).or_default().push(Arc::new(machine.clone()));
        }
    }
    groups
}

fn cluster_of(caches: &Caches, machine: &InfraMachine) -> Option<Arc<Cluster>> {
    let name = machine.metadata.labels.as_ref()?.get(labels::CLUSTER_NAME)?;
    let reference = ObjectRef::new(name).within(machine.metadata.namespace.as_deref()?);
    caches.clusters.get(&reference)
}

fn group(machine: &InfraMachine, driver: &str, tag_path: &JsonPointer) -> Option<Group> {
    let annotations = machine.metadata.annotations.as_ref()?;
    let provisioned = machine.status.as_ref()?.initialization.as_ref()?.provisioned == Some(true);
    let instance = Instance::from_annotation(annotations.get(labels::INSTANCE)?);
    if !provisioned
        || annotations.get(labels::DRIVER)? != driver
        || instance == Instance::None
        || machine.metadata.deletion_timestamp.is_some()
        || annotations.contains_key(labels::PAUSED)
    {
        return None;
    }
    let mut spec: ProviderSpec =
        serde_json::from_str(annotations.get(labels::APPLIED_PROVIDER_SPEC)?).ok()?;
    spec.remove_tags(tag_path, &[tags::MACHINE]);
    let named = machine.spec.secret_ref.as_ref().map(|secret| &secret.name);
    Some(Group {
        namespace: machine.metadata.namespace.clone()?,
        secret: annotations
            .get(labels::SECRET)
            .or(named)
            .filter(|name| !name.is_empty())
            .cloned(),
        class: serde_json::to_string(&spec).ok()?,
    })
}

fn expected(machine: &InfraMachine) -> Option<Expected> {
    let conditions = machine
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    let ready = conditions::get(conditions, conditions::READY);
    Some(Expected {
        uid: machine.metadata.uid.clone()?,
        provider_id: machine.spec.provider_id.clone()?,
        vanished: ready.is_some_and(|ready| ready.reason == reason::VIRTUAL_MACHINE_VANISHED),
    })
}
