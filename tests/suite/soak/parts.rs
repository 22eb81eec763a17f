//! The processes that the soak kills, and starts again when their time has come.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::support::provider::Replica;
use crate::support::{Plugin, Provider, World};

/// What a provider ends with by itself when it may not act any more, or could not begin. Anything else is a
/// defect: it panicked, or was ended by a signal that the soak did not send.
const GAVE_UP: i32 = 1;
/// How long a replica that ended by itself stays away, as in a Pod that is started again.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the API server runs at least between two kills: Cluster API needs half a minute and more until it
/// acts again, and a soak in which it does nothing shows nothing.
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
    /// Replicas that ended by themselves.
    pub gave_up: usize,
}

enum Part<T> {
    Up(T),
    /// From when it may be started again.
    Due(Instant),
}

enum ApiServer {
    /// Since when.
    Up(Instant),
    Due(Instant),
    Starting(JoinHandle<Result<()>>),
}

impl Parts {
    /// The plugin and the API server run; the replicas are started with the first [`Parts::keep`].
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

    /// Starts what was killed and whose time has come.
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
                // A log for each life, so that what ends one is the end of a file.
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

    /// Kills a replica for so long; tells whether it led, or nothing when it did not run.
    pub async fn kill_replica(&mut self, index: usize, down: Duration) -> Option<bool> {
        let Part::Up(replica) = &self.replicas[index] else {
            return None;
        };
        let leads = timeout(PAUSE, replica.leads()).await;
        let led = leads.is_ok_and(|leads| leads.unwrap_or(false));
        self.replicas[index] = Part::Due(Instant::now() + down);
        Some(led)
    }

    /// Kills the plugin for so long; false when it did not run.
    pub fn kill_plugin(&mut self, down: Duration) -> bool {
        if self.plugin_due.is_some() {
            return false;
        }
        self.plugin.kill();
        self.plugin_due = Some(Instant::now() + down);
        true
    }

    /// Kills the API server for so long; false when it did not run, or not for long enough.
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
