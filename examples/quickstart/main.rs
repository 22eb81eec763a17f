//! A real Cluster API turns a MachineDeployment into Running Machines through this provider, on this computer
//! and without containers: `make quickstart`.
//!
//! The simulated driver creates the VMs. With `--driver libvirt`, guests boot on this computer instead.
//! With `--driver container`, it is a whole Cluster of system containers with a real control plane.
//!
//! In a terminal it shows a live table until Ctrl-C. Otherwise it prints a line for each change, checks the
//! result, and exits with 0 or 1.

mod backend;
mod checks;
mod container;
mod fleet;
mod libvirt;
mod scenario;
mod screen;
mod table;
mod whole_cluster;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use self::backend::{DriverKind, StandInDriver};
use self::screen::Screen;

/// How long an interrupted build may take to end.
const BUILD_GRACE: Duration = Duration::from_secs(10);

/// Brings up a MachineDeployment on a real Cluster API.
#[derive(Parser)]
struct Args {
    /// The driver that creates the VMs.
    #[arg(long, value_enum, default_value_t = DriverKind::Simulated)]
    driver: DriverKind,
    /// Print plain lines and end after the checks, as without a terminal.
    #[arg(long)]
    plain: bool,
}

/// How the quickstart ended.
enum End {
    /// It is done.
    Done,
    /// A signal such as Ctrl-C.
    Asked,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let screen = Screen::new(args.plain);
    let outcome = run(&screen, args.driver);
    match outcome {
        Ok(End::Done) => ExitCode::SUCCESS,
        // The exit code of a shell for a program that SIGINT ended.
        Ok(End::Asked) => ExitCode::from(130),
        Err(error) => {
            // eprintln! would panic if the terminal is closed.
            let _ = writeln!(std::io::stderr(), "quickstart: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(screen: &Screen, driver: DriverKind) -> Result<End> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?;
    let outcome = runtime.block_on(async {
        let asked = asked_to_end()?;
        let mut scenario = Box::pin(bring_up(screen, driver));
        let outcome = tokio::select! {
            () = asked => Ok(End::Asked),
            outcome = &mut scenario => outcome.map(|()| End::Done),
        };
        screen.close();
        if !matches!(outcome, Ok(End::Done)) {
            screen.say("ending everything that was started");
        }
        // Ends every program and removes the folder.
        drop(scenario);
        outcome
    });
    runtime.shutdown_timeout(BUILD_GRACE);
    outcome
}

async fn bring_up(screen: &Screen, driver: DriverKind) -> Result<()> {
    match driver {
        DriverKind::Simulated => scenario::run(screen, StandInDriver::Simulated).await,
        DriverKind::Libvirt => scenario::run(screen, StandInDriver::Libvirt).await,
        DriverKind::Container => whole_cluster::run(screen).await,
    }
}

/// Completes at the first signal to end.
fn asked_to_end() -> Result<impl Future<Output = ()>> {
    let listen = |kind| signal(kind).context("listening for signals");
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}
