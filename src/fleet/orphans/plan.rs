//! Decides whether a listed VM may be deleted. Pure, and total.
//!
//! # Why no VM of a living machine is deleted
//!
//! A VM carries the identity `m` of one InfraMachine as a tag. The provider writes `m` into the InfraMachine
//! before it asks the driver for the VM, and never into another object. So the InfraMachine existed before
//! the VM. Now let a driver list the VM, and let the API server answer *afterwards*, in a quorum read, that
//! no InfraMachine carries `m`. Then the InfraMachine is gone, because an identity is never added late. An
//! object may also be missing without an intended deletion:
//!
//! * An older **backup** was restored, or the object was **moved** to another management cluster. A user
//!   requested neither deletion. [`KeepReason::DeletionUnseen`] keeps every VM unless this process saw a
//!   user, not a move, delete its InfraMachine (see [`super::DeletionLog`]). After a restore, it deletes only
//!   the VMs of InfraMachines that were deleted before.
//! * A restored backup brings **back** an object whose deletion this process saw. Then the live read finds
//!   the object: [`OwnerLookup::Owned`].
//! * The Cluster is **moving**, or was moved: at the time of the read it is paused, marked, or missing. The
//!   Cluster is read after the InfraMachines, so that a move of the InfraMachines is seen.
//!   [`OwnerLookup::Frozen`] and [`OwnerLookup::Foreign`] discard earlier observations, so that counting
//!   restarts. The target management cluster has seen no deletion.
//! * A create is **half done**: the providerID is not written yet. The InfraMachine carries `m`.
//! * A **stale cache** has no effect. It can only show that a VM is owned, which deletes nothing.
//! * An object **can't be read**, is in a **namespace that the provider may not list**, or has **lost its
//!   annotations**: see [`KeepReason::Unreadable`], [`KeepReason::OtherNamespaces`] and
//!   [`KeepReason::NameInUse`]. The providerID and the UID are each enough to own a VM.
//! * A driver that does **not list tags** proves nothing: [`KeepReason::NoIdentity`],
//!   [`KeepReason::NoCluster`].
//!
//! The delete call carries the tag `m`, and the driver compares it with the VM's own tag.

use kube_fleet::NamespacedName;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::owner::{Live, OwnerLookup, Scope, Siblings, owner_of};
use crate::api::wall_clock;
use crate::api::wall_clock::elapsed;
use cmi_driver::ListedMachine;

/// Why an orphan is reported and not deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepReason {
    /// The provider runs with `--orphans=report`.
    ReportOnly,
    /// The driver does not report the machine object of the VM.
    NoIdentity,
    /// The driver does not report the cluster of the VM.
    NoCluster,
    /// The back end has lost the VM's name, which a delete needs.
    NoName,
    /// The VM is not old enough.
    TooYoung {
        /// The minimum age.
        least: Duration,
    },
    /// This process has not seen the deletion of the VM's InfraMachine.
    DeletionUnseen,
    /// An InfraMachine of the Cluster has the name that the VM was made for.
    NameInUse(NamespacedName),
    /// An InfraMachine in the Cluster's namespace can't be read, and may be the owner.
    Unreadable(NamespacedName),
    /// The owner may be in a namespace that the provider does not see.
    OtherNamespaces,
    /// Another Cluster has the same id.
    SharedClusterId(NamespacedName),
}

impl fmt::Display for KeepReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReportOnly => f.write_str("the provider runs with --orphans=report"),
            Self::NoIdentity => f.write_str("the driver does not list the VM's tag capcmi.io/machine"),
            Self::NoCluster => f.write_str("the driver does not list the VM's tag kubernetes.io/cluster"),
            Self::NoName => f.write_str("the VM has no name at the back end"),
            Self::TooYoung { least } => write!(f, "it is younger than {} s", least.as_secs()),
            Self::DeletionUnseen => f.write_str(
                "this process did not observe the deletion of its InfraMachine while identities were \
                    guarded, so a restore of an old backup may have removed it",
            ),
            Self::NameInUse(key) => write!(f, "InfraMachine {key} has its name"),
            Self::Unreadable(key) => write!(f, "InfraMachine {key} cannot be read and may be its owner"),
            Self::OtherNamespaces => {
                f.write_str("the provider may not list the InfraMachines of all namespaces")
            }
            Self::SharedClusterId(key) => write!(f, "Cluster {key} has the same cluster id"),
        }
    }
}

/// The limits on the deletion of orphans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeletionPolicy {
    /// Whether orphans are deleted at all.
    pub delete: bool,
    /// The minimum time between two observations: the longer of the interval and the driver's consistency
    /// window.
    pub gap: Duration,
    /// The minimum age of an orphan that is deleted.
    pub min_age: Duration,
}

/// The clocks of a classification.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// When the list was requested, by the monotonic clock. For the check right before a delete, the current
    /// time.
    pub requested_at: Instant,
    /// The current wall-clock time, which is later than the request of the list.
    pub now: Timestamp,
}

/// Since when a VM has been known to have no owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// When the first list that had the VM was requested.
    pub first: Instant,
    /// The wall-clock time when that list was classified.
    pub since: Timestamp,
    /// Whether a list that was requested at least the gap later also had the VM.
    pub is_confirmed: bool,
}

/// The VMs of one scope and driver that are known to have no owner, by provider id.
pub type Observations = HashMap<String, Observation>;

/// The classification of a listed VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// An InfraMachine owns the VM.
    Owned(NamespacedName),
    /// The VM's Cluster is not in this management cluster. The VM is ignored, and not reported.
    Foreign,
    /// The owner cannot be decided now, for this reason.
    Frozen(String),
    /// The VM has no owner or is a duplicate, but no list that was requested at least the gap later has
    /// confirmed that yet.
    SeenOnce,
    /// The VM is a duplicate of a machine's VM, and is never deleted.
    Duplicate(NamespacedName),
    /// The VM has no owner. It may be deleted if the list of reasons to keep it is empty.
    Orphan(Vec<KeepReason>),
}

/// Classifies every VM of a scope. `observed_deletion` tells whether this process saw the deletion of the
/// InfraMachine with an identity.
///
/// The observation of an unlisted VM is dropped only if `is_gone` confirms that the VM is gone. A failed list
/// does not prove that.
pub fn classify(
    scope: &Scope,
    vms: &[ListedMachine],
    is_gone: impl Fn(&str) -> bool,
    live: &Live,
    observed_deletion: impl Fn(&str) -> bool,
    observations: &mut Observations,
    (policy, clock): (DeletionPolicy, Clock),
) -> Vec<Finding> {
    let siblings = Siblings::new(vms);
    let listed: HashSet<_> = vms.iter().map(|vm| vm.provider_id.as_str()).collect();
    observations.retain(|id, _| listed.contains(id.as_str()) || !is_gone(id));
    vms.iter()
        .map(|vm| {
            let id = vm.provider_id.as_str();
            let (owner, keep_reasons) = (owner_of(scope, vm, &siblings, live), |observation| {
                keep_reasons(scope, vm, live, &observed_deletion, observation, (policy, clock))
            });
            let unowned = match owner {
                OwnerLookup::Owned(key) => Err(Finding::Owned(key)),
                OwnerLookup::Foreign => Err(Finding::Foreign),
                OwnerLookup::Frozen(why) => Err(Finding::Frozen(why)),
                OwnerLookup::Duplicate(key) => Ok(Some(key)),
                OwnerLookup::Unowned => Ok(None),
            };
            let duplicate = match unowned {
                Ok(duplicate) => duplicate,
                Err(finding) => {
                    observations.remove(id);
                    return finding;
                }
            };
            let observation = record_observation(observations, id, policy.gap, clock);
            match duplicate {
                _ if !observation.is_confirmed => Finding::SeenOnce,
                Some(key) => Finding::Duplicate(key),
                None => Finding::Orphan(keep_reasons(observation)),
            }
        })
        .collect()
}

/// Records that a VM was seen without an owner, and returns its observation.
fn record_observation(observations: &mut Observations, id: &str, gap: Duration, clock: Clock) -> Observation {
    let observation = observations.entry(id.to_owned()).or_insert(Observation {
        first: clock.requested_at,
        since: clock.now,
        is_confirmed: false,
    });
    let passed = clock.requested_at.saturating_duration_since(observation.first);
    observation.is_confirmed |= passed > Duration::ZERO && passed >= gap;
    *observation
}

/// Whether an orphan may still be deleted, by a live read immediately before the delete.
pub fn may_still_be_deleted(
    scope: &Scope,
    vm: &ListedMachine,
    siblings: &[ListedMachine],
    live: &Live,
    observed_deletion: impl Fn(&str) -> bool,
    observation: Observation,
    at: (DeletionPolicy, Clock),
) -> bool {
    owner_of(scope, vm, &Siblings::new(siblings), live) == OwnerLookup::Unowned
        && observation.is_confirmed
        && keep_reasons(scope, vm, live, &observed_deletion, observation, at).is_empty()
}

/// Classifies a VM with one scan. An orphan comes with its reasons to be kept, regardless of earlier
/// observations and of the options.
pub fn classify_once(scope: &Scope, vm: &ListedMachine, siblings: &Siblings<'_>, live: &Live) -> Finding {
    match owner_of(scope, vm, siblings, live) {
        OwnerLookup::Owned(key) => Finding::Owned(key),
        OwnerLookup::Foreign => Finding::Foreign,
        OwnerLookup::Frozen(why) => Finding::Frozen(why),
        OwnerLookup::Duplicate(key) => Finding::Duplicate(key),
        OwnerLookup::Unowned => {
            let policy = DeletionPolicy {
                delete: true,
                gap: Duration::ZERO,
                min_age: Duration::ZERO,
            };
            let clock = Clock {
                requested_at: Instant::now(),
                now: wall_clock::now(),
            };
            let observation = Observation {
                first: clock.requested_at,
                since: clock.now,
                is_confirmed: true,
            };
            Finding::Orphan(keep_reasons(
                scope,
                vm,
                live,
                &|_| true,
                observation,
                (policy, clock),
            ))
        }
    }
}

/// Returns every reason to keep a VM without an owner, so that an operator sees them together.
fn keep_reasons(
    scope: &Scope,
    vm: &ListedMachine,
    live: &Live,
    observed_deletion: &impl Fn(&str) -> bool,
    observation: Observation,
    (policy, clock): (DeletionPolicy, Clock),
) -> Vec<KeepReason> {
    let when = |keep_reasons: bool, keep_reason: KeepReason| keep_reasons.then_some(keep_reason);
    [
        when(!policy.delete, KeepReason::ReportOnly),
        match &vm.machine_id {
            None => Some(KeepReason::NoIdentity),
            Some(id) => when(!observed_deletion(id), KeepReason::DeletionUnseen),
        },
        when(vm.cluster_id.is_none(), KeepReason::NoCluster),
        when(vm.machine_name.is_empty(), KeepReason::NoName),
        when(
            age(vm, observation, clock) < policy.min_age,
            KeepReason::TooYoung {
                least: policy.min_age,
            },
        ),
        live.namesake(scope, vm).cloned().map(KeepReason::NameInUse),
        live.unreadable(scope).cloned().map(KeepReason::Unreadable),
        when(!live.is_whole(), KeepReason::OtherNamespaces),
        live.sharing(scope).cloned().map(KeepReason::SharedClusterId),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The age of a VM: by the back end's clock, or else since it was first seen without an owner.
fn age(vm: &ListedMachine, observation: Observation, clock: Clock) -> Duration {
    match vm.created_at {
        Some(made) => elapsed(made, clock.now).unwrap_or_default(),
        None => clock.requested_at.saturating_duration_since(observation.first),
    }
}

/// Keeps each VM once, sorted by id, with the first of its lists. If two lists disagree on the name, identity
/// or cluster of a VM, that value is dropped, because it proves nothing.
pub fn each_once<L>(mut vms: Vec<(ListedMachine, L)>) -> Vec<(ListedMachine, L)> {
    // In place, because a copy would be as large as the fleet.
    vms.sort_by(|(one, _), (other, _)| one.provider_id.cmp(&other.provider_id));
    vms.dedup_by(|(vm, _), (known, _)| {
        if known.provider_id != vm.provider_id {
            return false;
        }
        if known.machine_name != vm.machine_name {
            known.machine_name.clear();
        }
        if known.machine_id != vm.machine_id {
            known.machine_id = None;
        }
        if known.cluster_id != vm.cluster_id {
            known.cluster_id = None;
        }
        known.created_at = known.created_at.max(vm.created_at);
        true
    });
    vms
}

#[cfg(test)]
mod tests;
