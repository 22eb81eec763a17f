//! How orphans are told: an event on the InfraCluster, a line of the log, a gauge.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use kube::runtime::reflector::ObjectRef;

use super::Context;
use super::endings::Ended;
use super::plan::{Finding, Scope, Sightings};
use super::scope::{Class, ClassId};
use super::shown::Shown;
use crate::api::conditions::reason;
use crate::apiserver::Note;
use crate::configured_driver::ConfiguredDriver;
use crate::metrics::OrphanReason;
use cmi_driver::ListedMachine;

/// How often the same is told again.
const REPEAT: Duration = Duration::from_hours(24);
/// Events of a Cluster in one pass; how many there are besides is said in one more.
const MOST_EVENTS: usize = 10;

/// What is known and was told of the VMs of a Cluster.
#[derive(Debug, Default)]
pub struct Known {
    /// Those that are known to be unowned.
    pub sightings: Sightings,
    /// Those that were told, by provider id: as what, and when the last time.
    told: HashMap<String, (OrphanReason, Instant)>,
    /// The class in whose list each of them was the last time, by provider id.
    lists: HashMap<String, ClassId>,
}

/// What is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Announcement {
    reason: OrphanReason,
    text: String,
}

impl Known {
    /// How many there are of each kind.
    pub fn counts(&self) -> BTreeMap<OrphanReason, u64> {
        let mut counts = BTreeMap::new();
        for (reason, _) in self.told.values() {
            *counts.entry(*reason).or_default() += 1;
        }
        counts
    }

    /// Forgets all of it, as when the Cluster is paused.
    pub fn clear(&mut self) {
        self.sightings.clear();
        self.told.clear();
        self.lists.clear();
    }

    /// Takes in which list each VM is in. What it answers says of a VM that is in none of them whether it is
    /// gone: whether the list that it was in is there, or is not asked for any more. Of a list that failed,
    /// or is not due, nothing is known.
    pub fn locate(&mut self, shown: &Shown) -> impl Fn(&str) -> bool + use<> {
        for (vm, class) in &shown.classes {
            self.lists.insert(vm.as_str().to_owned(), class.id());
        }
        let may_be_there: HashSet<String> = self
            .lists
            .iter()
            .filter(|(_, class)| shown.unknown.contains(class))
            .map(|(vm, _)| vm.clone())
            .collect();
        move |vm| !may_be_there.contains(vm)
    }

    /// All VMs that are listed have an owner. Forgets them, and those that are gone.
    pub fn all_owned(&mut self, shown: &Shown) {
        let is_gone = self.locate(shown);
        let is_listed = |id: &str| shown.classes.keys().any(|listed| listed.as_str() == id);
        self.sightings.retain(|id, _| !is_listed(id) && !is_gone(id));
        self.forget();
    }

    /// Forgets what is not known to be unowned any more.
    fn forget(&mut self) {
        let sightings = &self.sightings;
        self.told.retain(|id, _| sightings.contains_key(id));
        self.lists.retain(|id, _| sightings.contains_key(id));
    }

    /// What is new of these VMs, or was told long ago. Those that are neither orphans nor
    /// duplicates any more are forgotten.
    fn announcements(
        &mut self,
        judged: &[(&ListedMachine, &Finding)],
        ended: impl Fn(&str) -> Option<Ended>,
        now: Instant,
    ) -> Vec<Announcement> {
        self.forget();
        let mut announcements = Vec::new();
        for (vm, finding) in judged {
            let id = vm.provider_id.as_str();
            let found = match finding {
                Finding::Orphan(keep_reasons) => {
                    let end = vm.machine_id.as_deref().and_then(&ended);
                    Some((OrphanReason::Orphan, orphan(vm, end.as_ref(), keep_reasons)))
                }
                Finding::Duplicate(key) => {
                    let text = format!(
                        "{} is a second VM of InfraMachine {key}: delete the one that its Node does not run on",
                        described(vm)
                    );
                    Some((OrphanReason::Duplicate, text))
                }
                Finding::Owned(_) | Finding::Foreign | Finding::Frozen(_) | Finding::SeenOnce => None,
            };
            let Some((reason, text)) = found else {
                self.told.remove(id);
                continue;
            };
            let is_due = self
                .told
                .get(id)
                .is_none_or(|(before, at)| *before != reason || now.saturating_duration_since(*at) >= REPEAT);
            if is_due {
                self.told.insert(id.to_owned(), (reason, now));
                announcements.push(Announcement { reason, text });
            }
        }
        announcements
    }
}

fn described(vm: &ListedMachine) -> String {
    match vm.machine_name.as_str() {
        "" => format!("VM {}, which has lost its name,", vm.provider_id),
        name => format!("VM {} of machine `{name}`", vm.provider_id),
    }
}

fn orphan(vm: &ListedMachine, end: Option<&Ended>, keep_reasons: &[super::plan::KeepReason]) -> String {
    let why = match end {
        Some(Ended {
            machine,
            at,
            during: _,
        }) => format!("its InfraMachine {machine} is gone since {at:.0}"),
        None => "no InfraMachine has it".to_owned(),
    };
    let vm = described(vm);
    if keep_reasons.is_empty() {
        return format!("{vm} is an orphan: {why}; it will be deleted");
    }
    let kept: Vec<_> = keep_reasons.iter().map(ToString::to_string).collect();
    format!("{vm} is an orphan: {why}. It is not deleted: {}", kept.join("; "))
}

/// Tells what is new of the VMs of a Cluster.
pub async fn report(
    ctx: &Context,
    driver: &ConfiguredDriver,
    scope: &Scope,
    known: &mut Known,
    judged: &[(&ListedMachine, &Finding)],
) {
    let mut announcements = known.announcements(judged, |id| ctx.ended(id), Instant::now());
    for Announcement { reason, text } in &announcements {
        let (cluster, driver) = (scope.cluster.to_string(), driver.name());
        tracing::warn!(cluster, driver, reason = reason.name(), "{text}");
    }
    let left = announcements.len().saturating_sub(MOST_EVENTS);
    announcements.truncate(MOST_EVENTS);
    for Announcement { reason, text } in announcements {
        publish(ctx, scope, event_reason(reason), text).await;
    }
    if left > 0 {
        let text = format!("{left} more VMs are orphans or duplicates: see `capcmi orphans list`");
        publish(ctx, scope, event_reason(OrphanReason::Orphan), text).await;
    }
}

const fn event_reason(reason: OrphanReason) -> &'static str {
    match reason {
        OrphanReason::Orphan => reason::VIRTUAL_MACHINE_ORPHANED,
        OrphanReason::Duplicate => reason::VIRTUAL_MACHINE_DUPLICATED,
    }
}

/// Tells that a list of machines that ended can't be made, and will not be tried again: what they may have
/// left behind is not found.
pub async fn given_up(ctx: &Context, driver: &ConfiguredDriver, scope: &Scope, class: &Class, why: &str) {
    let account = match class.secret.as_deref() {
        Some("") | None => "the provider's credentials".to_owned(),
        Some(name) => format!("the credentials of Secret `{name}`"),
    };
    let text = format!(
        "The VMs that deleted InfraMachines had with {account} are not looked for any more: {why}. Look at the back end yourself \
         for what they may have left behind"
    );
    tracing::warn!(cluster = %scope.cluster, driver = driver.name(), "{text}");
    publish(ctx, scope, reason::ORPHANS_NOT_LOOKED_FOR, text).await;
}

/// Publishes an event on the InfraCluster, or on the Cluster where that is not ours.
pub(super) async fn publish(ctx: &Context, scope: &Scope, reason: &str, text: String) {
    let note = Note {
        warning: true,
        reason: reason.to_owned(),
        action: "ListMachines",
        text,
    };
    let Some(cluster) = ctx.caches.cluster(&scope.cluster.namespace, &scope.cluster.name) else {
        return;
    };
    let infra = super::plan::infra_cluster_of(&cluster).and_then(|key| {
        ctx.caches
            .infra_clusters
            .get(&ObjectRef::new(&key.name).within(&key.namespace))
    });
    match infra {
        Some(infra) => ctx.events.publish(&*infra, note).await,
        None => ctx.events.publish(&*cluster, note).await,
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::super::plan::{KeepReason, Key, Sighting};
    use super::*;
    use crate::admission::Unbroken;

    fn vm() -> ListedMachine {
        ListedMachine {
            machine_id: Some("m".to_owned()),
            ..ListedMachine::new("p".parse().unwrap(), "n")
        }
    }

    fn key() -> Key {
        Key {
            namespace: "ns".to_owned(),
            name: "n".to_owned(),
        }
    }

    fn known() -> Known {
        let sighting = Sighting {
            first: Instant::now(),
            since: Timestamp::UNIX_EPOCH,
            is_confirmed: true,
        };
        Known {
            sightings: [("p".to_owned(), sighting)].into(),
            ..Known::default()
        }
    }

    /// The API server pays for each: an orphan that stays costs an event a day.
    #[test]
    fn an_orphan_is_told_once_and_again_after_a_day() {
        let (mut known, vm, start) = (known(), vm(), Instant::now());
        let kept = Finding::Orphan(vec![KeepReason::ReportOnly]);
        let mut told = |finding: &Finding, after| {
            known
                .announcements(&[(&vm, finding)], |_| None, start + after)
                .len()
        };
        assert_eq!(told(&kept, Duration::ZERO), 1);
        assert_eq!(told(&kept, REPEAT.saturating_sub(Duration::from_secs(1))), 0);
        assert_eq!(told(&kept, REPEAT), 1);
        assert_eq!(told(&Finding::Duplicate(key()), REPEAT), 1, "something else");
        assert_eq!(told(&Finding::Owned(key()), REPEAT), 0);
        assert_eq!(told(&kept, REPEAT), 1, "it was owned in between");
    }

    fn class(spec: &str) -> Class {
        Class {
            secret: None,
            spec: spec.to_owned(),
        }
    }

    /// What lists show: the VM in that of a class, and what is not known of others.
    fn shown(listed: Option<&str>, unknown: &[&str]) -> Shown {
        let scope = Scope {
            cluster: key(),
            uid: "u".to_owned(),
            cluster_id: "c".to_owned(),
        };
        Shown {
            scope,
            asked: Instant::now(),
            vms: listed.map(|_| vm()).into_iter().collect(),
            classes: listed
                .map(|spec| (vm().provider_id, class(spec)))
                .into_iter()
                .collect(),
            unknown: unknown.iter().map(|spec| class(spec).id()).collect(),
            impossible: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// One list that fails for ever says nothing of what is in the others.
    #[test]
    fn orphans_are_counted_until_the_list_that_they_were_in_is_there_without_them() {
        let counted_after = |next: &Shown| {
            let (mut known, vm, now) = (known(), vm(), Instant::now());
            let _ = known.locate(&shown(Some("a"), &["b"]));
            known.announcements(&[(&vm, &Finding::Orphan(vec![]))], |_| None, now);
            assert_eq!(known.counts(), [(OrphanReason::Orphan, 1)].into());
            known.all_owned(next);
            assert_eq!(known.told.len(), known.lists.len());
            known.counts().len()
        };
        assert_eq!(counted_after(&shown(None, &["a"])), 1, "its list failed");
        assert_eq!(counted_after(&shown(None, &["b"])), 0, "its list is there");
        assert_eq!(
            counted_after(&shown(Some("b"), &["a"])),
            0,
            "another list has it, and an owner is known"
        );
    }

    /// As above, where something is judged in the same look.
    #[test]
    fn a_vm_is_gone_when_the_list_that_it_was_in_is_there_or_is_not_asked_for_any_more() {
        let mut known = known();
        assert!(known.locate(&shown(None, &[]))("p"), "nothing is known of it");
        let _ = known.locate(&shown(Some("a"), &[]));
        assert!(!known.locate(&shown(None, &["a"]))("p"));
        assert!(known.locate(&shown(None, &["b"]))("p"));
        let _ = known.locate(&shown(Some("b"), &["a"]));
        assert!(!known.locate(&shown(None, &["b"]))("p") && known.locate(&shown(None, &["a"]))("p"));
    }

    #[test]
    fn an_event_says_which_vm_why_and_what_keeps_it() {
        let end = Ended {
            machine: key(),
            at: Timestamp::UNIX_EPOCH,
            during: Unbroken::nth(1),
        };
        assert_eq!(
            orphan(
                &vm(),
                Some(&end),
                &[KeepReason::ReportOnly, KeepReason::NoCluster]
            ),
            "VM p of machine `n` is an orphan: its InfraMachine ns/n is gone since 1970-01-01T00:00:00Z. It is not deleted: the \
             provider runs with --orphans=report; the driver does not tell the VM's tag kubernetes.io/cluster"
        );
        assert_eq!(
            orphan(&vm(), None, &[]),
            "VM p of machine `n` is an orphan: no InfraMachine has it; it will be deleted"
        );
    }
}
