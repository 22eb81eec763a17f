//! One check of the policies that guard identities, and the repair of what it finds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::comparison::{self, Expected, PolicyFinding, compare};
use super::identities::{self, Identities};
use super::{AdmissionPolicies, Enforcement, UNCONFIRMED, advice, is_refused, own};
use crate::apiserver::{Error, FIELD_MANAGER, merge_difference, patch_params};
use crate::wall_clock;

/// API servers look for new policies once a second, and each for itself.
pub(super) const SETTLE: Duration = Duration::from_secs(3);

/// The state that checks keep from one to the next.
#[derive(Default)]
pub(super) struct Checks {
    /// When the last check began.
    pub last: Option<Instant>,
    /// The policies and bindings that should be there; `None` before the first check.
    pub expected: Option<Arc<[Expected]>>,
    /// The objects that guard identities, as they were at the end of the last check.
    seen: BTreeMap<String, ObjectVersion>,
    /// Whether an object that guards identities was put in place and not every API server is known to have it
    /// yet. The mark outlives a check that fails after it.
    unsettled: bool,
    /// The annotation that this process has written. An annotation of another process is for that process, or
    /// an administrator, to remove.
    annotated: Option<String>,
    /// The reported faults of policies that guard no identity: once is enough.
    reported: Vec<String>,
}

impl Checks {
    /// The policies and bindings that should be there.
    fn expected(&mut self) -> Result<Arc<[Expected]>, Error> {
        Ok(match &self.expected {
            Some(expected) => Arc::clone(expected),
            None => Arc::clone(self.expected.insert(own()?)),
        })
    }
}

/// UID and generation of an object: where they differ, others have replaced or changed the object meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectVersion {
    uid: Option<String>,
    generation: Option<i64>,
}

impl ObjectVersion {
    pub(super) fn of(object: &DynamicObject) -> Self {
        Self {
            uid: object.metadata.uid.clone(),
            generation: object.metadata.generation,
        }
    }

    /// Whether this is the same object, and its spec was written exactly once since.
    fn is_one_write_after(&self, before: &Self) -> bool {
        let next = before.generation.map(|generation| generation + 1);
        self.uid == before.uid && next.is_some() && self.generation == next
    }
}

/// What to do with the annotation that identities are unconfirmed.
#[derive(Clone, Copy, Debug)]
enum UnconfirmedAnnotation<'a> {
    /// Leaves the annotation as others have it.
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

impl AdmissionPolicies {
    /// Inspects the policies that guard identities, and changes nothing. The policies of any version are
    /// enough: in a rolling update the leader may be of another version, and stays until this replica is
    /// ready.
    pub(super) async fn inspect(&self) -> Result<(), Error> {
        let mut checks = self.checks.lock().await;
        let expected = checks.expected()?;
        let all = self.find_all(&expected, &mut Vec::new()).await?;
        let is_open = all
            .iter()
            .any(|(expected, found)| is_gap(expected, found.as_ref(), &checks.seen));
        self.record_epoch(!is_open && unconfirmed(&all).is_none());
        let guards = all.iter().filter(|(expected, _)| expected.guards_identities());
        let mut open = guards.filter_map(|(expected, found)| {
            let finding = compare(expected, found.as_ref());
            (!finding.is_of_a_version())
                .then(|| fault(expected, &finding))
                .flatten()
        });
        let what = open.next();
        drop(open);
        self.record_installation(what.map_or(Ok(()), |what| Err(format!("{what}; the leader installs it"))));
        for (expected, found) in &all {
            if let Some(found) = found {
                record_version(&mut checks.seen, expected, found);
            }
        }
        Ok(())
    }

    /// Inspects every policy and binding, and puts in place what is not as it should be.
    pub(super) async fn check(&self, checks: &mut Checks) -> Result<Enforcement, Error> {
        let expected = checks.expected()?;
        let mut reported = Vec::new();
        let mut all = self.find_all(&expected, &mut reported).await?;
        let was_open = all
            .iter()
            .any(|(expected, found)| is_gap(expected, found.as_ref(), &checks.seen));
        if was_open {
            // Whatever the result of this check: earlier observations prove nothing.
            self.record_epoch(false);
        }
        let mut until = unconfirmed(&all);
        if was_open && until.is_none() {
            until = Some(wall_clock::now().to_string());
        }
        for (expected, found) in &mut all {
            let annotation = until.as_deref().filter(|_| expected.carries_annotation());
            let is_annotated = found
                .as_ref()
                .is_some_and(|found| annotation_of(found) == annotation);
            if compare(expected, found.as_ref()).has_to_be_put() || (annotation.is_some() && !is_annotated) {
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
                record_version(&mut checks.seen, expected, &put);
                *found = Some(put);
            }
        }
        if checks.unsettled {
            tokio::time::sleep(SETTLE).await;
            checks.unsettled = false;
        }
        // Where there was no identity, none could be forged. The identities are searched for when the
        // policies are in force again: before, one might be forged a moment later.
        let mut unknown = None;
        if until.is_some() {
            let is_none = match identities::find(&self.client, self.namespace.as_deref()).await? {
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
                record_version(&mut checks.seen, expected, found);
            }
            let Some(what) = fault(expected, &compare(expected, found.as_ref())) else {
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
                "an admission policy that does not guard identities differs from this version"
            );
        }
        checks.reported = reported;
        self.record_installation(wrong.clone().map_or(Ok(()), Err));
        let enforcement = match (wrong, until) {
            (Some(wrong), _) => Enforcement::NotInForce(
                format!(
                    "the admission policies do not guard identities: {wrong}; an administrator must delete \
                        or repair them"
                )
                .into(),
            ),
            (None, Some(until)) => {
                Enforcement::NotInForce(unconfirmed_since(&until, unknown.as_deref()).into())
            }
            (None, None) => Enforcement::InForce,
        };
        self.record_epoch(enforcement == Enforcement::InForce);
        Ok(enforcement)
    }

    /// Finds the current object of every expected one; leaves out objects that guard no identity and may not
    /// be read.
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

    /// Puts a policy or binding in place. One that exists is patched, so that nothing is left that makes it
    /// apply to less; a missing one is applied, not created: RBAC can then name the objects that this
    /// provider may make.
    async fn put(
        &self,
        expected: &Expected,
        found: Option<&DynamicObject>,
        annotation: UnconfirmedAnnotation<'_>,
    ) -> Result<DynamicObject, Error> {
        tracing::info!(name = expected.key(), ?annotation, "applying an admission policy");
        let api = self.api(&expected.resource);
        let put = if let Some(found) = found {
            // A concurrent write of another provider is not overwritten unread.
            let mut body =
                json!({"metadata": {"resourceVersion": found.metadata.resource_version, "annotations": {}}});
            if compare(expected, Some(found)).has_to_be_put() {
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
        put.map_err(|error| Error::api("applying an admission policy", error))
    }

    fn api(&self, resource: &ApiResource) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), resource)
    }
}

/// Whether identities may have been written while nothing refused it: the object is gone or another one,
/// others have changed it since the last check, or it is as no version of the provider has put it in place.
///
/// A newer version that took over the object of this version is no gap. It wrote the spec once, and the
/// object is as the newer version made it: nothing came in between.
pub(super) fn is_gap(
    expected: &Expected,
    found: Option<&DynamicObject>,
    seen: &BTreeMap<String, ObjectVersion>,
) -> bool {
    if !expected.guards_identities() {
        return false;
    }
    let Some(found) = found else { return true };
    let (finding, now) = (compare(expected, Some(found)), ObjectVersion::of(found));
    let was_changed = seen.get(&expected.key()).is_some_and(|before| {
        let was_taken_over = finding == PolicyFinding::Newer && now.is_one_write_after(before);
        now != *before && !was_taken_over
    });
    was_changed || !finding.is_of_a_version()
}

fn record_version(seen: &mut BTreeMap<String, ObjectVersion>, expected: &Expected, found: &DynamicObject) {
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

/// Describes what is wrong with the object that was found, if anything is.
pub(super) fn fault(expected: &Expected, finding: &PolicyFinding) -> Option<String> {
    let key = expected.key();
    match finding {
        PolicyFinding::AsExpected | PolicyFinding::Unversioned | PolicyFinding::Newer => None,
        PolicyFinding::Older => Some(format!("{key} is of an older version")),
        PolicyFinding::Missing => Some(format!("{key} is missing")),
        PolicyFinding::Different(place) => Some(format!("{key} differs in {place}")),
    }
}

fn unconfirmed_since(until: &str, unknown: Option<&str>) -> String {
    let unknown = unknown.map(|why| format!("; {why}")).unwrap_or_default();
    format!(
        "the admission policies were not in force until {until}, so identities and providerIDs may be \
            forged and none is trusted: an administrator must compare them with the VMs, then confirm them \
            with `kubectl annotate validatingadmissionpolicy {} {UNCONFIRMED}-`{unknown}",
        comparison::CARRIER
    )
}
