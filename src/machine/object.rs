//! The object of one reconcile, and the only place that writes it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use kube::api::Api;
use kube::runtime::reflector::ObjectRef;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::Context;
use super::finalizer::has_finalizer;
use super::status::{self, SecretMovability, in_progress};
use crate::api::bounded;
use crate::api::identity::{self, VmEvent, VmRecord};
use crate::api::v1alpha1::{InfraMachine, InfraMachineStatus};
use crate::api::wall_clock;
use crate::api::{DeserializeGuard, MACHINE_FINALIZER, ObjectMetaExt as _, annotations};
use crate::apiserver::{Error, patch_metadata, publish_status};
use cmi_driver::{LastKnownState, Operation};

#[cfg(test)]
mod tests;

/// An annotation and its value; without a value, the annotation is removed.
pub type Annotation = (&'static str, Option<String>);

/// How often a write is tried against concurrent writers.
const TRIES: u32 = 5;

/// The newest known version of an InfraMachine, and the way to write it.
///
/// # Guarantees
/// Every write carries the resource version that it was decided on: a write from a stale cache changes
/// nothing, it gets [`Error::Conflict`].
pub struct Object<'a> {
    ctx: &'a Context,
    api: Api<InfraMachine>,
    latest: Arc<InfraMachine>,
    secret_movability: SecretMovability,
}

impl<'a> Object<'a> {
    /// Starts from the version in a cache or from our last write.
    pub fn new(ctx: &'a Context, latest: Arc<InfraMachine>) -> Self {
        let namespace = latest.metadata.namespace();
        Self {
            ctx,
            api: Api::namespaced(ctx.client.clone(), namespace),
            latest,
            secret_movability: SecretMovability::Unread,
        }
    }

    /// Records whether clusterctl would leave the Secret of the credentials behind, which is known once they
    /// were read. From then on the status says so.
    pub fn record_secret_movability(&mut self, movability: SecretMovability) {
        self.secret_movability = movability;
    }

    /// The newest known version.
    pub fn get(&self) -> &InfraMachine {
        &self.latest
    }

    /// The UID, or nothing where the API server has not given one.
    pub fn uid(&self) -> &str {
        self.latest.metadata.uid()
    }

    /// The name, by which the driver knows the machine too.
    pub fn name(&self) -> &str {
        self.latest.metadata.name()
    }

    /// Writes finalizer and record in one patch; writes nothing when the object has both.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the object is not the version that this was decided on.
    pub async fn ensure_finalizer_and_record(&mut self, record: &VmRecord) -> Result<(), Error> {
        let annotations = self.record_if_changed(record)?;
        self.write_finalizer_and(annotations).await
    }

    /// Adds the finalizer, which an object with a record has lost.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the object is not the version that this was decided on.
    pub async fn restore_finalizer(&mut self) -> Result<(), Error> {
        self.write_finalizer_and(Vec::new()).await
    }

    /// Write 1, before every create: finalizer, and the record in which the create is issued. Until the
    /// create is answered, `clusterctl move` has to wait.
    ///
    /// The patch is always sent, so that a cache that is behind never leads to a create.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the object is not the version that this was decided on.
    pub async fn record_create(&mut self, record: &VmRecord) -> Result<(), Error> {
        let mut annotations = vec![(annotations::VM_RECORD, Some(encoded(record)?))];
        annotations.extend(self.block_move_addition());
        self.write_finalizer_and(annotations).await
    }

    async fn write_finalizer_and(&mut self, annotations: Vec<Annotation>) -> Result<(), Error> {
        let finalizers = if has_finalizer(&self.latest) {
            None
        } else {
            let mut all = self.finalizers("reading the finalizers").await?;
            all.push(MACHINE_FINALIZER.to_owned());
            Some(all)
        };
        if annotations.is_empty() && finalizers.is_none() {
            return Ok(());
        }
        let mut metadata = json!({"annotations": merge_patch(annotations)});
        if let Some(finalizers) = finalizers {
            metadata["finalizers"] = json!(finalizers);
        }
        self.patch("writing finalizer and record", metadata, None).await
    }

    /// Takes back that a VM may exist, since the only create is over and made none.
    pub async fn record_refusal(&mut self, refused: VmEvent) -> Result<(), Error> {
        let action = "recording that no VM was created";
        let beside: Vec<_> = self.block_move_removal().into_iter().collect();
        self.change_record(action, |record| record.after(refused), &beside)
            .await
    }

    /// Lets `clusterctl move` go on where this provider has kept it waiting.
    pub async fn unblock_move(&mut self) -> Result<(), Error> {
        let annotations: Vec<_> = self.block_move_removal().into_iter().collect();
        self.try_patch_annotations("removing the annotation block-move", &annotations)
            .await
    }

    /// Records that an update is issued: until its end is recorded too, the VM may be half updated, wherever
    /// the object is moved. `clusterctl move` waits while the call changes the VM.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the object is not the version that this was decided on.
    pub async fn record_update(&mut self) -> Result<(), Error> {
        let action = "recording that an update is issued";
        let beside: Vec<_> = self.block_move_addition().into_iter().collect();
        self.try_change_record(action, |record| record.after(VmEvent::UpdateIssued), &beside)
            .await
    }

    fn block_move_addition(&self) -> Option<Annotation> {
        let key = annotations::BLOCK_MOVE;
        let is_absent = identity::annotation(&self.latest, key).is_none();
        is_absent.then(|| (key, Some(annotations::BLOCK_MOVE_VALUE.to_owned())))
    }

    /// Returns the annotation that has to go for `clusterctl move` to go on, as far as it waits for this
    /// provider.
    pub fn block_move_removal(&self) -> Option<Annotation> {
        identity::blocks_move(&self.latest.metadata).then_some((annotations::BLOCK_MOVE, None))
    }

    /// Keeps the state that the driver wants back with the next call (CTL-01, CTL-03).
    pub async fn record_last_known_state(&mut self, state: Option<&LastKnownState>) -> Result<(), Error> {
        // An object without a record has no VM yet: it asks to adopt one.
        if state.is_none() || identity::record(&self.latest).is_none() {
            return Ok(());
        }
        let action = "recording the driver's last known state";
        self.change_record(action, |record| record.with_last_known_state(state), &[])
            .await
    }

    /// Changes the record as the driver's answer demands, and the annotations `beside` with it. The answer
    /// holds for the object whatever other clients write at the same time, and would be lost if it were not
    /// written.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the object has no record any more.
    pub async fn change_record(
        &mut self,
        action: &'static str,
        change: impl Fn(VmRecord) -> VmRecord,
        beside: &[Annotation],
    ) -> Result<(), Error> {
        for _ in 1..TRIES {
            match self.try_change_record(action, &change, beside).await {
                Err(Error::Conflict { .. }) => self.reread(action).await?,
                done => return done,
            }
        }
        self.try_change_record(action, change, beside).await
    }

    /// Does the same, on the version that is known.
    pub async fn try_change_record(
        &mut self,
        action: &'static str,
        change: impl Fn(VmRecord) -> VmRecord,
        beside: &[Annotation],
    ) -> Result<(), Error> {
        let record = change(self.record(action)?);
        let mut wanted = self.record_if_changed(&record)?;
        wanted.extend_from_slice(beside);
        self.try_patch_annotations(action, &wanted).await
    }

    /// Returns the record, of an object that has one.
    fn record(&self, action: &'static str) -> Result<VmRecord, Error> {
        identity::record(&self.latest).ok_or(Error::Conflict { action })
    }

    fn record_if_changed(&self, record: &VmRecord) -> Result<Vec<Annotation>, Error> {
        if identity::record(&self.latest).as_ref() == Some(record) {
            return Ok(Vec::new());
        }
        Ok(vec![(annotations::VM_RECORD, Some(encoded(record)?))])
    }

    /// Sets annotations that say what a driver did. They hold for the object whatever other clients write at
    /// the same time, and would be lost if they were not written.
    pub async fn patch_annotations(
        &mut self,
        action: &'static str,
        wanted: &[Annotation],
    ) -> Result<(), Error> {
        for _ in 1..TRIES {
            match self.try_patch_annotations(action, wanted).await {
                Err(Error::Conflict { .. }) => self.reread(action).await?,
                done => return done,
            }
        }
        self.try_patch_annotations(action, wanted).await
    }

    /// Sets or removes the annotations that differ.
    pub async fn try_patch_annotations(
        &mut self,
        action: &'static str,
        wanted: &[Annotation],
    ) -> Result<(), Error> {
        let changed = wanted
            .iter()
            .filter(|(key, value)| identity::annotation(&self.latest, key) != value.as_deref());
        let changed = merge_patch(changed.cloned());
        if changed.is_empty() {
            return Ok(());
        }
        self.patch(action, json!({"annotations": changed}), None).await
    }

    /// Write 2: the providerID, and the record in which the VM exists, in one patch.
    ///
    /// When another client writes meanwhile, the patch is retried on the object as it is now: a driver may
    /// not yet find the VM that it has just made, so its answer must not be lost.
    pub async fn patch_provider_id(
        &mut self,
        provider_id: &str,
        state: Option<&LastKnownState>,
    ) -> Result<(), Error> {
        let action = "reading the machine to write spec.providerID";
        for _ in 1..TRIES {
            match self.try_patch_provider_id(provider_id, state).await {
                Err(Error::Conflict { .. }) => self.reread(action).await?,
                done => return done,
            }
        }
        self.try_patch_provider_id(provider_id, state).await
    }

    /// Awaits the answer of a driver. When the answer takes longer than a few seconds, the status says
    /// meanwhile what is under way and since when: an operator must not find a machine of which
    /// nothing is known.
    ///
    /// The call goes on beside the write of the status, which is tried once. If the write fails, the log says
    /// so; the outcome of the call says the rest.
    pub async fn awaiting<T>(&mut self, operation: Operation, call: impl Future<Output = T>) -> T {
        const LONG: Duration = Duration::from_secs(5);
        let since = wall_clock::now();
        let mut call = pin!(call);
        if let Ok(answer) = timeout(LONG, &mut call).await {
            return answer;
        }
        let wanted = in_progress(&self.latest, operation, since);
        let say = async {
            if let Err(error) = self.try_patch_status(&wanted).await {
                let name = self.name();
                tracing::debug!(name, %operation, %error, "cannot report a long call");
            }
        };
        let (answer, ()) = tokio::join!(call, say);
        answer
    }

    /// Reads the live object. Fails when another object has the name by now.
    async fn reread(&mut self, action: &'static str) -> Result<(), Error> {
        let live = self
            .api
            .get(self.name())
            .await
            .map_err(|error| Error::api(action, error))?;
        if live.metadata.uid != self.latest.metadata.uid {
            return Err(Error::Gone { action });
        }
        self.set_latest(live);
        Ok(())
    }

    async fn try_patch_provider_id(
        &mut self,
        provider_id: &str,
        state: Option<&LastKnownState>,
    ) -> Result<(), Error> {
        let action = "writing spec.providerID";
        let record = self.record(action)?;
        let record = record.after(VmEvent::Found).with_last_known_state(state);
        let mut annotations = self.record_if_changed(&record)?;
        if self.latest.spec.provider_id.as_deref() == Some(provider_id) {
            return self.try_patch_annotations(action, &annotations).await;
        }
        annotations.extend(self.block_move_removal());
        let metadata = json!({"annotations": merge_patch(annotations)});
        self.patch(action, metadata, Some(provider_id)).await
    }

    /// Write 3: the status that follows from the object, when it differs.
    ///
    /// When another client wrote something that no plan depends on, such as a label, the patch is retried:
    /// the call that the status reports is done, and is not repeated before its time.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the object changed in a way that may lead to another plan.
    pub async fn patch_status(
        &mut self,
        status: impl Fn(&InfraMachine) -> InfraMachineStatus,
    ) -> Result<bool, Error> {
        let movability = self.secret_movability.clone();
        let status =
            |machine: &InfraMachine| status::with_secret_movability(machine, status(machine), &movability);
        for _ in 1..TRIES {
            let wanted = status(&self.latest);
            match self.try_patch_status(&wanted).await {
                Err(Error::Conflict { action }) if !self.still_applies(action).await? => {
                    return Err(Error::Conflict { action });
                }
                Err(Error::Conflict { .. }) => {}
                done => return done,
            }
        }
        let wanted = status(&self.latest);
        self.try_patch_status(&wanted).await
    }

    /// Reads the live object, and returns whether what was decided on the previous version still holds.
    async fn still_applies(&mut self, action: &'static str) -> Result<bool, Error> {
        let before = Arc::clone(&self.latest);
        self.reread(action).await?;
        Ok(decides_the_same(&before, &self.latest) && before.status == self.latest.status)
    }

    async fn try_patch_status(&mut self, status: &InfraMachineStatus) -> Result<bool, Error> {
        let before = self.latest.status.as_ref();
        let published = publish_status(&self.api, &self.latest.metadata, before, status).await?;
        let is_written = published.is_some();
        if let Some((metadata, status)) = published {
            // The rest is unchanged: the patch holds for this resource version alone.
            self.set_latest(InfraMachine {
                metadata,
                spec: self.latest.spec.clone(),
                status: Some(status),
            });
        }
        Ok(is_written)
    }

    /// Removes our finalizer and no other, which lets the object go. An object that another finalizer keeps
    /// holds up no move.
    pub async fn remove_finalizer(&mut self) -> Result<(), Error> {
        let action = "removing the finalizer";
        let mut rest = self.finalizers(action).await?;
        rest.retain(|name| name != MACHINE_FINALIZER);
        let mut metadata = json!({"finalizers": rest});
        if let Some((key, value)) = self.block_move_removal() {
            metadata["annotations"] = json!({key: value});
        }
        let body = self.with_resource_version(json!({"metadata": metadata}));
        let released = patch_metadata(&self.api, self.name(), &body)
            .await
            .map_err(|error| Error::api(action, error));
        match released {
            // It was the last finalizer and the object went with it, or another client was faster.
            Ok(_) | Err(Error::Gone { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Patches metadata, and the providerID if one is given.
    async fn patch(
        &mut self,
        action: &'static str,
        metadata: Value,
        provider_id: Option<&str>,
    ) -> Result<(), Error> {
        let mut body = json!({"metadata": metadata});
        if let Some(provider_id) = provider_id {
            body["spec"] = json!({"providerID": provider_id});
        }
        let body = self.with_resource_version(body);
        // The rest is unchanged: the patch holds for this resource version alone.
        let patched = patch_metadata(&self.api, self.name(), &body)
            .await
            .map_err(|error| Error::api(action, error))?;
        let mut written = InfraMachine::clone(&self.latest);
        written.metadata = patched;
        if let Some(provider_id) = provider_id {
            written.spec.provider_id = Some(provider_id.to_owned());
        }
        self.set_latest(written);
        Ok(())
    }

    /// Returns all finalizers: of an object with very many, a cache holds only some. If the object changes
    /// meanwhile, the write that follows is refused.
    async fn finalizers(&self, action: &'static str) -> Result<Vec<String>, Error> {
        let known = self.latest.metadata.finalizers.clone().unwrap_or_default();
        if known.len() < bounded::MAX_KEPT {
            return Ok(known);
        }
        let live = self.api.get_metadata(self.name()).await;
        let live = live.map_err(|error| Error::api(action, error))?;
        Ok(live.metadata.finalizers.unwrap_or_default())
    }

    fn with_resource_version(&self, mut body: Value) -> Value {
        body["metadata"]["resourceVersion"] = json!(self.latest.metadata.resource_version);
        body
    }

    fn cached(&self) -> Option<Arc<DeserializeGuard<InfraMachine>>> {
        let namespace = self.latest.metadata.namespace();
        let reference = ObjectRef::new(self.name()).within(namespace);
        self.ctx.caches.infra_machines.get(&reference)
    }

    fn set_latest(&mut self, mut written: InfraMachine) {
        // Bounded like the version in the cache, with which it is compared.
        bounded::bound(&mut written.metadata);
        self.latest = Arc::new(written);
        self.ctx.states.record_write(self.uid(), Arc::clone(&self.latest));
        // The watch may have been faster than the answer: then nothing else notices that the cache has this
        // version.
        if let Some(cached) = self.cached()
            && let Ok(cached) = &cached.0
        {
            self.ctx.states.caught_up(self.uid(), cached);
        }
    }
}

/// Whether two versions of an object lead to the same plan, as far as the plan depends on the object.
fn decides_the_same(a: &InfraMachine, b: &InfraMachine) -> bool {
    a.metadata.generation == b.metadata.generation
        && a.metadata.deletion_timestamp == b.metadata.deletion_timestamp
        && a.metadata.annotations == b.metadata.annotations
}

/// Returns the annotations as a merge patch has them: a removed one is null.
fn merge_patch(annotations: impl IntoIterator<Item = Annotation>) -> Map<String, Value> {
    let annotations = annotations.into_iter();
    annotations
        .map(|(key, value)| (key.to_owned(), json!(value)))
        .collect()
}

fn encoded(record: &VmRecord) -> Result<String, Error> {
    let action = "writing the record as JSON";
    record
        .annotation()
        .map_err(|source| Error::Encode { action, source })
}
