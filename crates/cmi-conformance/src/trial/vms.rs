//! VMs that a case makes and gets rid of.

use super::Trial;
use super::repeats::Repeats;
use crate::answer::{Halt, Outcome};
use crate::order::Order;
use cmi_driver::{Code, Machine, Operation, ProviderId};

impl Trial {
    /// Makes a VM that is ready to be used: created, and initialized where the driver does that.
    ///
    /// # Errors
    /// [`Halt::Failed`] when it can't be made.
    pub async fn make(&self, order: &Order) -> Outcome<Machine> {
        let machine = self.created(order).await?;
        if self.offers(Operation::InitializeMachine) {
            let mut repeats = self.repeats();
            while self
                .initialize(order)
                .await?
                .ok_or(&[Code::Uninitialized, Code::Aborted, Code::NotFound])?
                .is_none()
            {
                let still = || format!("machine `{}` was not initialized in time", order.name);
                repeats.wait(still).await?;
            }
        }
        self.settle().await;
        Ok(machine)
    }

    /// Creates until the driver answers with the VM: ABORTED means that another call on the machine is under way.
    ///
    /// # Errors
    /// [`Halt::Failed`] on every other answer, or when it takes too long.
    pub async fn created(&self, order: &Order) -> Outcome<Machine> {
        let mut repeats = self.repeats();
        loop {
            if let Some(machine) = self.create(order).await?.ok_or(&[Code::Aborted])? {
                return Ok(machine);
            }
            let still = || format!("CreateMachine of `{}` still answers ABORTED", order.name);
            repeats.wait(still).await?;
        }
    }

    /// [`Trial::make`], where the VM is only needed for what the case is about.
    ///
    /// # Errors
    /// [`Halt::Unjudged`] when it can't be made.
    pub async fn prepare(&self, order: &Order) -> Outcome<Machine> {
        self.make(order).await.map_err(Halt::in_preparation)
    }

    /// Waits as long as the driver says that the back end may answer with the state of before; not when the run is to end.
    pub async fn settle(&self) {
        let window = self.shared.capabilities.consistency_window;
        if !window.is_zero() {
            let stopped = self.shared.stop.cancelled();
            let _either = tokio::time::timeout(window, stopped).await;
        }
    }

    /// Deletes until the driver answers OK: ABORTED means that it is under way.
    ///
    /// # Errors
    /// [`Halt::Failed`] on every other answer, or when it takes too long.
    pub async fn remove(&self, order: &Order, id: Option<&ProviderId>) -> Outcome {
        self.remove_unless(order, id, &[]).await
    }

    /// Deletes until the driver answers OK, or refuses it with one of these codes.
    ///
    /// # Errors
    /// [`Halt::Failed`] on every other answer, or when it takes too long.
    pub async fn remove_unless(&self, order: &Order, id: Option<&ProviderId>, refusals: &[Code]) -> Outcome {
        let mut repeats = self.repeats();
        loop {
            let answer = self.delete(order, id).await?;
            let is_under_way = matches!(&answer.result, Err(status) if status.code() == Code::Aborted);
            if !is_under_way {
                return answer.ok_or(refusals).map(|_| ());
            }
            let still = || format!("DeleteMachine of `{}` still answers ABORTED", order.name);
            repeats.wait(still).await?;
        }
    }

    /// Repeats for as long as a call may take.
    pub(super) fn repeats(&self) -> Repeats {
        Repeats::within(self.shared.config.call_limit())
    }
}
