//! Installs the admission policies that guard identities, keeps them in place, and checks them before an
//! identity is trusted.
//!
//! clusterctl deletes every component of a provider when it upgrades or deletes the provider. So the policies
//! are not components: the provider installs them without clusterctl's label. They stay in place while no
//! provider is installed, and refuse the same writes then.
//!
//! # Guarantees
//! * Before each action on a VM that may exist, a check succeeds that began after the machine was read. A
//!   first create relies on the last check, which is at most [`CHECK_INTERVAL`] old.
//! * With several versions in one management cluster, the newest version's policies stay in place. An
//!   annotation names that version. Older versions can rely on them: no version guards less than its
//!   predecessor.
//! * Evidence must come from one [`EnforcementEpoch`]. Otherwise it does not prove that a VM may be deleted.
//! * After a gap in the policies while identities existed, an administrator has to confirm the identities. An
//!   annotation of the policy records the gap, so that a restart does not lose it.

mod check;
mod comparison;
mod identities;
pub mod policies;

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use semver::Version;
use serde_json::Value;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use tower::BoxError;

use self::check::Checks;
use self::comparison::Expected;
use crate::apiserver::Error;
use crate::apiserver::leadership::Leadership;
use crate::telemetry::metrics::Metrics;
use cmi_driver::ErrorChain;

/// The interval of the checks, unless a deletion needs one sooner.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// The interval until the policies are in place for the first time, which the installation waits for.
const FIRST: Duration = Duration::from_secs(2);
/// The least time between the starts of two checks. Machines that request a check in between share the next
/// one.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// The annotation of a policy with the end of the time when identities were not guarded. An administrator
/// removes it.
pub const UNCONFIRMED: &str = "infrastructure.capcmi.io/unconfirmed";

/// Whether identities are guarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// The policies are in force, and have been since identities were confirmed.
    InForce,
    /// The policies are not in force, or could not be checked; the text names the remedy. No action may trust
    /// an identity.
    NotInForce(Arc<str>),
}

/// Whether the policies have been seen in force since this process started. Objects that are created after
/// that are guarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Installation {
    /// The policies were seen in force.
    Seen,
    /// The policies were not seen in force yet, for this reason.
    NotYet(Arc<str>),
}

/// A period without a gap in the policies. Equal epochs are the same period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnforcementEpoch(u64);

#[cfg(test)]
impl EnforcementEpoch {
    pub(crate) const fn nth(number: u64) -> Self {
        Self(number)
    }
}

/// Checks the policies, and reports whether identities are guarded.
pub struct AdmissionPolicies {
    client: Client,
    metrics: Arc<Metrics>,
    /// The only namespace that the provider watches; `None` for all.
    namespace: Option<String>,
    enforcement: watch::Sender<Enforcement>,
    installation: watch::Sender<Installation>,
    epoch: watch::Sender<EpochState>,
    checks: Mutex<Checks>,
}

/// The state of the current epoch. A failed check changes nothing: the next successful check sees the
/// changes.
#[derive(Clone, Copy, Default)]
struct EpochState {
    /// How often identities were found to be unguarded.
    breaks: u64,
    /// Whether the last check found them guarded.
    holds: bool,
}

impl AdmissionPolicies {
    /// Returns policies that are not checked yet, so that no identity is trusted.
    pub fn new(client: Client, metrics: Arc<Metrics>) -> Self {
        Self {
            client,
            metrics,
            namespace: None,
            enforcement: watch::Sender::new(Enforcement::NotInForce(
                "the admission policies are not checked yet".into(),
            )),
            installation: watch::Sender::new(Installation::NotYet("not checked yet".into())),
            epoch: watch::Sender::default(),
            checks: Mutex::default(),
        }
    }

    /// Returns policies that are never checked and count as in force.
    #[cfg(test)]
    pub(crate) fn trusting(client: Client) -> Self {
        let mut policies = Self::new(client, Arc::new(Metrics::new()));
        policies.enforcement.send_replace(Enforcement::InForce);
        policies.record_epoch(true);
        policies.checks.get_mut().last = Some(Instant::now() + Duration::from_hours(24));
        policies
    }

    /// Acts as another version of the provider, which has these policies and bindings.
    #[must_use]
    pub fn of_version(mut self, version: &Version, policies: Vec<Value>) -> Self {
        self.checks.get_mut().expected = Some(expected(version, policies));
        self
    }

    /// Acts for a provider that watches this namespace alone, if there is one.
    #[must_use]
    pub fn within(mut self, namespace: Option<String>) -> Self {
        self.namespace = namespace;
        self
    }

    /// Returns the result of the last check.
    pub fn last_enforcement(&self) -> Enforcement {
        self.enforcement.borrow().clone()
    }

    /// Returns the current epoch; `None` before the first check, and while identities are not guarded.
    /// Observations of another epoch may come from a forged identity.
    pub fn epoch(&self) -> Option<EnforcementEpoch> {
        let epoch = *self.epoch.borrow();
        epoch.holds.then_some(EnforcementEpoch(epoch.breaks))
    }

    /// Subscribes to whether the policies have been in force.
    pub fn installation(&self) -> watch::Receiver<Installation> {
        self.installation.subscribe()
    }

    /// Records whether the policies are in force. Once seen in force, they stay so for [`Installation`].
    fn record_installation(&self, in_force: Result<(), String>) {
        self.installation.send_if_modified(|installation| {
            let now = match in_force {
                Ok(()) => Installation::Seen,
                Err(why) => Installation::NotYet(why.into()),
            };
            let is_changed = *installation != Installation::Seen && *installation != now;
            if is_changed {
                *installation = now;
            }
            is_changed
        });
    }

    fn record_epoch(&self, in_force: bool) {
        self.epoch.send_modify(|epoch| {
            if !in_force {
                epoch.breaks += 1;
            }
            epoch.holds = in_force;
        });
    }

    /// Returns the result of a check that begins after this moment. Concurrent callers share one check.
    pub async fn enforcement_since(&self, moment: Instant) -> Enforcement {
        let mut checks = self.checks.lock().await;
        if let Some(last) = checks.last {
            if last >= moment {
                return self.last_enforcement();
            }
            tokio::time::sleep(MIN_CHECK_INTERVAL.saturating_sub(last.elapsed())).await;
        }
        let began = Instant::now();
        let enforcement = match self.check(&mut checks).await {
            Ok(enforcement) => enforcement,
            Err(error) => {
                let why = advice(&error);
                self.record_installation(Err(why.clone()));
                Enforcement::NotInForce(
                    format!("cannot check the admission policies, so no identity is trusted: {why}").into(),
                )
            }
        };
        checks.last = Some(began);
        self.metrics
            .admission_policies(enforcement == Enforcement::InForce);
        let before = self.enforcement.send_replace(enforcement.clone());
        if before != enforcement {
            match &enforcement {
                Enforcement::InForce => tracing::info!("admission policies in force"),
                Enforcement::NotInForce(why) => tracing::error!(%why, "admission policies not in force: no \
                    identity is trusted"),
            }
        }
        enforcement
    }

    /// Checks forever. Until it leads, a replica only inspects the policies.
    pub async fn run(&self, leadership: &Leadership) {
        loop {
            let leads = leadership.is_held();
            if leads {
                self.enforcement_since(Instant::now()).await;
            } else if let Err(error) = self.inspect().await {
                self.record_installation(Err(advice(&error)));
            }
            let is_confirmed = *self.installation.borrow() == Installation::Seen;
            tokio::select! {
                () = tokio::time::sleep(if is_confirmed { CHECK_INTERVAL } else { FIRST }) => {}
                () = leadership.acquired(), if !leads => {}
            }
        }
    }
}

/// Returns the policies and bindings that a provider of this version installs.
///
/// # Errors
/// The objects can't be encoded, which would be a defect of the provider.
pub fn as_installed() -> Result<Vec<Value>, Error> {
    Ok(own()?.iter().map(|expected| expected.object.clone()).collect())
}

/// The policies and bindings of this version.
fn own() -> Result<Arc<[Expected]>, Error> {
    let unprintable =
        |source: BoxError| Error::api("printing the admission policies", kube::Error::Service(source));
    let version = Version::parse(env!("CARGO_PKG_VERSION")).map_err(|error| unprintable(error.into()))?;
    Ok(expected(&version, policies::all()))
}

fn expected(version: &Version, policies: Vec<Value>) -> Arc<[Expected]> {
    let all = policies.into_iter();
    all.filter_map(|object| Expected::new(object, version)).collect()
}

fn is_refused(error: &Error) -> bool {
    let Error::Api { source, .. } = error else {
        return false;
    };
    matches!(&**source, kube::Error::Api(status) if status.code == 403)
}

/// Describes an error with its causes, and with the remedy where the provider lacks a permission.
fn advice(error: &Error) -> String {
    let what = ErrorChain(error).to_string();
    if is_refused(error) {
        format!(
            "{what}; bind the ClusterRole `capcmi-admission-role` of this version to the provider's \
                ServiceAccount"
        )
    } else {
        what
    }
}

#[cfg(test)]
mod tests;
