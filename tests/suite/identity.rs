//! Which machine a VM belongs to: what belongs to none of ours is neither written nor called for.

use anyhow::{Context, Result, ensure};
use capcmi::api::annotations;
use capcmi::api::conditions::{self, DELETING, READY};
use capcmi::api::v1alpha1::{InfraCluster, InfraMachine, InfraMachineSpec};
use capcmi::apiserver::FIELD_MANAGER;
use cmi_driver::Operation;
use cmi_simulated::PlantedVm;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt};
use management_cluster::eventually;
use serde_json::{Value, json};
use testbed::get;

use crate::support::by_hand::{event, message, says};
use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};

/// The provider's contract with Cluster API: no owner, no write.
#[tokio::test]
async fn a_machine_without_a_machine_as_controller_owner_is_never_written() -> Result<()> {
    let world = World::new("ownerless").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    let first = ByHand::new(&world, "one", "first").create().await?;
    first.provisioned().await?;
    // Paused, or core would clean up what it thinks it made.
    let set = world
        .apply(
            r#"
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineSet
metadata: {name: set, namespace: $NS, annotations: {cluster.x-k8s.io/paused: ""}}
spec:
  clusterName: one
  replicas: 0
  selector: {matchLabels: {set: set}}
  template:
    metadata: {labels: {set: set}}
    spec:
      clusterName: one
      bootstrap: {dataSecretName: boot}
      infrastructureRef: {apiGroup: infrastructure.capcmi.io, kind: InfraMachineTemplate, name: any}
"#,
        )
        .await?
        .remove(0);
    let machine = first.create_machine().await?;
    let owners = [
        ("unowned", json!([])),
        ("of-a-set", json!([owner(&set, true)])),
        ("of-a-template", json!([owner(&set, false)])),
        ("not-controlled", json!([owner(&machine, false)])),
    ];
    let mut left_alone = Vec::new();
    for (name, owners) in owners {
        let machine = ByHand::new(&world, "one", name).infra("/metadata/ownerReferences", owners);
        left_alone.push((machine.create_infra().await?, machine));
    }
    // Made later than all of them.
    let last = ByHand::new(&world, "one", "last").create().await?;
    last.provisioned().await?;
    for (before, machine) in &left_alone {
        let now = machine.get().await?;
        ensure!(
            now.resource_version() == before.resource_version(),
            "{} was written: {now:?}",
            machine.name
        );
        ensure!(!writers(now.managed_fields()).contains(&FIELD_MANAGER.to_owned()));
        ensure!(cloud.calls_for(&machine.name)?.is_empty(), "{}", machine.name);
    }
    ensure!(
        writers(last.get().await?.managed_fields()).contains(&FIELD_MANAGER.to_owned()),
        "the writers are not found this way"
    );
    Ok(())
}

/// A restore from a backup, or an object that was replaced: without the finalizer, the object
/// would go and its VM stay.
#[tokio::test]
async fn a_finalizer_that_was_taken_away_is_back_and_the_vm_goes_with_its_machine() -> Result<()> {
    let world = World::new("finalizer-missing").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    let before = machine.provisioned().await?;
    machine.patch(json!({"metadata": {"finalizers": []}})).await?;
    let after = machine
        .until("the finalizer", |machine| !machine.finalizers().is_empty())
        .await?;
    ensure!(
        after.finalizers() == before.finalizers(),
        "{:?}",
        after.finalizers()
    );
    ensure!(
        after.annotations() == before.annotations(),
        "{:?}",
        after.annotations()
    );
    machine.delete().await?;
    machine.gone().await?;
    cloud.holds(0).await?;
    Ok(())
}

/// DRV-07, DRV-08, CTL-CR-06: neither a VM of another cluster nor one of another machine object of the same
/// cluster is adopted, changed or deleted.
#[tokio::test]
async fn a_vm_of_the_same_name_of_another_machine_is_never_touched() -> Result<()> {
    let world = World::new("foreign").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    let cluster = cluster_id(&world, "one").await?;
    let console = cloud.console()?;
    console.plant(PlantedVm::new("another-cluster", "m", "another-machine"))?;
    console.plant(PlantedVm::new(&cluster, "taken", "another-machine"))?;
    let planted = cloud.holds(2).await?;

    let apart = ByHand::new(&world, "one", "m").create().await?;
    let taken = ByHand::new(&world, "one", "taken").create().await?;
    let id = apart.provisioned().await?.spec.provider_id;
    ensure!(
        planted.iter().all(|vm| Some(vm.provider_id()) != id),
        "adopted {id:?}"
    );
    cloud.holds(3).await?;
    let refused = taken
        .until("a refused machine", |machine| {
            says(machine, READY, "False", "AlreadyExists")
        })
        .await?;
    let reason = refused
        .status
        .as_ref()
        .and_then(|status| status.failure_reason.clone());
    ensure!(reason.as_deref() == Some("AlreadyExists"), "{reason:?}");
    ensure!(refused.spec.provider_id.is_none(), "{:?}", refused.spec);
    ensure!(message(&refused, READY).contains("another machine object"));
    for machine in [&apart, &taken] {
        machine.delete().await?;
        machine.gone().await?;
    }
    ensure!(cloud.vms()? == planted, "{:?}", cloud.vms()?);
    ensure!(cloud.count(Operation::CreateMachine, "taken")? == 1);
    Ok(())
}

/// DRV-08: machines and Clusters of the same names in two namespaces, at one cloud.
#[tokio::test]
async fn the_same_names_in_two_namespaces_are_two_vms() -> Result<()> {
    let (world, beside) = (World::new("twin-a").await?, World::new("twin-b").await?);
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({})));
    let _first = provider.start(&world).await?;
    let _second = provider.clone().named("second").start(&beside).await?;
    let mut ids = Vec::new();
    for world in [&world, &beside] {
        world.cluster("one").await?;
        let machine = ByHand::new(world, "one", "m").create().await?;
        ids.push(machine.provisioned().await?.spec.provider_id.context("no id")?);
    }
    let vms = cloud.holds(2).await?;
    ensure!(ids[0] != ids[1], "{ids:?}");
    ensure!(
        vms[0].cluster() != vms[1].cluster(),
        "one cluster id for two Clusters"
    );
    ensure!(vms[0].name == "m" && vms[1].name == "m", "{vms:?}");
    let (first, second) = (ByHand::new(&world, "one", "m"), ByHand::new(&beside, "one", "m"));
    first.delete().await?;
    first.gone().await?;
    let left = cloud.holds(1).await?;
    ensure!(left[0].provider_id() == ids[1], "the wrong VM was deleted");
    second.provisioned().await?;
    Ok(())
}

/// An identity is bound to namespace and name: no template hands one out, and a copied
/// one identifies no machine.
#[tokio::test]
async fn a_copied_identity_identifies_no_machine() -> Result<()> {
    let world = World::new("copied").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    let original = ByHand::new(&world, "one", "m").create().await?;
    let machine = original.provisioned().await?;
    let identity = json!(machine.annotations());
    let vm = cloud.holds(1).await?.remove(0);

    let template = json!({
        "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachineTemplate",
        "metadata": {"name": "t", "namespace": world.namespace},
        "spec": {"template": {"metadata": {"annotations": identity}, "spec": {}}},
    });
    let refused = management_cluster::apply(&world.admin, template).await;
    let refused = format!("{:#}", refused.err().context("a template took an identity")?);
    ensure!(refused.contains(annotations::MACHINE_ID), "{refused}");

    // Without the id of the VM it is a machine like any other.
    let fresh = ByHand::new(&world, "one", "fresh").infra("/metadata/annotations", identity.clone());
    let fresh = fresh.create().await?;
    let own = fresh.provisioned().await?;
    ensure!(own.spec.provider_id != machine.spec.provider_id, "it took the VM");
    let written = own
        .annotations()
        .get(annotations::MACHINE_ID)
        .cloned()
        .unwrap_or_default();
    ensure!(
        written == format!("{}/fresh/{}", world.namespace, own.uid().unwrap_or_default()),
        "{written}"
    );
    fresh.delete().await?;
    fresh.gone().await?;
    ensure!(
        cloud.holds(1).await?[0] == vm,
        "the VM of the original was touched"
    );

    // With everything, it belongs to no machine, and stays until an administrator takes the responsibility.
    let full = ByHand::new(&world, "one", "full")
        .infra("/metadata/annotations", identity)
        .infra("/metadata/finalizers", json!(machine.finalizers()))
        .infra("/spec/providerID", json!(machine.spec.provider_id));
    let full = full.create().await?;
    full.until("a foreign providerID", |machine| {
        says(machine, READY, "False", "ForeignProviderID")
    })
    .await?;
    full.delete().await?;
    let held = full
        .until("a foreign identity", |machine| {
            says(machine, DELETING, "True", "ForeignIdentity")
        })
        .await?;
    ensure!(message(&held, DELETING).contains(annotations::FORCE_DELETE));
    full.patch(json!({"metadata": {"annotations": {annotations::FORCE_DELETE: "true"}}}))
        .await?;
    full.gone().await?;
    ensure!(
        cloud.calls_for("full")?.is_empty(),
        "{:?}",
        cloud.calls_for("full")?
    );
    ensure!(
        cloud.holds(1).await?[0] == vm,
        "the VM of the original was touched"
    );
    original.provisioned().await?;
    Ok(())
}

/// With the identity and providerID of another namespace's VM, a tenant's machine would become Ready, and its
/// deletion would delete the VM.
#[tokio::test]
async fn every_right_in_one_namespace_takes_no_vm_of_another() -> Result<()> {
    let (world, beside) = (World::new("owner").await?, World::new("thief").await?);
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({})));
    let _first = provider.start(&world).await?;
    let _second = provider.clone().named("second").start(&beside).await?;
    world.cluster("one").await?;
    beside.cluster("one").await?;
    let original = ByHand::new(&world, "one", "m").create().await?;
    let machine = original.provisioned().await?;
    let vm = cloud.holds(1).await?.remove(0);

    let copied = |key: &str| {
        let value = machine.annotations().get(key).cloned().unwrap_or_default();
        value.replace(
            &format!("{}/", world.namespace),
            &format!("{}/", beside.namespace),
        )
    };
    let annotations: Value = annotations::OWN_ANNOTATIONS
        .iter()
        .filter(|key| machine.annotations().contains_key(**key))
        .map(|key| ((*key).to_owned(), json!(copied(key))))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let thief = ByHand::new(&beside, "one", "m");
    thief.create_infra().await?;
    let forged = [
        json!({"metadata": {"annotations": annotations}}),
        json!({"spec": {"providerID": machine.spec.provider_id}}),
        json!({"metadata": {"annotations": annotations}, "spec": {"providerID": machine.spec.provider_id}}),
    ];
    let tenant = with_every_right_in(&beside).await?;
    for forged in forged {
        let refused = tenant
            .patch("m", &PatchParams::default(), &Patch::Merge(&forged))
            .await;
        let refused = refused.err().context("an identity was taken")?.to_string();
        ensure!(refused.contains("in the whole cluster"), "{refused}");
        let mut another = InfraMachine::new("another", InfraMachineSpec::default());
        another.metadata.annotations = serde_json::from_value(forged["metadata"]["annotations"].clone())?;
        another.spec.provider_id = serde_json::from_value(forged["spec"]["providerID"].clone())?;
        let refused = tenant.create(&PostParams::default(), &another).await;
        let refused = refused.err().context("an identity was created")?.to_string();
        ensure!(refused.contains("in the whole cluster"), "{refused}");
    }
    // What it has is its own.
    thief.create_machine().await?;
    thief.provisioned().await?;
    cloud.holds(2).await?;
    thief.delete().await?;
    thief.gone().await?;
    ensure!(cloud.holds(1).await?[0] == vm, "the wrong VM was deleted");
    original.provisioned().await?;
    Ok(())
}

/// Deleted without the finalizer, the object would go and its VM stay, and nothing would know of it.
#[tokio::test]
async fn a_tenant_that_takes_the_finalizer_during_a_deletion_leaves_no_vm_behind() -> Result<()> {
    let world = World::new("loser").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    machine.provisioned().await?;
    cloud.fail(json!([{"operation": "DeleteMachine", "code": "Unavailable", "retryAfterMs": 200}]))?;
    machine.delete().await?;
    machine
        .until("a deletion that runs", |machine| {
            says(machine, DELETING, "True", "Unavailable")
        })
        .await?;
    let tenant = with_every_right_in(&world).await?;
    let patch = json!({"metadata": {"finalizers": []}});
    let refused = tenant
        .patch("m", &PatchParams::default(), &Patch::Merge(&patch))
        .await;
    let refused = refused.err().context("the finalizer went")?.to_string();
    ensure!(refused.contains(annotations::FORCE_DELETE), "{refused}");
    cloud.fail(json!([]))?;
    machine.gone().await?;
    cloud.holds(0).await?;
    Ok(())
}

/// The policies are gone for a moment, and a tenant uses it: what was written then is not acted on before an
/// administrator has confirmed it.
#[tokio::test]
async fn what_was_forged_while_the_policies_were_gone_is_not_acted_on() -> Result<()> {
    let world = World::new("unguarded").await?.elsewhere().await?;
    world
        .apply("{apiVersion: v1, kind: Namespace, metadata: {name: $NS}}")
        .await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    machine.provisioned().await?;
    cloud.holds(1).await?;

    let tenant = with_every_right_in(&world).await?;
    let policies = [
        "delete",
        "validatingadmissionpolicybindings",
        "capcmi-reserved-annotations",
        "--ignore-not-found",
    ];
    let forged = json!({"metadata": {"annotations": {annotations::FORCE_DELETE: "true"}}});
    eventually(DEADLINE, "a forged annotation", async || {
        // The provider puts it back.
        world.kubectl(&policies)?;
        tenant
            .patch("m", &PatchParams::default(), &Patch::Merge(&forged))
            .await?;
        Ok(())
    })
    .await?;
    tenant.delete("m", &DeleteParams::default()).await?;
    let held = machine
        .until("a deletion that trusts no identity", |machine| {
            says(machine, DELETING, "True", "IdentityNotGuarded")
        })
        .await?;
    let said = message(&held, DELETING);
    ensure!(said.contains("kubectl annotate"), "{said}");
    let metrics = provider.metrics().await?;
    ensure!(
        metrics.contains("capcmi_admission_policies_in_force 0"),
        "{metrics}"
    );
    cloud.holds(1).await?;

    machine
        .patch(json!({"metadata": {"annotations": {annotations::FORCE_DELETE: null}}}))
        .await?;
    world.kubectl(&[
        "annotate",
        "validatingadmissionpolicy",
        "capcmi-reserved-annotations",
        &format!("{}-", capcmi::admission::UNCONFIRMED),
    ])?;
    machine.delete().await?;
    machine.gone().await?;
    cloud.holds(0).await?;
    ensure!(
        cloud.count(Operation::DeleteMachine, "m")? > 0,
        "the VM went without a deletion"
    );
    Ok(())
}

/// What is moved or restored to a new installation when it says that it is ready needs no confirmation.
#[tokio::test]
async fn a_new_installation_is_ready_when_identities_are_guarded_and_says_what_that_waits_for() -> Result<()>
{
    let world = World::new("install").await?.elsewhere().await?;
    world
        .apply("{apiVersion: v1, kind: Namespace, metadata: {name: $NS}}")
        .await?;
    let ours = "--selector=cluster.x-k8s.io/provider=infrastructure-capcmi-cmi";
    world.kubectl(&[
        "delete",
        "validatingadmissionpolicies,validatingadmissionpolicybindings",
        ours,
    ])?;
    let right = ["clusterrolebinding", "capcmi-admission-rolebinding"];
    let granted = world.kubectl(&[&["get", "-o", "json"], &right[..]].concat())?;
    world.kubectl(&[&["delete"], &right[..]].concat())?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({}))).launch(&world).await?;
    let readiness = async || get(&provider.health, "/readyz").await;
    eventually(DEADLINE, "a replica that says what it waits for", async || {
        let (code, text) = readiness().await?;
        let waits = "waiting for the admission policies to be in force (";
        ensure!(
            code == 503 && text.contains(waits) && text.contains("capcmi-admission-role"),
            "{code}: {text}"
        );
        Ok(())
    })
    .await?;
    let mut granted: Value = serde_json::from_str(&granted)?;
    granted["metadata"] = json!({"name": right[1]});
    world.apply(&granted.to_string()).await?;
    eventually(DEADLINE, "a replica that is ready", async || {
        let (code, text) = readiness().await?;
        ensure!(code == 200, "{text}");
        Ok(())
    })
    .await?;
    world
        .apply(&format!(
            "{{apiVersion: infrastructure.capcmi.io/v1alpha1, kind: InfraMachine, spec: {{}},
               metadata: {{name: restored, namespace: $NS, annotations: {{{}: x}}}}}}",
            annotations::MACHINE_ID
        ))
        .await?;
    world.cluster("c").await?;
    let machine = ByHand::new(&world, "c", "m").create().await?;
    machine.provisioned().await?;
    machine.delete().await?;
    machine.gone().await?;
    Ok(())
}

/// InfraMachines, as a user who may do everything with the provider's kinds in the namespace.
async fn with_every_right_in(world: &World) -> Result<Api<InfraMachine>> {
    let rbac = "rbac.authorization.k8s.io";
    let user = format!("everything-in-{}", world.namespace);
    world
        .apply(&format!(
            r#"
apiVersion: {rbac}/v1
kind: Role
metadata: {{name: everything, namespace: $NS}}
rules: [{{apiGroups: [infrastructure.capcmi.io], resources: ["*"], verbs: ["*"]}}]
---
apiVersion: {rbac}/v1
kind: RoleBinding
metadata: {{name: everything, namespace: $NS}}
roleRef: {{apiGroup: {rbac}, kind: Role, name: everything}}
subjects: [{{apiGroup: {rbac}, kind: User, name: {user}}}]
"#
        ))
        .await?;
    let kubeconfig = Kubeconfig::read_from(world.management.admin_kubeconfig())?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    config.auth_info.impersonate = Some(user);
    let api = Api::namespaced(Client::try_from(config)?, &world.namespace);
    eventually(DEADLINE, "the rights of the Role", async || {
        Ok(api.list(&ListParams::default()).await.map(drop)?)
    })
    .await?;
    Ok(api)
}

/// A providerID that the provider did not write leads to no call, neither while the
/// machine lives nor when it goes.
#[tokio::test]
async fn a_hand_written_provider_id_leads_to_no_call_and_says_so() -> Result<()> {
    let world = World::new("hand-written").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    let cluster = cluster_id(&world, "one").await?;
    let id = cloud
        .console()?
        .plant(PlantedVm::new(&cluster, "m", "another-machine"))?;
    let machine = ByHand::new(&world, "one", "m")
        .infra("/spec/providerID", json!(id))
        .create()
        .await?;
    let reported = machine
        .until("a foreign providerID", |machine| {
            says(machine, READY, "False", "ForeignProviderID")
        })
        .await?;
    ensure!(
        message(&reported, READY).contains(&id),
        "{}",
        message(&reported, READY)
    );
    let warned = event(&world, "m", "ForeignProviderID").await?;
    ensure!(warned.type_.as_deref() == Some("Warning"), "{warned:?}");
    machine.delete().await?;
    machine.gone().await?;
    ensure!(cloud.calls_for("m")?.is_empty(), "{:?}", cloud.calls_for("m")?);
    cloud.holds(1).await?;
    Ok(())
}

/// CTL-DE-14: a driver that never answers keeps the machine, until an administrator lets it go; a
/// Warning says what may be left.
#[tokio::test]
async fn force_delete_lets_a_stuck_machine_go_with_a_warning() -> Result<()> {
    let world = World::new("forced").await?;
    let cloud = Cloud::new(&world);
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    let id = machine.provisioned().await?.spec.provider_id.context("no id")?;
    cloud.fail(json!([{"code": "Unavailable", "retryAfterMs": 200}]))?;
    machine.delete().await?;
    machine
        .until("several failures", |machine| {
            let last = machine
                .status
                .as_ref()
                .and_then(|status| status.last_operation.as_ref());
            says(machine, DELETING, "True", "Unavailable") && last.is_some_and(|last| last.attempts >= 2)
        })
        .await?;
    machine
        .patch(json!({"metadata": {"annotations": {annotations::FORCE_DELETE: "true"}}}))
        .await?;
    machine.gone().await?;
    let warned = event(&world, "m", "ForceDeleted").await?;
    ensure!(warned.type_.as_deref() == Some("Warning"), "{warned:?}");
    let note = warned.note.unwrap_or_default();
    ensure!(note.contains(&id), "{note}");
    cloud.holds(1).await?;
    Ok(())
}

fn owner(object: &DynamicObject, controller: bool) -> Value {
    let types = object.types.clone().unwrap_or_default();
    json!({
        "apiVersion": types.api_version, "kind": types.kind, "name": object.name_any(), "uid": object.uid(),
        "controller": controller,
    })
}

fn writers(entries: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry]) -> Vec<String> {
    entries.iter().filter_map(|entry| entry.manager.clone()).collect()
}

/// The id that the driver knows the Cluster by.
async fn cluster_id(world: &World, name: &str) -> Result<String> {
    let api: Api<InfraCluster> = Api::namespaced(world.admin.clone(), &world.namespace);
    eventually(DEADLINE, "the cluster id", async || {
        let cluster = api.get(name).await?;
        let conditions = cluster.status.clone().unwrap_or_default().conditions;
        ensure!(conditions::is_true(&conditions, READY), "{conditions:?}");
        let id = cluster.annotations().get(annotations::CLUSTER_ID);
        id.cloned().context("no id")
    })
    .await
}
