//! Plans the reconcile of an InfraCluster, and computes its status. Pure.

mod deletion;
mod owner;

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::api::cluster_api::{ApiEndpoint, Cluster};
use crate::api::conditions::{
    self, ConditionStatus, DELETING, DRIVER_REACHABLE, FAILURE_DOMAINS_UP_TO_DATE, PAUSED, READY, Setter,
    reason,
};
use crate::api::retry::is_same_or_both_transient;
use crate::api::v1alpha1::{FailureDomain, InfraCluster, InfraClusterInitialization, InfraClusterStatus};
use crate::api::{CLUSTER_FINALIZER, ObjectMetaExt as _, annotations, paused_by};
use cmi_driver::{Code, Status, Zone};

use self::deletion::deletion;
pub use self::owner::Claim;
use self::owner::without_owner;

#[cfg(test)]
mod tests;

/// The maximum number of failure domains in Cluster API.
const MAX_ZONES: usize = 100;
/// The maximum length of a failure domain's name, in bytes.
const MAX_ZONE_NAME: usize = 256;
/// The maximum number of attributes of a failure domain.
const MAX_ATTRIBUTES: usize = 128;
/// The maximum length of an attribute's value, in characters.
const MAX_ATTRIBUTE: usize = 65_536;

/// The objects that were read for one reconcile.
pub struct Observed<'a> {
    /// The Cluster that owns the InfraCluster.
    pub owner: Option<&'a Cluster>,
    /// The Cluster's id at drivers.
    pub cluster_id: Option<String>,
    /// How the Clusters of the namespace refer to the InfraCluster. Read only while no Cluster owns it.
    pub claim: Claim,
    /// How many InfraMachines the Cluster has. Counted only during the deletion of the InfraCluster.
    pub machines: usize,
    /// The current time.
    pub now: Timestamp,
}

/// The action of a reconcile.
#[derive(Debug, PartialEq, Eq)]
pub enum Plan {
    /// Do nothing, and write nothing.
    NoOp,
    /// The InfraCluster is paused; the message names the cause.
    Pause(String),
    /// No Cluster owns the InfraCluster, which is normal for this long.
    AwaitOwner(Duration),
    /// No Cluster owns the InfraCluster; the message says why.
    ReportMissingOwner(String),
    /// The InfraCluster must not be deleted yet.
    Hold {
        /// The reason of the condition.
        reason: &'static str,
        /// The object that needs the InfraCluster, and the remedy.
        message: String,
    },
    /// The finalizer of a deleted InfraCluster can be removed.
    Release,
    /// The InfraCluster may be used.
    Provision {
        /// The id that drivers know the Cluster by.
        cluster_id: String,
        /// The state of the control plane endpoint.
        endpoint: Endpoint,
    },
}

/// The state of a control plane endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// The InfraCluster or the Cluster has it.
    Known,
    /// Neither has it yet.
    Missing,
    /// The InfraCluster was changed after Cluster API had copied the endpoint; the Cluster's endpoint.
    Changed(String),
}

/// The driver's failure domains, as far as they are known.
#[derive(Debug)]
pub enum Zones {
    /// No driver was asked: the InfraCluster is paused or names no driver.
    NotQueried,
    /// The driver has no failure domains.
    None,
    /// The driver has these failure domains.
    Known(Vec<Zone>),
    /// The driver could not answer, or refused to.
    Failed(Status),
    /// The driver is not configured.
    NotConfigured(String),
    /// The credentials can't be read.
    NoSecrets(String),
}

/// Plans the reconcile of an InfraCluster.
pub fn plan(infra: &InfraCluster, observed: &Observed<'_>) -> Plan {
    let annotated = |key: &str| {
        infra
            .metadata
            .annotations
            .as_ref()
            .is_some_and(|all| all.contains_key(key))
    };
    let is_deleting = infra.metadata.deletion_timestamp.is_some();
    // An externally managed InfraCluster: spec and status have another writer.
    let is_foreign = annotated(annotations::MANAGED_BY);
    if is_deleting && !infra.metadata.has_finalizer(CLUSTER_FINALIZER) || is_foreign && !is_deleting {
        return Plan::NoOp;
    }
    if let Some(by) = paused_by(infra, observed.owner.is_some_and(Cluster::is_paused)) {
        return Plan::Pause(by);
    }
    if is_deleting {
        return deletion(infra, observed);
    }
    match (observed.owner, &observed.cluster_id) {
        (Some(owner), Some(cluster_id)) => Plan::Provision {
            cluster_id: cluster_id.clone(),
            endpoint: endpoint(infra, owner),
        },
        (None, _) | (_, None) => without_owner(infra, observed),
    }
}

fn endpoint(infra: &InfraCluster, owner: &Cluster) -> Endpoint {
    let set = |endpoint: &Option<ApiEndpoint>| {
        let endpoint = endpoint.clone()?;
        (!endpoint.host.is_empty() && endpoint.port != 0).then_some(endpoint)
    };
    let here = set(&infra.spec.control_plane_endpoint);
    let there = set(&owner.spec.control_plane_endpoint);
    match (here, there) {
        (None, None) => Endpoint::Missing,
        (Some(here), Some(there)) if here != there => {
            Endpoint::Changed(format!("{}:{}", there.host, there.port))
        }
        (Some(_), _) | (None, Some(_)) => Endpoint::Known,
    }
}

/// A status under construction.
struct Draft<'a> {
    infra: &'a InfraCluster,
    status: InfraClusterStatus,
    now: Timestamp,
}

/// Returns the status after a plan. It equals the previous status where nothing changed.
pub fn status(infra: &InfraCluster, plan: &Plan, zones: &Zones, now: Timestamp) -> InfraClusterStatus {
    let status = infra.status.clone().unwrap_or_default();
    let mut draft = Draft { infra, status, now };
    match plan {
        Plan::NoOp | Plan::AwaitOwner(_) | Plan::Release => {}
        Plan::ReportMissingOwner(why) => {
            draft.mark_false(READY, reason::WAITING_FOR_OWNER, why);
            draft.status.observed_generation = infra.metadata.generation;
        }
        Plan::Hold { reason, message } => draft.set(DELETING, ConditionStatus::True, reason, message),
        // While paused, the rest of the status describes the generation that it was computed from.
        Plan::Pause(by) => draft.set(PAUSED, ConditionStatus::True, reason::PAUSED, by),
        Plan::Provision { endpoint, .. } => {
            draft.mark_false(PAUSED, reason::NOT_PAUSED, "");
            draft.record_zones(zones, endpoint);
            // A changed driver or Secret was not tried while the driver does not answer.
            if !matches!(zones, Zones::Failed(error) if error.code().is_outage()) {
                draft.status.observed_generation = infra.metadata.generation;
            }
        }
    }
    draft.status
}

/// Returns the reason and the message why the driver can't be asked for failure domains, if the new status is
/// the first to report it. For a Cluster in use, an outage does not count: it is reported when it lasts.
pub fn new_failure<'a>(
    infra: &InfraCluster,
    after: &'a InfraClusterStatus,
    zones: &Zones,
) -> Option<(&'a str, &'a str)> {
    let before = infra.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let shown = |conditions: &'a [Condition]| {
        let shown = conditions::get(conditions, FAILURE_DOMAINS_UP_TO_DATE)?;
        (shown.status == ConditionStatus::False.as_str())
            .then_some((shown.reason.as_str(), shown.message.as_str()))
    };
    let (reason, message) = shown(&after.conditions)?;
    let is_said = conditions::get(before, FAILURE_DOMAINS_UP_TO_DATE).is_some_and(|shown| {
        shown.status == ConditionStatus::False.as_str() && is_same_or_both_transient(&shown.reason, reason)
    });
    let is_outage = matches!(zones, Zones::Failed(error) if error.code().is_outage());
    let is_in_use = after.initialization.is_some();
    (!(is_said || is_outage && is_in_use)).then_some((reason, message))
}

/// Whether the drivers of a Cluster are reachable, debounced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connectivity {
    /// The Cluster has no driver, or the probes have not agreed for long enough.
    Unsettled,
    /// All drivers are reachable.
    Kept,
    /// Not all drivers are reachable; a sentence that names the unreachable ones.
    Lost(String),
}

/// A change in whether the drivers of a Cluster are reachable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transition {
    /// A driver is unreachable; the condition's message.
    Lost(String),
    /// All drivers are reachable again.
    Back,
}

/// Sets the condition that reports whether the drivers are reachable. The failure domains report whether the
/// driver has just answered. This condition reports only an outage that lasts, once.
pub fn report_connectivity(
    infra: &InfraCluster,
    mut status: InfraClusterStatus,
    zones: &Zones,
    connectivity: &Connectivity,
    now: Timestamp,
) -> (InfraClusterStatus, Option<Transition>) {
    let before = infra.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let shown = conditions::get(before, DRIVER_REACHABLE).cloned();
    let is_lost = |shown: &Condition| {
        shown.status == ConditionStatus::False.as_str() && shown.reason == Code::Unavailable.name()
    };
    let was_lost = shown.as_ref().is_some_and(is_lost);
    let mut conditions = Setter::new(&mut status.conditions, &infra.metadata, now);
    let transition = match (connectivity, zones) {
        // The status already reports that the driver is not configured.
        (_, Zones::NotConfigured(_)) => None,
        (Connectivity::Lost(message), _) => {
            let reason = Code::Unavailable.name();
            conditions.set(DRIVER_REACHABLE, ConditionStatus::False, reason, message);
            (!was_lost).then(|| Transition::Lost(message.clone()))
        }
        (Connectivity::Kept, _) => {
            conditions.set(DRIVER_REACHABLE, ConditionStatus::True, reason::REACHABLE, "");
            was_lost.then_some(Transition::Back)
        }
        (Connectivity::Unsettled, _) => {
            let is_shown = |condition: &Condition| condition.type_ == DRIVER_REACHABLE;
            let place = status.conditions.iter().position(is_shown);
            match (place, shown) {
                // Another driver is named, or the same one is configured again.
                (_, Some(shown)) if shown.reason == reason::DRIVER_NOT_CONFIGURED => {}
                (Some(place), Some(shown)) => status.conditions[place] = shown,
                (Some(place), None) if status.conditions[place].status == ConditionStatus::False.as_str() => {
                    status.conditions.remove(place);
                }
                (Some(_) | None, None) | (None, Some(_)) => {}
            }
            None
        }
    };
    (status, transition)
}

impl Draft<'_> {
    fn set(&mut self, type_: &str, state: ConditionStatus, reason: &str, message: &str) {
        Setter::new(&mut self.status.conditions, &self.infra.metadata, self.now)
            .set(type_, state, reason, message);
    }

    /// Sets a condition to true, without a message.
    fn mark_true(&mut self, type_: &str, reason: &str) {
        self.set(type_, ConditionStatus::True, reason, "");
    }

    fn mark_false(&mut self, type_: &str, reason: &str, message: &str) {
        self.set(type_, ConditionStatus::False, reason, message);
    }

    fn record_zones(&mut self, zones: &Zones, endpoint: &Endpoint) {
        match zones {
            Zones::NotQueried => self.provisioned(endpoint),
            // A machine can't be created in a failure domain that no longer exists.
            Zones::None => self.answered(Vec::new(), endpoint),
            Zones::Known(zones) => self.answered(failure_domains(zones), endpoint),
            Zones::Failed(error) => {
                let (reason, message) = (error.code().name(), error.message());
                if error.code().is_outage() {
                    self.unreachable(reason, message);
                } else {
                    // A refusal is an answer.
                    self.reachable();
                }
                self.not_queried(reason, message);
            }
            Zones::NotConfigured(message) => {
                self.unreachable(reason::DRIVER_NOT_CONFIGURED, message);
                self.not_queried(reason::DRIVER_NOT_CONFIGURED, message);
            }
            // No driver was called.
            Zones::NoSecrets(message) => self.not_queried(reason::INVALID_SECRET, message),
        }
    }

    fn reachable(&mut self) {
        self.mark_true(DRIVER_REACHABLE, reason::REACHABLE);
    }

    fn unreachable(&mut self, reason: &str, message: &str) {
        self.mark_false(DRIVER_REACHABLE, reason, message);
    }

    fn answered(&mut self, domains: Vec<FailureDomain>, endpoint: &Endpoint) {
        self.reachable();
        self.mark_true(FAILURE_DOMAINS_UP_TO_DATE, reason::UP_TO_DATE);
        self.status.failure_domains = domains;
        self.provisioned(endpoint);
    }

    /// Reports that the failure domains are unknown or outdated.
    fn not_queried(&mut self, reason: &str, message: &str) {
        self.mark_false(FAILURE_DOMAINS_UP_TO_DATE, reason, message);
        // A provisioned Cluster stays provisioned: an unreachable driver proves nothing about it.
        if !self.is_provisioned() {
            self.mark_false(READY, reason, message);
        }
    }

    fn is_provisioned(&self) -> bool {
        let initialization = self.status.initialization.as_ref();
        initialization.and_then(|initialization| initialization.provisioned) == Some(true)
    }

    /// Reports that machines may be created. They do not need the control plane endpoint. Some control planes
    /// provide it only once their machines exist, so waiting for it would be a deadlock. A missing endpoint
    /// is reported.
    fn provisioned(&mut self, endpoint: &Endpoint) {
        self.status.initialization = Some(InfraClusterInitialization {
            provisioned: Some(true),
        });
        match endpoint {
            Endpoint::Known => self.mark_true(READY, reason::READY),
            Endpoint::Missing => {
                let message = "the control plane endpoint is not known: set spec.controlPlaneEndpoint of the \
                    InfraCluster or the Cluster, unless the control plane provides it";
                self.mark_false(READY, reason::WAITING_FOR_CONTROL_PLANE_ENDPOINT, message);
            }
            Endpoint::Changed(kept) => {
                let message = format!(
                    "spec.controlPlaneEndpoint differs from the Cluster, which keeps {kept}: set it to that \
                        value, or remove it"
                );
                self.mark_false(READY, reason::CONTROL_PLANE_ENDPOINT_CHANGED, &message);
            }
        }
    }
}

/// Leaves out failure domains that the schema would refuse, so that the rest of the status can be written.
fn failure_domains(zones: &[Zone]) -> Vec<FailureDomain> {
    let mut names = BTreeSet::new();
    let usable = zones
        .iter()
        .filter(|zone| (1..=MAX_ZONE_NAME).contains(&zone.name.len()) && names.insert(&zone.name));
    usable.take(MAX_ZONES).map(failure_domain).collect()
}

fn failure_domain(zone: &Zone) -> FailureDomain {
    let usable = zone
        .attributes
        .iter()
        .filter(|(_, value)| value.chars().count() <= MAX_ATTRIBUTE);
    FailureDomain {
        name: zone.name.clone(),
        control_plane: zone.control_plane,
        attributes: usable
            .take(MAX_ATTRIBUTES)
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
    }
}
