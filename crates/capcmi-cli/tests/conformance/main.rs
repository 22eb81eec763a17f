//! Tests the conformance suite on the simulated driver, and on drivers that each break one rule.

// A missing precondition fails the test.
#![allow(clippy::unwrap_used, clippy::panic)]

mod attribution;
mod command;
mod flaw;
mod go;
mod go_kit;
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
mod python_kit;
mod recorder;
mod restart;
mod restarted;
mod rust_kit;
mod served;
mod sigstop;
mod tolerance;
mod variants;
mod wire;

use std::future::Future;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use capcmi_cli::commands::conformance::simulated::Simulated;
use cmi_conformance::{Config, Report, Selection, Target, run};
use cmi_driver::Driver;
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;

/// Runs the test with each item on a separate paused clock, which jumps to the next timer when the runtime is
/// idle. Tests as many items concurrently as there are processors.
fn for_each<I: Sync, T: Send, F: Future<Output = T>>(items: &[I], test: impl Fn(&I) -> F + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let work = || {
        let items = std::iter::from_fn(|| items.get(next.fetch_add(1, Ordering::Relaxed)));
        let runtime = || {
            Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
        };
        items
            .map(|item| runtime().unwrap().block_on(test(item)))
            .collect::<Vec<_>>()
    };
    thread::scope(|scope| {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let workers: Vec<_> = (0..processors).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap())
            .collect()
    })
}

/// Runs the suite against a driver on the simulated cloud. The driver may hang.
async fn tested(simulated: &Simulated, driver: Arc<dyn Driver>, only: &[&str]) -> Report {
    tested_with(simulated, driver, only, |_| {}).await
}

/// Tests a driver that keeps the rules, in a test that may run in real time on a busy computer.
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
