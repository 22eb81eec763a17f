//! Watches the cloud and the API server during the soak.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use capcmi::api::conditions;
use capcmi::api::v1alpha1::InfraMachine;
use cmi_simulated::{Clock as _, Entry, Instant, WallClock};
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::ledger::{Ledger, Seen};
use crate::support::World;

/// How often the observer reads: often enough to see every deletion, since those take longer.
const LOOK: Duration = Duration::from_millis(250);
/// How long the API server may take to answer before it counts as down.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Watches until it is dropped.
pub struct Observer {
    seen: Arc<Mutex<Observations>>,
    task: JoinHandle<()>,
}

/// The observations so far.
#[derive(Default)]
pub struct Observations {
    /// The VMs.
    pub ledger: Ledger,
    /// The InfraMachines in the last answer.
    pub machines: Vec<Seen>,
    /// How often the InfraMachines were compared with the VMs.
    pub comparisons: usize,
    /// Violations of invariants.
    pub broken: Vec<String>,
}

impl Observer {
    /// Starts to watch the cloud with this journal, and the InfraMachines of the case.
    pub fn start(world: &World, journal: PathBuf) -> Self {
        let seen = Arc::<Mutex<Observations>>::default();
        let machines = Api::namespaced(world.admin.clone(), &world.namespace);
        let task = tokio::spawn(watch(machines, Journal::new(journal), Arc::clone(&seen)));
        Self { seen, task }
    }

    /// Reads the observations so far.
    pub fn observations<T>(&self, question: impl FnOnce(&Observations) -> T) -> T {
        question(&self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until the InfraMachines are compared with the VMs again.
    pub async fn observe_again(&self) {
        let before = self.observations(|observations| observations.comparisons);
        while self.observations(|observations| {
            observations.comparisons < before + 2 && observations.broken.is_empty()
        }) {
            sleep(LOOK).await;
        }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn watch(machines: Api<InfraMachine>, mut journal: Journal, seen: Arc<Mutex<Observations>>) {
    loop {
        let asked = WallClock.now();
        // The cloud is read even if the API server is down.
        let listed = timeout(TIMEOUT, machines.list(&ListParams::default())).await;
        let entries = journal.more();
        {
            let mut observations = seen.lock().unwrap_or_else(PoisonError::into_inner);
            match entries {
                Ok(entries) => {
                    for entry in entries {
                        let broken = observations.ledger.enter(&entry);
                        observations.broken.extend(broken);
                    }
                    if let Ok(Ok(list)) = listed {
                        observations.compare(asked, list.items.iter().map(seen_of).collect());
                    }
                }
                Err(error) => observations.broken.push(format!("{error:#}")),
            }
        }
        sleep(LOOK).await;
    }
}

impl Observations {
    fn compare(&mut self, asked: Instant, machines: Vec<Seen>) {
        let broken = self.ledger.compare(asked, &machines);
        self.broken.extend(broken);
        self.machines = machines;
        self.comparisons += 1;
    }
}

fn seen_of(machine: &InfraMachine) -> Seen {
    let status = machine.status.as_ref();
    let in_deletion = machine.metadata.deletion_timestamp.as_ref();
    Seen {
        name: machine.name_any(),
        in_deletion: in_deletion
            .and_then(|time| u64::try_from(time.0.as_millisecond()).ok())
            .map(Instant::from_millis),
        ready: status.is_some_and(|status| conditions::is_true(&status.conditions, conditions::READY)),
        provider_id: machine.spec.provider_id.clone(),
    }
}

/// The cloud's journal, and the offset of its unread part.
struct Journal {
    path: PathBuf,
    read: u64,
}

impl Journal {
    fn new(path: PathBuf) -> Self {
        Self { path, read: 0 }
    }

    /// The entries since the last call. An incomplete last line is not an entry: its writer was killed, or is
    /// not done.
    fn more(&mut self) -> Result<Vec<Entry>> {
        let mut text = Vec::new();
        let mut read = || -> std::io::Result<()> {
            let mut file = File::open(&self.path)?;
            file.seek(SeekFrom::Start(self.read))?;
            file.read_to_end(&mut text).map(drop)
        };
        match read() {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).context("reading the journal of the cloud"),
        }
        let whole = text
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1);
        self.read += u64::try_from(whole)?;
        let lines = text[..whole]
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty());
        lines
            .map(|line| serde_json::from_slice(line).context("reading an entry of the journal"))
            .collect()
    }
}
