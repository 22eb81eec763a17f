//! The provider uses exactly the shipped permissions.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use capcmi::api::identity;
use capcmi_manifests::{
    self as manifests,
    rbac::{self, Rule},
};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use management_cluster::{AGGREGATED_ROLE, ManagementCluster, eventually};
use serde_json::{Value, json};

use crate::support::by_hand::{all_become, delete_all};
use crate::support::fleet::objects;
use crate::support::metrics::{allow, scrape, token_of};
use crate::support::pools::{create_pool, pool};
use crate::support::{ByHand, Cloud, Credential, DEADLINE, Fleet, Provider, World, audit};
use crate::{remediation, volume_drain};

/// Group, resource and verb.
type Permission = (String, String, String);

/// OPS-11, for reads: only necessary permissions are granted.
#[tokio::test]
async fn the_provider_uses_every_permission_that_it_has_and_no_other() -> Result<()> {
    let world = World::new("permissions").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({})))
        .flag("--insecure-diagnostics=false")
        .flag("--leader-elect")
        // The shipped namespace of the Lease. Only this case uses it.
        .flag(format!(
            "--leader-elect-resource-namespace={}",
            testbed::NAMESPACE
        ));
    let credential = Credential::new(&world).await?;
    let mut provider = provider
        .through(credential.kubeconfig.clone())
        .start(&world)
        .await?;
    let _kubelets = world.kubelets(&cloud);
    let fleet = Fleet::create(&world, "md", 1).await?;
    fleet.running(1).await?;
    // The object changes during the call, so the provider reads it again before it writes the answer.
    cloud.fail(json!([{"operation": "CreateMachine", "machine": "again", "latencyMs": 2000}]))?;
    create_pool(&world, "a", &["10.1.0.10"]).await?;
    let again = ByHand::new(&world, "md", "again").infra("/spec/addressesFromPools", json!([pool("a")]));
    let again = again.create().await?;
    again
        .until("a create", |machine| {
            identity::vm_state(machine).unanswered().is_some()
        })
        .await?;
    again
        .patch(json!({"metadata": {"annotations": {"example.com/note": "1"}}}))
        .await?;
    all_become(
        &world,
        "a machine that was written meanwhile",
        &["again".to_owned()],
        |_, machine| {
            let id = machine.and_then(|machine| machine.spec.provider_id.as_ref());
            id.map(drop).context("no providerID")
        },
    )
    .await?;
    delete_all(&world, &["again".to_owned()]).await?;
    world.kubectl(&["delete", "machinedeployment", "md", "--wait=false"])?;
    fleet.gone().await?;
    let token = token_of(&world, "scraper").await?;
    allow(&world, "scraper").await?;
    eventually(DEADLINE, "metrics for a caller that may read them", async || {
        let (code, body) = scrape(&provider.diagnostics, Some(&token)).await?;
        ensure!(code == 200, "{code}: {body}");
        Ok(())
    })
    .await?;
    // A replica renews its Lease by a patch, and releases it by an update.
    provider.process.terminate(DEADLINE).await?;
    uses_all_of(&world, &credential, &always()).await?;
    uses_no_more_than(&world, &credential, &always())
}

/// An enabled opt-in uses exactly its role and the permissions that are always granted.
#[tokio::test]
async fn remediation_uses_every_permission_of_its_role_and_no_other() -> Result<()> {
    let world = World::new("permissions-restart").await?;
    remediation::permitted(&world).await?;
    let cloud = Cloud::new(&world);
    let credential = Credential::new(&world).await?;
    let provider = Provider::new(cloud.drivers(json!({})))
        .flag("--enable-remediation")
        .through(credential.kubeconfig.clone());
    let _provider = provider.start(&world).await?;
    world.cluster("one").await?;
    let machine = ByHand::new(&world, "one", "m").create().await?;
    machine.provisioned().await?;
    let owner = objects(&world, "cluster.x-k8s.io", "v1beta2", "Machine")
        .get("m")
        .await?;
    let request = remediation::request(&world, &owner, &json!({}));
    management_cluster::apply(&world.admin, request).await?;
    opt_in_uses(&world, &credential, rbac::REMEDIATION).await
}

/// Like the case for remediation.
#[tokio::test]
async fn volume_drain_uses_every_permission_of_its_role_and_no_other() -> Result<()> {
    let world = World::new("permissions-volumes").await?;
    volume_drain::permitted(&world).await?;
    let cloud = Cloud::new(&world);
    let credential = Credential::new(&world).await?;
    let provider = Provider::new(cloud.drivers(json!({})))
        .flag("--enable-volume-drain")
        .through(credential.kubeconfig.clone());
    let _provider = provider.start(&world).await?;
    let _kubelets = world.kubelets(&cloud);
    world.cluster("one").await?;
    let (machine, node) = volume_drain::drained(&world, &world.namespace, "30m").await?;
    volume_drain::two_volumes(&node).await?;
    machine.delete().await?;
    for pod in ["a", "b"] {
        node.leaving(&[pod]).await?;
        node.ends(pod).await?;
        node.attach(&[]).await?;
    }
    machine.gone().await?;
    opt_in_uses(&world, &credential, rbac::VOLUME_DRAIN).await
}

async fn opt_in_uses(world: &World, credential: &Credential, role: &[Rule]) -> Result<()> {
    let role: BTreeSet<_> = role.iter().flat_map(permissions).collect();
    uses_all_of(world, credential, &role).await?;
    uses_no_more_than(world, credential, &role.union(&always()).cloned().collect())
}

async fn uses_all_of(world: &World, credential: &Credential, granted: &BTreeSet<Permission>) -> Result<()> {
    eventually(DEADLINE, "the use of every permission", async || {
        let used = used(world, credential)?;
        let unused: Vec<_> = granted
            .difference(&used)
            .filter(|permission| !is_of_a_watch(permission, granted))
            .collect();
        ensure!(unused.is_empty(), "granted and not used: {unused:?}");
        Ok(())
    })
    .await
}

fn uses_no_more_than(world: &World, credential: &Credential, granted: &BTreeSet<Permission>) -> Result<()> {
    let ungranted: Vec<_> = used(world, credential)?.difference(granted).cloned().collect();
    ensure!(ungranted.is_empty(), "used and not granted: {ungranted:?}");
    let refused: Vec<_> = audit::requests_with(world, credential)?
        .into_iter()
        .filter(|request| request.code == 403)
        .map(|request| request.to_string())
        .collect();
    ensure!(refused.is_empty(), "refused: {refused:?}");
    Ok(())
}

/// Whether the permission is to list a watched resource: API servers that stream lists count those as
/// watches.
fn is_of_a_watch((group, resource, verb): &Permission, granted: &BTreeSet<Permission>) -> bool {
    let watch = (group.clone(), resource.clone(), "watch".to_owned());
    verb == "list" && granted.contains(&watch)
}

/// The permissions without an opt-in.
fn always() -> BTreeSet<Permission> {
    let rules = [
        rbac::PROVIDER,
        rbac::SECRETS,
        rbac::LEADER_ELECTION,
        rbac::ADMISSION,
    ];
    let all = rules.into_iter().flatten().flat_map(permissions);
    // The policies exist already. tests/manifests/admission.rs uses the other permissions.
    all.filter(|(group, _, verb)| !group.starts_with("admissionregistration") || verb == "get")
        // Only admission checks these, inside the API server.
        .filter(|(_, resource, _)| !resource.ends_with(&format!("/{}", rbac::IDENTITY)))
        .filter(|(_, resource, _)| resource != "inframachines/finalizers")
        .collect()
}

fn permissions(rule: &Rule) -> Vec<Permission> {
    let (group, verbs) = (rule.group, rule.verbs);
    let of = |resource: &&str| {
        let resource = (*resource).to_owned();
        verbs
            .iter()
            .map(move |verb| (group.to_owned(), resource.clone(), (*verb).to_owned()))
    };
    rule.resources.iter().flat_map(of).collect()
}

fn used(world: &World, credential: &Credential) -> Result<BTreeSet<Permission>> {
    let requests = audit::requests_with(world, credential)?.into_iter();
    Ok(requests
        .map(|request| (request.group, request.resource, request.verb))
        .collect())
}

/// Core needs the ClusterRole that is aggregated to its own one. Otherwise it reports that it may not write
/// InfraMachines.
#[tokio::test]
async fn core_sets_owners_only_with_the_aggregated_role() -> Result<()> {
    const LABEL: &str = "cluster.x-k8s.io/aggregate-to-manager";
    let installation = manifests::stream(&manifests::Part::ALL)?;
    let without = installation.replace(
        &format!("{LABEL}: \"true\""),
        "example.com/not-aggregated: \"true\"",
    );
    ensure!(without != installation, "the label was not found");
    let management = ManagementCluster::builder().manifests(without).start().await?;
    let namespace = management.namespace("aggregation").await?;
    let admin = management.admin_client().await?;
    for object in machine_of(&namespace) {
        management_cluster::apply(&admin, object).await?;
    }
    let log = management.folder().path().join("core.log");
    eventually(DEADLINE, "core's complaint", async || {
        let log = std::fs::read_to_string(&log)?;
        let complains = |line: &str| line.contains("forbidden") && line.contains("inframachines");
        ensure!(log.lines().any(complains), "no word of inframachines");
        Ok(())
    })
    .await?;
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(
        "infrastructure.capcmi.io",
        "v1alpha1",
        "InfraMachine",
    ));
    let machines = Api::<DynamicObject>::namespaced_with(admin.clone(), &namespace, &kind);
    let machine = machines.get("m").await?;
    ensure!(machine.metadata.owner_references.is_none(), "core set an owner");
    management.apply_yaml(&installation).await?;
    eventually(DEADLINE, "an owner, once the role is aggregated", async || {
        let machine = machines.get("m").await?;
        ensure!(
            machine.metadata.owner_references.is_some(),
            "{AGGREGATED_ROLE} was not enough"
        );
        Ok(())
    })
    .await
}

fn machine_of(namespace: &str) -> [Value; 4] {
    let metadata = |name: &str| json!({"name": name, "namespace": namespace});
    [
        json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": metadata("c"),
            "spec": {"infrastructureRef": {"apiGroup": "infrastructure.capcmi.io", "kind": "InfraCluster",
            "name": "c"}},
        }),
        json!({
            "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraCluster",
            "metadata": metadata("c"), "spec": {},
        }),
        json!({
            "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachine",
            "metadata": metadata("m"), "spec": {},
        }),
        json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": metadata("m"),
            "spec": {
                "clusterName": "c", "bootstrap": {"dataSecretName": "boot"},
                "infrastructureRef": {"apiGroup": "infrastructure.capcmi.io", "kind": "InfraMachine",
                "name": "m"},
            },
        }),
    ]
}
