//! Compares the pages with committed ones. `CAPCMI_WRITE_PAGES=1` writes the changed pages, for review.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use super::bootstrap::{BootstrapSource, ReadyCondition};
use super::driver::{Configured, DriverAnswer, DriverReport};
use super::events::EventSummary;
use super::machine::{ClusterSummary, MachineReport};
use super::owners::{Owner, OwnerState};
use super::scrape::Scrape;
use super::vm::VmAnswer;
use super::{driver_page, machine_page};
use crate::introspection::Introspection;
use crate::observed_vm::ObservedVm;
use capcmi::api::annotations;
use capcmi::api::v1alpha1::{InfraCluster, InfraMachine};
use capcmi::telemetry::metrics::{BreakerCount, Metrics, OrphanReason, PermitCount};
use cmi_driver::{Capabilities, Code, Operation, PluginInfo, PowerState, Readiness};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

#[track_caller]
fn assert_page(name: &str, page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/describe/tests")
        .join(name);
    if std::env::var_os("CAPCMI_WRITE_PAGES").is_some() {
        std::fs::write(&path, page).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(page, expected, "{} is another page", path.display());
}

fn infra_cluster(ready: bool) -> InfraCluster {
    let (status, reason, message) = if ready {
        ("True", "Ready", "")
    } else {
        (
            "False",
            "DriverNotConfigured",
            "no driver `a` serves namespace `ns`",
        )
    };
    serde_json::from_value(json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraCluster",
        "metadata": {"name": "c", "namespace": "ns"}, "spec": {},
        "status": {
            "failureDomains": [{"name": "zone-a"}],
            "conditions": [
                {"type": "Ready", "status": status, "reason": reason, "message": message,
                "lastTransitionTime": at(0)},
                {"type": "FailureDomainsUpToDate", "status": "True", "reason": "UpToDate", "message": "",
                "lastTransitionTime": at(0)},
            ],
        },
    }))
    .unwrap()
}

fn facts(machine: &serde_json::Value, vm: VmAnswer) -> MachineReport {
    let machine: InfraMachine = serde_json::from_value(machine.clone()).unwrap();
    MachineReport {
        machine,
        owners: vec![
            Owner {
                kind: "Machine".to_owned(),
                name: "m".to_owned(),
                state: OwnerState::There {
                    phase: Some("Provisioning".to_owned()),
                    deleting: false,
                },
            },
            Owner {
                kind: "MachineSet".to_owned(),
                name: "md-1".to_owned(),
                state: OwnerState::Gone,
            },
        ],
        cluster: Ok(ClusterSummary {
            name: "c".to_owned(),
            paused: false,
            provisioned: true,
            infra: Some(Ok(infra_cluster(true))),
        }),
        bootstrap: None,
        vm,
        events: Ok(vec![EventSummary {
            at: Some(at(60)),
            type_: "Warning".to_owned(),
            about: "InfraMachine/m".to_owned(),
            reason: "ResourceExhausted".to_owned(),
            text: "CreateMachine: the quota of 3 VMs is used up".to_owned(),
        }]),
    }
}

/// A machine that was refused due to the quota, a minute after its creation.
fn refused() -> serde_json::Value {
    json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachine",
        "metadata": {
            "name": "m", "namespace": "ns", "uid": "u", "generation": 1, "creationTimestamp": at(0),
        },
        "spec": {"driver": "pool", "providerSpec": {"size": "small"}},
        "status": {
            "observedGeneration": 1,
            "conditions": [
                {"type": "Paused", "status": "False", "reason": "NotPaused", "message": "",
                "lastTransitionTime": at(0)},
                {"type": "DriverReachable", "status": "True", "reason": "Reachable", "message": "",
                "lastTransitionTime": at(60)},
                {"type": "Ready", "status": "False", "reason": "ResourceExhausted",
                 "message": "CreateMachine: the quota of 3 VMs is used up", "lastTransitionTime": at(60)},
            ],
            "lastOperation": {
                "type": "Create", "state": "Failed", "operation": "CreateMachine",
                "code": "ResourceExhausted",
                "message": "CreateMachine: the quota of 3 VMs is used up", "attempts": 2,
                "lastUpdateTime": at(60), "nextRetryTime": at(660),
            },
        },
    })
}

#[test]
fn the_page_of_a_machine_shows_reason_advice_and_next_retry() {
    let page = machine_page(
        &facts(&refused(), VmAnswer::Observed(ObservedVm::Absent)),
        at(120),
    );
    assert_page("refused.txt", &page);
}

/// A refused create leaves the record as it was when the create was issued.
#[test]
fn only_a_create_without_a_final_answer_is_unanswered() {
    let record = |several: bool| {
        json!({
            "version": "v1", "machine": "ns/m/1", "cluster": "c-1",
            "state": {"name": "Creating", "issued": at(59), "several": several},
            "madeFrom": {"driver": "pool", "providerSpec": {}},
        })
        .to_string()
    };
    let page = |code: &str, several: bool| {
        let mut machine = refused();
        machine["metadata"]["annotations"] = json!({annotations::VM_RECORD: record(several)});
        machine["status"]["lastOperation"]["code"] = json!(code);
        let facts = facts(&machine, VmAnswer::Observed(ObservedVm::Absent));
        machine_page(&facts, at(120))
    };
    let answered =
        "Last create     61s ago, 2027-01-15T08:00:59Z; the last recorded answer is ResourceExhausted";
    let unanswered = "Unanswered      a create of 61s ago, 2027-01-15T08:00:59Z: its VM may still appear";
    for (code, several, row) in [
        ("ResourceExhausted", false, answered),
        ("ResourceExhausted", true, unanswered),
        ("DeadlineExceeded", false, unanswered),
    ] {
        let page = page(code, several);
        assert!(page.contains(row), "{code} {several}: {page}");
    }
}

#[test]
fn the_page_of_a_machine_without_bootstrap_data_shows_its_source() {
    let page = |source: BootstrapSource| {
        let mut facts = facts(&refused(), VmAnswer::Observed(ObservedVm::Absent));
        facts.bootstrap = Some(source);
        machine_page(&facts, at(120))
    };
    let config = |ready| BootstrapSource::Config {
        kind: "KubeadmConfig".to_owned(),
        name: "m".to_owned(),
        ready,
    };
    let ready = ReadyCondition {
        status: "False".to_owned(),
        reason: "NotReady".to_owned(),
        message: "* DataSecretAvailable:\n  * Condition not yet reported".to_owned(),
    };
    for (source, row) in [
        (
            config(Ok(Some(ready))),
            "  KubeadmConfig   m; Ready is False, NotReady: * DataSecretAvailable:   * Condition not yet",
        ),
        (
            config(Ok(None)),
            "  KubeadmConfig   m; no condition Ready: check that its bootstrap provider runs",
        ),
        (
            config(Err("does not exist".to_owned())),
            "  KubeadmConfig   m; cannot be read: does not exist",
        ),
        (BootstrapSource::User, "so set spec.bootstrap.dataSecretName"),
    ] {
        let page = page(source);
        let (_, section) = page
            .split_once("\nSource of the missing bootstrap data\n")
            .unwrap();
        assert!(section.lines().next().unwrap().contains(row), "{section}");
    }
}

#[test]
fn page_of_a_machine_that_is_up_asks_for_a_step_only_without_a_node() {
    let mut up = refused();
    up["spec"]["providerID"] = json!("sim://1");
    up["status"] = json!({
        "observedGeneration": 1, "initialization": {"provisioned": true},
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "Ready", "message": "",
            "lastTransitionTime": at(60)},
        ],
    });
    let mut vm = cmi_driver::Machine::new("sim://1".parse().unwrap(), "m");
    vm.power_state = Some(PowerState::Running);
    vm.failure_domain = Some("zone-a".to_owned());
    let mut facts = facts(&up, VmAnswer::Observed(ObservedVm::Present(Box::new(vm))));
    facts.events = Ok(Vec::new());
    let mut owner_is = |phase: &str| {
        facts.owners[0].state = OwnerState::There {
            phase: Some(phase.to_owned()),
            deleting: false,
        };
        machine_page(&facts, at(7_300))
    };
    let without_node = owner_is("Provisioned");
    assert!(without_node.contains("compare the ProviderIDs"), "{without_node}");
    assert_page("up.txt", &owner_is("Running"));
}

#[test]
fn the_page_of_a_machine_without_a_node_shows_cause_and_console() {
    let mut waiting = refused();
    waiting["spec"]["providerID"] = json!("sim://1");
    waiting["status"] = json!({
        "observedGeneration": 1, "initialization": {"provisioned": true},
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "Ready", "message": "",
            "lastTransitionTime": at(60)},
            {"type": "NodeJoined", "status": "False", "reason": "ProviderIDMismatch",
            "message": "Node `m` has ProviderID `sim://2`; its last lines:\nDebian GNU/Linux 12\nm login:",
            "lastTransitionTime": at(360)},
        ],
    });
    let vm = VmAnswer::NotCalled("pass the drivers file with --drivers-config to call the driver".to_owned());
    assert_page("no-node.txt", &machine_page(&facts(&waiting, vm), at(420)));
}

/// An unreadable part does not hide the others.
#[test]
fn the_page_of_a_deletion_names_its_removed_driver_and_unread_parts() {
    let mut deleted = refused();
    deleted["metadata"]["deletionTimestamp"] = json!(at(100));
    deleted["metadata"]["finalizers"] = json!(["infrastructure.capcmi.io/inframachine"]);
    let record = json!({
        "version": "v1", "machine": "ns/m/1", "cluster": "c-1", "state": {"name": "Exists"},
        "madeFrom": {"driver": "pool", "providerSpec": {"size": "small"}}, "lastKnownState": "czE=",
        "lastStart": at(40),
    });
    deleted["metadata"]["annotations"] = json!({annotations::VM_RECORD: record.to_string()});
    deleted["status"]["conditions"] = json!([
        {"type": "Deleting", "status": "True", "reason": "DriverNotConfigured",
         "message": "driver `pool`, which has the VM, is no longer configured",
         "lastTransitionTime": at(100)},
    ]);
    deleted["status"]["lastOperation"]["nextRetryTime"] = json!(null);
    let mut facts = facts(
        &deleted,
        VmAnswer::NotCalled("no driver `pool` serves namespace `ns`".to_owned()),
    );
    facts.owners.clear();
    facts.cluster = Err("Cluster `ns/c` does not exist".to_owned());
    facts.events = Err("forbidden".to_owned());
    assert_page("deleted.txt", &machine_page(&facts, at(220)));
}

fn driver_facts(scrape: Option<Scrape>) -> DriverReport {
    let mut machines = BTreeMap::new();
    machines.insert(("Provisioned".to_owned(), "Ready".to_owned()), 7);
    machines.insert(("Pending".to_owned(), "ResourceExhausted".to_owned()), 2);
    DriverReport {
        name: "pool".to_owned(),
        configured: Some(Configured::Yes {
            max_concurrent_calls: 32,
        }),
        answer: DriverAnswer::Says(Introspection {
            info: PluginInfo {
                name: "pool.example.com".to_owned(),
                version: "1.2.3".to_owned(),
                manifest: BTreeMap::new(),
            },
            readiness: Readiness::Ready,
            capabilities: Arc::new(Capabilities {
                operations: [Operation::GetMachineStatus, Operation::ListMachines].into(),
                zones: true,
                ..Capabilities::minimal()
            }),
        }),
        machines,
        unnamed: 1,
        clusters: vec![infra_cluster(true), infra_cluster(false)],
        more_clusters: 3,
        orphans: Ok(Vec::new()),
        scrape,
    }
}

#[test]
fn the_page_of_a_driver_shows_what_the_leading_replica_has_counted() {
    let metrics = Metrics::new();
    metrics.driver_configured("pool");
    metrics.driver_called("pool", Operation::CreateMachine, None, Duration::from_secs(1));
    metrics.driver_called(
        "pool",
        Operation::CreateMachine,
        Some(Code::ResourceExhausted),
        Duration::from_secs(1),
    );
    metrics.driver_called("other", Operation::DeleteMachine, None, Duration::from_secs(1));
    metrics.driver_reachable("pool", true);
    metrics.leads(true);
    metrics.permits("pool", || {
        [("upkeep", 1, 0), ("create", 28, 12)].map(|(priority, in_use, waiting)| PermitCount {
            priority,
            in_use,
            waiting,
        })
    });
    metrics.breakers("pool", || BreakerCount {
        open: 1,
        half_open: 0,
        waiting: 2,
    });
    metrics.orphans("pool", [(("ns".to_owned(), OrphanReason::Orphan), 1)].into());
    let scrape = Scrape::read(&metrics.encode()).unwrap();
    assert_page("driver.txt", &driver_page(&driver_facts(Some(scrape)), at(120)));
}

#[test]
fn the_page_of_a_driver_says_plainly_what_cannot_be_known_from_outside() {
    let mut facts = driver_facts(None);
    facts.configured = None;
    facts.answer = DriverAnswer::NotAsked;
    facts.clusters.truncate(1);
    facts.more_clusters = 0;
    facts.unnamed = 0;
    assert_page("driver-from-outside.txt", &driver_page(&facts, at(120)));
}
