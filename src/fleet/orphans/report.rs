//! Reports orphans as an event on the InfraCluster, a log line and a gauge.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use tokio::time::Instant;

use super::Context;
use super::cluster_listing::ClusterListing;
use super::deletion_log::ObservedDeletion;
use super::owner::Scope;
use super::plan::{Finding, Observations};
use crate::api::conditions::reason;
use crate::apiserver::NewEvent;
use crate::driver::ConfiguredDriver;
use crate::driver::listing::{ClassId, ClassRef};
use crate::telemetry::metrics::OrphanReason;
use cmi_driver::{ListedMachine, Operation};

/// The interval between two reports of the same orphan.
const REPEAT: Duration = Duration::from_hours(24);
/// The most events of a Cluster in one scan. One more event reports how many others there are.
const MAX_EVENTS: usize = 10;

/// The VMs of a Cluster that are known to have no owner, and their reports.
#[derive(Debug, Default)]
pub struct ReportState {
    /// The VMs that are known to have no owner.
    pub observations: Observations,
    /// The last report of each VM, by provider id: the reason and the time.
    reported: HashMap<String, (OrphanReason, Instant)>,
    /// The class of the last list that had each VM, by provider id.
    lists: HashMap<String, ClassId>,
}

/// A report of one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Report {
    reason: OrphanReason,
    text: String,
}

impl ReportState {
    /// The number of reported VMs of each kind.
    pub fn counts(&self) -> BTreeMap<OrphanReason, u64> {
        let mut counts = BTreeMap::new();
        for (reason, _) in self.reported.values() {
            *counts.entry(*reason).or_default() += 1;
        }
        counts
    }

    /// Forgets everything, as when the Cluster is paused.
    pub fn clear(&mut self) {
        self.observations.clear();
        self.reported.clear();
        self.lists.clear();
    }

    /// Returns a function that decides whether an unlisted VM is gone. The VM is gone if its list was made
    /// without the VM, or is no longer requested. A list that failed or is not due proves nothing.
    pub fn is_gone(&self, listed: &ClusterListing) -> impl Fn(&str) -> bool + use<> {
        let may_be_there: HashSet<String> = self
            .lists
            .iter()
            .filter(|(_, class)| listed.unknown.contains(class))
            .map(|(vm, _)| vm.clone())
            .collect();
        move |vm| !may_be_there.contains(vm)
    }

    /// Records which list has each VM without an owner.
    pub fn record_lists(&mut self, listed: &ClusterListing) {
        for id in self.observations.keys() {
            if let Some(class) = listed.class_of(id) {
                self.lists.insert(id.clone(), class.id());
            }
        }
    }

    /// Forgets the listed VMs, which all have an owner, and the VMs that are gone.
    pub fn all_owned(&mut self, listed: &ClusterListing) {
        let is_gone = self.is_gone(listed);
        let is_listed = |id: &str| listed.class_of(id).is_some();
        self.observations.retain(|id, _| !is_listed(id) && !is_gone(id));
        self.forget();
    }

    /// Forgets the VMs that are no longer known to have no owner.
    fn forget(&mut self) {
        let observations = &self.observations;
        self.reported.retain(|id, _| observations.contains_key(id));
        self.lists.retain(|id, _| observations.contains_key(id));
    }

    /// Returns the reports that are new or due again. Forgets VMs that are no longer orphans or duplicates.
    fn new_reports(
        &mut self,
        classified: &[(&ListedMachine, &Finding)],
        observed_deletion: impl Fn(&str) -> Option<ObservedDeletion>,
        now: Instant,
    ) -> Vec<Report> {
        self.forget();
        let mut new_reports = Vec::new();
        for (vm, finding) in classified {
            let id = vm.provider_id.as_str();
            let found = match finding {
                Finding::Orphan(keep_reasons) => {
                    let deletion = vm.machine_id.as_deref().and_then(&observed_deletion);
                    Some((OrphanReason::Orphan, orphan(vm, deletion.as_ref(), keep_reasons)))
                }
                Finding::Duplicate(key) => {
                    let text = format!(
                        "{} is a second VM of InfraMachine {key}: delete the one that no Node runs on",
                        described(vm)
                    );
                    Some((OrphanReason::Duplicate, text))
                }
                Finding::Owned(_) | Finding::Foreign | Finding::Frozen(_) | Finding::SeenOnce => None,
            };
            let Some((reason, text)) = found else {
                self.reported.remove(id);
                continue;
            };
            let is_due = self
                .reported
                .get(id)
                .is_none_or(|(before, at)| *before != reason || now.saturating_duration_since(*at) >= REPEAT);
            if is_due {
                self.reported.insert(id.to_owned(), (reason, now));
                new_reports.push(Report { reason, text });
            }
        }
        new_reports
    }
}

fn described(vm: &ListedMachine) -> String {
    match vm.machine_name.as_str() {
        "" => format!("VM {} without a name", vm.provider_id),
        name => format!("VM {} of machine `{name}`", vm.provider_id),
    }
}

fn orphan(
    vm: &ListedMachine,
    deletion: Option<&ObservedDeletion>,
    keep_reasons: &[super::plan::KeepReason],
) -> String {
    let why = match deletion {
        Some(ObservedDeletion {
            machine,
            at,
            during: _,
        }) => format!("its InfraMachine {machine} was deleted at {at:.0}"),
        None => "it has no InfraMachine".to_owned(),
    };
    let vm = described(vm);
    if keep_reasons.is_empty() {
        return format!("{vm} is an orphan: {why}; it will be deleted");
    }
    let kept: Vec<_> = keep_reasons.iter().map(ToString::to_string).collect();
    format!("{vm} is an orphan: {why}; it is not deleted: {}", kept.join("; "))
}

/// Reports the new findings about the VMs of a Cluster.
pub async fn report(
    ctx: &Context,
    driver: &ConfiguredDriver,
    scope: &Scope,
    known: &mut ReportState,
    classified: &[(&ListedMachine, &Finding)],
) {
    let mut new_reports = known.new_reports(classified, |id| ctx.observed_deletion(id), Instant::now());
    for Report { reason, text } in &new_reports {
        let (cluster, driver) = (scope.cluster.to_string(), driver.name());
        tracing::warn!(
            cluster,
            driver,
            reason = reason.name(),
            why = text,
            "found a VM without an InfraMachine"
        );
    }
    let left = new_reports.len().saturating_sub(MAX_EVENTS);
    new_reports.truncate(MAX_EVENTS);
    for Report { reason, text } in new_reports {
        record_event(ctx, scope, event_reason(reason), text).await;
    }
    if left > 0 {
        let text = format!("{left} more VMs are orphans or duplicates: run `capcmi orphans list`");
        record_event(ctx, scope, event_reason(OrphanReason::Orphan), text).await;
    }
}

const fn event_reason(reason: OrphanReason) -> &'static str {
    match reason {
        OrphanReason::Orphan => reason::VIRTUAL_MACHINE_ORPHANED,
        OrphanReason::Duplicate => reason::VIRTUAL_MACHINE_DUPLICATED,
    }
}

/// Reports that a list of deleted machines can't be made, and will not be retried. The VMs that they may have
/// left behind are not found.
pub async fn record_abandoned_list(
    ctx: &Context,
    driver: &ConfiguredDriver,
    scope: &Scope,
    class: &ClassRef,
    why: &str,
) {
    let account = match class.secret.as_deref() {
        Some("") | None => "the provider's credentials".to_owned(),
        Some(name) => format!("the credentials of Secret `{name}`"),
    };
    let text = format!(
        "orphans of deleted InfraMachines with {account} are no longer detected: {why}; look for remaining \
            VMs at the back end"
    );
    tracing::warn!(
        cluster = %scope.cluster,
        driver = driver.name(),
        why = text,
        "orphan detection is incomplete"
    );
    record_event(ctx, scope, reason::ORPHAN_SCAN_INCOMPLETE, text).await;
}

/// Records an event on the InfraCluster, or on the Cluster if the InfraCluster belongs to another provider.
pub(super) async fn record_event(ctx: &Context, scope: &Scope, reason: &str, text: String) {
    let event = NewEvent::warning(reason, Operation::ListMachines.name(), text);
    let Some(cluster) = ctx
        .caches
        .cluster(scope.cluster.namespace(), scope.cluster.name())
    else {
        return;
    };
    let infra = super::owner::infra_cluster_of(&cluster).and_then(|key| {
        ctx.caches
            .infra_clusters
            .get(&ObjectRef::new(key.name()).within(key.namespace()))
    });
    match infra {
        Some(infra) => ctx.events.record(&*infra, event).await,
        None => ctx.events.record(&*cluster, event).await,
    }
}

#[cfg(test)]
mod tests {
    use kube_fleet::NamespacedName;
    use std::sync::Arc;

    use jiff::Timestamp;

    use super::super::plan::{KeepReason, Observation};
    use super::*;
    use crate::admission::EnforcementEpoch;

    fn vm() -> ListedMachine {
        ListedMachine {
            machine_id: Some("m".to_owned()),
            ..ListedMachine::new("p".parse().unwrap(), "n")
        }
    }

    fn key() -> NamespacedName {
        NamespacedName::new("ns", "n")
    }

    fn known() -> ReportState {
        let observation = Observation {
            first: Instant::now(),
            since: Timestamp::UNIX_EPOCH,
            is_confirmed: true,
        };
        ReportState {
            observations: [("p".to_owned(), observation)].into(),
            ..ReportState::default()
        }
    }

    /// Each report costs the API server a write: a lasting orphan costs an event a day.
    #[test]
    fn an_orphan_is_reported_once_and_again_after_a_day() {
        let (mut known, vm, start) = (known(), vm(), Instant::now());
        let kept = Finding::Orphan(vec![KeepReason::ReportOnly]);
        let mut reported = |finding: &Finding, after| {
            known
                .new_reports(&[(&vm, finding)], |_| None, start + after)
                .len()
        };
        assert_eq!(reported(&kept, Duration::ZERO), 1);
        assert_eq!(reported(&kept, REPEAT.saturating_sub(Duration::from_secs(1))), 0);
        assert_eq!(reported(&kept, REPEAT), 1);
        assert_eq!(reported(&Finding::Duplicate(key()), REPEAT), 1, "something else");
        assert_eq!(reported(&Finding::Owned(key()), REPEAT), 0);
        assert_eq!(reported(&kept, REPEAT), 1, "it was owned in between");
    }

    fn class(spec: &str) -> ClassRef {
        ClassRef {
            secret: None,
            spec: spec.to_owned(),
        }
    }

    /// A listing with the VM in the list of a class, and with unknown classes.
    fn listed(of_class: Option<&str>, unknown: &[&str]) -> ClusterListing {
        let scope = Scope {
            cluster: key(),
            uid: "u".to_owned(),
            cluster_id: "c".to_owned(),
        };
        ClusterListing {
            scope,
            requested_at: Instant::now(),
            vms: of_class.map(|_| vm()).into_iter().collect(),
            classes: of_class.map(|spec| Arc::new(class(spec))).into_iter().collect(),
            unknown: unknown.iter().map(|spec| class(spec).id()).collect(),
            impossible: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// A list that always fails must not affect the VMs of other lists.
    #[test]
    fn orphans_are_counted_until_their_own_list_lacks_them() {
        let counted_after = |next: &ClusterListing| {
            let (mut known, vm, now) = (known(), vm(), Instant::now());
            known.record_lists(&listed(Some("a"), &["b"]));
            known.new_reports(&[(&vm, &Finding::Orphan(vec![]))], |_| None, now);
            assert_eq!(known.counts(), [(OrphanReason::Orphan, 1)].into());
            known.all_owned(next);
            assert_eq!(known.reported.len(), known.lists.len());
            known.counts().len()
        };
        assert_eq!(counted_after(&listed(None, &["a"])), 1, "its list failed");
        assert_eq!(counted_after(&listed(None, &["b"])), 0, "its list is there");
        assert_eq!(
            counted_after(&listed(Some("b"), &["a"])),
            0,
            "another list has it, and an owner is known"
        );
    }

    /// As above, with a classification in the same scan.
    #[test]
    fn a_vm_is_gone_when_its_list_lacks_it_or_is_no_longer_requested() {
        let mut known = known();
        assert!(known.is_gone(&listed(None, &[]))("p"), "nothing is known of it");
        known.record_lists(&listed(Some("a"), &[]));
        assert!(!known.is_gone(&listed(None, &["a"]))("p"));
        assert!(known.is_gone(&listed(None, &["b"]))("p"));
        known.record_lists(&listed(Some("b"), &["a"]));
        assert!(!known.is_gone(&listed(None, &["b"]))("p") && known.is_gone(&listed(None, &["a"]))("p"));
    }

    #[test]
    fn an_event_says_which_vm_why_and_what_keeps_it() {
        let deletion = ObservedDeletion {
            machine: key(),
            at: Timestamp::UNIX_EPOCH,
            during: EnforcementEpoch::nth(1),
        };
        assert_eq!(
            orphan(
                &vm(),
                Some(&deletion),
                &[KeepReason::ReportOnly, KeepReason::NoCluster]
            ),
            "VM p of machine `n` is an orphan: its InfraMachine ns/n was deleted at 1970-01-01T00:00:00Z; \
                it is not deleted: the provider runs with --orphans=report; the driver does not list the \
                VM's tag kubernetes.io/cluster"
        );
        assert_eq!(
            orphan(&vm(), None, &[]),
            "VM p of machine `n` is an orphan: it has no InfraMachine; it will be deleted"
        );
    }
}
