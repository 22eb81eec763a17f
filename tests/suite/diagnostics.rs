//! /metrics: which callers may read it.

use anyhow::{Result, ensure};
use management_cluster::eventually;
use serde_json::json;

use crate::support::metrics::{allow, scrape, token_of};
use crate::support::{Cloud, DEADLINE, Provider, World};

#[tokio::test]
async fn metrics_are_for_whom_the_api_server_lets_read_them() -> Result<()> {
    let world = World::new("scrape").await?;
    let cloud = Cloud::new(&world);
    let provider = Provider::new(cloud.drivers(json!({}))).flag("--insecure-diagnostics=false");
    let provider = provider.start(&world).await?;
    let (stranger, scraper) = (
        token_of(&world, "stranger").await?,
        token_of(&world, "scraper").await?,
    );
    allow(&world, "scraper").await?;
    eventually(DEADLINE, "metrics for a caller that may read them", async || {
        // A fresh token each time: an answer is remembered for a minute.
        let token = token_of(&world, "scraper").await?;
        let (code, body) = scrape(&provider.diagnostics, Some(&token)).await?;
        ensure!(
            code == 200 && body.contains("\ncapcmi_leader 1\n"),
            "{code}: {body}"
        );
        Ok(())
    })
    .await?;
    for (token, expected) in [
        (None, 401),
        (Some("no-token"), 401),
        (Some(stranger.as_str()), 403),
        (Some(scraper.as_str()), 200),
    ] {
        let (code, body) = scrape(&provider.diagnostics, token).await?;
        ensure!(code == expected, "{code}, not {expected}: {body}");
    }
    Ok(())
}
