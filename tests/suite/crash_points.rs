//! Killed at every moment that counts, the provider starts again and reaches what it
//! would have reached without.
//!
//! The moments are found by recording a run: before and after each driver call and each write to the API
//! server. A call "after" has done its work and its answer is lost, and so it is with a write. A driver in
//! the provider's process dies with it; a plugin lives on, and only the call is lost.
//!
//! A collector knows of no end that it has not seen itself, so that a replica that starts anew deletes no
//! orphan of before. There the other replica goes on, which has seen it.

mod session;

use anyhow::{Context, Result, bail, ensure};
use cmi_driver::Operation;
use futures::{StreamExt, stream};
use management_cluster::eventually;
use serde_json::Value;

use self::session::Session;
use crate::support::backing::with_every_backing;
use crate::support::{Backing, DEADLINE};

with_every_backing!(killed_before_and_after_every_call_and_write_the_provider_reaches_the_same_end);

/// Runs at the same time.
const AT_ONCE: usize = 3;
/// Runs until one does as another did.
const MAX_RUNS: usize = 6;
/// Runs until a point is reached that the recorded run had.
const TRIES: usize = 3;

/// What the provider is in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    Create,
    /// The same with a driver that names no id beforehand.
    CreateUnnamed,
    /// A VM that another has made becomes the machine's.
    Adopt,
    /// The driver refuses the create for good, and would refuse the same spec in a delete.
    RefusedCreate,
    /// The spec of a VM that is up changes in what the driver can change.
    Update,
    Delete,
    /// The machine got away and left its VM, beside that of another machine: the collector deletes the one.
    Collect,
}

impl Scenario {
    /// Whether it begins with a VM that is up.
    fn has_vm(self) -> bool {
        match self {
            Self::Create | Self::CreateUnnamed | Self::Adopt | Self::RefusedCreate => false,
            Self::Update | Self::Delete | Self::Collect => true,
        }
    }
}

/// Where the provider is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    Call(usize, Side),
    Write(usize, Side),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Before,
    After,
}

/// What a run did, and how it ended.
#[derive(Debug)]
struct Recording {
    backing: Backing,
    scenario: Scenario,
    calls: Vec<Operation>,
    writes: Vec<String>,
    end: Value,
}

/// DRV-10, DRV-12, DRV-21, DRV-22, INI-22, UPD-03: nothing is made twice, lost or left behind.
async fn killed_before_and_after_every_call_and_write_the_provider_reaches_the_same_end(
    backing: Backing,
) -> Result<()> {
    let scenarios = [
        Scenario::Create,
        Scenario::CreateUnnamed,
        Scenario::Adopt,
        Scenario::RefusedCreate,
        Scenario::Update,
        Scenario::Delete,
        Scenario::Collect,
    ];
    let recordings: Vec<_> = stream::iter(scenarios)
        .map(|scenario| record(backing, scenario))
        .buffered(AT_ONCE)
        .collect()
        .await;
    let recordings = recordings.into_iter().collect::<Result<Vec<_>>>()?;
    let points: Vec<_> = recordings
        .iter()
        .flat_map(|run| run.points().into_iter().map(move |point| (run, point)))
        .collect();
    let outcomes: Vec<_> = stream::iter(&points)
        .map(async |(run, point)| {
            let outcome = kill_at(run, *point).await;
            outcome.with_context(|| format!("killed in {:?}, {}", run.scenario, run.name(*point)))
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let failures: Vec<_> = outcomes
        .iter()
        .filter_map(|outcome| Some(format!("{:#}", outcome.as_ref().err()?)))
        .collect();
    for run in &recordings {
        eprintln!(
            "{:?}, {:?}: {} points: calls {:?}, writes {:?}",
            run.scenario,
            run.backing,
            run.points().len(),
            run.calls,
            run.writes
        );
    }
    eprintln!(
        "{} crash points found, {} checked",
        points.len(),
        points.len() - failures.len()
    );
    ensure!(
        failures.is_empty(),
        "{} of {} points:\n{}",
        failures.len(),
        points.len(),
        failures.join("\n")
    );
    Ok(())
}

/// Runs a scenario without a kill, until two runs do the same: on a busy computer, one may do more.
async fn record(backing: Backing, scenario: Scenario) -> Result<Recording> {
    let mut runs: Vec<Recording> = Vec::new();
    while runs.len() < MAX_RUNS {
        let next = run_through(backing, scenario).await?;
        let is_same = |run: &Recording| (&next.calls, &next.writes) == (&run.calls, &run.writes);
        if runs.iter().any(is_same) {
            return Ok(next);
        }
        runs.push(next);
    }
    bail!("no two of {MAX_RUNS} runs did the same: {runs:?}")
}

async fn run_through(backing: Backing, scenario: Scenario) -> Result<Recording> {
    let mut session = Session::new(backing, scenario).await?;
    let mut replica = session.provider.start(&session.world).await?;
    session.begin().await?;
    session.finished().await?;
    // What runs is done when it has ended: nothing is left to be seen.
    let status = replica.process.terminate(DEADLINE).await?;
    ensure!(
        status.is_some_and(|status| status.success()),
        "the provider ended with {status:?}"
    );
    let end = session.end().await?;
    let recording = Recording {
        backing,
        scenario,
        calls: session.calls()?,
        writes: session.writes(),
        end,
    };
    ensure!(
        // A collector writes nothing but events.
        !recording.calls.is_empty() && (scenario == Scenario::Collect || !recording.writes.is_empty()),
        "nothing was recorded: {recording:?}"
    );
    Ok(recording)
}

/// Kills the provider at a point, in a run that comes there as the recorded one did.
async fn kill_at(run: &Recording, point: Point) -> Result<()> {
    for _ in 0..TRIES {
        if try_kill_at(run, point).await? {
            return Ok(());
        }
    }
    bail!("the point was found in the recorded run and is not reached in {TRIES} others")
}

/// Kills the provider at a point, starts it again, and holds the end against that of the recorded run; false
/// when it came there by other writes.
async fn try_kill_at(run: &Recording, point: Point) -> Result<bool> {
    let mut session = Session::new(run.backing, run.scenario).await?;
    let mut replica = session.provider.start(&session.world).await?;
    let standby = session.standby(&replica).await?;
    let gate = session.set_trap(point)?;
    session.begin().await?;
    let is_reached = session.reached(run, point, &gate, &replica).await;
    if !is_reached.context("the point was found in the recorded run and is not reached in this one")? {
        return Ok(false);
    }
    replica.process.kill();
    session.remove_trap()?;
    let _again = match standby {
        Some(standby) => standby,
        None => {
            session
                .provider
                .clone()
                .named("again")
                .start(&session.world)
                .await?
        }
    };
    eventually(DEADLINE, "the end of the recorded run", async || {
        let end = session.end().await?;
        ensure!(end == run.end, "{end} and not {}", run.end);
        Ok(())
    })
    .await?;
    if run.scenario != Scenario::Delete {
        session.clean_up().await?;
    }
    let left = session.own_vms()?;
    ensure!(left.is_empty(), "after the deletion there are {left:?}");
    Ok(true)
}

impl Recording {
    fn points(&self) -> Vec<Point> {
        let sides = [Side::Before, Side::After];
        let calls = (0..self.calls.len()).flat_map(|call| sides.map(|side| Point::Call(call, side)));
        let writes = (0..self.writes.len()).flat_map(|write| sides.map(|side| Point::Write(write, side)));
        calls.chain(writes).collect()
    }

    fn name(&self, point: Point) -> String {
        match point {
            Point::Call(call, side) => format!("{side:?} call {call}, {}", self.calls[call]),
            Point::Write(write, side) => format!("{side:?} write {write}, {}", self.writes[write]),
        }
    }
}
