//! The object of one reconcile. Only this module writes it.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::Api;
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::Context;
use super::status::in_progress;
use crate::api::bounded;
use crate::api::identity::{self, VmEvent, VmRecord};
use crate::api::progress::Task;
use crate::api::v1alpha1::{InfraMachine, InfraMachineSpec, InfraMachineStatus};
use crate::api::wall_clock;
use crate::api::{MACHINE_FINALIZER, ObjectMetaExt as _, annotations};
use crate::apiserver::{Error, finalizers, patch_metadata, publish_status};
use crate::in_place::hot_update::in_place;
use cmi_driver::{LastKnownState, Operation};

#[cfg(test)]
mod tests;

/// An annotation and its value. `None` removes the annotation.
type Annotation = (&'static str, Option<String>);

/// Whether a write lets `clusterctl move` move the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    /// As before the write.
    AsBefore,
    /// Not while a call is in flight that changes the VM.
    Blocked,
    /// The call has ended.
    Unblocked,
}

/// Whether the status can be written. That of an unreadable object can't.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HasStatus {
    /// The status can be written.
    Yes,
    /// Events and the log report instead.
    No,
}

/// How often a write is attempted when other clients write concurrently.
const TRIES: u32 = 5;
/// The time between two attempts while the API server refuses a write.
const BETWEEN_TRIES: Duration = Duration::from_secs(1);

/// The newest known version of an InfraMachine, with its write operations.
///
/// # Guarantees
/// Every write carries the resource version that the plan was based on. A write from a stale cache fails with
/// [`Error::Conflict`] and changes nothing.
pub struct Object<'a> {
    ctx: &'a Context,
    api: Api<InfraMachine>,
    latest: Arc<InfraMachine>,
    /// The generation that the plan was based on, once a later one was read.
    planned_generation: Option<i64>,
    has_status: HasStatus,
}

impl<'a> Object<'a> {
    /// Starts from the version in a cache or from our last write.
    pub fn new(ctx: &'a Context, latest: Arc<InfraMachine>, has_status: HasStatus) -> Self {
        let namespace = latest.metadata.namespace();
        Self {
            ctx,
            api: Api::namespaced(ctx.client.clone(), namespace),
            latest,
            planned_generation: None,
            has_status,
        }
    }

    /// The newest known version.
    pub fn get(&self) -> &InfraMachine {
        &self.latest
    }

    /// The newest known version, with the generation of the spec that the plan was based on. A user may have
    /// changed the spec since, and the status must not report that change as observed.
    fn as_planned(&self) -> Cow<'_, InfraMachine> {
        let mut machine = Cow::Borrowed(&*self.latest);
        if self.planned_generation.is_some() {
            machine.to_mut().metadata.generation = self.planned_generation;
        }
        machine
    }

    /// The UID. Empty if the API server has not assigned it.
    pub fn uid(&self) -> &str {
        self.latest.metadata.uid()
    }

    /// The name. The driver also uses this name for the machine.
    pub fn name(&self) -> &str {
        self.latest.metadata.name()
    }

    /// Writes finalizer and record in one patch. The patch is sent even if the object has both, so a stale
    /// cache never leads to a claim or to a VM of another object.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the object has changed since the plan.
    pub async fn own(&mut self, record: &VmRecord) -> Result<(), Error> {
        let annotations = self.record_if_changed(record)?;
        self.write_finalizer_and(annotations).await
    }

    /// Restores the finalizer of an object that has a record.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the object has changed since the plan.
    pub async fn restore_finalizer(&mut self) -> Result<(), Error> {
        self.write_finalizer_and(Vec::new()).await
    }

    /// Write 1, before every create: the finalizer and a record with the issued create. Blocks `clusterctl
    /// move` until the create is answered.
    ///
    /// The patch is always sent, so a stale cache never leads to a create.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the object has changed since the plan.
    pub async fn record_create(&mut self, record: &VmRecord) -> Result<(), Error> {
        let mut annotations = vec![(annotations::VM_RECORD, Some(encoded(record)?))];
        annotations.extend(self.move_annotation(Moves::Blocked));
        self.write_finalizer_and(annotations).await
    }

    /// Sends a patch without a change.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the object has changed since the plan, [`Error::Gone`] when it is gone.
    pub async fn ensure_newest(&mut self, action: &'static str) -> Result<(), Error> {
        self.patch(action, Vec::new(), None, None).await
    }

    async fn write_finalizer_and(&mut self, annotations: Vec<Annotation>) -> Result<(), Error> {
        let finalizers = if self.latest.metadata.has_finalizer(MACHINE_FINALIZER) {
            None
        } else {
            let mut all = finalizers(&self.api, &self.latest.metadata, "reading the finalizers").await?;
            all.push(MACHINE_FINALIZER.to_owned());
            Some(all)
        };
        self.patch("writing finalizer and record", annotations, finalizers, None)
            .await
    }

    /// Unblocks `clusterctl move` if this provider has blocked it.
    pub async fn unblock_move(&mut self) -> Result<(), Error> {
        let Some(annotation) = self.move_annotation(Moves::Unblocked) else {
            return Ok(());
        };
        let action = "removing the annotation block-move";
        self.patch(action, vec![annotation], None, None).await
    }

    /// Records that an update is issued. Until its end is recorded too, the VM may be half updated, even
    /// after a move. Blocks `clusterctl move` during the call.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the object has changed since the plan.
    pub async fn record_update(&mut self) -> Result<(), Error> {
        let action = "recording that an update is issued";
        let issued = |record: VmRecord| record.after(VmEvent::UpdateIssued);
        self.try_change_record(action, issued, Moves::Blocked, None).await
    }

    /// Records that a start of the VM is issued. The next start comes later, even after a crash or a move.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the object has changed since the plan.
    pub async fn record_start(&mut self, at: Timestamp) -> Result<(), Error> {
        let issued = |mut record: VmRecord| {
            record.last_start = Some(at);
            record
        };
        self.try_change_record("recording that a start is issued", issued, Moves::AsBefore, None)
            .await
    }

    /// Returns the annotation that blocks or unblocks `clusterctl move`, unless it is as wanted or a user's.
    fn move_annotation(&self, wanted: Moves) -> Option<Annotation> {
        let key = annotations::BLOCK_MOVE;
        match (wanted, identity::annotation(&self.latest, key)) {
            (Moves::Blocked, None) => Some((key, Some(annotations::BLOCK_MOVE_VALUE.to_owned()))),
            (Moves::Unblocked, Some(annotations::BLOCK_MOVE_VALUE)) => Some((key, None)),
            (Moves::Blocked | Moves::Unblocked | Moves::AsBefore, _) => None,
        }
    }

    /// Stores the driver's last known state (CTL-01, CTL-03).
    pub async fn record_last_known_state(&mut self, state: Option<&LastKnownState>) -> Result<(), Error> {
        // Without a record, the object has no VM yet and may be adopting a VM.
        if state.is_none() || identity::record(&self.latest).is_none() {
            return Ok(());
        }
        let action = "recording the driver's last known state";
        let with_state = |record: VmRecord| record.with_last_known_state(state);
        self.change_record(action, with_state, Moves::AsBefore, None)
            .await
    }

    /// Records that the VM has the spec of an update in place that Cluster API has requested.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the object has changed since the plan.
    pub async fn record_in_place_update(&mut self) -> Result<(), Error> {
        let action = "reporting the update in place as done";
        let done = Task::InPlaceUpdate
            .with_progress(&self.latest.metadata, in_place::done(&self.latest))
            .map_err(|source| Error::Encode { action, source })?;
        self.patch(action, vec![(annotations::PROGRESS, Some(done))], None, None)
            .await
    }

    /// Write 2: the providerID and the record of an existing VM, in one patch. A driver may not find a VM
    /// that it has just created, so its answer must not be lost.
    pub async fn patch_provider_id(
        &mut self,
        provider_id: &str,
        state: Option<&LastKnownState>,
    ) -> Result<(), Error> {
        let action = "writing spec.providerID";
        let found = |record: VmRecord| record.after(VmEvent::Found).with_last_known_state(state);
        self.change_record(action, found, Moves::Unblocked, Some(provider_id))
            .await
    }

    /// Changes the record after a driver's answer, and sets the providerID if one is given. The answer
    /// remains valid when other clients write concurrently, and would be lost without this write. After a
    /// conflict, the patch is therefore retried on the live object.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the object has lost its record.
    pub async fn change_record(
        &mut self,
        action: &'static str,
        change: impl Fn(VmRecord) -> VmRecord,
        moves: Moves,
        provider_id: Option<&str>,
    ) -> Result<(), Error> {
        for _ in 1..TRIES {
            match self.try_change_record(action, &change, moves, provider_id).await {
                Err(Error::Conflict { .. }) => self.reread(action).await?,
                done => return done,
            }
        }
        self.try_change_record(action, change, moves, provider_id).await
    }

    async fn try_change_record(
        &mut self,
        action: &'static str,
        change: impl Fn(VmRecord) -> VmRecord,
        moves: Moves,
        provider_id: Option<&str>,
    ) -> Result<(), Error> {
        let record = identity::record(&self.latest).ok_or(Error::Conflict { action })?;
        let mut annotations = self.record_if_changed(&change(record))?;
        annotations.extend(self.move_annotation(moves));
        let is_known = provider_id == self.latest.spec.provider_id.as_deref();
        let provider_id = provider_id.filter(|_| !is_known);
        if annotations.is_empty() && provider_id.is_none() {
            return Ok(());
        }
        self.patch(action, annotations, None, provider_id).await
    }

    fn record_if_changed(&self, record: &VmRecord) -> Result<Vec<Annotation>, Error> {
        if identity::record(&self.latest).as_ref() == Some(record) {
            return Ok(Vec::new());
        }
        Ok(vec![(annotations::VM_RECORD, Some(encoded(record)?))])
    }

    /// Awaits a driver's answer. After a few seconds, the status reports the running operation and its start
    /// time, so that operators can see the progress.
    ///
    /// The call continues while the status is written. The write is tried once, and a failure is only logged.
    pub async fn awaiting<T>(&mut self, operation: Operation, call: impl Future<Output = T>) -> T {
        const LONG: Duration = Duration::from_secs(5);
        let since = wall_clock::now();
        let mut call = pin!(call);
        if let Ok(answer) = timeout(LONG, &mut call).await {
            return answer;
        }
        let say = async {
            let wanted = |machine: &InfraMachine| in_progress(machine, operation, since);
            if let Err(error) = self.patch_status(wanted).await {
                let name = self.name();
                tracing::debug!(name, %operation, %error, "cannot report a long call");
            }
        };
        let (answer, ()) = tokio::join!(call, say);
        answer
    }

    /// Reads the live object. Fails when the name belongs to another object now.
    async fn reread(&mut self, action: &'static str) -> Result<(), Error> {
        let live = self
            .api
            .get(self.name())
            .await
            .map_err(|error| Error::api(action, error))?;
        if live.metadata.uid != self.latest.metadata.uid {
            return Err(Error::Gone { action });
        }
        let spec_of = |machine: &InfraMachine| InfraMachineSpec {
            provider_id: None,
            ..machine.spec.clone()
        };
        if spec_of(&live) != spec_of(&self.latest) {
            self.planned_generation = self.planned_generation.or(self.latest.metadata.generation);
        }
        self.set_latest(live);
        Ok(())
    }

    /// Write 3 after a failed call: the status, on the live object. The failure remains true when other
    /// clients write concurrently, and the call is not repeated early, so nothing else would report it.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the spec has changed since the plan: the call is repeated with the new one.
    pub async fn insist_on_status(
        &mut self,
        status: impl Fn(&InfraMachine) -> InfraMachineStatus,
    ) -> Result<(), Error> {
        for _ in 1..TRIES {
            match self.patch_status(&status).await {
                Err(Error::Conflict { action }) => {
                    let generation = self.latest.metadata.generation;
                    self.reread(action).await?;
                    if self.latest.metadata.generation != generation {
                        return Err(Error::Conflict { action });
                    }
                }
                Err(Error::Api { .. }) => sleep(BETWEEN_TRIES).await,
                done => return done,
            }
        }
        self.patch_status(status).await
    }

    /// Write 3: the status, when it differs. It describes the spec that the plan was based on.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the object has changed since the plan.
    pub async fn patch_status(
        &mut self,
        status: impl FnOnce(&InfraMachine) -> InfraMachineStatus,
    ) -> Result<(), Error> {
        if self.has_status == HasStatus::No {
            return Ok(());
        }
        let status = status(&self.as_planned());
        let before = self.latest.status.as_ref();
        let published = publish_status(&self.api, &self.latest.metadata, before, &status).await?;
        if let Some((metadata, status)) = published {
            // All other fields are unchanged, because the patch applied to this resource version only.
            self.set_latest(InfraMachine {
                metadata,
                spec: self.latest.spec.clone(),
                status: Some(status),
            });
        }
        Ok(())
    }

    /// Removes only this provider's finalizer. If another finalizer keeps the object, `clusterctl move` is
    /// unblocked.
    pub async fn remove_finalizer(&mut self) -> Result<(), Error> {
        let action = "removing the finalizer";
        let mut rest = finalizers(&self.api, &self.latest.metadata, action).await?;
        rest.retain(|name| name != MACHINE_FINALIZER);
        let annotations = self.move_annotation(Moves::Unblocked).into_iter().collect();
        match self.patch(action, annotations, Some(rest), None).await {
            // The object was deleted with its last finalizer, or by another client.
            Err(Error::Gone { .. }) => Ok(()),
            released => released,
        }
    }

    /// Patches the given parts of the known version.
    async fn patch(
        &mut self,
        action: &'static str,
        annotations: Vec<Annotation>,
        finalizers: Option<Vec<String>>,
        provider_id: Option<&str>,
    ) -> Result<(), Error> {
        let mut body = json!({"metadata": {"resourceVersion": self.latest.metadata.resource_version}});
        for (key, value) in annotations {
            body["metadata"]["annotations"][key] = json!(value);
        }
        if let Some(finalizers) = finalizers {
            body["metadata"]["finalizers"] = json!(finalizers);
        }
        if let Some(provider_id) = provider_id {
            body["spec"]["providerID"] = json!(provider_id);
        }
        // All other fields are unchanged, because the patch applied to this resource version only.
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

    fn set_latest(&mut self, mut written: InfraMachine) {
        // The cached version is truncated in the same way, and both are compared.
        bounded::bound(&mut written.metadata);
        self.latest = Arc::new(written);
        self.ctx.states.record_write(self.uid(), Arc::clone(&self.latest));
        // If the watch was faster than the answer, only this check sees that the cache holds this version.
        if let Some(cached) = self.ctx.caches.infra_machine(&self.latest.metadata)
            && let Ok(cached) = &cached.0
        {
            self.ctx.states.caught_up(self.uid(), cached);
        }
    }
}

fn encoded(record: &VmRecord) -> Result<String, Error> {
    let action = "writing the record as JSON";
    record
        .annotation()
        .map_err(|source| Error::Encode { action, source })
}
