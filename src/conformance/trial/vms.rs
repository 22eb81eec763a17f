//! VMs that a case makes, sees and gets rid of.

use std::time::Duration;

use super::Trial;
use crate::conformance::answer::{Halt, Outcome, ensure};
use crate::conformance::order::Order;
use crate::driver::{Code, ListedMachine, Machine, Operation, ProviderId};

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

    /// [`Trial::make`], where the VM is only needed for what the case is about.
    ///
    /// # Errors
    /// [`Halt::Unjudged`] when it can't be made.
    pub async fn prepare(&self, order: &Order) -> Outcome<Machine> {
        self.make(order).await.map_err(Halt::in_preparation)
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
    /// [`Halt::Skipped`] when the driver offers neither; [`Halt::Failed`] when there are several; [`Halt::Unjudged`] when it
    /// can't answer.
    pub async fn seen(&self, order: &Order) -> Outcome<Option<ProviderId>> {
        if self.offers(Operation::GetMachineStatus) {
            let answer = self.status(order, None).await?;
            if let Err(status) = &answer.result {
                if status.code() == Code::Uninitialized
                    && let Some(machine) = status.machine()
                {
                    return Ok(Some(machine.provider_id.clone()));
                }
                if status.code() == Code::OutOfRange {
                    return Err(Halt::Failed(format!("there are several VMs: {status}")));
                }
            }
            let found = answer.ok_or(&[Code::NotFound]).map_err(Halt::in_preparation)?;
            return Ok(found.map(|machine| machine.provider_id));
        }
        if self.offers(Operation::ListMachines) {
            let listed = self.listed(order).await?;
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

    /// Fails unless the order's cluster has exactly these VMs, as far as the driver lets one see: in its list; where there
    /// is none, for these machines and the order's own; where nothing can be seen, by creating once more.
    ///
    /// # Errors
    /// [`Halt::Failed`] with what there is; [`Halt::Unjudged`] when the driver can't say.
    pub async fn has_exactly(&self, order: &Order, wanted: &[(&Order, &ProviderId)]) -> Outcome {
        match self.sight() {
            Sight::List => self.lists(order, wanted).await,
            Sight::Status => {
                for (order, id) in wanted {
                    self.is_there(order, id).await?;
                }
                let is_wanted = wanted.iter().any(|(wanted, _)| wanted.name == order.name);
                let seen = if is_wanted { None } else { self.seen(order).await? };
                none(order, seen.as_ref())
            }
            Sight::Blind if wanted.is_empty() => self.gives_way(order, None).await,
            Sight::Blind => {
                for (order, id) in wanted {
                    let again = self.create(order).await?.ok()?.provider_id;
                    ensure(again == **id, || {
                        format!("the VM of `{}` has to be `{id}`, and is `{again}`", order.name)
                    })?;
                }
                Ok(())
            }
        }
    }

    /// Fails unless the order's cluster has no VM at all, as far as the driver lets one see.
    ///
    /// # Errors
    /// [`Halt`] as of [`Trial::has_exactly`].
    pub async fn has_none(&self, order: &Order) -> Outcome {
        self.has_exactly(order, &[]).await
    }

    /// Fails unless the VM that the order had is gone, and with it the last of its cluster.
    ///
    /// # Errors
    /// [`Halt`] as of [`Trial::has_exactly`].
    pub async fn is_gone(&self, order: &Order, id: &ProviderId) -> Outcome {
        match self.sight() {
            Sight::List | Sight::Status => {
                none(order, self.seen(order).await?.as_ref())?;
                self.has_none(order).await
            }
            Sight::Blind => self.gives_way(order, Some(id)).await,
        }
    }

    async fn lists(&self, order: &Order, wanted: &[(&Order, &ProviderId)]) -> Outcome {
        let mut wanted: Vec<_> = wanted
            .iter()
            .map(|(order, id)| (order.name.clone(), (*id).clone()))
            .collect();
        let mut found: Vec<_> = self
            .listed(order)
            .await?
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

    /// The list as a means to see. That it can't be had is for the cases about lists.
    async fn listed(&self, order: &Order) -> Outcome<Vec<ListedMachine>> {
        self.list(order).await?.ok().map_err(Halt::in_preparation)
    }

    /// Fails when a VM has the order's name: then it is in the way of another machine object's, or is that one's now.
    async fn gives_way(&self, order: &Order, former: Option<&ProviderId>) -> Outcome {
        let stranger = order.clone().with_identity("a-stranger");
        let made = self.create(&stranger).await?;
        let made = made.ok_or(&[Code::AlreadyExists]).map_err(Halt::in_preparation)?;
        let Some(made) = made else {
            return Err(Halt::Failed(format!(
                "there has to be no VM of `{}`, and there is one in the way of another machine object's",
                order.name
            )));
        };
        ensure(former != Some(&made.provider_id), || {
            format!("the VM `{}` has to be gone, and is given again", made.provider_id)
        })?;
        let removed = self.remove(&stranger, Some(&made.provider_id)).await;
        removed.map_err(Halt::in_preparation)?;
        self.settle().await;
        Ok(())
    }

    fn sight(&self) -> Sight {
        if self.offers(Operation::ListMachines) {
            Sight::List
        } else if self.offers(Operation::GetMachineStatus) {
            Sight::Status
        } else {
            Sight::Blind
        }
    }
}

/// By what the VMs of a driver can be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    /// All of a cluster, by ListMachines.
    List,
    /// One by one, by GetMachineStatus.
    Status,
    /// Not at all.
    Blind,
}

fn none(order: &Order, seen: Option<&ProviderId>) -> Outcome {
    seen.map_or(Ok(()), |id| {
        let name = &order.name;
        Err(Halt::Failed(format!(
            "there has to be no VM of `{name}`, and there is `{id}`"
        )))
    })
}

fn written(vms: &[(String, ProviderId)]) -> String {
    let vms: Vec<_> = vms.iter().map(|(name, id)| format!("{name} = {id}")).collect();
    format!("[{}]", vms.join(", "))
}
