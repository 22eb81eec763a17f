//! The effects of changed fields, as the API reference lists them. The other files, `tests/manifests`
//! and `tests/suite` have the rest.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capcmi::api::conditions::{DELETING, READY, VIRTUAL_MACHINE_UP_TO_DATE};
use capcmi::api::v1alpha1::{InfraMachine, SPEC_CHANGES};
use capcmi::api::wall_clock;
use cmi_driver::Operation;
use serde_json::{Value, json};

use crate::support::by_hand::{message, says};
use crate::support::provider::Replica;
use crate::support::{ByHand, Cloud, Provider, Stage, World};

/// The tests of each row of [`SPEC_CHANGES`].
const TESTS: &[(&str, &str, &[&str])] = &[
    (
        "InfraMachine",
        "spec.addressesFromPools",
        &["an_address_is_kept_until_the_vm_is_gone"],
    ),
    (
        "InfraMachine",
        "spec.creationTimeoutSeconds",
        &["a_changed_creation_timeout_counts_from_the_creation"],
    ),
    (
        "InfraMachine",
        "spec.driver",
        &[
            "a_changed_driver_gets_the_next_create",
            "a_driver_that_changed_after_an_unanswered_create_is_reported",
            "the_provider_id_is_set_once",
        ],
    ),
    (
        "InfraMachine",
        "spec.notReadyTaint.key",
        &["a_changed_key_has_its_taint_removed_once"],
    ),
    (
        "InfraMachine",
        "spec.powerPolicy",
        &["a_later_power_policy_starts_the_vm_or_is_refused"],
    ),
    (
        "InfraMachine",
        "spec.providerID",
        &["a_tenant_can_neither_make_a_machine_with_a_provider_id_nor_set_one"],
    ),
    (
        "InfraMachine",
        "spec.providerSpec",
        &[
            "a_refused_spec_is_tried_once_for_each_change",
            "a_hot_updatable_change_is_one_update_of_the_running_vm",
            "a_change_that_is_not_hot_updatable_leaves_the_vm_alone",
        ],
    ),
    (
        "InfraMachine",
        "spec.secretRef.name",
        &[
            "a_changed_secret_applies_to_the_next_call",
            "a_vm_keeps_the_credentials_that_it_was_created_with",
        ],
    ),
    (
        "InfraMachine",
        "spec.shutdownTimeoutSeconds",
        &["a_changed_shutdown_timeout_applies_to_a_running_shutdown"],
    ),
    (
        "InfraMachineTemplate",
        "spec.template.metadata",
        &["a_template_of_any_writer_hands_out_no_identity"],
    ),
    (
        "InfraMachineTemplate",
        "spec.template.spec",
        &[
            "the_spec_of_a_template_never_changes",
            "only_the_topology_dry_run_may_try_another_spec",
        ],
    ),
    (
        "InfraCluster",
        "spec.controlPlaneEndpoint",
        &["a_changed_endpoint_is_reported_until_it_is_the_clusters_again"],
    ),
    (
        "InfraCluster",
        "spec.driver",
        &["a_changed_driver_or_secret_lists_the_failure_domains_again"],
    ),
    (
        "InfraCluster",
        "spec.secretRef.name",
        &["a_changed_driver_or_secret_lists_the_failure_domains_again"],
    ),
    (
        "InfraClusterTemplate",
        "spec.template.metadata",
        &["a_template_of_any_writer_hands_out_no_identity"],
    ),
    (
        "InfraClusterTemplate",
        "spec.template.spec",
        &[
            "the_spec_of_a_template_never_changes",
            "only_the_topology_dry_run_may_try_another_spec",
        ],
    ),
    (
        "InfraMachineRemediation",
        "spec.strategy.retryLimit",
        &["a_changed_strategy_applies_to_a_running_remediation"],
    ),
    (
        "InfraMachineRemediation",
        "spec.strategy.timeoutSeconds",
        &["a_changed_strategy_applies_to_a_running_remediation"],
    ),
    (
        "InfraMachineRemediation",
        "spec.strategy.type",
        &["a_remediation_has_no_other_strategy"],
    ),
    (
        "InfraMachineRemediationTemplate",
        "spec.template.metadata",
        &["the_sample_remediation_restarts_a_silent_vm_before_it_is_replaced"],
    ),
    (
        "InfraMachineRemediationTemplate",
        "spec.template.spec",
        &["the_sample_remediation_restarts_a_silent_vm_before_it_is_replaced"],
    ),
];

#[test]
fn every_effect_of_a_change_has_a_test() -> Result<()> {
    let named: Vec<_> = TESTS.iter().map(|(kind, field, _)| (*kind, *field)).collect();
    let rows: Vec<_> = SPEC_CHANGES
        .iter()
        .map(|change| (change.kind, change.field))
        .collect();
    assert_eq!(named, rows);
    let mut source = String::new();
    for folder in ["tests/world", "tests/manifests", "tests/suite"] {
        for file in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))? {
            let path: PathBuf = file?.path();
            if path.is_file() {
                source += &std::fs::read_to_string(path)?;
            }
        }
    }
    for test in TESTS.iter().flat_map(|(.., tests)| *tests) {
        ensure!(
            source.contains(&format!("async fn {test}()")),
            "{test} does not exist"
        );
    }
    Ok(())
}

/// Two clouds with a driver each, and a machine of the first.
struct TwoDrivers {
    first: Cloud,
    second: Cloud,
    _provider: Replica,
    machine: ByHand,
}

impl TwoDrivers {
    async fn start(world: &World, faults: Value) -> Result<Self> {
        let (first, second) = (Cloud::named(world, "first"), Cloud::named(world, "second"));
        first.fail(faults)?;
        let drivers = Cloud::several([
            first.drivers_with(json!({"name": "first"}), json!({})),
            second.drivers_with(json!({"name": "second"}), json!({})),
        ])?;
        let provider = Provider::new(drivers).start(world).await?;
        let machine = Stage::set(world).await?.machine("m");
        let machine = machine.infra("/spec/driver", json!("first")).create().await?;
        Ok(Self {
            first,
            second,
            _provider: provider,
            machine,
        })
    }

    async fn change(&self) -> Result<InfraMachine> {
        self.machine.patch(json!({"spec": {"driver": "second"}})).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_driver_gets_the_next_create() -> Result<()> {
    let world = World::without_core("driver-next").await?;
    let refused = json!([{"operation": "CreateMachine", "code": "InvalidArgument"}]);
    let drivers = TwoDrivers::start(&world, refused).await?;
    let is_refused = |machine: &InfraMachine| says(machine, READY, "False", "InvalidArgument");
    drivers.machine.until("a refusal", is_refused).await?;
    drivers.change().await?;
    let up = drivers.machine.provisioned().await?;
    ensure!(
        says(&up, VIRTUAL_MACHINE_UP_TO_DATE, "True", "UpToDate"),
        "{:?}",
        up.status
    );
    drivers.first.holds(0).await?;
    drivers.second.holds(1).await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_changed_after_an_unanswered_create_is_reported() -> Result<()> {
    let world = World::without_core("driver-changed").await?;
    let drivers = TwoDrivers::start(
        &world,
        json!([
            {"operation": "CreateMachine", "loseResponse": "Unavailable"},
            // The first look-up comes before the create.
            {"operation": "GetMachineStatus", "code": "Unavailable", "after": 1},
        ]),
    )
    .await?;
    drivers.first.holds(1).await?;
    drivers.change().await?;
    let is_reported = |machine: &InfraMachine| {
        let why = message(machine, VIRTUAL_MACHINE_UP_TO_DATE);
        says(machine, VIRTUAL_MACHINE_UP_TO_DATE, "False", "DriverChanged")
            && why.contains("`second`")
            && why.contains("`first`")
    };
    let waiting = drivers.machine.until("the report", is_reported).await?;
    ensure!(
        waiting.spec.provider_id.is_none()
            && message(&waiting, VIRTUAL_MACHINE_UP_TO_DATE).contains("set spec.driver back"),
        "{waiting:?}"
    );
    drivers.first.fail(json!([]))?;
    drivers.machine.provisioned().await?;
    let up = drivers
        .machine
        .until("the report of a running VM", is_reported)
        .await?;
    let why = message(&up, VIRTUAL_MACHINE_UP_TO_DATE);
    // The API server would refuse that.
    ensure!(!why.contains("set spec.driver back"), "{why}");
    drivers.machine.delete().await?;
    drivers.machine.gone().await?;
    drivers.first.holds(0).await?;
    let calls = drivers.second.calls_for("m")?;
    ensure!(calls.is_empty(), "{calls:?}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_changed_creation_timeout_counts_from_the_creation() -> Result<()> {
    let world = World::without_core("creation-timeout").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    cloud.fail(json!([{"operation": "CreateMachine", "code": "PermissionDenied"}]))?;
    let machine = Stage::set(&world).await?.machine("m").create().await?;
    tokio::time::sleep(Duration::from_mins(10)).await;
    let limited = async |seconds: u32, reason: &str| {
        machine
            .patch(json!({"spec": {"creationTimeoutSeconds": seconds}}))
            .await?;
        let shown = |machine: &InfraMachine| says(machine, READY, "False", reason);
        machine.until(reason, shown).await
    };
    machine
        .until("a failed create", |machine| {
            says(machine, READY, "False", "PermissionDenied")
        })
        .await?;
    let timed_out = limited(300, "CreationTimedOut").await?;
    let created = timed_out.metadata.creation_timestamp.context("no time")?;
    let age = wall_clock::now().duration_since(created.0);
    ensure!(age.as_secs() < 1200, "the default timeout has passed");
    limited(86_400, "PermissionDenied").await?;
    cloud.fail(json!([]))?;
    machine.provisioned().await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_changed_secret_applies_to_the_next_call() -> Result<()> {
    let world = World::without_core("secret-next").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "right", "namespace": world.namespace}, "stringData": {"token": "any-token"},
    });
    management_cluster::apply(&world.admin, secret).await?;
    let machine = Stage::set(&world).await?.machine("m");
    let machine = machine.infra("/spec/secretRef", json!({"name": "missing"}));
    let machine = machine.create().await?;
    let lacks = |machine: &InfraMachine| says(machine, READY, "False", "InvalidSecret");
    machine.until("a missing Secret", lacks).await?;
    machine
        .patch(json!({"spec": {"secretRef": {"name": "right"}}}))
        .await?;
    machine.provisioned().await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_changed_shutdown_timeout_applies_to_a_running_shutdown() -> Result<()> {
    let world = World::without_core("shutdown-timeout").await?;
    let cloud = Cloud::new(&world);
    let slow = json!({"acceptsShutDown": true, "shutDownSeconds": 86_400});
    let _provider = Provider::new(cloud.drivers(slow)).start(&world).await?;
    let machine = Stage::set(&world).await?.machine("m");
    let machine = machine
        .infra("/spec/shutdownTimeoutSeconds", json!(600))
        .create()
        .await?;
    machine.provisioned().await?;
    machine.delete().await?;
    let stops = |machine: &InfraMachine| says(machine, DELETING, "True", "ShuttingDown");
    machine.until("a running shutdown", stops).await?;
    let limit = |seconds: u32| json!({"spec": {"shutdownTimeoutSeconds": seconds}});
    machine.patch(limit(43_200)).await?;
    tokio::time::sleep(Duration::from_hours(2)).await;
    machine.until("a guest that has more time", stops).await?;
    cloud.holds(1).await?;
    machine.patch(limit(3600)).await?;
    machine.gone().await?;
    cloud.holds(0).await?;
    ensure!(cloud.count(Operation::DeleteMachine, "m")? > 0);
    Ok(())
}
