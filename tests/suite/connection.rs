//! The connection to a real API server.

use anyhow::{Result, ensure};
use management_cluster::eventually;
use serde_json::json;

use crate::support::{Cloud, DEADLINE, Provider, Stage, World};

/// The log line of the first response over HTTP/2.
const CONNECTED: &str = "connected to the API server version=HTTP/2.0";

#[tokio::test]
async fn http2_is_used_unless_a_flag_disables_it() -> Result<()> {
    let world = World::new("http2").await?;
    let cloud = Cloud::new(&world);
    let stage = Stage::set(&world).await?;
    let provider = Provider::new(cloud.drivers(json!({})));
    let mut first = provider.start(&world).await?;
    eventually(DEADLINE, "the first answer", async || {
        let log = first.log()?;
        ensure!(log.contains(CONNECTED), "{log}");
        Ok(())
    })
    .await?;
    stage.machine("m").create().await?;
    stage.machine("m").provisioned().await?;
    first.process.signal("TERM")?;
    crate::leadership::ended(&mut first).await?;
    let provider = provider.named("http1").flag("--kube-api-http2=false");
    let second = provider.start(&world).await?;
    stage.machine("n").create().await?;
    stage.machine("n").provisioned().await?;
    ensure!(!second.log()?.contains("HTTP/2"), "{}", second.log()?);
    Ok(())
}
