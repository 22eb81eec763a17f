//! The admission policies of a new installation, with the shipped permissions. `tests/world` proves the rules
//! of identities, and `tests/manifests` the policies themselves.

use anyhow::{Result, ensure};
use capcmi::api::annotations;
use management_cluster::eventually;
use serde_json::{Value, json};
use testbed::get;

use crate::support::{ByHand, Cloud, DEADLINE, Provider, World};

/// Identities that arrive once the installation is ready, by a move or a restore, need no confirmation.
#[tokio::test]
async fn a_new_installation_is_ready_once_identities_are_guarded() -> Result<()> {
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
            annotations::VM_RECORD
        ))
        .await?;
    world.cluster("c").await?;
    let machine = ByHand::new(&world, "c", "m").create().await?;
    machine.provisioned().await?;
    machine.delete().await?;
    machine.gone().await?;
    Ok(())
}
