//! The plan for a Machine's hook. Pure.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Deserialize;

use super::drain_rules::DrainRules;
use super::end::{End, MAX_DRAIN, MAX_OUTAGE};
use super::opt_in::OptIn;
use super::record::Eviction;
use super::status::{self, DrainCondition};
use crate::api::cluster_api::{Cluster, Machine};
use crate::api::identity;
use crate::api::v1alpha1::InfraMachine;
use crate::api::wall_clock::until;
use crate::api::{ObjectMetaExt as _, annotations, paused_by};

/// The inputs of one reconcile.
pub struct Observed {
    /// Whether machines may request a volume drain.
    pub enabled: bool,
    /// The Machine, as cached.
    pub machine: Arc<Machine>,
    /// The InfraMachine that it refers to.
    pub infra: Infra,
    /// The Cluster that it belongs to, if it exists.
    pub cluster: Option<Arc<Cluster>>,
    /// The Machine from the API server; only for a deleted Machine with the hook.
    pub live: Option<DrainedMachine>,
    /// The rules for its drain; only read together with `live`.
    pub rules: Option<DrainRules>,
    /// For how long the workload cluster has been unreachable.
    pub outage: Option<Duration>,
    /// The wall clock.
    pub now: Timestamp,
}

/// The InfraMachine of a Machine.
pub enum Infra {
    /// The Machine refers to this one.
    Found(Box<InfraMachine>),
    /// It is deleted.
    Gone,
    /// It can't be read.
    Unreadable,
    /// It belongs to another provider, another replica, or another Machine.
    Unknown,
}

impl Observed {
    /// The InfraMachine, if it exists.
    pub fn infra(&self) -> Option<&InfraMachine> {
        match &self.infra {
            Infra::Found(infra) => Some(infra),
            Infra::Gone | Infra::Unreadable | Infra::Unknown => None,
        }
    }

    /// The Machine's namespace, name and UID.
    pub fn machine_names(&self) -> (&str, &str, &str) {
        let meta = &self.machine.metadata;
        (meta.namespace(), meta.name(), meta.uid())
    }
}

/// The fields of a deleted Machine that the provider reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DrainedMachine {
    /// Name and annotations.
    pub metadata: ObjectMeta,
    spec: LiveSpec,
    status: LiveStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct LiveSpec {
    deletion: SpecDeletion,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SpecDeletion {
    node_drain_timeout_seconds: Option<u32>,
    node_volume_detach_timeout_seconds: Option<u32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LiveStatus {
    node_ref: NodeReference,
    deletion: StatusDeletion,
    conditions: Vec<LiveCondition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeReference {
    name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StatusDeletion {
    /// Set by Cluster API since v1.14.
    wait_for_pre_drain_hook_start_time: Option<Time>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LiveCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    reason: String,
    last_transition_time: Option<Time>,
}

impl LiveCondition {
    /// Whether the condition reports a wait for a pre-drain hook, this one or another.
    fn waits_for_pre_drain_hook(&self) -> bool {
        self.type_ == "Deleting" && self.status == "True" && self.reason == "WaitingForPreDrainHook"
    }
}

impl DrainedMachine {
    fn has_annotation(&self, key: &str) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        annotations.is_some_and(|all| all.contains_key(key))
    }

    /// The limit of the drain: Cluster API's own limit for the Machine, if set. As in Cluster API, zero is no
    /// limit.
    fn limit(&self) -> Duration {
        let asked = self.spec.deletion.node_drain_timeout_seconds;
        let asked = asked.filter(|seconds| *seconds > 0).map(u64::from);
        asked.map_or(MAX_DRAIN, |seconds| MAX_DRAIN.min(Duration::from_secs(seconds)))
    }

    /// The deadline and the limit of the drain; `None` before Cluster API waits for the hook.
    fn deadline(&self) -> Option<(Timestamp, Duration)> {
        self.waiting_since().map(|since| self.limit_from(since))
    }

    /// Since when Cluster API has waited for the hook. Before v1.14 only the condition `Deleting` shows that.
    /// Its time is the start of the deletion, because the hook is the first step.
    fn waiting_since(&self) -> Option<Timestamp> {
        let said = self.status.deletion.wait_for_pre_drain_hook_start_time.as_ref();
        let shown = || {
            let mut all = self.status.conditions.iter();
            let waits = all.find(|condition| condition.waits_for_pre_drain_hook())?;
            let begun = self.metadata.deletion_timestamp.as_ref();
            waits.last_transition_time.as_ref().or(begun)
        };
        said.or_else(shown).map(|Time(since)| *since)
    }

    /// The deadline and the limit of a drain that begins at `since`.
    fn limit_from(&self, since: Timestamp) -> (Timestamp, Duration) {
        let limit = self.limit();
        let time = SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX);
        (since.saturating_add(time).unwrap_or(Timestamp::MAX), limit)
    }

    /// How long to wait for the volumes of a pod: at most as long as Cluster API waits for the Node's
    /// volumes.
    fn bounded(&self, timeout: Duration) -> Duration {
        let asked = self.spec.deletion.node_volume_detach_timeout_seconds;
        let asked = asked.filter(|seconds| *seconds > 0).map(u64::from);
        asked.map_or(timeout, |seconds| timeout.min(Duration::from_secs(seconds)))
    }
}

/// The next step for the hook of a Machine.
#[derive(Debug)]
pub enum Plan<'a> {
    /// Do nothing until a watched object changes.
    NoOp,
    /// Do nothing for this long.
    Wait(Duration),
    /// The hook is correct. Only publish the condition.
    Publish(Option<DrainCondition>),
    /// Set the hook on the Machine.
    SetHook,
    /// Remove the hook from the Machine.
    RemoveHook(End),
    /// Cluster API waits. Evict the Node's pods, in the workload cluster of this Cluster.
    Drain(DrainTarget, &'a Cluster),
}

/// The Node to drain.
#[derive(Clone, Debug)]
pub struct DrainTarget {
    /// Its name.
    pub node: String,
    /// The machine's providerID. A Node with another providerID belongs to another machine.
    pub provider_id: String,
    /// How long to wait for the volumes of a pod.
    pub timeout: Duration,
    /// The last eviction, if any.
    pub last: Option<Eviction>,
    /// The deadline of the whole drain.
    pub deadline: Timestamp,
    /// The MachineDrainRules for its pods.
    pub rules: DrainRules,
}

/// Plans the next step for the hook of a Machine.
///
/// # Guarantees
/// * The hook is set only on request, and never on a Machine in deletion. Cluster API may be past the hook.
/// * Pods are evicted only while Cluster API reports that it waits. It does not wait if it would not drain,
///   such as during the deletion of the whole Cluster.
pub fn plan(observed: &Observed) -> Plan<'_> {
    let has_hook = super::has_hook(&observed.machine);
    let is_leaving = observed.machine.metadata.deletion_timestamp.is_some();
    let infra = match &observed.infra {
        Infra::Unknown => return remove_hook_in_the_end(observed),
        Infra::Unreadable if is_leaving => {
            return remove_hook_if(has_hook, End::Skipped("the InfraMachine cannot be read"));
        }
        Infra::Unreadable => return Plan::NoOp,
        Infra::Gone => return remove_hook_if(has_hook, End::NoInfraMachine),
        Infra::Found(infra) => &**infra,
    };
    if paused_by(infra, observed.cluster.as_deref().is_some_and(Cluster::is_paused)).is_some() {
        return Plan::NoOp;
    }
    if infra.metadata.deletion_timestamp.is_some() {
        return remove_hook_if(has_hook, End::NoInfraMachine);
    }
    let opt_in = if observed.enabled {
        OptIn::of(infra)
    } else {
        OptIn::No
    };
    let Some(timeout) = opt_in.timeout() else {
        return if has_hook {
            Plan::RemoveHook(End::NotAskedFor)
        } else {
            Plan::Publish(None)
        };
    };
    match (has_hook, is_leaving) {
        (false, true) => Plan::NoOp,
        (false, false) => Plan::SetHook,
        (true, false) => Plan::Publish(status::invalid(&opt_in)),
        (true, true) => drain(observed, infra, timeout),
    }
}

/// Plans for a Machine whose InfraMachine belongs to another provider, replica or Machine. The hook is
/// removed after the longest possible drain, because that replica may no longer exist. If Cluster API does
/// not report the start of its wait, the time counts from the deletion.
fn remove_hook_in_the_end(observed: &Observed) -> Plan<'static> {
    let end = |machine: &DrainedMachine| {
        let Time(begun) = machine.metadata.deletion_timestamp.as_ref()?;
        Some(machine.limit_from(machine.waiting_since().unwrap_or(*begun)))
    };
    let Some((deadline, limit)) = observed.live.as_ref().and_then(end) else {
        return Plan::NoOp;
    };
    let left = until(deadline, observed.now);
    if left.is_zero() {
        Plan::RemoveHook(End::TimedOut(limit))
    } else {
        Plan::Wait(left)
    }
}

fn remove_hook_if(has_hook: bool, end: End) -> Plan<'static> {
    if has_hook {
        Plan::RemoveHook(end)
    } else {
        Plan::NoOp
    }
}

fn drain<'a>(observed: &'a Observed, infra: &InfraMachine, timeout: Duration) -> Plan<'a> {
    let (Some(cluster), Some(machine)) = (&observed.cluster, &observed.live) else {
        return Plan::NoOp;
    };
    if machine.has_annotation(annotations::PAUSED) {
        return Plan::NoOp;
    }
    if cluster.metadata.deletion_timestamp.is_some() {
        return Plan::RemoveHook(End::Skipped("the Cluster is deleted"));
    }
    if machine.has_annotation(annotations::EXCLUDE_NODE_DRAINING) {
        return Plan::RemoveHook(End::Skipped("the Machine is excluded from draining"));
    }
    if machine.has_annotation(annotations::EXCLUDE_VOLUME_DETACH) {
        return Plan::RemoveHook(End::Skipped("the Machine is excluded from waiting for volumes"));
    }
    let Some((deadline, limit)) = machine.deadline() else {
        return Plan::NoOp;
    };
    if deadline <= observed.now {
        return Plan::RemoveHook(End::TimedOut(limit));
    }
    if observed.outage.is_some_and(|outage| outage >= MAX_OUTAGE) {
        return Plan::RemoveHook(End::Outage);
    }
    // Cluster API finds a Node by the providerID alone, even if the driver never confirmed it. The Node may
    // belong to another machine.
    if !identity::vm_state(infra).may_exist() {
        return Plan::RemoveHook(End::Skipped("the machine has no VM of its own"));
    }
    let (node, provider_id) = (&machine.status.node_ref.name, &infra.spec.provider_id);
    let Some(provider_id) = provider_id.as_ref().filter(|_| !node.is_empty()) else {
        return Plan::RemoveHook(End::Skipped("the Machine has no Node"));
    };
    let target = DrainTarget {
        node: node.clone(),
        provider_id: provider_id.clone(),
        timeout: machine.bounded(timeout),
        last: Eviction::of(&infra.metadata),
        deadline,
        rules: observed.rules.clone().unwrap_or_else(DrainRules::unknown),
    };
    Plan::Drain(target, cluster)
}

#[cfg(test)]
mod tests;
