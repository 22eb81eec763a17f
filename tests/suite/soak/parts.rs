//! The processes that the soak kills and restarts.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::support::provider::Replica;
use crate::support::{Plugin, Provider, World};

/// The exit code of a provider that stops because it lost its lease, or could not start. Any other end is a
/// defect: the provider panicked, or an unexpected signal ended it.
const GAVE_UP: i32 = 1;
/// How long a replica that stopped stays down, as in a Pod that restarts.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the API server runs at least between two kills. Cluster API needs more than half a minute until
/// it acts again, and without it a soak shows nothing.
const SPELL: Duration = Duration::from_secs(50);

/// Two replicas, a plugin and the API server.
pub struct Parts {
    world: World,
    provider: Provider,
    replicas: [Part<Replica>; 2],
    plugin: Plugin,
    plugin_due: Option<Instant>,
    api_server: ApiServer,
    starts: usize,
    /// Replicas that stopped without being killed.
    pub gave_up: usize,
}

enum Part<T> {
    Up(T),
    /// When it may be started again.
    Due(Instant),
}

enum ApiServer {
    /// Since when it runs.
    Up(Instant),
    Due(Instant),
    Starting(JoinHandle<Result<()>>),
}

impl Parts {
    /// The plugin and the API server already run. The first [`Parts::keep`] starts the replicas.
    pub fn new(world: &World, provider: Provider, plugin: Plugin) -> Self {
        let now = Instant::now();
        Self {
            world: world.clone(),
            provider,
            replicas: [Part::Due(now), Part::Due(now)],
            plugin,
            plugin_due: None,
            api_server: ApiServer::Up(now),
            starts: 0,
            gave_up: 0,
        }
    }

    /// Restarts the processes whose downtime is over.
    pub async fn keep(&mut self) -> Result<()> {
        let now = Instant::now();
        self.keep_api_server(now).await?;
        if self.plugin_due.is_some_and(|due| due <= now) {
            self.plugin
                .listen(&self.world)
                .await
                .context("starting the plugin")?;
            self.plugin_due = None;
        }
        for index in 0..self.replicas.len() {
            self.keep_replica(index, now).await?;
        }
        Ok(())
    }

    async fn keep_api_server(&mut self, now: Instant) -> Result<()> {
        match &mut self.api_server {
            ApiServer::Due(due) if *due <= now => {
                let management = self.world.management.clone();
                let start = tokio::spawn(async move { management.start_api_server().await });
                self.api_server = ApiServer::Starting(start);
            }
            ApiServer::Starting(start) if start.is_finished() => {
                start.await.context("starting the API server")??;
                self.api_server = ApiServer::Up(now);
            }
            ApiServer::Up(_) | ApiServer::Due(_) | ApiServer::Starting(_) => {}
        }
        Ok(())
    }

    async fn keep_replica(&mut self, index: usize, now: Instant) -> Result<()> {
        match &mut self.replicas[index] {
            Part::Up(replica) => {
                let Some(status) = replica.process.status()? else {
                    return Ok(());
                };
                if status.code() != Some(GAVE_UP) {
                    bail!(
                        "a replica ended with {status}: {}",
                        replica.process.log().display()
                    );
                }
                self.gave_up += 1;
                self.replicas[index] = Part::Due(now + PAUSE);
            }
            Part::Due(due) if *due <= now => {
                self.starts += 1;
                // Each start has its own log, so the end of the file shows why the replica stopped.
                let provider = self
                    .provider
                    .clone()
                    .named(&format!("replica-{index}-{:03}", self.starts));
                self.replicas[index] = Part::Up(provider.launch(&self.world).await?);
            }
            Part::Due(_) => {}
        }
        Ok(())
    }

    /// Kills a replica for this time. Returns whether it led, or `None` if it did not run.
    pub async fn kill_replica(&mut self, index: usize, down: Duration) -> Option<bool> {
        let Part::Up(replica) = &self.replicas[index] else {
            return None;
        };
        let leads = timeout(PAUSE, replica.leads()).await;
        let led = leads.is_ok_and(|leads| leads.unwrap_or(false));
        self.replicas[index] = Part::Due(Instant::now() + down);
        Some(led)
    }

    /// Kills the plugin for this time. Returns false if it did not run.
    pub fn kill_plugin(&mut self, down: Duration) -> bool {
        if self.plugin_due.is_some() {
            return false;
        }
        self.plugin.kill();
        self.plugin_due = Some(Instant::now() + down);
        true
    }

    /// Kills the API server for this time. Returns false if it did not run, or only for a short time.
    pub async fn kill_api_server(&mut self, down: Duration) -> bool {
        match self.api_server {
            ApiServer::Up(since) if since.elapsed() >= SPELL => {
                self.world.management.kill_api_server().await;
                self.api_server = ApiServer::Due(Instant::now() + down);
                true
            }
            ApiServer::Up(_) | ApiServer::Due(_) | ApiServer::Starting(_) => false,
        }
    }

    /// Whether the API server runs.
    pub fn has_api_server(&self) -> bool {
        matches!(self.api_server, ApiServer::Up(_))
    }
}
