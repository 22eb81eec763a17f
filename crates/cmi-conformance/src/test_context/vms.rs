//! Creates and deletes the VMs of a case.

use std::time::Duration;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};

use super::TestContext;
use super::repeats::Repeats;
use crate::answer::{CaseError, CaseResult};
use crate::machine_request::MachineRequest;
use cmi_driver::{Code, Machine, Operation, ProviderId};

/// The number of concurrent deletions.
const AT_ONCE: usize = 8;

impl TestContext {
    /// Creates a VM that is ready to be used: created, and initialized if the driver does that.
    ///
    /// # Errors
    /// [`CaseError::Failed`] when it cannot be created.
    pub async fn make(&self, request: &MachineRequest) -> CaseResult<Machine> {
        let machine = self.created(request).await?;
        if self.supports(Operation::InitializeMachine) {
            let mut repeats = self.repeats();
            while self
                .initialize(request, None)
                .await?
                .ok_or(&[Code::Uninitialized, Code::Aborted, Code::NotFound])?
                .is_none()
            {
                let still = || format!("machine `{}` was not initialized in time", request.name);
                repeats.wait(still).await?;
            }
        }
        self.settle().await;
        Ok(machine)
    }

    /// Creates until the driver answers with the VM: ABORTED means that another call on the machine is
    /// running.
    ///
    /// # Errors
    /// [`CaseError::Failed`] on every other answer, or when it takes too long.
    pub async fn created(&self, request: &MachineRequest) -> CaseResult<Machine> {
        let mut repeats = self.repeats();
        loop {
            if let Some(machine) = self.create(request).await?.ok_or(&[Code::Aborted])? {
                return Ok(machine);
            }
            let still = || format!("CreateMachine of `{}` still answers ABORTED", request.name);
            repeats.wait(still).await?;
        }
    }

    /// Creates a VM like [`TestContext::make`], for a case that needs it but does not test it.
    ///
    /// # Errors
    /// [`CaseError::Inconclusive`] when it cannot be created.
    pub async fn prepare(&self, request: &MachineRequest) -> CaseResult<Machine> {
        self.make(request).await.map_err(CaseError::in_preparation)
    }

    /// Returns the machine with this label, and the id of a VM that is [prepared](TestContext::prepare) for
    /// it.
    ///
    /// # Errors
    /// [`CaseError::Inconclusive`] when it cannot be created.
    pub async fn prepare_vm(&self, label: &str) -> CaseResult<(MachineRequest, ProviderId)> {
        let request = self.machine_request(label);
        let id = self.prepare(&request).await?.provider_id;
        Ok((request, id))
    }

    /// Returns the id of a VM that existed and is gone, for a case that needs it but does not test that.
    ///
    /// # Errors
    /// [`CaseError::Inconclusive`] when it can't be made, or not be deleted.
    pub async fn prepare_gone(&self, request: &MachineRequest) -> CaseResult<ProviderId> {
        let id = self.prepare(request).await?.provider_id;
        let removed = self.remove(request, Some(&id)).await;
        removed.map_err(CaseError::in_preparation)?;
        self.settle().await;
        Ok(id)
    }

    /// Waits until the end of the run or of the driver's declared consistency window. In this window, the
    /// back end may answer with an earlier state.
    pub async fn settle(&self) {
        self.pause(self.shared.capabilities.consistency_window).await;
    }

    /// Waits for a time, or until the run is to end.
    pub async fn pause(&self, time: Duration) {
        if !time.is_zero() {
            let stopped = self.shared.stop.cancelled();
            let _either = tokio::time::timeout(time, stopped).await;
        }
    }

    /// Deletes until the driver answers OK: ABORTED means that a deletion is under way.
    ///
    /// # Errors
    /// [`CaseError::Failed`] on every other answer, or when it takes too long.
    pub async fn remove(&self, request: &MachineRequest, id: Option<&ProviderId>) -> CaseResult {
        self.remove_unless(request, id, &[]).await
    }

    /// Deletes VMs concurrently.
    ///
    /// # Errors
    /// [`CaseError::Failed`] when a VM cannot be deleted.
    pub async fn remove_all(&self, vms: Vec<(MachineRequest, ProviderId)>) -> CaseResult {
        let deletions = vms.into_iter().map(|(request, id)| {
            let t = self.clone();
            async move { t.remove(&request, Some(&id)).await }
        });
        stream::iter(deletions).buffered(AT_ONCE).try_collect().await
    }

    /// Deletes until the driver answers OK, or refuses the call with one of these codes.
    ///
    /// # Errors
    /// [`CaseError::Failed`] on every other answer, or when it takes too long.
    pub async fn remove_unless(
        &self,
        request: &MachineRequest,
        id: Option<&ProviderId>,
        refusals: &[Code],
    ) -> CaseResult {
        let mut repeats = self.repeats();
        loop {
            let answer = self.delete(request, id).await?;
            if answer.code() != Some(Code::Aborted) {
                return answer.ok_or(refusals).map(|_| ());
            }
            let still = || format!("DeleteMachine of `{}` still answers ABORTED", request.name);
            repeats.wait(still).await?;
        }
    }

    /// Returns repeats for as long as a call may take.
    pub(super) fn repeats(&self) -> Repeats {
        Repeats::within(self.shared.config.call_limit())
    }
}
