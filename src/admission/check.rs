//! One check of the policies that guard identities, and their repair.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::comparison::{CARRIER, Expected, PolicyFinding, compare};
use super::{AdmissionPolicies, Enforcement, UNCONFIRMED, advice, identities, is_refused, own};
use crate::api::wall_clock;
use crate::apiserver::{Error, FIELD_MANAGER, merge_difference, patch_params};

/// The time until every API server knows a new policy: each server looks once a second.
pub(super) const SETTLE: Duration = Duration::from_secs(3);

/// The state that is kept between checks.
#[derive(Default)]
pub(super) struct Checks {
    /// When the last check began.
    pub last: Option<Instant>,
    /// The expected policies and bindings; `None` before the first check.
    pub expected: Option<Arc<[Expected]>>,
    /// Whether an object that guards identities was written so recently that some API servers may not know it
    /// yet. Survives a failed check.
    unsettled: bool,
    /// The annotation that this process has written. A provider that watches one namespace does not remove
    /// the annotation of another provider, which may concern identities elsewhere.
    annotated: Option<String>,
    /// The reported faults of policies that guard no identity. Each is reported once.
    reported: Vec<String>,
    /// The UIDs of the objects that guard identities, at the end of the last check.
    seen: HashMap<String, Option<String>>,
}

type Found<'a> = Vec<(&'a Expected, Option<DynamicObject>)>;

impl Checks {
    fn expected(&mut self) -> Result<Arc<[Expected]>, Error> {
        Ok(match &self.expected {
            Some(expected) => Arc::clone(expected),
            None => Arc::clone(self.expected.insert(own()?)),
        })
    }

    /// Whether an object was deleted and recreated by others since the last check.
    fn is_replaced(&self, all: &Found<'_>) -> bool {
        all.iter().any(|(expected, found)| {
            let seen = self.seen.get(&expected.key()).zip(found.as_ref());
            seen.is_some_and(|(uid, found)| found.metadata.uid != *uid)
        })
    }

    fn record_seen(&mut self, all: &Found<'_>) {
        let guards = all.iter().filter(|(expected, _)| expected.guards_identities());
        let uids = guards
            .filter_map(|(expected, found)| Some((expected.key(), found.as_ref()?.metadata.uid.clone())));
        self.seen = uids.collect();
    }

    fn report(&mut self, faults: Vec<String>) {
        for what in faults.iter().filter(|what| !self.reported.contains(*what)) {
            tracing::warn!(
                what,
                "an admission policy that does not guard identities differs from this version"
            );
        }
        self.reported = faults;
    }
}

impl AdmissionPolicies {
    /// Inspects the policies that guard identities, and changes nothing. Policies of any version are enough:
    /// during a rolling update, the leader may be of another version and stays until this replica is ready.
    pub(super) async fn inspect(&self) -> Result<(), Error> {
        let mut checks = self.checks.lock().await;
        let expected = checks.expected()?;
        let found = self.find_all(&expected, &mut Vec::new()).await?;
        let gap = gap(&found);
        if checks.is_replaced(&found) {
            self.record_epoch(false);
        }
        checks.record_seen(&found);
        self.record_epoch(gap.is_none() && unconfirmed(&found).is_none());
        self.record_installation(gap.map_or(Ok(()), |what| Err(format!("{what}; the leader installs it"))));
        Ok(())
    }

    /// Inspects every policy and binding, and repairs those that differ.
    pub(super) async fn check(&self, checks: &mut Checks) -> Result<Enforcement, Error> {
        let (expected, mut faults) = (checks.expected()?, Vec::new());
        let mut found = self.find_all(&expected, &mut faults).await?;
        let mut until = unconfirmed(&found);
        if gap(&found).is_some() || checks.is_replaced(&found) {
            // Earlier observations prove nothing, even if the repair succeeds.
            self.record_epoch(false);
            until.get_or_insert_with(|| wall_clock::now().to_string());
        }
        self.repair(checks, &mut found, until.as_deref(), &mut faults)
            .await?;
        if std::mem::take(&mut checks.unsettled) {
            tokio::time::sleep(SETTLE).await;
        }
        if let Some(annotation) = &until
            && self.is_void(checks, annotation).await?
        {
            self.confirm(&mut found).await?;
            until = None;
        }
        checks.report(faults);
        checks.record_seen(&found);
        self.record_installation(gap(&found).map_or(Ok(()), Err));
        let enforcement = match (gap(&found), until) {
            (Some(gap), _) => Enforcement::NotInForce(
                format!(
                    "the admission policies do not guard identities: {gap}; an administrator must delete \
                        or repair them"
                )
                .into(),
            ),
            (None, Some(until)) => Enforcement::NotInForce(unconfirmed_since(&until).into()),
            (None, None) => Enforcement::InForce,
        };
        self.record_epoch(enforcement == Enforcement::InForce);
        Ok(enforcement)
    }

    /// Repairs the policies that differ, and writes the annotation that identities are unconfirmed.
    async fn repair(
        &self,
        checks: &mut Checks,
        found: &mut Found<'_>,
        until: Option<&str>,
        faults: &mut Vec<String>,
    ) -> Result<(), Error> {
        for (expected, found) in found {
            let annotation = until.filter(|_| expected.carries_annotation());
            let is_annotated = annotation.is_none() || found.as_ref().and_then(annotation_of) == annotation;
            let has_to_be_put = compare(expected, found.as_ref()).has_to_be_put();
            if is_annotated && !has_to_be_put {
                continue;
            }
            match self
                .put(expected, found.as_ref(), annotation.map(Value::from))
                .await
            {
                Ok(put) => *found = Some(put),
                Err(error) if !expected.guards_identities() && is_refused(&error) => {
                    faults.push(format!("{}: {}", expected.key(), advice(&error)));
                    continue;
                }
                Err(error) => return Err(error),
            }
            checks.annotated = annotation.map(str::to_owned).or(checks.annotated.take());
            checks.unsettled |= expected.guards_identities() && has_to_be_put;
        }
        Ok(())
    }

    /// Whether the annotation is unnecessary, because no identity existed that could be forged. Identities
    /// are searched for only once the policies are in force again: an earlier search could miss an identity
    /// that is forged right after it.
    async fn is_void(&self, checks: &Checks, annotation: &str) -> Result<bool, Error> {
        let may_remove = self.namespace.is_none() || checks.annotated.as_deref() == Some(annotation);
        Ok(may_remove && !identities::exist(&self.client, self.namespace.as_deref()).await?)
    }

    /// Finds the current object for each expected one. Leaves out objects that guard no identity and that the
    /// provider may not read.
    async fn find_all<'a>(
        &self,
        expected: &'a [Expected],
        faults: &mut Vec<String>,
    ) -> Result<Found<'a>, Error> {
        let found = expected.iter().map(|expected| self.find(expected));
        let mut all = Vec::new();
        for (expected, found) in expected.iter().zip(futures::future::join_all(found).await) {
            match found {
                Err(error) if !expected.guards_identities() && is_refused(&error) => {
                    faults.push(format!("{}: {}", expected.key(), advice(&error)));
                }
                found => all.push((expected, found?)),
            }
        }
        Ok(all)
    }

    async fn find(&self, expected: &Expected) -> Result<Option<DynamicObject>, Error> {
        let found = self.api(expected).get_opt(&expected.name).await;
        found.map_err(|error| Error::api("reading an admission policy", error))
    }

    /// Removes the annotation that identities are unconfirmed.
    async fn confirm(&self, found: &mut Found<'_>) -> Result<(), Error> {
        let carrier = found
            .iter_mut()
            .find(|(expected, _)| expected.carries_annotation());
        if let Some((expected, found)) = carrier {
            *found = Some(self.put(expected, found.as_ref(), Some(Value::Null)).await?);
        }
        Ok(())
    }

    /// Writes a policy or binding, where it differs, and the annotation. An existing object is patched, so
    /// that nothing remains that makes it apply to less. A missing object is applied, not created: RBAC can
    /// then name the objects that this provider may make.
    async fn put(
        &self,
        expected: &Expected,
        found: Option<&DynamicObject>,
        annotation: Option<Value>,
    ) -> Result<DynamicObject, Error> {
        tracing::info!(name = expected.key(), ?annotation, "applying an admission policy");
        let (api, name) = (self.api(expected), &expected.name);
        let has_to_be_put = compare(expected, found).has_to_be_put();
        let mut object = if has_to_be_put {
            expected.object.clone()
        } else {
            json!({})
        };
        if let Some(annotation) = annotation {
            object["metadata"]["annotations"][UNCONFIRMED] = annotation;
        }
        let put = if let Some(found) = found {
            // A concurrent write of another provider is not overwritten unread.
            object["metadata"]["resourceVersion"] = json!(found.metadata.resource_version);
            if has_to_be_put {
                object["spec"] = merge_difference(&found.data["spec"], &object["spec"]);
            }
            api.patch(name, &patch_params(), &Patch::Merge(&object)).await
        } else {
            let params = PatchParams::apply(FIELD_MANAGER).force();
            api.patch(name, &params, &Patch::Apply(&object)).await
        };
        put.map_err(|error| Error::api("applying an admission policy", error))
    }

    fn api(&self, expected: &Expected) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &expected.resource)
    }
}

/// Describes the first object that guards identities and is missing or changed.
fn gap(all: &Found<'_>) -> Option<String> {
    let mut guards = all.iter().filter(|(expected, _)| expected.guards_identities());
    guards.find_map(|(expected, found)| {
        let key = expected.key();
        match compare(expected, found.as_ref()) {
            PolicyFinding::AsExpected | PolicyFinding::Newer | PolicyFinding::Older => None,
            PolicyFinding::Missing => Some(format!("{key} is missing")),
            PolicyFinding::Different(place) => Some(format!("{key} differs in {place}")),
        }
    })
}

fn annotation_of(object: &DynamicObject) -> Option<&str> {
    object.annotations().get(UNCONFIRMED).map(String::as_str)
}

fn unconfirmed(all: &Found<'_>) -> Option<String> {
    all.iter()
        .filter(|(expected, _)| expected.carries_annotation())
        .find_map(|(_, found)| annotation_of(found.as_ref()?).map(str::to_owned))
}

fn unconfirmed_since(until: &str) -> String {
    format!(
        "the admission policies were not in force until {until}, so identities and providerIDs may be \
            forged and none is trusted: an administrator must compare them with the VMs, then confirm them \
            with `kubectl annotate validatingadmissionpolicy {CARRIER} {UNCONFIRMED}-`"
    )
}
