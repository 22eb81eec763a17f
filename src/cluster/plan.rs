//! What has to be done for an InfraCluster, and the status it leads to. Pure.

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
    /// Hands off; the status says who asked.
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
    /// Nobody asked.
    Unasked,
    /// The driver has none, or which driver is not said.
    None,
    /// These.
    Known(Vec<Zone>),
    /// The driver could not say.
    Unreachable(Status),
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
        Zones::Unasked | Zones::None | Zones::Known(_) => {
            set(conditions::DRIVER_REACHABLE, State::True, reason::REACHABLE, "");
            None
        }
        Zones::Unreachable(error) => {
            set(
                conditions::DRIVER_REACHABLE,
                State::False,
                error.code().name(),
                error.message(),
            );
            Some((error.code().name(), error.message()))
        }
        Zones::NotConfigured(message) => Some((reason::DRIVER_NOT_CONFIGURED, message.as_str())),
        Zones::NoSecrets(message) => Some((reason::INVALID_SECRET, message.as_str())),
    };
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
    if let Zones::Known(zones) = zones {
        // What the schema would refuse is left out: the rest of the status has to be written all the same.
        let mut names = std::collections::BTreeSet::new();
        let usable = zones
            .iter()
            .filter(|zone| (1..=MAX_ZONE_NAME).contains(&zone.name.len()) && names.insert(&zone.name));
        status.failure_domains = usable.take(MAX_ZONES).map(failure_domain).collect();
    }
    status.observed_generation = generation;
    status
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
        let outage = || Zones::Unreachable(Status::new(Code::Unavailable, "connection refused"));
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
    /// One bad zone must not have the API server refuse the others, again and again.
    #[test]
    fn of_the_zones_that_a_driver_names_what_the_schema_would_refuse_is_left_out() {
        let zone = |name: &str, attributes: Vec<(String, String)>| Zone {
            name: name.to_owned(),
            control_plane: true,
            attributes: attributes.into_iter().collect(),
        };
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
