//! Who may read the metrics.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::support::world::run;
use crate::support::{Cloud, Provider, World};

const READERS: &str = r"
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: $NS}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: stranger, namespace: $NS}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: $NS-reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: capcmi-metrics-reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: $NS}]
";

/// kubectl speaks to any HTTPS server, with a token.
fn read(world: &World, address: &str, token: &str) -> Result<String> {
    let mut kubectl = world.management.kubectl();
    kubectl.env("KUBECONFIG", "/dev/null");
    run(kubectl.args([
        &format!("--server=https://{address}"),
        "--insecure-skip-tls-verify",
        &format!("--token={token}"),
        "get",
        "--raw=/metrics",
    ]))
}

#[tokio::test]
async fn metrics_are_for_those_whom_the_api_server_lets_read_them() -> Result<()> {
    let world = World::new("diagnostics").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({})))
        .flag("--insecure-diagnostics=false")
        .start(&world)
        .await?;
    world.apply(READERS).await?;
    let token = |account: &str| world.kubectl(&["create", "token", account]);
    let metrics = read(&world, &provider.diagnostics, token("reader")?.trim())?;
    ensure!(metrics.contains("capcmi_build_info"), "{metrics}");
    for (token, refusal) in [
        (token("stranger")?.trim(), "orbidden"),
        ("made-up", "nauthorized"),
    ] {
        let Err(error) = read(&world, &provider.diagnostics, token) else {
            anyhow::bail!("a stranger reads metrics");
        };
        let error = format!("{error:#}");
        ensure!(
            error.contains(refusal) || error.contains("provide credentials"),
            "{error}"
        );
    }
    Ok(())
}
