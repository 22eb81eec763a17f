//! SIGTERM and SIGINT: the first signal begins a graceful stop, the second ends the process immediately.

use std::future::Future;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The exit code after a second signal.
const ABORTED: i32 = 130;

/// Returns a future that resolves at the first signal. A second signal ends the process immediately.
///
/// # Errors
/// The signal handlers cannot be installed.
pub fn asked_to_stop() -> io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        first(&mut terminate, &mut interrupt).await;
        tokio::spawn(async move {
            first(&mut terminate, &mut interrupt).await;
            tracing::warn!("second stop signal: aborting");
            std::process::exit(ABORTED);
        });
    })
}

async fn first(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
