//! The costs of a fleet that comes up, idles, is relisted, and has its provider restarted, compared with the
//! floors.

use std::time::{Duration, Instant};

use anyhow::Result;
use management_cluster::ManagementCluster;

use super::cloud::{Cloud, Place};
use super::floor::{self, Kind};
use super::http2::Connection;
use super::machines::Fleet;
use super::measure::{self, ControlPlane, Measured, Requests, Usage};
use super::report::{Report, Rest, Row, Run};
use super::{Args, WINDOW, provider, window};

/// How long nothing may be written until everything counts as done.
const QUIET: Duration = Duration::from_secs(1);
/// How long an Event may come after its cause.
const EVENTS_DEADLINE: Duration = Duration::from_mins(1);

/// A management cluster with machines for one provider.
pub struct Bench {
    /// The management cluster.
    pub management: ManagementCluster,
    /// The cloud.
    pub cloud: Cloud,
    /// The machines.
    pub fleet: Fleet,
    admin: kube::Client,
    control_plane: ControlPlane,
    size: usize,
}

/// The subject of a measurement.
#[derive(Clone, Copy)]
enum Contestant {
    Floor(Kind),
    Provider(Place),
}

impl Contestant {
    const fn name(self) -> &'static str {
        match self {
            Self::Floor(kind) => kind.name(),
            Self::Provider(place) => place.provider(),
        }
    }

    async fn run(self, args: &Args, size: usize) -> Result<Run> {
        match self {
            Self::Floor(kind) => of_floor(args, kind, size).await,
            Self::Provider(place) => of_provider(place, size).await,
        }
    }
}

/// Measures all contestants at all sizes. Each round starts with another contestant, since the speed of a
/// computer changes over time.
pub async fn measure(args: &Args) -> Result<()> {
    let floors = Kind::ALL.map(Contestant::Floor);
    let providers = args.places.iter().copied().map(Contestant::Provider);
    let contestants: Vec<_> = floors.into_iter().chain(providers).collect();
    for size in &args.sizes {
        let mut rows: Vec<_> = contestants
            .iter()
            .map(|contestant| Row {
                what: contestant.name().to_owned(),
                runs: Vec::new(),
            })
            .collect();
        for round in 0..args.rounds(*size) {
            for position in 0..contestants.len() {
                let index = (round + position) % contestants.len();
                rows[index].runs.push(contestants[index].run(args, *size).await?);
                print_progress(round + 1, &rows[index]);
            }
        }
        let floors = floors.len();
        println!("{}", Report { rows, floors });
        println!("{}", measure::simulated_cloud(*size)?);
    }
    Ok(())
}

/// Prints the progress.
fn print_progress(round: usize, row: &Row) {
    if let Some(run) = row.runs.last() {
        eprintln!(
            "round {round}: {}: {} machines in {:.1} s, {:.2} s of CPU",
            row.what,
            run.size,
            run.took.as_secs_f64(),
            run.usage.cpu.as_secs_f64()
        );
    }
}

async fn of_floor(args: &Args, kind: Kind, size: usize) -> Result<Run> {
    let size = size.min(args.floor_machines);
    let management = provider::management_cluster().await?;
    let admin = management.admin_client().await?;
    let fleet = Fleet::found(&management, "floor", None).await?;
    fleet.create(&management, "m", size).await?;
    let control_plane = ControlPlane::of(&management)?;
    let (before, requests) = (control_plane.usage()?, Requests::read(&admin).await?);
    let mut floor = floor::start(&management, kind, &fleet.namespace).await?;
    let started = Instant::now();
    floor.has(fleet.provisioned(&admin, size)).await?;
    let took = started.elapsed();
    settled(&admin, &requests, size).await?;
    let usage = floor.usage()?;
    let control_plane = since(control_plane.usage()?, before);
    floor.process.kill();
    Ok(Run {
        size,
        took,
        usage,
        control_plane,
        requests: Requests::read(&admin).await?.since(&requests),
        ..Run::default()
    })
}

async fn of_provider(place: Place, size: usize) -> Result<Run> {
    let bench = Bench::set(place, size).await?;
    let (run, _) = bench.run(&[]).await?;
    Ok(run)
}

impl Bench {
    /// Prepares machines that have no provider yet.
    pub async fn set(place: Place, size: usize) -> Result<Self> {
        let management = provider::management_cluster().await?;
        let cloud = Cloud::start(&management, place, false).await?;
        let fleet = Fleet::found(&management, "capcmi", None).await?;
        let started = Instant::now();
        fleet.create(&management, "m", size).await?;
        eprintln!("{size} machines made in {:.1} s", started.elapsed().as_secs_f64());
        Ok(Self {
            admin: management.admin_client().await?,
            control_plane: ControlPlane::of(&management)?,
            management,
            cloud,
            fleet,
            size,
        })
    }

    /// Measures a provider while its machines come up, while it idles, and while its API server restarts.
    /// Then restarts and measures the provider. Returns the restarted provider, too.
    pub async fn run(&self, flags: &[&str]) -> Result<(Run, Measured)> {
        let (mut replica, mut run) = self.come_up(flags).await?;
        self.join().await?;
        run.rest.push(self.idle(&replica).await?);
        run.rest.push(self.relist(&mut replica).await?);
        replica.process.kill();
        let (restarted, replica) = self.restart(flags).await?;
        run.rest.push(restarted);
        Ok((run, replica))
    }

    /// Measures a provider until its machines are up.
    pub async fn come_up(&self, flags: &[&str]) -> Result<(Measured, Run)> {
        let before = self.control_plane.usage()?;
        let plugin = self.cloud.plugin.as_ref().map(Measured::usage).transpose()?;
        let requests = Requests::read(&self.admin).await?;
        let mut replica =
            provider::start(&self.management, "capcmi", &self.cloud, &self.fleet, flags).await?;
        let started = Instant::now();
        replica
            .has(self.fleet.provisioned(&self.admin, self.size))
            .await?;
        let took = started.elapsed();
        settled(&self.admin, &requests, self.size).await?;
        let plugin = match (&self.cloud.plugin, plugin) {
            (Some(process), Some(before)) => Some(process.usage()?.since(before)),
            _ => None,
        };
        let run = Run {
            size: self.size,
            took,
            usage: replica.usage()?,
            plugin,
            control_plane: since(self.control_plane.usage()?, before),
            requests: Requests::read(&self.admin).await?.since(&requests),
            driver_calls: Some(replica.driver_calls().await?),
            rest: Vec::new(),
        };
        Ok((replica, run))
    }

    /// Gives all Machines Nodes. Otherwise, the provider reports after some minutes that they have none.
    pub async fn join(&self) -> Result<()> {
        let connection = Connection::open(self.management.admin_kubeconfig()).await?;
        self.fleet.join_nodes(&connection, 0..self.size).await
    }

    /// Measures an idle provider.
    async fn idle(&self, replica: &Measured) -> Result<Rest> {
        let (requests, usage) = (Requests::read(&self.admin).await?, replica.usage()?);
        let calls = replica.driver_calls().await?;
        let window = window(self.size);
        tokio::time::sleep(window).await;
        Ok(Rest {
            what: "idle",
            window,
            usage: replica.usage()?.since(usage),
            requests: Requests::read(&self.admin).await?.since(&requests),
            driver_calls: replica.driver_calls().await?.saturating_sub(calls),
        })
    }

    /// Measures a provider whose API server restarts. The API server has no state of the old watches, so the
    /// provider relists everything. The measurement ends some time after a new machine is up.
    async fn relist(&self, replica: &mut Measured) -> Result<Rest> {
        let (calls, reconciles) = (replica.driver_calls().await?, replica.reconciles().await?);
        self.management.kill_api_server().await;
        self.management.start_api_server().await?;
        // The restarted API server counts from zero.
        let (usage, requests) = (replica.usage()?, Requests::read(&self.admin).await?);
        replica.forget_peak()?;
        let started = Instant::now();
        self.fleet.create(&self.management, "late", 1).await?;
        replica
            .has(self.fleet.provisioned(&self.admin, self.size + 1))
            .await?;
        let provisioned = started.elapsed();
        tokio::time::sleep(WINDOW).await;
        eprintln!(
            "listed anew: {} reconciles; a machine that was made meanwhile is up after {:.1} s",
            replica.reconciles().await?.saturating_sub(reconciles),
            provisioned.as_secs_f64()
        );
        Ok(Rest {
            what: "relist",
            window: provisioned,
            usage: replica.usage()?.since(usage),
            requests: Requests::read(&self.admin).await?.since(&requests),
            driver_calls: replica.driver_calls().await?.saturating_sub(calls),
        })
    }

    /// Measures a provider that starts when all machines are up. The measurement ends some time after it has
    /// reconciled all of them.
    async fn restart(&self, flags: &[&str]) -> Result<(Rest, Measured)> {
        let requests = Requests::read(&self.admin).await?;
        let started = Instant::now();
        let mut replica =
            provider::start(&self.management, "restarted", &self.cloud, &self.fleet, flags).await?;
        provider::looked_at(&mut replica, self.size + 1).await?;
        let looked_at = started.elapsed();
        tokio::time::sleep(window(self.size)).await;
        let rest = Rest {
            what: "restart",
            window: looked_at,
            usage: replica.usage()?,
            requests: Requests::read(&self.admin).await?.since(&requests),
            driver_calls: replica.driver_calls().await?,
        };
        Ok((rest, replica))
    }
}

/// Waits until every machine has its Event, the last write of a machine, and nothing is written for a while.
/// If a contestant writes fewer Events, the counts show it.
pub async fn settled(admin: &kube::Client, since: &Requests, size: usize) -> Result<()> {
    let begun = Instant::now();
    let mut before = Requests::read(admin).await?;
    loop {
        tokio::time::sleep(QUIET).await;
        let now = Requests::read(admin).await?;
        let has_all = usize::try_from(now.since(since).events).is_ok_and(|events| events >= size);
        if now.writes() == before.writes() && (has_all || begun.elapsed() > EVENTS_DEADLINE) {
            return Ok(());
        }
        before = now;
    }
}

/// Returns the usage of two processes since an earlier one.
pub fn since(now: [Usage; 2], before: [Usage; 2]) -> [Usage; 2] {
    [now[0].since(before[0]), now[1].since(before[1])]
}
