//! Whether machine-controller-manager is running, according to its Leases.
//!
//! No Lease proves that it is stopped: one of its two controllers may have no Lease, and the Lease of a
//! controller in a crash loop has expired. So the operator has to confirm that it is stopped, and a Lease can
//! only contradict the operator.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use tokio::time::sleep;

use super::error::WriteError;
use capcmi::api::wall_clock;

/// The Leases of machine-controller-manager, and of the controller of a provider.
const LEASES: [&str; 2] = ["machine-controller-manager", "machine-controller"];
/// How long a Lease is observed. Its holder renews it every two seconds, so clock skew does not matter.
const LOOK: Duration = Duration::from_secs(6);

/// The objects of a machine-controller-manager that the operator has stopped.
#[derive(Clone)]
pub struct Stopped {
    /// The client of the cluster with the objects.
    pub(super) client: Client,
    /// The namespace of the objects.
    pub(super) namespace: String,
    leases: Leases,
}

impl Stopped {
    /// Observes the Leases for a while.
    ///
    /// # Errors
    /// A Lease is held or changes, or the Leases can't be listed.
    pub async fn at(client: &Client, namespace: &str) -> Result<Self, WriteError> {
        let leases = Leases::read(client, namespace).await?;
        let seen = Self {
            client: client.clone(),
            namespace: namespace.to_owned(),
            leases,
        };
        seen.refuse(seen.leases.held(wall_clock::now()))?;
        if seen.leases.have_holder() {
            sleep(LOOK).await;
            seen.confirm().await?;
        }
        Ok(seen)
    }

    /// Reads the Leases again.
    ///
    /// # Errors
    /// A Lease is held or has changed since it was first read, or the Leases can't be listed.
    pub async fn confirm(&self) -> Result<(), WriteError> {
        let now = Leases::read(&self.client, &self.namespace).await?;
        self.refuse(now.held(wall_clock::now()))?;
        self.refuse(self.leases.changed(&now))
    }

    fn refuse(&self, lease: Option<&str>) -> Result<(), WriteError> {
        match lease {
            Some(lease) => Err(WriteError::Running(format!("{}/{lease}", self.namespace))),
            None => Ok(()),
        }
    }
}

/// The specs of the Leases, by name.
#[derive(Clone, Debug, Default, PartialEq)]
struct Leases(BTreeMap<String, LeaseSpec>);

impl Leases {
    async fn read(client: &Client, namespace: &str) -> Result<Self, WriteError> {
        let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
        let all = leases.list(&ListParams::default()).await;
        let all = all.map_err(|error| {
            WriteError::api(format!("listing the Leases of namespace {namespace}"), error)
        })?;
        let own = all.items.into_iter().filter_map(|lease| {
            let name = lease.name_any();
            let is_own = LEASES.contains(&name.as_str());
            is_own.then(|| (name, lease.spec.unwrap_or_default()))
        });
        Ok(Self(own.collect()))
    }

    /// The name of a Lease that is held, by the clock of this process.
    fn held(&self, now: Timestamp) -> Option<&str> {
        let mut all = self.0.iter();
        all.find(|(_, lease)| is_held(lease, now))
            .map(|(name, _)| name.as_str())
    }

    fn have_holder(&self) -> bool {
        self.0.values().any(has_holder)
    }

    /// Returns the name of a Lease that differs from the earlier reading.
    fn changed<'a>(&self, now: &'a Self) -> Option<&'a str> {
        let mut all = now.0.iter();
        all.find(|(name, lease)| self.0.get(*name) != Some(*lease))
            .map(|(name, _)| name.as_str())
    }
}

fn has_holder(lease: &LeaseSpec) -> bool {
    !lease.holder_identity.as_deref().unwrap_or_default().is_empty()
}

fn is_held(lease: &LeaseSpec, now: Timestamp) -> bool {
    let Some(renewed) = lease.renew_time.as_ref().filter(|_| has_holder(lease)) else {
        return false;
    };
    let seconds = lease.lease_duration_seconds.unwrap_or_default().max(15);
    now.duration_since(renewed.0).as_secs() < i64::from(seconds)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn leases(renewed: &str, holder: &str) -> Leases {
        let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed});
        Leases(
            [(
                "machine-controller".to_owned(),
                serde_json::from_value(spec).unwrap(),
            )]
            .into(),
        )
    }

    #[test]
    fn a_renewed_or_new_lease_shows_a_running_controller() {
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
        let old = leases("2026-01-01T00:00:00.000000Z", "mcm");
        assert_eq!(old.held(now), None, "it is over by this clock");
        let renewed = leases("2026-01-01T00:00:02.000000Z", "mcm");
        assert_eq!(renewed.held(now), None, "so is this, the clock is ahead");
        assert_eq!(old.changed(&renewed), Some("machine-controller"));
        assert_eq!(Leases::default().changed(&renewed), Some("machine-controller"));
        assert_eq!(old.changed(&old.clone()), None);
        assert!(old.have_holder());
    }

    #[test]
    fn a_lease_is_held_for_its_time_by_a_holder() {
        let now: Timestamp = "2026-01-01T00:00:10Z".parse().unwrap();
        let held = leases("2026-01-01T00:00:00.000000Z", "mcm");
        assert_eq!(held.held(now), Some("machine-controller"));
        let released = leases("2026-01-01T00:00:00.000000Z", "");
        assert_eq!(released.held(now), None);
        assert!(!released.have_holder());
    }
}
