//! The memory cost of the largest objects that a user can create.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use crate::support::fleet::objects;
use crate::support::{Cloud, Provider, World};

/// The number of objects.
const OBJECTS: usize = 60;
/// Slightly below the API server's limits: 1.5 MiB for a request, and 256 KiB for annotations.
const SPEC_BYTES: usize = 1_100_000;
const ANNOTATION_BYTES: usize = 200_000;
/// The provider's limit for its peak memory, in MiB. With one page of a list it needs about 115. The objects
/// of all pages would add 75.
const MAX_MIB: u64 = 150;

/// The peak memory, in MiB, of the provider with this drivers file. It is a shell's child.
fn peak_mib(drivers: &Path) -> Result<u64> {
    let drivers = drivers.to_str().context("a path that is no text")?;
    let of_provider = |folder: &Path| {
        std::fs::read_to_string(folder.join("cmdline")).is_ok_and(|line| {
            let program = line.split('\0').next().unwrap_or_default();
            program.ends_with("/capcmi-manager") && line.contains(drivers)
        })
    };
    let folders = std::fs::read_dir("/proc")?.filter_map(|entry| Some(entry.ok()?.path()));
    let folder = folders.into_iter().find(|folder| of_provider(folder));
    let status = std::fs::read_to_string(folder.context("the provider does not run")?.join("status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|text| text.trim().strip_suffix("kB"));
    Ok(kib.context("no peak")?.trim().parse::<u64>()? / 1024)
}

/// A tenant creates them without a Machine. A ready provider has listed and cached all of them.
#[tokio::test]
async fn the_largest_objects_do_not_fill_the_memory() -> Result<()> {
    let world = World::new("large").await?;
    let cloud = Cloud::new(&world);
    let large = |number: usize| {
        json!({
            "apiVersion": "infrastructure.capcmi.io/v1alpha1", "kind": "InfraMachine",
            "metadata": {
                "name": format!("large-{number}"), "namespace": world.namespace,
                "annotations": {"note": "x".repeat(ANNOTATION_BYTES)},
            },
            "spec": {"providerSpec": {"vmPool": "x".repeat(SPEC_BYTES)}},
        })
    };
    // Created without the type InfraMachine, which has a size limit.
    let machines = objects(&world, "infrastructure.capcmi.io", "v1alpha1", "InfraMachine");
    stream::iter(0..OBJECTS)
        .map(async |number| {
            let object = serde_json::from_value(large(number))?;
            let made = machines.create(&PostParams::default(), &object).await;
            made.map(drop).context("creating a large object")
        })
        .buffer_unordered(8)
        .try_for_each(async |()| Ok(()))
        .await?;
    let _provider = Provider::new(cloud.drivers(json!({}))).start(&world).await?;
    let peak = peak_mib(&world.folder.join("provider-drivers.yaml"))?;
    // One request for all could take longer than the API server allows.
    stream::iter(0..OBJECTS)
        .map(async |number| {
            let (name, params) = (format!("large-{number}"), DeleteParams::default());
            let deleted = machines.delete(&name, &params).await;
            deleted.map(drop).context("deleting a large object")
        })
        .buffer_unordered(8)
        .try_for_each(async |()| Ok(()))
        .await?;
    ensure!(
        peak < MAX_MIB,
        "the provider took {peak} MiB to list {OBJECTS} large objects"
    );
    Ok(())
}
