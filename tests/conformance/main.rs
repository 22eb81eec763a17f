//! The conformance suite against the simulated driver, and against drivers that each break one rule.

// What can't be had fails the test, wherever it is.
#![allow(clippy::unwrap_used, clippy::panic)]

mod attribution;
mod command;
mod flaw;
mod go;
mod go_tls;
mod hooks;
mod identity;
mod intact;
mod interruption;
mod layers;
mod limited;
mod messages;
mod mutant;
mod mutants;
mod python;
mod restart;
mod restarted;
mod served;
mod sigstop;
mod tolerance;
mod variants;
mod wire;

use std::sync::Arc;

use capcmi::cli::conformance::simulated::Simulated;
use cmi_conformance::{Config, Report, Selection, Target, run};
use cmi_driver::Driver;
use tokio_util::sync::CancellationToken;

/// Runs the suite against a driver on the simulated cloud, which may hang.
async fn tested(simulated: &Simulated, driver: Arc<dyn Driver>, only: &[&str]) -> Report {
    tested_with(simulated, driver, only, |_| {}).await
}

/// The same of a driver that keeps the rules, however busy the computer is.
async fn tested_patiently(simulated: &Simulated, driver: Arc<dyn Driver>, only: &[&str]) -> Report {
    tested_with(simulated, driver, only, patiently).await
}

fn patiently(config: &mut Config) {
    config.call_seconds = 60.0;
    config.shut_down_seconds = 60.0;
}

async fn tested_with(
    simulated: &Simulated,
    driver: Arc<dyn Driver>,
    only: &[&str],
    change: impl FnOnce(&mut Config),
) -> Report {
    let mut config = simulated.config.clone();
    config.many_machines = Some(8);
    config.call_seconds = 2.0;
    config.shut_down_seconds = 1.0;
    change(&mut config);
    let target = Target::in_process("the driver", driver);
    let selection = Selection::only(only.iter().copied());
    let hooks = Arc::clone(&simulated.hooks);
    run(target, config, hooks, &selection, &(), CancellationToken::new())
        .await
        .unwrap()
}
