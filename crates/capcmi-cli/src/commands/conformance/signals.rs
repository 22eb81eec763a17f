//! SIGINT, SIGTERM and SIGHUP during a run. After the first signal, the run deletes its VMs and ends. The
//! second signal ends the process, which first names the remaining VMs.

use std::io;
use std::sync::{Arc, OnceLock};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::commands::PROGRAM;
use capcmi::manager::cli::terminal::print_error;
use cmi_conformance::{Ledger, leftover};

/// The exit code after a second signal.
const ABORTED: i32 = 130;

/// The signals that ask a run to end.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    /// Installs handlers, so that no signal kills the process.
    ///
    /// # Errors
    /// The handlers cannot be installed.
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Ends a run at the first signal, and the process at the second.
    pub(super) async fn end(mut self, stop: CancellationToken, ledger: Arc<OnceLock<Arc<Ledger>>>) {
        let left = || ledger.get().map(|ledger| ledger.left()).unwrap_or_default();
        self.next().await;
        let count = left().len();
        let text = format!(
            "stopping early: deleting up to {count} VMs first; a second signal skips that and prints their \
                names"
        );
        print_error(PROGRAM, &text);
        stop.cancel();
        self.next().await;
        for line in leftover::lines(&left()) {
            print_error(PROGRAM, &line);
        }
        std::process::exit(ABORTED);
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.hang_up.recv() => {}
        }
    }
}
