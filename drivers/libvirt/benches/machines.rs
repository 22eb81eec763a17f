//! Measures how long the driver takes to create and delete machines on a real libvirt host with booting
//! guests.
//!
//! A machine counts as created when its QEMU runs, before the guest boots. QEMU's own start and end are
//! measured separately, on the wire to libvirtd. The rest is the time of the driver and of libvirt.

#![allow(clippy::panic)]

#[path = "../tests/lab/mod.rs"]
mod lab;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use capcmi_driver_libvirt::{Config, LibvirtDriver};
use cmi_driver::{AddressType, Code, MachineRef};
use futures::future::{join_all, try_join_all};
use serde_json::json;

use lab::machines::{create, delete, status};
use lab::wire::{Fate, Message, Way, procedure};
use lab::{Lab, eventually, machine};

const HOST: &str = "host-a";
/// Machines that are created one after the other.
const ALONE: usize = 20;
/// Machines that are created concurrently.
const AT_ONCE: usize = 20;

/// How long QEMU takes to start and end, summed over all calls.
#[derive(Default)]
struct Qemu {
    /// Calls without an answer yet, by their arguments.
    asked: HashMap<(u32, Vec<u8>), Instant>,
    taken: Duration,
}

impl Qemu {
    fn hear(&mut self, message: Message<'_>) {
        let of_qemu = [procedure::START, procedure::DESTROY].concat();
        if !of_qemu.contains(&message.procedure) {
            return;
        }
        let call = (message.procedure, message.arguments.to_vec());
        match message.way {
            Way::There => drop(self.asked.insert(call, Instant::now())),
            Way::Back => {
                let asked = self.asked.remove(&call);
                self.taken += asked.map_or(Duration::ZERO, |asked| asked.elapsed());
            }
            Way::Upload => {}
        }
    }
}

/// Sorted durations, ms.
struct Times(Vec<f64>);

impl Times {
    fn of(taken: impl IntoIterator<Item = Duration>) -> Self {
        let mut all: Vec<_> = taken
            .into_iter()
            .map(|taken| taken.as_secs_f64() * 1000.0)
            .collect();
        all.sort_by(f64::total_cmp);
        Self(all)
    }

    fn row(&self, what: &str) {
        let at = |place: usize| self.0.get(place).copied().unwrap_or_default();
        let last = self.0.len().saturating_sub(1);
        println!(
            "| {what} | {} | {:.0} | {:.0} | {:.0} |",
            self.0.len(),
            at(0),
            at(self.0.len() / 2),
            at(last)
        );
    }
}

/// The duration of a call, in total and without QEMU.
async fn timed<T>(
    qemu: &Mutex<Qemu>,
    call: impl Future<Output = cmi_driver::Result<T>>,
) -> Result<[Duration; 2]> {
    let of_qemu = || qemu.lock().unwrap_or_else(PoisonError::into_inner).taken;
    let (before, started) = (of_qemu(), Instant::now());
    call.await?;
    let whole = started.elapsed();
    Ok([whole, whole.saturating_sub(of_qemu().saturating_sub(before))])
}

fn on_host(name: &str) -> MachineRef {
    machine(name, &json!({"failureDomain": HOST}), b"#!/bin/sh\n")
}

async fn one_by_one(driver: &LibvirtDriver, qemu: &Mutex<Qemu>) -> Result<()> {
    let (mut creates, mut deletes) = (Vec::new(), Vec::new());
    for number in 0..ALONE {
        let machine = on_host(&format!("alone{number}"));
        creates.push(timed(qemu, create(driver, &machine)).await?);
        deletes.push(timed(qemu, delete(driver, &machine, None)).await?);
    }
    for (what, all) in [("create", creates), ("delete", deletes)] {
        Times::of(all.iter().map(|[whole, _]| *whole)).row(&format!("{what}, one by one"));
        Times::of(all.iter().map(|[_, own]| *own)).row("of that, all but QEMU");
    }
    Ok(())
}

/// Repeats a call while the host is too busy, like a provider.
async fn as_a_provider<T>(
    repeats: &AtomicUsize,
    mut call: impl AsyncFnMut() -> cmi_driver::Result<T>,
) -> cmi_driver::Result<T> {
    loop {
        match call().await {
            Err(status) if [Code::Unavailable, Code::Aborted].contains(&status.code()) => {
                repeats.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            answer => return answer,
        }
    }
}

async fn at_once(lab: &Lab, driver: &LibvirtDriver) -> Result<()> {
    let machines: Vec<_> = (0..AT_ONCE)
        .map(|number| on_host(&format!("all{number}")))
        .collect();
    let (repeats, started) = (AtomicUsize::default(), Instant::now());
    let made = try_join_all(machines.iter().map(async |machine| {
        as_a_provider(&repeats, async || create(driver, machine).await).await?;
        cmi_driver::Result::Ok(started.elapsed())
    }));
    Times::of(made.await?).row("create, in parallel");
    let up = join_all(machines.iter().map(|machine| {
        eventually("the guest's address", async || {
            let seen = status(driver, machine, None).await?;
            let mut kinds = seen.addresses.iter().map(|address| address.kind);
            ensure!(kinds.any(|kind| kind == AddressType::InternalIP), "{seen:?}");
            Ok(started.elapsed())
        })
    }));
    Times::of(up.await.into_iter().collect::<Result<Vec<_>>>()?).row("until each has its address");
    let started = Instant::now();
    let gone = try_join_all(machines.iter().map(async |machine| {
        as_a_provider(&repeats, async || delete(driver, machine, None).await).await?;
        cmi_driver::Result::Ok(started.elapsed())
    }));
    Times::of(gone.await?).row("delete, in parallel");
    println!(
        "\n{} calls were repeated, since the host was busy",
        repeats.load(Ordering::Relaxed)
    );
    let left = lab.left()?;
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let lab = lab::lab_of(&[HOST])
        .await?
        .context("there is no libvirt: `make test-libvirt` installs it")?;
    let qemu = Arc::new(Mutex::new(Qemu::default()));
    let hears = Arc::clone(&qemu);
    let hear = move |message: Message<'_>| {
        hears.lock().unwrap_or_else(PoisonError::into_inner).hear(message);
        Fate::Passes
    };
    lab.lay_wire(HOST, Arc::new(hear))?;
    let driver = LibvirtDriver::new(Config::parse(&lab.config_over_wires(&[HOST])?)?);
    // The driver reads the image only once.
    let first = on_host("first");
    create(&driver, &first).await?;
    delete(&driver, &first, None).await?;

    println!("| what | machines | least ms | median ms | most ms |\n|---|---|---|---|---|");
    one_by_one(&driver, &qemu).await?;
    at_once(&lab, &driver).await
}
