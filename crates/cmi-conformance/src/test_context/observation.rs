//! How a case observes VMs.

use super::TestContext;
use crate::answer::{CaseError, CaseResult, ensure};
use crate::config::Setting;
use crate::machine_request::MachineRequest;
use cmi_driver::{Code, ListedMachine, Operation, ProviderId};

/// The call that shows the VMs of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Observation {
    /// All VMs of a cluster, by ListMachines.
    List,
    /// One VM at a time, by GetMachineStatus.
    Status,
    /// No call shows VMs.
    Blind,
}

/// The difference between a conflicting request and the request of the existing VM, if no call shows VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// Another identity tag: the driver checks it.
    Identity,
    /// Another spec, which does not fit the existing VM. This rule is published, so it holds for every
    /// driver.
    Spec,
    /// The configuration has no such difference.
    Nothing,
}

impl TestContext {
    /// Returns the id of the VM from GetMachineStatus or, if the driver does not offer that, from
    /// ListMachines.
    ///
    /// # Errors
    /// [`CaseError::Skipped`] when the driver offers neither; [`CaseError::Failed`] when there are several
    /// VMs; [`CaseError::Inconclusive`] when it cannot answer.
    pub async fn seen(&self, request: &MachineRequest) -> CaseResult<Option<ProviderId>> {
        if self.supports(Operation::GetMachineStatus) {
            return self.read(request).await;
        }
        if self.supports(Operation::ListMachines) {
            let listed = self.listed(request).await?;
            let found = listed.into_iter().find(|vm| vm.machine_name == request.name);
            return Ok(found.map(|vm| vm.provider_id));
        }
        Err(CaseError::Skipped(
            "the driver offers neither GetMachineStatus nor ListMachines, so nothing can be seen".to_owned(),
        ))
    }

    /// Reads until the driver knows: an abandoned call may still be running.
    async fn read(&self, request: &MachineRequest) -> CaseResult<Option<ProviderId>> {
        let mut repeats = self.repeats();
        loop {
            let answer = self.status(request, None).await?;
            match &answer.result {
                Ok(machine) => return Ok(Some(machine.provider_id.clone())),
                Err(status) => match (status.code(), status.machine()) {
                    (Code::Uninitialized, Some(machine)) => return Ok(Some(machine.provider_id.clone())),
                    (Code::OutOfRange, _) => {
                        return Err(CaseError::Failed(format!("there are several VMs: {status}")));
                    }
                    (Code::NotFound, _) => return Ok(None),
                    (Code::Aborted, _) => {
                        let still =
                            || format!("GetMachineStatus of `{}` still answers ABORTED", request.name);
                        repeats.wait(still).await.map_err(CaseError::in_preparation)?;
                    }
                    _ => return answer.ok().map(|_| None).map_err(CaseError::in_preparation),
                },
            }
        }
    }

    /// Fails unless the VM exists with this id.
    ///
    /// # Errors
    /// [`CaseError`] as of [`TestContext::seen`], and when the VM does not exist.
    pub async fn is_there(&self, request: &MachineRequest, id: &ProviderId) -> CaseResult {
        let seen = self.seen(request).await?;
        ensure(seen.as_ref() == Some(id), || {
            let seen = seen.map_or_else(|| "gone".to_owned(), |id| format!("`{id}`"));
            format!("the VM of `{}` must be `{id}`, but is {seen}", request.name)
        })
    }

    /// Fails unless the earlier VM still exists after the back end has caught up. Another create would not
    /// show it: a new VM may have the id of a deleted VM.
    ///
    /// # Errors
    /// [`CaseError`] as of [`TestContext::seen`], and when the VM is gone.
    pub async fn survives(&self, request: &MachineRequest, id: &ProviderId) -> CaseResult {
        self.settle().await;
        match self.observation() {
            Observation::List | Observation::Status => self.is_there(request, id).await,
            Observation::Blind => {
                if let Some(other) = self.conflicting(request).await? {
                    let stands = self.stands_in_the_way(request, &other).await?;
                    ensure(stands, || {
                        let name = &request.name;
                        format!("VM `{id}` of `{name}` was replaced by another one with its name")
                    })?;
                }
                self.comes_back(request, id).await
            }
        }
    }

    /// Fails unless the request's cluster has exactly these VMs, as far as the driver shows them. Uses the
    /// list if there is one; else the status of these machines and of the request's own; else, if no call
    /// shows VMs, another create.
    ///
    /// # Errors
    /// [`CaseError::Failed`] with the VMs that exist; [`CaseError::Inconclusive`] when the driver can't say.
    pub async fn has_exactly(
        &self,
        request: &MachineRequest,
        wanted: &[(&MachineRequest, &ProviderId)],
    ) -> CaseResult {
        match self.observation() {
            Observation::List => self.lists(request, wanted).await,
            Observation::Status => {
                for (request, id) in wanted {
                    self.is_there(request, id).await?;
                }
                let is_wanted = wanted.iter().any(|(wanted, _)| wanted.name == request.name);
                let seen = if is_wanted {
                    None
                } else {
                    self.seen(request).await?
                };
                none(request, seen.as_ref())
            }
            Observation::Blind if wanted.is_empty() => self.gives_way(request).await,
            Observation::Blind => {
                for (request, id) in wanted {
                    self.comes_back(request, id).await?;
                }
                Ok(())
            }
        }
    }

    /// Fails unless the request's cluster has its VM, with this id, and no other, as far as the driver shows
    /// them.
    ///
    /// # Errors
    /// [`CaseError`] as of [`TestContext::has_exactly`].
    pub async fn has_only(&self, request: &MachineRequest, id: &ProviderId) -> CaseResult {
        self.has_exactly(request, &[(request, id)]).await
    }

    /// Fails unless the request's cluster has no VM at all, as far as the driver shows them.
    ///
    /// # Errors
    /// [`CaseError`] as of [`TestContext::has_exactly`].
    pub async fn has_none(&self, request: &MachineRequest) -> CaseResult {
        self.has_exactly(request, &[]).await
    }

    /// Fails unless the VM of the request is gone, and its cluster is empty, once the back end has caught up.
    /// A consistent back end needs no wait.
    ///
    /// # Errors
    /// [`CaseError`] as of [`TestContext::has_exactly`].
    pub async fn is_gone(&self, request: &MachineRequest) -> CaseResult {
        self.settle().await;
        match self.observation() {
            Observation::List | Observation::Status => {
                none(request, self.seen(request).await?.as_ref())?;
                self.has_none(request).await
            }
            Observation::Blind => self.gives_way(request).await,
        }
    }

    async fn lists(&self, request: &MachineRequest, wanted: &[(&MachineRequest, &ProviderId)]) -> CaseResult {
        let mut wanted: Vec<_> = wanted
            .iter()
            .map(|(request, id)| (request.name.clone(), (*id).clone()))
            .collect();
        let mut found: Vec<_> = self
            .listed(request)
            .await?
            .into_iter()
            .map(|vm| (vm.machine_name, vm.provider_id))
            .collect();
        wanted.sort();
        found.sort();
        ensure(found == wanted, || {
            let without = |all: &[(String, ProviderId)], others: &[(String, ProviderId)]| {
                let rest = all.iter().filter(|vm| !others.contains(vm));
                written(&rest.cloned().collect::<Vec<_>>())
            };
            format!(
                "cluster `{}` has to have {} VMs, and has {}: it lacks {}, and has besides {}",
                request.cluster(),
                wanted.len(),
                found.len(),
                without(&wanted, &found),
                without(&found, &wanted)
            )
        })
    }

    /// Returns the list as a means to see VMs. The cases about lists test whether the driver answers.
    async fn listed(&self, request: &MachineRequest) -> CaseResult<Vec<ListedMachine>> {
        self.list(request).await?.ok().map_err(CaseError::in_preparation)
    }

    /// Fails unless a create returns the earlier VM.
    async fn comes_back(&self, request: &MachineRequest, id: &ProviderId) -> CaseResult {
        let again = self.created(request).await?.provider_id;
        ensure(again == *id, || {
            format!("the VM of `{}` must be `{id}`, but is `{again}`", request.name)
        })
    }

    /// Fails when a VM has the request's name.
    async fn gives_way(&self, request: &MachineRequest) -> CaseResult {
        let Some(other) = self.conflicting(request).await? else {
            return Err(CaseError::Unconfigured {
                reason: "the driver offers neither GetMachineStatus nor ListMachines and keeps no identity \
                    tag, and the configuration has no `incompatibleChange`: whether a VM is there can't be \
                    seen"
                    .to_owned(),
                setting: Setting::IncompatibleChange,
            });
        };
        let stands = self.stands_in_the_way(request, &other).await?;
        ensure(!stands, || {
            format!(
                "`{}` must have no VM, but one is in the way of another request",
                request.name
            )
        })
    }

    /// Returns a request for the same name that conflicts with a VM of the request.
    async fn conflicting(&self, request: &MachineRequest) -> CaseResult<Option<MachineRequest>> {
        let conflict = self
            .shared
            .conflict
            .get_or_try_init(|| self.find_conflict())
            .await?;
        let change = self.config().incompatible_change.as_ref();
        Ok(match conflict {
            Conflict::Identity => Some(request.clone().with_identity("conflicting-machine")),
            Conflict::Spec => change.map(|change| request.clone().changed(change)),
            Conflict::Nothing => None,
        })
    }

    /// Tests with another VM whether the driver checks the identity tag. Any answer except for the adopted VM
    /// shows that it does; the cases about identity test for the right answer.
    async fn find_conflict(&self) -> CaseResult<Conflict> {
        let request = self.machine_request("conflict");
        let made = self.created(&request).await.map_err(CaseError::in_preparation)?;
        self.settle().await;
        let other = self
            .create(&request.clone().with_identity("conflicting-machine"))
            .await?;
        let adopts = matches!(&other.result, Ok(other) if other.provider_id == made.provider_id);
        let removed = self.remove(&request, Some(&made.provider_id)).await;
        removed.map_err(CaseError::in_preparation)?;
        self.settle().await;
        Ok(match (adopts, &self.config().incompatible_change) {
            (false, _) => Conflict::Identity,
            (true, Some(_)) => Conflict::Spec,
            (true, None) => Conflict::Nothing,
        })
    }

    /// Whether a VM has the request's name, so that the other request cannot create a VM.
    async fn stands_in_the_way(&self, request: &MachineRequest, other: &MachineRequest) -> CaseResult<bool> {
        let mut repeats = self.repeats();
        let made = loop {
            let answer = self.create(other).await?;
            match answer.code() {
                Some(Code::AlreadyExists) => return Ok(true),
                Some(Code::Aborted) => {
                    let still = || format!("CreateMachine of `{}` still answers ABORTED", request.name);
                    repeats.wait(still).await.map_err(CaseError::in_preparation)?;
                }
                Some(_) | None => break answer.ok().map_err(CaseError::in_preparation)?,
            }
        };
        let removed = self.remove(other, Some(&made.provider_id)).await;
        removed.map_err(CaseError::in_preparation)?;
        self.settle().await;
        Ok(false)
    }

    fn observation(&self) -> Observation {
        if self.supports(Operation::ListMachines) {
            Observation::List
        } else if self.supports(Operation::GetMachineStatus) {
            Observation::Status
        } else {
            Observation::Blind
        }
    }
}

fn none(request: &MachineRequest, seen: Option<&ProviderId>) -> CaseResult {
    seen.map_or(Ok(()), |id| {
        let name = &request.name;
        Err(CaseError::Failed(format!(
            "`{name}` must have no VM, but has `{id}`"
        )))
    })
}

/// The first few VMs, as text.
fn written(vms: &[(String, ProviderId)]) -> String {
    const MAX_SHOWN: usize = 4;
    let shown = vms.iter().take(MAX_SHOWN);
    let mut shown: Vec<_> = shown.map(|(name, id)| format!("{name} = {id}")).collect();
    if vms.len() > MAX_SHOWN {
        shown.push(format!("and {} more", vms.len() - MAX_SHOWN));
    }
    format!("[{}]", shown.join(", "))
}
