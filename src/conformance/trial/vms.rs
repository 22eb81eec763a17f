//! VMs that a case makes, sees and gets rid of.

use std::time::Duration;

use super::Trial;
use crate::conformance::answer::{Halt, Outcome, ensure};
use crate::conformance::order::Order;
use crate::driver::{Code, Machine, Operation, ProviderId};

/// How long to wait before a call that answered ABORTED is repeated.
const PATIENCE: Duration = Duration::from_millis(20);

impl Trial {
    /// Makes a VM that is ready to be used: created, and initialized where the driver does that.
    ///
    /// # Errors
    /// [`Halt::Failed`] when it can't be made.
    pub async fn make(&self, order: &Order) -> Outcome<Machine> {
        let machine = self.create(order).await?.ok()?;
        if self.offers(Operation::InitializeMachine) {
            let until = tokio::time::Instant::now() + self.shared.config.call_limit();
            while self
                .initialize(order)
                .await?
                .ok_or(&[Code::Uninitialized, Code::Aborted, Code::NotFound])?
                .is_none()
            {
                ensure(tokio::time::Instant::now() < until, || {
                    format!("machine `{}` was not initialized in time", order.name)
                })?;
                tokio::time::sleep(PATIENCE).await;
            }
        }
        self.settle().await;
        Ok(machine)
    }

    /// Waits as long as the driver says that the back end may answer with the state of before.
    pub async fn settle(&self) {
        let window = self.shared.capabilities.consistency_window;
        if !window.is_zero() {
            tokio::time::sleep(window).await;
        }
    }

    /// Deletes until the driver answers OK: ABORTED means that it is under way.
    ///
    /// # Errors
    /// [`Halt::Failed`] on every other answer, or when it takes too long.
    pub async fn remove(&self, order: &Order, id: Option<&ProviderId>) -> Outcome {
        let until = tokio::time::Instant::now() + self.shared.config.call_limit();
        loop {
            if self.delete(order, id).await?.ok_or(&[Code::Aborted])?.is_some() {
                return Ok(());
            }
            ensure(tokio::time::Instant::now() < until, || {
                format!("DeleteMachine of `{}` still answers ABORTED", order.name)
            })?;
            tokio::time::sleep(PATIENCE).await;
        }
    }

    /// The VM as it can be seen: by GetMachineStatus or, where there is none, by ListMachines.
    ///
    /// # Errors
    /// [`Halt::Skipped`] when the driver offers neither; [`Halt::Failed`] when it can't answer.
    pub async fn seen(&self, order: &Order) -> Outcome<Option<ProviderId>> {
        if self.offers(Operation::GetMachineStatus) {
            let answer = self.status(order, None).await?;
            if let Err(status) = &answer.result
                && status.code() == Code::Uninitialized
                && let Some(machine) = status.machine()
            {
                return Ok(Some(machine.provider_id.clone()));
            }
            let found = answer.ok_or(&[Code::NotFound])?;
            return Ok(found.map(|machine| machine.provider_id));
        }
        if self.offers(Operation::ListMachines) {
            let listed = self.list(order).await?.ok()?;
            let found = listed.into_iter().find(|vm| vm.machine_name == order.name);
            return Ok(found.map(|vm| vm.provider_id));
        }
        Err(Halt::Skipped(
            "the driver offers neither GetMachineStatus nor ListMachines, so nothing can be seen".to_owned(),
        ))
    }

    /// Fails unless the VM is there, with this id.
    ///
    /// # Errors
    /// [`Halt`] as of [`Trial::seen`], and when it is not there.
    pub async fn is_there(&self, order: &Order, id: &ProviderId) -> Outcome {
        let seen = self.seen(order).await?;
        ensure(seen.as_ref() == Some(id), || {
            let seen = seen.map_or_else(|| "gone".to_owned(), |id| format!("`{id}`"));
            format!("the VM of `{}` has to be `{id}`, and is {seen}", order.name)
        })
    }

    /// Fails unless the order's cluster has exactly these VMs. Without ListMachines there is nothing to compare.
    ///
    /// # Errors
    /// [`Halt::Failed`] with what there is.
    pub async fn has_exactly(&self, order: &Order, wanted: &[(&Order, &ProviderId)]) -> Outcome {
        if !self.offers(Operation::ListMachines) {
            return Ok(());
        }
        let mut wanted: Vec<_> = wanted
            .iter()
            .map(|(order, id)| (order.name.clone(), (*id).clone()))
            .collect();
        let listed = self.list(order).await?.ok()?;
        let mut found: Vec<_> = listed
            .into_iter()
            .map(|vm| (vm.machine_name, vm.provider_id))
            .collect();
        wanted.sort();
        found.sort();
        ensure(found == wanted, || {
            format!(
                "cluster `{}` has to have the VMs {}, and has {}",
                order.cluster(),
                written(&wanted),
                written(&found)
            )
        })
    }

    /// Fails unless the order's cluster has no VM at all.
    ///
    /// # Errors
    /// [`Halt::Failed`] with what there is.
    pub async fn has_none(&self, order: &Order) -> Outcome {
        self.has_exactly(order, &[]).await
    }
}

fn written(vms: &[(String, ProviderId)]) -> String {
    let vms: Vec<_> = vms.iter().map(|(name, id)| format!("{name} = {id}")).collect();
    format!("[{}]", vms.join(", "))
}
