//! The admission policies that guard identities: put in place, kept there, and asked for
//! before an identity is trusted.
//!
//! clusterctl deletes every component of a provider when it upgrades or deletes it. So the policies
//! are no component: the provider installs them, and what it installs does not carry clusterctl's label. They
//! stay while no provider is installed, and they never let anything through that they refuse otherwise.
//!
//! # Guarantees
//! * What acts on a VM that may exist, or lets one be forgotten, comes after a check that began after the
//!   machine was read, and that found the policies in force; a first create needs the last check, which
//!   is at most [`EVERY`] old.
//! * Providers of several versions in one management cluster do not take the policies from each other: the
//!   newest version's stand, and guard for the older ones, because no version's guard less than those of the
//!   version before. [`applied_version`] says whose they are.
//! * What was seen of objects is proof for the deletion of a VM only within one [`EnforcementEpoch`].
//! * When the policies were gone while there were identities, none is trusted until an administrator has
//!   confirmed them. That is noted in the policy itself, so that a restart keeps it.

mod applied_version;
mod identities;
mod identity_presence;
mod judge;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use semver::Version;
use serde_json::{Value, json};
use tokio::sync::{Mutex, watch};
use tower::BoxError;

use self::identities::Identities;
use self::judge::{Expected, Finding, judge};
use crate::apiserver::{Error, FIELD_MANAGER, merge_difference, patch_params};
use crate::leadership::Leadership;
use crate::manifests;
use crate::metrics::Metrics;

/// Between two checks, where no deletion needs one before.
pub const EVERY: Duration = Duration::from_secs(30);
/// The same, until the policies are in place for the first time: the installation waits for that.
const FIRST: Duration = Duration::from_secs(2);
/// Between the beginnings of two checks, however many machines ask for one: those that ask
/// meanwhile share the next.
const PACE: Duration = Duration::from_millis(200);
/// API servers look for new policies once a second, and each for itself.
const SETTLE: Duration = Duration::from_secs(3);
/// The annotation of a policy that says until when identities were not guarded. An administrator removes it.
pub const UNCONFIRMED: &str = "infrastructure.capcmi.io/unconfirmed";
/// How often a check begins anew, because another provider has written in between.
const TRIES: u32 = 3;

/// Whether identities are guarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// The policies are in force, and have been since identities were confirmed.
    InForce,
    /// They are not, or could not be checked; the text says what to do. Nothing may be
    /// done that trusts an identity.
    Unguarded(Arc<str>),
}

/// Whether the policies have been in force since this process was started. What comes to the
/// cluster after that is guarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Installation {
    /// They were seen in force.
    Seen,
    /// Not yet; the text says why.
    NotYet(Arc<str>),
}

/// A time without a break in which, by all checks so far, no identity could be forged. Two that are
/// equal are the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnforcementEpoch(u64);

#[cfg(test)]
impl EnforcementEpoch {
    /// One of many.
    pub(crate) const fn nth(number: u64) -> Self {
        Self(number)
    }
}

/// Knows whether identities are guarded.
pub struct Guard {
    client: Client,
    metrics: Arc<Metrics>,
    /// The only namespace that the provider looks at; all without it.
    namespace: Option<String>,
    enforcement: watch::Sender<Enforcement>,
    installation: watch::Sender<Installation>,
    epoch: watch::Sender<EpochState>,
    checks: Mutex<Checks>,
}

/// What checks say of the time before them. One that fails says nothing: the next that does not sees
/// what has changed meanwhile.
#[derive(Clone, Copy, Default)]
struct EpochState {
    /// Counts the times at which identities were found to be unguarded.
    breaks: u64,
    /// Whether the last check found them guarded.
    holds: bool,
}

#[derive(Default)]
struct Checks {
    /// When the last one began.
    last: Option<Instant>,
    /// What should be there; `None` before the first check.
    expected: Option<Arc<[Expected]>>,
    /// What guards identities, as it was at the end of the last one.
    seen: BTreeMap<String, ObjectVersion>,
    /// Whether what guards identities was put in place and not every API server is known to have it. It
    /// outlives a check that fails after it.
    unsettled: bool,
    /// The annotation that this process has written. Another one's is for the other, or an
    /// administrator, to take away.
    annotated: Option<String>,
    /// What was reported of policies that guard no identity: once is enough.
    reported: Vec<String>,
}

impl Checks {
    /// What should be there.
    fn expected(&mut self) -> Result<Arc<[Expected]>, Error> {
        Ok(match &self.expected {
            Some(expected) => Arc::clone(expected),
            None => Arc::clone(self.expected.insert(own()?)),
        })
    }
}

/// UID and generation of an object: where they differ, others have replaced or changed it meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ObjectVersion {
    uid: Option<String>,
    generation: Option<i64>,
}

impl ObjectVersion {
    fn of(object: &DynamicObject) -> Self {
        Self {
            uid: object.metadata.uid.clone(),
            generation: object.metadata.generation,
        }
    }

    /// Whether the spec of the same object was written once since, and not more often.
    fn is_one_write_after(&self, before: &Self) -> bool {
        let next = before.generation.map(|generation| generation + 1);
        self.uid == before.uid && next.is_some() && self.generation == next
    }
}

impl Guard {
    /// One that has not checked yet, so that nothing is trusted.
    pub fn new(client: Client, metrics: Arc<Metrics>) -> Self {
        Self {
            client,
            metrics,
            namespace: None,
            enforcement: watch::Sender::new(Enforcement::Unguarded(
                "the admission policies are not checked yet".into(),
            )),
            installation: watch::Sender::new(Installation::NotYet("they are not checked yet".into())),
            epoch: watch::Sender::default(),
            checks: Mutex::default(),
        }
    }

    /// One that never checks and trusts everything.
    #[cfg(test)]
    pub(crate) fn trusting(client: Client) -> Self {
        let mut guard = Self::new(client, Arc::new(Metrics::new()));
        guard.enforcement.send_replace(Enforcement::InForce);
        guard.found(true);
        guard.checks.get_mut().last = Some(Instant::now() + Duration::from_hours(24));
        guard
    }

    /// The same as another version of the provider, which has these policies and bindings.
    #[must_use]
    pub fn of_version(mut self, version: &Version, policies: Vec<Value>) -> Self {
        self.checks.get_mut().expected = Some(expected(version, policies));
        self
    }

    /// The same of a provider that looks at this namespace alone, if there is one.
    #[must_use]
    pub fn within(mut self, namespace: Option<String>) -> Self {
        self.namespace = namespace;
        self
    }

    /// What the last check found.
    pub fn last(&self) -> Enforcement {
        self.enforcement.borrow().clone()
    }

    /// The epoch in which identities are guarded, by the last check: `None` before the
    /// first, and while they are not. What was seen in another epoch, or in none, may be the
    /// doing of a forged identity.
    pub fn epoch(&self) -> Option<EnforcementEpoch> {
        let epoch = *self.epoch.borrow();
        epoch.holds.then_some(EnforcementEpoch(epoch.breaks))
    }

    /// Whether the policies have been in force, as it changes.
    pub fn installation(&self) -> watch::Receiver<Installation> {
        self.installation.subscribe()
    }

    /// Takes in whether the policies are in force: once they were, it stays so.
    fn saw(&self, in_force: Result<(), String>) {
        self.installation.send_if_modified(|installation| {
            let now = match in_force {
                Ok(()) => Installation::Seen,
                Err(why) => Installation::NotYet(why.into()),
            };
            let is_news = *installation != Installation::Seen && *installation != now;
            if is_news {
                *installation = now;
            }
            is_news
        });
    }

    /// Takes in what a check found.
    fn found(&self, guarded: bool) {
        self.epoch.send_modify(|epoch| {
            if !guarded {
                epoch.breaks += 1;
            }
            epoch.holds = guarded;
        });
    }

    /// What a check finds that begins after this moment. Callers at the same time share one.
    pub async fn since(&self, moment: Instant) -> Enforcement {
        let mut checks = self.checks.lock().await;
        if let Some(last) = checks.last {
            if last >= moment {
                return self.last();
            }
            tokio::time::sleep(PACE.saturating_sub(last.elapsed())).await;
        }
        let began = Instant::now();
        let mut checked = self.check(&mut checks).await;
        for _ in 1..TRIES {
            if !matches!(checked, Err(Error::Conflict { .. })) {
                break;
            }
            // Another provider has written in between: what is there now may do.
            checked = self.check(&mut checks).await;
        }
        let enforcement = match checked {
            Ok(enforcement) => enforcement,
            Err(error) => {
                let why = advice(&error);
                self.saw(Err(why.clone()));
                Enforcement::Unguarded(
                    format!("the admission policies can't be checked, and nothing is done that trusts an identity: {why}").into(),
                )
            }
        };
        checks.last = Some(began);
        self.metrics.guarded(enforcement == Enforcement::InForce);
        let before = self.enforcement.send_replace(enforcement.clone());
        if before != enforcement {
            match &enforcement {
                Enforcement::InForce => tracing::info!("the admission policies are in force"),
                Enforcement::Unguarded(why) => tracing::error!(%why, "identities are not guarded"),
            }
        }
        enforcement
    }

    /// Checks for ever. A replica that does not lead only looks: it knows then what becomes of
    /// the policies until it does.
    pub async fn keep(&self, leadership: &Leadership) {
        loop {
            let leads = leadership.is_held();
            if leads {
                self.since(Instant::now()).await;
            } else if let Err(error) = self.look().await {
                self.saw(Err(advice(&error)));
            }
            let is_confirmed = *self.installation.borrow() == Installation::Seen;
            tokio::select! {
                () = tokio::time::sleep(if is_confirmed { EVERY } else { FIRST }) => {}
                () = leadership.acquired(), if !leads => {}
            }
        }
    }

    /// Looks at what guards identities, and changes nothing. The policies of any version will do: the replica
    /// that leads may be of another one, and waits for this one before it goes.
    async fn look(&self) -> Result<(), Error> {
        let mut checks = self.checks.lock().await;
        let expected = checks.expected()?;
        let all = self.find_all(&expected, &mut Vec::new()).await?;
        let is_open = all
            .iter()
            .any(|(expected, found)| is_gap(expected, found.as_ref(), &checks.seen));
        self.found(!is_open && unconfirmed(&all).is_none());
        let guards = all.iter().filter(|(expected, _)| expected.guards_identities());
        let mut open = guards.filter_map(|(expected, found)| {
            let finding = judge(expected, found.as_ref());
            (!finding.is_of_a_version())
                .then(|| fault(expected, &finding))
                .flatten()
        });
        let what = open.next();
        drop(open);
        self.saw(what.map_or(Ok(()), |what| {
            Err(format!("{what}, and the replica that leads puts it in place"))
        }));
        for (expected, found) in &all {
            if let Some(found) = found {
                remember(&mut checks.seen, expected, found);
            }
        }
        Ok(())
    }

    /// Looks at every policy and binding, and puts in place what is not as it should be.
    async fn check(&self, checks: &mut Checks) -> Result<Enforcement, Error> {
        let expected = checks.expected()?;
        let mut reported = Vec::new();
        let mut all = self.find_all(&expected, &mut reported).await?;
        let was_open = all
            .iter()
            .any(|(expected, found)| is_gap(expected, found.as_ref(), &checks.seen));
        if was_open {
            // Whatever becomes of this check: what was seen before it proves nothing.
            self.found(false);
        }
        let mut until = unconfirmed(&all);
        if was_open && until.is_none() {
            until = Some(Timestamp::now().to_string());
        }
        for (expected, found) in &mut all {
            let annotation = until.as_deref().filter(|_| expected.carries_annotation());
            let is_annotated = found
                .as_ref()
                .is_some_and(|found| annotation_of(found) == annotation);
            if judge(expected, found.as_ref()).has_to_be_put() || (annotation.is_some() && !is_annotated) {
                let annotation =
                    annotation.map_or(UnconfirmedAnnotation::Unchanged, UnconfirmedAnnotation::Set);
                let before = found.as_ref().map(ObjectVersion::of);
                let put = match self.put(expected, found.as_ref(), annotation).await {
                    Err(error) if !expected.guards_identities() && is_refused(&error) => {
                        reported.push(format!("{}: {}", expected.key(), advice(&error)));
                        continue;
                    }
                    put => put?,
                };
                if let UnconfirmedAnnotation::Set(until) = annotation {
                    checks.annotated = Some(until.to_owned());
                }
                checks.unsettled |= expected.guards_identities() && before != Some(ObjectVersion::of(&put));
                remember(&mut checks.seen, expected, &put);
                *found = Some(put);
            }
        }
        if checks.unsettled {
            tokio::time::sleep(SETTLE).await;
            checks.unsettled = false;
        }
        // Nothing could be forged where there was nothing. Looked at when the policies are in force again:
        // before, it might be forged a moment later.
        let mut unknown = None;
        if until.is_some() {
            let is_none = match identities::look(&self.client, self.namespace.as_deref()).await? {
                Identities::Exist => false,
                Identities::Nowhere => true,
                // Another provider's annotation may be about identities elsewhere.
                Identities::NotInNamespace => checks.annotated == until,
                Identities::Unknown(why) => {
                    unknown = Some(why);
                    false
                }
            };
            let carrier = all.iter_mut().find(|(expected, _)| expected.carries_annotation());
            if let Some((expected, found)) = carrier.filter(|_| is_none) {
                *found = Some(
                    self.put(expected, found.as_ref(), UnconfirmedAnnotation::Clear)
                        .await?,
                );
                until = None;
            }
        }
        let mut wrong = None;
        for (expected, found) in &all {
            if let Some(found) = found {
                remember(&mut checks.seen, expected, found);
            }
            let Some(what) = fault(expected, &judge(expected, found.as_ref())) else {
                continue;
            };
            if expected.guards_identities() {
                wrong = Some(what);
            } else {
                reported.push(what);
            }
        }
        for what in reported.iter().filter(|what| !checks.reported.contains(*what)) {
            tracing::warn!(
                what,
                "an admission policy that guards no identity is not as this version has it"
            );
        }
        checks.reported = reported;
        self.saw(wrong.clone().map_or(Ok(()), Err));
        let enforcement = match (wrong, until) {
            (Some(wrong), _) => Enforcement::Unguarded(
                format!("the admission policies do not guard identities: {wrong}; an administrator has to delete or repair it").into(),
            ),
            (None, Some(until)) => {
                Enforcement::Unguarded(unconfirmed_since(&until, unknown.as_deref()).into())
            }
            (None, None) => Enforcement::InForce,
        };
        self.found(enforcement == Enforcement::InForce);
        Ok(enforcement)
    }

    /// What there is in the place of everything expected; without what guards no
    /// identity and may not be read.
    async fn find_all<'a>(
        &self,
        expected: &'a [Expected],
        reported: &mut Vec<String>,
    ) -> Result<Vec<(&'a Expected, Option<DynamicObject>)>, Error> {
        let found = expected.iter().map(|expected| self.find(expected));
        let mut all = Vec::new();
        for (expected, found) in expected.iter().zip(futures::future::join_all(found).await) {
            match found {
                Err(error) if !expected.guards_identities() && is_refused(&error) => {
                    reported.push(format!("{}: {}", expected.key(), advice(&error)));
                }
                found => all.push((expected, found?)),
            }
        }
        Ok(all)
    }

    async fn find(&self, expected: &Expected) -> Result<Option<DynamicObject>, Error> {
        let found = self.api(&expected.resource).get_opt(&expected.name).await;
        found.map_err(|error| Error::api("reading an admission policy", error))
    }

    /// What is there is patched, so that nothing is left that makes it apply to less; what is not is applied,
    /// not created: RBAC can then name the objects that this provider may make.
    async fn put(
        &self,
        expected: &Expected,
        found: Option<&DynamicObject>,
        annotation: UnconfirmedAnnotation<'_>,
    ) -> Result<DynamicObject, Error> {
        tracing::info!(
            name = expected.key(),
            ?annotation,
            "putting an admission policy in place"
        );
        let api = self.api(&expected.resource);
        let put = if let Some(found) = found {
            // What another provider has written meanwhile is not overwritten unread.
            let mut body =
                json!({"metadata": {"resourceVersion": found.metadata.resource_version, "annotations": {}}});
            if judge(expected, Some(found)).has_to_be_put() {
                body["metadata"]["annotations"] = expected.applied.annotations();
                body["spec"] = merge_difference(&found.data["spec"], &expected.object["spec"]);
            }
            annotation.write(&mut body["metadata"]["annotations"]);
            api.patch(&expected.name, &patch_params(), &Patch::Merge(&body))
                .await
        } else {
            let mut object = expected.object.clone();
            object["metadata"]["annotations"] = expected.applied.annotations();
            annotation.write(&mut object["metadata"]["annotations"]);
            let params = PatchParams::apply(FIELD_MANAGER).force();
            api.patch(&expected.name, &params, &Patch::Apply(&object)).await
        };
        put.map_err(|error| Error::api("putting an admission policy in place", error))
    }

    fn api(&self, resource: &ApiResource) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), resource)
    }
}

/// What becomes of the annotation that identities are unconfirmed.
#[derive(Clone, Copy, Debug)]
enum UnconfirmedAnnotation<'a> {
    /// Whether there is one is for others to say.
    Unchanged,
    Set(&'a str),
    Clear,
}

impl UnconfirmedAnnotation<'_> {
    fn write(self, annotations: &mut Value) {
        match self {
            Self::Unchanged => {}
            Self::Set(until) => annotations[UNCONFIRMED] = Value::from(until),
            Self::Clear => annotations[UNCONFIRMED] = Value::Null,
        }
    }
}

/// The policies and bindings as a provider of this version puts them in place.
///
/// # Errors
/// They can't be printed, which would be a fault of the provider.
pub fn as_installed() -> Result<Vec<Value>, Error> {
    let versioned = |expected: &Expected| {
        let mut object = expected.object.clone();
        object["metadata"]["annotations"] = expected.applied.annotations();
        object
    };
    Ok(own()?.iter().map(versioned).collect())
}

/// The policies and bindings of this version.
fn own() -> Result<Arc<[Expected]>, Error> {
    let unprintable =
        |source: BoxError| Error::api("printing the admission policies", kube::Error::Service(source));
    let policies = manifests::policies().map_err(|error| unprintable(error.into()))?;
    let version = Version::parse(env!("CARGO_PKG_VERSION")).map_err(|error| unprintable(error.into()))?;
    Ok(expected(&version, policies))
}

fn expected(version: &Version, policies: Vec<Value>) -> Arc<[Expected]> {
    let all = policies.into_iter();
    all.filter_map(|object| Expected::new(object, version)).collect()
}

/// Whether identities may have been written while nothing refused it: the object is gone or another one,
/// others have changed it since the last check, or it is as no version of the provider has put it in place.
///
/// What a newer version has put in place of this one's is no gap. It is one write of the spec, and what that
/// left is as the newer version made it: nothing came in between.
fn is_gap(
    expected: &Expected,
    found: Option<&DynamicObject>,
    seen: &BTreeMap<String, ObjectVersion>,
) -> bool {
    if !expected.guards_identities() {
        return false;
    }
    let Some(found) = found else { return true };
    let (finding, now) = (judge(expected, Some(found)), ObjectVersion::of(found));
    let was_changed = seen.get(&expected.key()).is_some_and(|before| {
        let was_taken_over = finding == Finding::Newer && now.is_one_write_after(before);
        now != *before && !was_taken_over
    });
    was_changed || !finding.is_of_a_version()
}

fn remember(seen: &mut BTreeMap<String, ObjectVersion>, expected: &Expected, found: &DynamicObject) {
    if expected.guards_identities() {
        seen.insert(expected.key(), ObjectVersion::of(found));
    }
}

fn annotation_of(object: &DynamicObject) -> Option<&str> {
    let annotations = object.metadata.annotations.as_ref()?;
    annotations.get(UNCONFIRMED).map(String::as_str)
}

fn unconfirmed(all: &[(&Expected, Option<DynamicObject>)]) -> Option<String> {
    all.iter()
        .filter(|(expected, _)| expected.carries_annotation())
        .find_map(|(_, found)| annotation_of(found.as_ref()?).map(str::to_owned))
}

/// What is wrong with what was found, if anything is.
fn fault(expected: &Expected, finding: &Finding) -> Option<String> {
    let key = expected.key();
    match finding {
        Finding::AsExpected | Finding::Unversioned | Finding::Newer => None,
        Finding::Older => Some(format!("{key} is that of another version")),
        Finding::Missing => Some(format!("{key} is missing")),
        Finding::Different(place) => Some(format!("{key} has another {place}")),
    }
}

/// Whether the API server does not let the provider do it.
fn is_refused(error: &Error) -> bool {
    let Error::Api { source, .. } = error else {
        return false;
    };
    matches!(&**source, kube::Error::Api(status) if status.code == 403)
}

/// What went wrong, with what led to it.
fn explained(error: &Error) -> String {
    let chain = std::iter::successors(Some(error as &dyn std::error::Error), |&error| error.source());
    let mut texts: Vec<String> = Vec::new();
    for text in chain.map(ToString::to_string) {
        if !texts.last().is_some_and(|before| before.contains(&text)) {
            texts.push(text);
        }
    }
    texts.join(": ")
}

/// The same, and what to do where the provider lacks a right.
fn advice(error: &Error) -> String {
    let what = explained(error);
    if is_refused(error) {
        format!(
            "{what}; bind the ClusterRole capcmi-admission-role of this version to the provider's ServiceAccount"
        )
    } else {
        what
    }
}

fn unconfirmed_since(until: &str, unknown: Option<&str>) -> String {
    let unknown = unknown.map(|why| format!("; {why}")).unwrap_or_default();
    format!(
        "until {until} the admission policies were not in force, so that identities and providerIDs may be forged, and none is \
         trusted: an administrator compares them with the VMs, and then confirms them with `kubectl annotate \
         validatingadmissionpolicy {} {UNCONFIRMED}-`{unknown}",
        judge::CARRIER
    )
}

#[cfg(test)]
mod tests;
