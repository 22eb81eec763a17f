//! Plans the reconcile of an InfraCluster, and the status that it leads to. Pure.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::api::cluster_api::Cluster;
use crate::api::conditions::{
    self, ConditionStatus, DRIVER_REACHABLE, FAILURE_DOMAINS_UP_TO_DATE, PAUSED, READY, Setter, reason,
};
use crate::api::retry::is_same_or_both_transient;
use crate::api::v1alpha1::{FailureDomain, InfraCluster, InfraClusterInitialization, InfraClusterStatus};
use crate::api::{annotations, paused_by};
use cmi_driver::{Code, Status, Zone};

#[cfg(test)]
mod tests;

/// The most failure domains that Cluster API accepts.
const MAX_ZONES: usize = 100;
/// Bytes that the name of a failure domain may have.
const MAX_ZONE_NAME: usize = 256;
/// Attributes that a failure domain may have.
const MAX_ATTRIBUTES: usize = 128;
/// Characters that the value of an attribute may have.
const MAX_ATTRIBUTE: usize = 65_536;

/// The objects that were read for one reconcile.
pub struct Observed<'a> {
    /// The Cluster that owns the InfraCluster.
    pub owner: Option<&'a Cluster>,
    /// The id that drivers know the Cluster by.
    pub cluster_id: Option<String>,
}

/// What a reconcile has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Plan {
    /// Nothing has to be done, and nothing is written.
    NoOp,
    /// The InfraCluster is paused; the status says by what.
    Pause(String),
    /// The InfraCluster may be used.
    Provision {
        /// The id that drivers know the Cluster by.
        cluster_id: String,
        /// Whether it is not known yet where the control plane is reached.
        awaits_endpoint: bool,
    },
}

/// What is known of the driver's failure domains.
#[derive(Debug)]
pub enum Zones {
    /// No driver was asked: the InfraCluster is paused, or does not say which driver is meant.
    NotQueried,
    /// The driver has no failure domains.
    None,
    /// The driver has these.
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
    // An externally managed InfraCluster: spec and status have another writer.
    if annotated(annotations::MANAGED_BY) || infra.metadata.deletion_timestamp.is_some() {
        return Plan::NoOp;
    }
    let (Some(owner), Some(cluster_id)) = (observed.owner, &observed.cluster_id) else {
        return Plan::NoOp;
    };
    match paused_by(infra, owner.is_paused()) {
        Some(by) => Plan::Pause(by),
        None => Plan::Provision {
            cluster_id: cluster_id.clone(),
            awaits_endpoint: !has_endpoint(infra, owner),
        },
    }
}

/// Whether it is known where the control plane is reached.
fn has_endpoint(infra: &InfraCluster, owner: &Cluster) -> bool {
    let is_set = |host: &str, port: i32| !host.is_empty() && port != 0;
    let here = infra.spec.control_plane_endpoint.as_ref();
    let there = owner.spec.control_plane_endpoint.as_ref();
    here.is_some_and(|endpoint| is_set(&endpoint.host, endpoint.port))
        || there.is_some_and(|endpoint| is_set(&endpoint.host, endpoint.port))
}

/// A status under construction.
struct Draft<'a> {
    infra: &'a InfraCluster,
    status: InfraClusterStatus,
    now: Timestamp,
}

/// Returns the status after a plan; the same as before where nothing changed.
pub fn status(infra: &InfraCluster, plan: &Plan, zones: &Zones, now: Timestamp) -> InfraClusterStatus {
    let status = infra.status.clone().unwrap_or_default();
    let mut draft = Draft { infra, status, now };
    match plan {
        Plan::NoOp => {}
        // Paused: the rest of the status still describes the generation that it was made from.
        Plan::Pause(by) => draft.set(PAUSED, ConditionStatus::True, reason::PAUSED, by),
        Plan::Provision { awaits_endpoint, .. } => {
            draft.mark_false(PAUSED, reason::NOT_PAUSED, "");
            draft.record_zones(zones, *awaits_endpoint);
            draft.status.observed_generation = infra.metadata.generation;
        }
    }
    draft.status
}

/// Returns why the driver can't be asked for failure domains, where the status after a plan is the first to
/// say so: reason and message. An outage does not count where the Cluster is in use: it is reported when it
/// lasts.
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

/// Whether the drivers of a Cluster can be reached, by what their probes have said for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connectivity {
    /// The Cluster has no driver, or the probes have not said the same for long enough.
    Unsettled,
    /// All drivers can be reached.
    Kept,
    /// Not all drivers can be reached; a sentence that names those that can't.
    Lost(String),
}

/// A change in whether the drivers of a Cluster can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transition {
    /// A driver is unreachable; the condition's message.
    Lost(String),
    /// All drivers are reachable again.
    Back,
}

/// Sets the condition that says whether the drivers can be reached. Whether the driver has just answered, the
/// failure domains report: that a driver is unreachable is reported when that has lasted, and once.
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
        // The driver is not configured, and that is what is reported.
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

    /// Sets a condition to true, with nothing more to say.
    fn mark_true(&mut self, type_: &str, reason: &str) {
        self.set(type_, ConditionStatus::True, reason, "");
    }

    fn mark_false(&mut self, type_: &str, reason: &str, message: &str) {
        self.set(type_, ConditionStatus::False, reason, message);
    }

    fn record_zones(&mut self, zones: &Zones, awaits_endpoint: bool) {
        match zones {
            Zones::NotQueried => self.provisioned(awaits_endpoint),
            // A machine that is placed in a failure domain that is gone can't be made.
            Zones::None => self.answered(Vec::new(), awaits_endpoint),
            Zones::Known(zones) => self.answered(failure_domains(zones), awaits_endpoint),
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

    fn answered(&mut self, domains: Vec<FailureDomain>, awaits_endpoint: bool) {
        self.reachable();
        self.mark_true(FAILURE_DOMAINS_UP_TO_DATE, reason::UP_TO_DATE);
        self.status.failure_domains = domains;
        self.provisioned(awaits_endpoint);
    }

    /// Reports that the failure domains are not known, or not any more.
    fn not_queried(&mut self, reason: &str, message: &str) {
        self.mark_false(FAILURE_DOMAINS_UP_TO_DATE, reason, message);
        // What was provisioned stays so: a driver that can't be asked says nothing about the Cluster.
        if !self.is_provisioned() {
            self.mark_false(READY, reason, message);
        }
    }

    fn is_provisioned(&self) -> bool {
        let initialization = self.status.initialization.as_ref();
        initialization.and_then(|initialization| initialization.provisioned) == Some(true)
    }

    /// Reports that machines may be made. They need not know where the control plane is reached, and a
    /// control plane that brings its own endpoint may say it only when its machines are there: to wait for
    /// the endpoint would be a deadlock. A missing endpoint is reported.
    fn provisioned(&mut self, awaits_endpoint: bool) {
        self.status.initialization = Some(InfraClusterInitialization {
            provisioned: Some(true),
        });
        if awaits_endpoint {
            let message = "the control plane endpoint is not known: set spec.controlPlaneEndpoint of the \
                InfraCluster or the Cluster, unless the control plane provides it";
            let reason = reason::WAITING_FOR_CONTROL_PLANE_ENDPOINT;
            self.mark_false(READY, reason, message);
        } else {
            self.mark_true(READY, reason::READY);
        }
    }
}

/// Leaves out what the schema would refuse: the rest of the status has to be written all the same.
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
