//! What a case sees of VMs.

use super::Trial;
use crate::answer::{Halt, Outcome, ensure};
use crate::order::Order;
use cmi_driver::{Code, ListedMachine, Operation, ProviderId, Status};

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

impl Trial {
    /// The VM as it can be seen: by GetMachineStatus or, where there is none, by ListMachines.
    ///
    /// # Errors
    /// [`Halt::Skipped`] when the driver offers neither; [`Halt::Failed`] when there are several; [`Halt::Unjudged`] when it
    /// can't answer.
    pub async fn seen(&self, order: &Order) -> Outcome<Option<ProviderId>> {
        if self.offers(Operation::GetMachineStatus) {
            return self.read(order).await;
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

    /// Reads until the driver knows: a call that was given up may still be under way.
    async fn read(&self, order: &Order) -> Outcome<Option<ProviderId>> {
        let mut repeats = self.repeats();
        loop {
            let answer = self.status(order, None).await?;
            match &answer.result {
                Ok(machine) => return Ok(Some(machine.provider_id.clone())),
                Err(status) => match (status.code(), status.machine()) {
                    (Code::Uninitialized, Some(machine)) => return Ok(Some(machine.provider_id.clone())),
                    (Code::OutOfRange, _) => {
                        return Err(Halt::Failed(format!("there are several VMs: {status}")));
                    }
                    (Code::NotFound, _) => return Ok(None),
                    (Code::Aborted, _) => {
                        let still = || format!("GetMachineStatus of `{}` still answers ABORTED", order.name);
                        repeats.wait(still).await.map_err(Halt::in_preparation)?;
                    }
                    _ => return answer.ok().map(|_| None).map_err(Halt::in_preparation),
                },
            }
        }
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

    /// Fails unless the VM of before is still there, also when the back end can't be behind any more. To create once more
    /// would not show it: a new VM may have the id of one that is gone.
    ///
    /// # Errors
    /// [`Halt`] as of [`Trial::seen`], and when it is gone.
    pub async fn survives(&self, order: &Order, id: &ProviderId) -> Outcome {
        self.settle().await;
        match self.sight() {
            Sight::List | Sight::Status => self.is_there(order, id).await,
            Sight::Blind => {
                let stands = self.stands_in_the_way(order).await?;
                ensure(stands, || {
                    let name = &order.name;
                    format!(
                        "the VM `{id}` of `{name}` is gone: another machine object's was made under its name"
                    )
                })?;
                self.comes_back(order, id).await
            }
        }
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
            Sight::Blind if wanted.is_empty() => self.gives_way(order).await,
            Sight::Blind => {
                for (order, id) in wanted {
                    self.comes_back(order, id).await?;
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

    /// Fails unless the VM that the order had is gone, and with it the last of its cluster, when the back end can't be
    /// behind any more: at once, if it never is.
    ///
    /// # Errors
    /// [`Halt`] as of [`Trial::has_exactly`].
    pub async fn is_gone(&self, order: &Order) -> Outcome {
        self.settle().await;
        match self.sight() {
            Sight::List | Sight::Status => {
                none(order, self.seen(order).await?.as_ref())?;
                self.has_none(order).await
            }
            Sight::Blind => self.gives_way(order).await,
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

    /// Fails unless a create gives the VM of before.
    async fn comes_back(&self, order: &Order, id: &ProviderId) -> Outcome {
        let again = self.created(order).await?.provider_id;
        ensure(again == *id, || {
            format!("the VM of `{}` has to be `{id}`, and is `{again}`", order.name)
        })
    }

    /// Fails when a VM has the order's name.
    async fn gives_way(&self, order: &Order) -> Outcome {
        let stands = self.stands_in_the_way(order).await?;
        ensure(!stands, || {
            format!(
                "there has to be no VM of `{}`, and there is one in the way of another machine object's",
                order.name
            )
        })
    }

    /// Whether a VM has the order's name: then none can be made for another machine object.
    async fn stands_in_the_way(&self, order: &Order) -> Outcome<bool> {
        let stranger = order.clone().with_identity("a-stranger");
        let mut repeats = self.repeats();
        let made = loop {
            let answer = self.create(&stranger).await?;
            let code = answer.result.as_ref().err().map(Status::code);
            match code {
                Some(Code::AlreadyExists) => return Ok(true),
                Some(Code::Aborted) => {
                    let still = || format!("CreateMachine of `{}` still answers ABORTED", order.name);
                    repeats.wait(still).await.map_err(Halt::in_preparation)?;
                }
                Some(_) | None => break answer.ok().map_err(Halt::in_preparation)?,
            }
        };
        let removed = self.remove(&stranger, Some(&made.provider_id)).await;
        removed.map_err(Halt::in_preparation)?;
        self.settle().await;
        Ok(false)
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
