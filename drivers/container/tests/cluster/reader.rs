//! A client that reads through the control-plane endpoint all the time.

use std::{
    fmt,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, Config};
use tokio::{
    sync::oneshot::{self, error::TryRecvError},
    task::JoinHandle,
    time::{interval, timeout},
};

const INTERVAL: Duration = Duration::from_millis(100);
/// A read without an answer after this time has failed.
const PATIENCE: Duration = Duration::from_secs(1);

/// A running client.
pub struct Reader {
    stop: oneshot::Sender<()>,
    reads: JoinHandle<Result<Reads>>,
}

/// The reads of a client.
#[derive(Debug, Clone, Copy)]
pub struct Reads {
    /// The reads that were answered.
    pub answered: u32,
    /// The reads that were not.
    pub failed: u32,
    /// The longest time between two answers.
    pub longest_gap: Duration,
}

impl fmt::Display for Reads {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (answered, failed) = (self.answered, self.failed);
        let gap = self.longest_gap.as_secs_f64();
        write!(
            formatter,
            "{answered} reads answered, {failed} failed, longest gap {gap:.1} s"
        )
    }
}

impl Reader {
    /// Starts to read.
    pub fn start(config: Config) -> Self {
        let (stop, stopped) = oneshot::channel();
        let reads = tokio::spawn(read(config, stopped));
        Self { stop, reads }
    }

    /// Stops, and returns the reads.
    ///
    /// # Errors
    /// When no client can be made.
    pub async fn stop(self) -> Result<Reads> {
        // The receiver is gone only when the task has failed, which its result tells.
        let _ = self.stop.send(());
        self.reads.await.context("the reader ended")?
    }
}

async fn read(config: Config, mut stopped: oneshot::Receiver<()>) -> Result<Reads> {
    let mut reads = Reads {
        answered: 0,
        failed: 0,
        longest_gap: Duration::ZERO,
    };
    let mut client = Client::try_from(config.clone())?;
    let mut last = Instant::now();
    let mut ticks = interval(INTERVAL);
    while stopped.try_recv() == Err(TryRecvError::Empty) {
        ticks.tick().await;
        let namespaces = Api::<Namespace>::all(client.clone());
        if let Ok(Ok(_)) = timeout(PATIENCE, namespaces.get("default")).await {
            reads.answered += 1;
        } else {
            reads.failed += 1;
            // The connection may lead to a machine that is gone.
            client = Client::try_from(config.clone())?;
            continue;
        }
        reads.longest_gap = reads.longest_gap.max(last.elapsed());
        last = Instant::now();
    }
    reads.longest_gap = reads.longest_gap.max(last.elapsed());
    Ok(reads)
}
