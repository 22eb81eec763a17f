//! Deletes the VMs that the cases made, and checks that they are gone.
//!
//! An eventually consistent back end does not find a new VM yet, and its driver answers OK to the deletion of
//! a VM that it does not find. So the cleanup deletes each VM twice: immediately, with every known id, and
//! again at the end of the run, when the back end has caught up. Then it looks for the VM. That costs one
//! wait for all cases together.

mod look;
mod repeat;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use futures::stream::{self, StreamExt as _};

use super::config::Config;
use super::ledger::Ledger;
use super::leftover::Leftover;
use super::liveness::Liveness;
use super::machine_request::MachineRequest;
use super::tracker::Tracked;
use cmi_driver::{Capabilities, Code, DeleteMachineRequest, Driver, Operation, ProviderId};
use repeat::Repeat;

/// The longest time that an abandoned create may be on its way to a plugin. It may overtake a deletion.
const ON_ITS_WAY: Duration = Duration::from_millis(500);
/// The number of concurrent deletions of a case.
const AT_ONCE: usize = 4;

/// Deletes the VMs that the cases of a run made.
pub struct Cleanup<'a> {
    /// The driver that made the VMs.
    pub driver: &'a dyn Driver,
    /// The capabilities that the driver declared, its consistency window included.
    pub capabilities: &'a Capabilities,
    /// The configuration. Its spec identifies every machine, even if the spec of the create was wrong.
    pub config: &'a Config,
    /// The VMs that the run may have made.
    pub ledger: &'a Ledger,
    /// The longest time for a call with its repeats.
    pub limit: Duration,
    /// Whether the driver can still be reached.
    pub liveness: &'a Liveness,
}

/// A machine that was deleted once.
#[derive(Debug)]
pub struct Deleted {
    tracked: Tracked,
    first: Result<(), Kept>,
    /// Whether the first deletion was answered OK and nothing can create the VM again: the driver has
    /// promised that it is gone.
    is_settled: bool,
}

/// The reason why a VM may still exist.
#[derive(Clone, Debug)]
enum Kept {
    /// The driver refused the request. If it refused it as invalid, it refused the create, too, unless that
    /// was accepted.
    Refused(String),
    /// The call failed otherwise, and went on failing.
    Stuck(String),
}

/// The machines of a case after the second deletion.
#[derive(Debug, Default)]
struct Cleared {
    /// The machines that should be gone.
    gone: Vec<Tracked>,
    /// The VMs that are left, by cluster and name.
    left: BTreeMap<(String, String), Leftover>,
}

impl Cleanup<'_> {
    /// Deletes the machines of a case, the last first, each by all that is known of it.
    pub async fn delete(&self, tracked: Vec<Tracked>) -> Vec<Deleted> {
        let deletions = tracked.into_iter().rev().map(async |tracked| {
            // Without an id, the second deletion would be the same call, so this one suffices.
            let repeat = if tracked.id.is_some() {
                Repeat::Transient
            } else {
                Repeat::Any
            };
            let first = self.remove(&tracked, tracked.id.as_ref(), repeat).await;
            let is_final = self.capabilities.consistency_window.is_zero() && tracked.in_flight == 0;
            let is_settled = first.is_ok() && is_final;
            if is_settled {
                self.ledger.gone(&tracked.request);
            }
            Deleted {
                tracked,
                first,
                is_settled,
            }
        });
        stream::iter(deletions).buffered(AT_ONCE).collect().await
    }

    /// Deletes again the VMs that could come back or were not found, and looks for all of them, with this
    /// many concurrent cases. Returns each VM that may be left.
    pub async fn confirm(&self, cases: Vec<Vec<Deleted>>, parallel: usize) -> Vec<Leftover> {
        let window = self.capabilities.consistency_window;
        let is_open = cases
            .iter()
            .flatten()
            .any(|deleted| deleted.tracked.in_flight > 0);
        let pause = window.max(if is_open { ON_ITS_WAY } else { Duration::ZERO });
        if !cases.iter().all(Vec::is_empty) && !pause.is_zero() && !self.liveness.is_lost() {
            tokio::time::sleep(pause).await;
        }
        let again = cases.into_iter().map(|case| self.delete_again(case, pause));
        let cases: Vec<_> = stream::iter(again).buffered(parallel).collect().await;
        let mut seen = self.look(&cases, parallel).await;
        if !seen.is_empty() && !window.is_zero() {
            // A VM that only the second deletion deleted may still be seen.
            tokio::time::sleep(window).await;
            seen = self.look(&cases, parallel).await;
        }
        let left = cases.into_iter().flat_map(|case| case.left.into_values());
        left.chain(seen).collect()
    }

    async fn delete_again(&self, case: Vec<Deleted>, pause: Duration) -> Cleared {
        let again = case
            .into_iter()
            .map(|deleted| self.delete_by_name(deleted, pause));
        let ended: Vec<_> = stream::iter(again).buffered(AT_ONCE).collect().await;
        let mut cleared = Cleared::default();
        for (tracked, is_settled, kept) in ended {
            match kept {
                // If the driver has gone away since, only the first answer is known.
                Err(Kept::Stuck(_)) if is_settled && !self.liveness.answers() => {}
                Ok(()) => {
                    self.ledger.gone(&tracked.request);
                    cleared.gone.push(tracked);
                }
                Err(Kept::Refused(_)) if !tracked.was_made => self.ledger.gone(&tracked.request),
                Err(Kept::Refused(reason) | Kept::Stuck(reason)) => {
                    let left = leftover(&tracked, reason);
                    let key = (tracked.request.cluster(), tracked.request.name);
                    let _same = cleared.left.insert(key, left);
                }
            }
        }
        cleared
    }

    /// Deletes by name alone, which also deletes further VMs of the machine.
    async fn delete_by_name(&self, deleted: Deleted, pause: Duration) -> (Tracked, bool, Result<(), Kept>) {
        let Deleted {
            tracked,
            first,
            is_settled,
        } = deleted;
        let only_once = tracked.id.is_none() && pause.is_zero();
        let kept = match first {
            Err(Kept::Stuck(_)) => first,
            Ok(()) | Err(Kept::Refused(_)) if only_once => first,
            Ok(()) => match self.remove(&tracked, None, Repeat::Any).await {
                // A driver that needs the id had it in the first deletion.
                Err(Kept::Refused(_)) => Ok(()),
                second => second,
            },
            Err(Kept::Refused(_)) => self.remove(&tracked, None, Repeat::Any).await,
        };
        (tracked, is_settled, kept)
    }

    /// Deletes one machine until it is gone, or its deletion has failed for good. If no create returned a VM,
    /// the driver may refuse the create's spec here, too: then the configuration's spec decides.
    async fn remove(&self, tracked: &Tracked, id: Option<&ProviderId>, repeat: Repeat) -> Result<(), Kept> {
        let (asked_for, sample) = (&tracked.request, self.looked_for(tracked));
        if asked_for.class.provider_spec == sample.class.provider_spec {
            return self.remove_by(asked_for, tracked, id, repeat).await;
        }
        match self.remove_by(asked_for, tracked, id, Repeat::Transient).await {
            Ok(()) => Ok(()),
            Err(Kept::Refused(_) | Kept::Stuck(_)) => self.remove_by(&sample, tracked, id, repeat).await,
        }
    }

    async fn remove_by(
        &self,
        request: &MachineRequest,
        tracked: &Tracked,
        id: Option<&ProviderId>,
        repeat: Repeat,
    ) -> Result<(), Kept> {
        let delete = || {
            self.driver.delete_machine(DeleteMachineRequest {
                machine: request.reference(),
                provider_id: id.cloned(),
                last_known_state: tracked.state.clone(),
            })
        };
        match self.repeat(Operation::DeleteMachine, repeat, delete).await {
            Ok(_) | Err((Some(Code::NotFound), _)) => Ok(()),
            // A spec that creates no VM may not be usable for a deletion, either.
            Err((Some(Code::InvalidArgument | Code::OutOfRange), reason)) => Err(Kept::Refused(reason)),
            // The id may be wrong.
            Err((Some(code), reason)) if id.is_some() && !repeat.is_worth_it(code) => {
                Err(Kept::Refused(reason))
            }
            Err((_, reason)) => Err(Kept::Stuck(reason)),
        }
    }

    /// The request, and with it the spec, that a machine is looked for by.
    fn looked_for(&self, tracked: &Tracked) -> MachineRequest {
        if tracked.was_made {
            tracked.request.clone()
        } else {
            tracked.request.clone().with_sample_spec(self.config)
        }
    }
}

fn leftover(tracked: &Tracked, reason: impl Into<String>) -> Leftover {
    let request = &tracked.request;
    Leftover::of(&request.cluster(), &request.name, tracked.id.as_ref(), reason)
}
