//! The object of one reconcile, and the only place that writes it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use kube::api::Api;
use kube::runtime::reflector::ObjectRef;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::Context;
use super::runtime_state::AnsweredCreate;
use super::status;
use crate::api::bounded;
use crate::api::v1alpha1::{InfraMachine, InfraMachineStatus};
use crate::api::{DeserializeGuard, MACHINE_FINALIZER, ObjectMetaExt as _, VmExistence, annotations};
use crate::apiserver::{Error, patch_metadata, publish_status};
use crate::identity::{self, MachineId};
use crate::machine::ownership::{Ownership, has_finalizer};
use crate::machine::status::{SecretMovability, in_progress};
use crate::machine::unanswered_creates::UnansweredCreates;
use crate::wall_clock;
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
    /// Whether the API server has deleted the object, so that there is nothing to write.
    was_deleted_despite_finalizer: bool,
}

/// What the API server has by the name of an object that it has deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveObject {
    /// Nothing.
    Absent,
    /// The object, which only this process no longer watches, or one of its identity, which was restored and
    /// has the VM.
    Same,
    /// Another object: a VM of the name may belong to that.
    Another,
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
            was_deleted_despite_finalizer: false,
        }
    }

    /// A deleted object, as the watch last showed it. No write reaches the API server: [`Object::latest`]
    /// alone has what would be written.
    pub fn deleted_despite_finalizer(ctx: &'a Context, last: Arc<InfraMachine>) -> Self {
        Self {
            was_deleted_despite_finalizer: true,
            ..Self::new(ctx, last)
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

    /// The newest known version, which outlives the next write.
    pub fn latest(&self) -> Arc<InfraMachine> {
        Arc::clone(&self.latest)
    }

    /// The UID, or nothing where the API server has not given one.
    pub fn uid(&self) -> &str {
        self.latest.metadata.uid()
    }

    /// The name, by which the driver knows the machine too.
    pub fn name(&self) -> &str {
        self.latest.metadata.name()
    }

    /// Writes finalizer and identity in one patch; writes nothing when the object has them all.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the object is not the version that this was decided on.
    pub async fn ensure_finalizer_and_identity(&mut self, ownership: &Ownership) -> Result<(), Error> {
        let annotations = missing_annotations(&self.latest, ownership)?;
        self.write_ownership(annotations).await
    }

    /// Write 1, before every create: finalizer, identity, and the creates whose answer is unknown, the coming
    /// one among them. Until that one is answered, `clusterctl move` has to wait.
    ///
    /// The patch is always sent, so that a cache that is behind never leads to a create.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the object is not the version that this was decided on.
    pub async fn record_create(
        &mut self,
        ownership: &Ownership,
        unanswered: &UnansweredCreates,
    ) -> Result<(), Error> {
        let annotations = annotations_of_a_create(&self.latest, ownership, unanswered)?;
        self.write_ownership(annotations).await
    }

    async fn write_ownership(&mut self, annotations: Map<String, Value>) -> Result<(), Error> {
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
        let mut metadata = Map::new();
        metadata.insert("annotations".to_owned(), Value::Object(annotations));
        if let Some(finalizers) = finalizers {
            metadata.insert("finalizers".to_owned(), json!(finalizers));
        }
        self.patch("writing finalizer and identity", Value::Object(metadata), None)
            .await
    }

    /// Takes back the note that a VM may exist, since the only create is over and made none. Where other
    /// writers prevent it, the note stays, which is never wrong.
    pub async fn record_no_vm(&mut self, existence: VmExistence) -> Result<(), Error> {
        let action = "patching the annotation vm-existence";
        for _ in 0..TRIES {
            let mut annotations = vec![
                (annotations::VM_EXISTENCE, Some(existence.annotation().to_owned())),
                (annotations::CREATE_ISSUED_AT, None),
            ];
            annotations.extend(self.block_move_removal());
            match self.try_patch_annotations(action, &annotations).await {
                Err(Error::Conflict { .. }) if self.still_applies(action).await? => {}
                Err(Error::Conflict { .. }) => break,
                done => return done,
            }
        }
        tracing::info!(
            name = self.name(),
            "cannot record that no VM was created, because of conflicting writes"
        );
        Ok(())
    }

    /// Lets `clusterctl move` go on where this provider has kept it waiting.
    pub async fn unblock_move(&mut self) -> Result<(), Error> {
        let annotations: Vec<_> = self.block_move_removal().into_iter().collect();
        self.try_patch_annotations("removing the annotation block-move", &annotations)
            .await
    }

    /// Writes down that an update is issued: until its end is written down too, the VM may be half updated,
    /// wherever the object is moved. `clusterctl move` waits while the call changes the VM.
    pub async fn issue_update(&mut self) -> Result<(), Error> {
        let mut annotations = Vec::new();
        if identity::annotation(&self.latest, annotations::BLOCK_MOVE).is_none() {
            annotations.push((
                annotations::BLOCK_MOVE,
                Some(annotations::BLOCK_MOVE_VALUE.to_owned()),
            ));
        }
        if !identity::is_update_issued(&self.latest) {
            annotations.push((annotations::UPDATE_ISSUED, Some("true".to_owned())));
        }
        if annotations.is_empty() {
            return Ok(());
        }
        self.try_patch_annotations("patching the annotation update-issued", &annotations)
            .await
    }

    /// Returns the annotation that has to go for `clusterctl move` to go on, as far as it waits for this
    /// provider.
    pub fn block_move_removal(&self) -> Option<Annotation> {
        identity::blocks_move(&self.latest.metadata).then_some((annotations::BLOCK_MOVE, None))
    }

    /// Keeps the state that the driver wants back with the next call (CTL-01, CTL-03).
    pub async fn patch_last_known_state(&mut self, state: Option<&LastKnownState>) -> Result<(), Error> {
        let Some(state) = state else {
            return Ok(());
        };
        let (key, state) = identity::last_known_state_annotation(state);
        self.patch_annotations("patching the annotation last-known-state", &[(key, Some(state))])
            .await
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
        let changed: Map<String, Value> = wanted
            .iter()
            .filter(|(key, value)| identity::annotation(&self.latest, key) != value.as_deref())
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .collect();
        if changed.is_empty() {
            return Ok(());
        }
        self.patch(action, json!({"annotations": changed}), None).await
    }

    /// Write 2: the providerID and the annotations that belong to it, in one patch.
    ///
    /// When another client writes meanwhile, the patch is retried on the object as it is now: a driver may
    /// not yet find the VM that it has just made, so its answer must not be lost.
    pub async fn patch_provider_id(
        &mut self,
        provider_id: &str,
        annotations: &[Annotation],
    ) -> Result<(), Error> {
        let action = "reading the machine to write spec.providerID";
        for _ in 1..TRIES {
            match self.try_patch_provider_id(provider_id, annotations).await {
                Err(Error::Conflict { .. }) => self.reread(action).await?,
                done => return done,
            }
        }
        self.try_patch_provider_id(provider_id, annotations).await
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

    /// Reads what the API server has by the object's name.
    pub async fn live(&self) -> Result<LiveObject, Error> {
        let action = "reading the InfraMachine with the name of a removed one";
        let found = self.api.get_metadata_opt(self.name()).await;
        let Some(found) = found.map_err(|error| Error::api(action, error))? else {
            return Ok(LiveObject::Absent);
        };
        let identity = MachineId::of_metadata(&found.metadata);
        let is_same = found.metadata.uid() == self.uid()
            || identity.is_some() && identity == MachineId::of(&self.latest);
        Ok(if is_same {
            LiveObject::Same
        } else {
            LiveObject::Another
        })
    }

    /// Checks, right before a call that deletes a VM, that no object has come to the name of a deleted one
    /// since the deletion was decided: a driver that knows VMs by their names alone would delete the VM of
    /// the later object.
    ///
    /// # Errors
    /// [`Error::Conflict`] when there is such an object.
    pub async fn ensure_may_delete_vm(&self) -> Result<(), Error> {
        if !self.was_deleted_despite_finalizer || self.live().await? == LiveObject::Absent {
            return Ok(());
        }
        Err(Error::Conflict {
            action: "deleting the VM of a removed InfraMachine",
        })
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
        annotations: &[Annotation],
    ) -> Result<(), Error> {
        if self.latest.spec.provider_id.as_deref() == Some(provider_id) {
            return self
                .try_patch_annotations("writing the driver's answer about the VM", annotations)
                .await;
        }
        let answered = self.ctx.states.get(self.uid()).answered;
        let over = create_is_over(&self.latest, answered);
        let annotations: Map<String, Value> = annotations
            .iter()
            .cloned()
            .chain(over)
            .chain(self.block_move_removal())
            .map(|(key, value)| (key.to_owned(), json!(value)))
            .collect();
        let metadata = json!({"annotations": annotations});
        self.patch("writing spec.providerID", metadata, Some(provider_id))
            .await
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
        if self.was_deleted_despite_finalizer {
            return Ok(false);
        }
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
        if self.was_deleted_despite_finalizer {
            return self.patch_in_memory(action, &body);
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

    fn patch_in_memory(&mut self, action: &'static str, patch: &Value) -> Result<(), Error> {
        let encode = |source| Error::Encode { action, source };
        let mut object = serde_json::to_value(&*self.latest).map_err(encode)?;
        json_patch::merge(&mut object, patch);
        self.latest = Arc::new(serde_json::from_value(object).map_err(encode)?);
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

/// Returns the annotations that have to change before a create.
fn annotations_of_a_create(
    machine: &InfraMachine,
    ownership: &Ownership,
    unanswered: &UnansweredCreates,
) -> Result<Map<String, Value>, Error> {
    let mut annotations = missing_annotations(machine, ownership)?;
    annotations.insert(
        annotations::CREATE_ISSUED_AT.to_owned(),
        json!(unanswered.annotation()),
    );
    if identity::annotation(machine, annotations::BLOCK_MOVE).is_none() {
        annotations.insert(
            annotations::BLOCK_MOVE.to_owned(),
            json!(annotations::BLOCK_MOVE_VALUE),
        );
    }
    Ok(annotations)
}

/// Returns the change to the annotation about unanswered creates once the VM is known.
fn create_is_over(machine: &InfraMachine, answered: Option<AnsweredCreate>) -> Option<Annotation> {
    let unanswered = UnansweredCreates::of(machine)?.beside_the_vm(answered);
    Some((annotations::CREATE_ISSUED_AT, unanswered.annotation()))
}

/// Returns the annotations that have to change for the ownership.
fn missing_annotations(machine: &InfraMachine, ownership: &Ownership) -> Result<Map<String, Value>, Error> {
    let action = "writing the provider spec into an annotation";
    let mut wanted = vec![
        (annotations::CLUSTER_ID, ownership.cluster_id.clone()),
        (annotations::MACHINE_ID, ownership.machine_id.annotation()),
        (
            annotations::VM_EXISTENCE,
            ownership.vm_existence.annotation().to_owned(),
        ),
    ];
    if let Some(driver) = &ownership.driver {
        wanted.push((annotations::DRIVER, driver.clone()));
    }
    if let Some(secret) = &ownership.secret {
        wanted.push((annotations::SECRET, secret.clone()));
    }
    if let Some(applied) = &ownership.applied {
        let json = serde_json::to_string(applied).map_err(|source| Error::Encode { action, source })?;
        wanted.push((annotations::APPLIED_PROVIDER_SPEC, json));
    }
    if let Some(adopted) = &ownership.adopted {
        wanted.push((annotations::ADOPTED, adopted.as_str().to_owned()));
    }
    let present = machine.metadata.annotations.as_ref();
    let mut changes = Map::new();
    // Annotations copied with another machine's identity describe that machine's VM and must not reach the
    // driver under this name.
    let copied = MachineId::of(machine).is_none();
    for key in annotations::OWN_ANNOTATIONS {
        // The administrator who has a VM adopted supplies the state that its driver wants back with the next
        // call.
        if ownership.adopted.is_some() && key == annotations::LAST_KNOWN_STATE {
            continue;
        }
        if copied && present.is_some_and(|all| all.contains_key(key)) {
            changes.insert(key.to_owned(), Value::Null);
        }
    }
    for (key, value) in wanted {
        if present.and_then(|all| all.get(key)) == Some(&value) {
            changes.remove(key);
        } else {
            changes.insert(key.to_owned(), Value::String(value));
        }
    }
    Ok(changes)
}
