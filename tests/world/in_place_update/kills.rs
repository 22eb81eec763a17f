//! A provider that is killed at any point of an update in place finishes it after a restart.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{InPlace, tier};
use crate::support::hooks::begin_update;
use crate::support::{DEADLINE, Point, Trap};

#[tokio::test(start_paused = true)]
async fn an_update_is_finished_whenever_the_provider_is_killed() -> Result<()> {
    survives_a_kill_at_any_point(&tier("gold")).await
}

/// An update without a difference is reported, and the VM is not touched.
#[tokio::test(start_paused = true)]
async fn an_empty_update_is_finished_whenever_the_provider_is_killed() -> Result<()> {
    survives_a_kill_at_any_point(&tier("bronze")).await
}

async fn survives_a_kill_at_any_point(spec: &Value) -> Result<()> {
    let undisturbed = Trap::counting();
    let in_place = begun(spec, &undisturbed).await?;
    in_place.finish().await?;
    in_place.is_updated_to(&spec["labels"]).await?;
    let (calls, writes) = (undisturbed.calls(), undisturbed.writes());
    // The request and the report.
    ensure!(writes.len() >= 2, "{writes:?}");
    let is_changed = *spec != tier("bronze");
    ensure!(in_place.updates()? == usize::from(is_changed), "{calls:?}");
    for point in undisturbed.points() {
        let killed = killed_at(spec, point).await;
        killed.with_context(|| format!("killed at {point:?} of calls {calls:?} and writes {writes:?}"))?;
    }
    Ok(())
}

/// A provider that ends in this trap, and an update that has begun.
async fn begun(spec: &Value, trap: &Trap) -> Result<InPlace> {
    let day = std::time::Duration::from_hours(24);
    let in_place = InPlace::with("in-place-killed", json!({}), |provider| {
        let provider = provider.with(|options| options.inventory_interval = day);
        provider.caught_in(trap)
    })
    .await?;
    trap.arm();
    begin_update(&in_place.machine, spec.clone()).await?;
    Ok(in_place)
}

async fn killed_at(spec: &Value, point: Point) -> Result<()> {
    let trap = Trap::at(point);
    let mut in_place = begun(spec, &trap).await?;
    let finished = tokio::select! {
        biased;
        () = trap.sprung() => false,
        finished = in_place.finish() => { finished?; true }
    };
    ensure!(
        !finished || tokio::time::timeout(DEADLINE, trap.sprung()).await.is_ok(),
        "the point is not reached"
    );
    in_place.provider = in_place.provider.clone().caught_in(&Trap::counting());
    in_place.restart().await?;
    if !finished {
        in_place.finish().await?;
    }
    in_place.is_updated_to(&spec["labels"]).await
}
