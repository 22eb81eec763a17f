//! What has to be done for an InfraCluster, and the status it leads to. Pure.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::api::cluster_api::Cluster;
use crate::api::conditions::{self, State, reason};
use crate::api::labels;
use crate::api::v1alpha1::{FailureDomain, InfraCluster, InfraClusterInitialization, InfraClusterStatus};
use crate::driver::{Status, Zone};

/// Cluster API takes no more failure domains.
const MAX_ZONES: usize = 100;
/// Bytes that the name of a failure domain may have.
const MAX_ZONE_NAME: usize = 256;
/// Attributes that a failure domain may have.
const MAX_ATTRIBUTES: usize = 128;
/// Characters that the value of an attribute may have.
const MAX_ATTRIBUTE: usize = 65_536;

/// What was read for one reconcile.
pub struct Observed<'a> {
    /// The Cluster that owns it.
    pub owner: Option<&'a Cluster>,
    /// The id that drivers know the Cluster by.
    pub cluster_id: Option<String>,
}

/// What has to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Plan {
    /// Nothing, and nothing is written.
    Leave,
    /// Paused; the status says who asked.
    Pause(String),
    /// It may be used.
    Provision {
        /// The id that drivers know the Cluster by.
        cluster_id: String,
    },
}

/// What is known of the driver's failure domains.
#[derive(Debug)]
pub enum Zones {
    /// Nobody was asked: hands are off, or which driver is meant is not said.
    Unasked,
    /// The driver has none.
    None,
    /// These.
    Known(Vec<Zone>),
    /// The driver could not say, or would not.
    Failed(Status),
    /// There is no such driver.
    NotConfigured(String),
    /// The credentials can't be read.
    NoSecrets(String),
}

/// What has to be done for an InfraCluster.
pub fn plan(infra: &InfraCluster, seen: &Observed<'_>) -> Plan {
    let annotated = |key: &str| {
        infra
            .metadata
            .annotations
            .as_ref()
            .is_some_and(|all| all.contains_key(key))
    };
    // Externally managed: somebody else writes spec and status.
    if annotated(labels::MANAGED_BY) || infra.metadata.deletion_timestamp.is_some() {
        return Plan::Leave;
    }
    let (Some(owner), Some(cluster_id)) = (seen.owner, &seen.cluster_id) else {
        return Plan::Leave;
    };
    let mut by = Vec::new();
    if owner.is_paused() {
        by.push("Cluster spec.paused is set to true");
    }
    if annotated(labels::PAUSED) {
        by.push("InfraCluster has the cluster.x-k8s.io/paused annotation");
    }
    if by.is_empty() {
        Plan::Provision {
            cluster_id: cluster_id.clone(),
        }
    } else {
        Plan::Pause(by.join(", "))
    }
}

/// The status after a plan; the same as before where nothing changed.
pub fn status(infra: &InfraCluster, plan: &Plan, zones: &Zones, now: Timestamp) -> InfraClusterStatus {
    let mut status = infra.status.clone().unwrap_or_default();
    let generation = infra.metadata.generation;
    let mut set = |type_: &str, state: State, reason: &str, message: &str| {
        conditions::set(
            &mut status.conditions,
            type_,
            state,
            reason,
            message,
            generation,
            now,
        );
    };
    match plan {
        Plan::Leave => return status,
        Plan::Pause(by) => {
            set(conditions::PAUSED, State::True, reason::PAUSED, by);
            status.observed_generation = generation;
            return status;
        }
        Plan::Provision { .. } => set(conditions::PAUSED, State::False, reason::NOT_PAUSED, ""),
    }
    let provisioned = infra
        .status
        .as_ref()
        .and_then(|status| status.initialization.as_ref()?.provisioned)
        == Some(true);
    let not_yet = match zones {
        Zones::Unasked | Zones::None | Zones::Known(_) => None,
        Zones::Failed(error) => Some((error.code().name(), error.message())),
        Zones::NotConfigured(message) => Some((reason::DRIVER_NOT_CONFIGURED, message.as_str())),
        Zones::NoSecrets(message) => Some((reason::INVALID_SECRET, message.as_str())),
    };
    let is_unreachable = match zones {
        Zones::Failed(error) => error.code().is_outage(),
        Zones::NotConfigured(_) => true,
        Zones::Unasked | Zones::None | Zones::Known(_) | Zones::NoSecrets(_) => false,
    };
    match not_yet.filter(|_| is_unreachable) {
        Some((reason, message)) => set(conditions::DRIVER_REACHABLE, State::False, reason, message),
        None => set(conditions::DRIVER_REACHABLE, State::True, reason::REACHABLE, ""),
    }
    let up_to_date = conditions::FAILURE_DOMAINS_UP_TO_DATE;
    match (not_yet, zones) {
        (Some((reason, message)), _) => set(up_to_date, State::False, reason, message),
        (None, Zones::Unasked) => {}
        (None, _) => set(up_to_date, State::True, reason::UP_TO_DATE, ""),
    }
    match not_yet {
        // What was provisioned stays so: a driver that can't be asked says nothing about the Cluster.
        Some((reason, message)) if !provisioned => set(conditions::READY, State::False, reason, message),
        Some(_) => {}
        None => {
            set(conditions::READY, State::True, reason::READY, "");
            status.initialization = Some(InfraClusterInitialization {
                provisioned: Some(true),
            });
        }
    }
    match zones {
        Zones::Known(zones) => status.failure_domains = failure_domains(zones),
        // A machine that is placed in one that is no more can't be made.
        Zones::None => status.failure_domains.clear(),
        Zones::Unasked | Zones::Failed(_) | Zones::NotConfigured(_) | Zones::NoSecrets(_) => {}
    }
    status.observed_generation = generation;
    status
}

/// What the schema would refuse is left out: the rest of the status has to be written all the same.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::cluster_api::ClusterSpec;
    use crate::api::v1alpha1::InfraClusterSpec;
    use crate::driver::Code;

    fn observed(owner: &Cluster) -> Observed<'_> {
        Observed {
            owner: Some(owner),
            cluster_id: Some("c-1".to_owned()),
        }
    }

    fn annotated(key: &str) -> InfraCluster {
        let mut infra = InfraCluster::new("c", InfraClusterSpec::default());
        infra.metadata.annotations = Some([(key.to_owned(), String::new())].into());
        infra
    }

    fn provision() -> Plan {
        Plan::Provision {
            cluster_id: "c-1".to_owned(),
        }
    }

    #[test]
    fn an_externally_managed_or_ownerless_cluster_is_left_alone() {
        let owner = Cluster::new("c", ClusterSpec::default());
        assert_eq!(
            plan(&annotated(labels::MANAGED_BY), &observed(&owner)),
            Plan::Leave
        );
        let ownerless = Observed {
            owner: None,
            cluster_id: None,
        };
        assert_eq!(plan(&annotated("other"), &ownerless), Plan::Leave);
    }

    #[test]
    fn the_cluster_and_the_annotation_pause_it() {
        let paused = Cluster::new(
            "c",
            ClusterSpec {
                paused: Some(true),
                ..ClusterSpec::default()
            },
        );
        assert!(matches!(
            plan(&annotated("other"), &observed(&paused)),
            Plan::Pause(_)
        ));
        let owner = Cluster::new("c", ClusterSpec::default());
        assert!(matches!(
            plan(&annotated(labels::PAUSED), &observed(&owner)),
            Plan::Pause(_)
        ));
        assert_eq!(plan(&annotated("other"), &observed(&owner)), provision());
    }

    #[test]
    fn a_driver_that_goes_away_does_not_take_back_what_was_provisioned() {
        let now = Timestamp::UNIX_EPOCH;
        let outage = || Zones::Failed(Status::new(Code::Unavailable, "connection refused"));
        let mut infra = annotated("other");
        let first = status(&infra, &provision(), &outage(), now);
        assert!(!conditions::is_true(&first.conditions, conditions::READY));
        assert_eq!(first.initialization, None);
        infra.status = Some(status(&infra, &provision(), &Zones::None, now));
        let later = status(&infra, &provision(), &outage(), now);
        assert!(conditions::is_true(&later.conditions, conditions::READY));
        assert!(!conditions::is_true(
            &later.conditions,
            conditions::DRIVER_REACHABLE
        ));
    }

    fn zone(name: &str, attributes: Vec<(String, String)>) -> Zone {
        Zone {
            name: name.to_owned(),
            control_plane: true,
            attributes: attributes.into_iter().collect(),
        }
    }

    /// An InfraCluster whose driver named a failure domain.
    fn zoned() -> InfraCluster {
        let mut infra = annotated("other");
        let known = Zones::Known(vec![zone("east", Vec::new())]);
        infra.status = Some(status(&infra, &provision(), &known, Timestamp::UNIX_EPOCH));
        infra
    }

    /// A Machine that Cluster API places in one that is no more would fail for good.
    #[test]
    fn failure_domains_are_taken_back_when_the_driver_has_none_and_not_when_it_does_not_say() {
        let infra = zoned();
        let shown = |zones: &Zones| {
            let after = status(&infra, &provision(), zones, Timestamp::UNIX_EPOCH);
            after.failure_domains.len()
        };
        assert_eq!(shown(&Zones::None), 0);
        assert_eq!(shown(&Zones::Known(Vec::new())), 0);
        for silence in [
            Zones::Unasked,
            Zones::Failed(Status::new(Code::Unavailable, "connection refused")),
            Zones::Failed(Status::new(Code::PermissionDenied, "no")),
            Zones::NotConfigured("no".to_owned()),
            Zones::NoSecrets("no".to_owned()),
        ] {
            assert_eq!(shown(&silence), 1, "{silence:?}");
        }
    }

    /// A refusal is an answer, as it is of a machine's call; what is wrong is told all the same.
    #[test]
    fn a_driver_is_unreachable_when_it_does_not_answer_and_not_when_it_refuses() {
        let infra = zoned();
        for code in Code::ALL {
            let failed = Zones::Failed(Status::new(code, "no"));
            let after = status(&infra, &provision(), &failed, Timestamp::UNIX_EPOCH).conditions;
            let outage = matches!(code, Code::Unavailable | Code::DeadlineExceeded);
            assert_eq!(
                conditions::is_true(&after, conditions::DRIVER_REACHABLE),
                !outage,
                "{code}"
            );
            assert!(conditions::is_true(&after, conditions::READY), "{code}");
            let told = conditions::get(&after, conditions::FAILURE_DOMAINS_UP_TO_DATE).unwrap();
            assert_eq!(
                (told.status.as_str(), told.reason.as_str(), told.message.as_str()),
                ("False", code.name(), "no")
            );
        }
    }

    #[test]
    fn a_driver_that_is_not_configured_any_more_is_not_called_reachable() {
        let infra = zoned();
        let gone = Zones::NotConfigured("there is no driver `a`".to_owned());
        let after = status(&infra, &provision(), &gone, Timestamp::UNIX_EPOCH).conditions;
        let shown = conditions::get(&after, conditions::DRIVER_REACHABLE).unwrap();
        assert_eq!(
            (shown.status.as_str(), shown.reason.as_str()),
            ("False", reason::DRIVER_NOT_CONFIGURED)
        );
    }

    /// One bad zone must not have the API server refuse the others, again and again.
    #[test]
    fn of_the_zones_that_a_driver_names_what_the_schema_would_refuse_is_left_out() {
        let many = (0..200).map(|n| (format!("k{n}"), String::new())).collect();
        let long = vec![
            ("long".to_owned(), "x".repeat(65_537)),
            ("a".to_owned(), "b".to_owned()),
        ];
        let zones = Zones::Known(vec![
            zone("", Vec::new()),
            zone(&"x".repeat(257), Vec::new()),
            zone("a", long),
            zone("a", Vec::new()),
            zone("b", many),
        ]);
        let shown = status(&annotated("other"), &provision(), &zones, Timestamp::UNIX_EPOCH).failure_domains;
        let seen: Vec<_> = shown
            .iter()
            .map(|domain| (domain.name.as_str(), domain.attributes.len()))
            .collect();
        assert_eq!(seen, [("a", 1), ("b", 128)]);
    }
}
