//! An InfraCluster that no Cluster owns. Pure.

use std::time::Duration;

use super::{Observed, Plan};
use crate::api::v1alpha1::InfraCluster;
use crate::api::wall_clock;

/// How long an InfraCluster may exist without an owner before that is reported. Its Cluster may be applied
/// later, and Cluster API needs a moment to set the owner.
const OWNER_GRACE: Duration = Duration::from_mins(1);

/// How the Clusters of the namespace refer to an InfraCluster that none of them owns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Claim {
    /// No Cluster refers to it, and no Cluster refers to an InfraCluster that does not exist.
    #[default]
    None,
    /// This Cluster refers to it.
    By(String),
    /// This Cluster refers to an InfraCluster that does not exist, maybe by mistake.
    Mistaken {
        /// The Cluster.
        cluster: String,
        /// The name that it refers to.
        name: String,
    },
}

/// Plans for an InfraCluster without an owner: nothing at first, then a report.
pub(super) fn without_owner(infra: &InfraCluster, observed: &Observed<'_>) -> Plan {
    let created = infra.metadata.creation_timestamp.as_ref();
    let rest = created.and_then(|created| wall_clock::remaining(created.0, OWNER_GRACE, observed.now));
    rest.map_or_else(
        || Plan::ReportMissingOwner(explain(&observed.claim)),
        Plan::AwaitOwner,
    )
}

fn explain(claim: &Claim) -> String {
    match claim {
        Claim::None => "no Cluster in this namespace refers to this InfraCluster: set \
            spec.infrastructureRef of a Cluster to it, or delete it"
            .to_owned(),
        Claim::By(cluster) => format!(
            "Cluster `{cluster}` refers to this InfraCluster, but is not in metadata.ownerReferences: \
                Cluster API adds it unless the Cluster is paused; check the conditions of the Cluster"
        ),
        Claim::Mistaken { cluster, name } => format!(
            "no Cluster in this namespace refers to this InfraCluster; Cluster `{cluster}` refers to \
                InfraCluster `{name}`, which does not exist: correct spec.infrastructureRef of the Cluster, \
                or delete this InfraCluster"
        ),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::api::v1alpha1::InfraClusterSpec;

    fn planned(seconds: i64, claim: Claim) -> Plan {
        let mut infra = InfraCluster::new("c", InfraClusterSpec::default());
        infra.metadata.creation_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        let observed = Observed {
            owner: None,
            cluster_id: None,
            claim,
            machines: 0,
            now: Timestamp::from_second(seconds).unwrap(),
        };
        super::super::plan(&infra, &observed)
    }

    #[test]
    fn a_missing_owner_is_reported_after_a_minute() {
        assert_eq!(
            planned(45, Claim::None),
            Plan::AwaitOwner(Duration::from_secs(15))
        );
        assert!(matches!(planned(60, Claim::None), Plan::ReportMissingOwner(_)));
    }

    #[test]
    fn a_report_names_the_cluster_that_was_meant() {
        let mistaken = Claim::Mistaken {
            cluster: "prod".to_owned(),
            name: "prd".to_owned(),
        };
        for (claim, named) in [
            (mistaken, "`prd`, which does not exist"),
            (Claim::By("prod".to_owned()), "`prod`"),
        ] {
            let Plan::ReportMissingOwner(why) = planned(61, claim) else {
                panic!("not reported")
            };
            assert!(why.contains(named), "{why}");
        }
    }
}
