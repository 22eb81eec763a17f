//! The provider: the real manager, as a process that may end at any time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use capcmi::driver::{CredentialsDirectory, Limits, Namespaces, Settings};
use capcmi::manager::{
    self, ApiServer, ControllerOptions, Diagnostics, Election, OrphanOptions, RuntimeExtension, Setup,
};
use capcmi::telemetry::metrics::Metrics;
use cmi_driver::Driver;
use cmi_simulated::SimulatedDriver;
use fake_apiserver::{Call, Fate};
use management_cluster::eventually;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::driver::Mortal;
use super::hooks::Hooks;
use super::{DEADLINE, Trap, World};

/// How a provider is started.
#[derive(Clone)]
pub struct Provider {
    drivers: String,
    options: ControllerOptions,
    election: Option<Election>,
    /// A trap for each start, unless the case has set one.
    trap: Option<Trap>,
    requests_meet: RequestsMeet,
}

/// Decides the fate of each request to the API server.
type RequestsMeet = Arc<dyn Fn(&Call) -> Fate + Send + Sync>;

/// A running provider. Dropping this kills it.
pub struct Replica {
    trap: Trap,
    metrics: Arc<Metrics>,
    hooks: Option<oneshot::Receiver<axum::Router>>,
    stop: Option<oneshot::Sender<()>>,
    run: JoinHandle<Result<(), manager::Error>>,
}

impl Provider {
    /// A provider with a drivers file from [`super::Cloud`].
    pub fn new(drivers: impl Into<String>) -> Self {
        Self {
            drivers: drivers.into(),
            options: ControllerOptions {
                namespace: None,
                watch_filter: None,
                machine_concurrency: 10,
                cluster_concurrency: 10,
                template_concurrency: 10,
                inventory_interval: Duration::from_secs(1),
                max_refreshed_machines: 1000,
                driver_unreachable_grace: Duration::from_secs(1),
                orphans: OrphanOptions::default(),
                remediation: true,
                volume_drain: true,
                reporter: "capcmi".to_owned(),
            },
            election: None,
            trap: None,
            requests_meet: Arc::new(|_| Fate::Served),
        }
    }

    /// Changes the options of the controllers.
    pub fn with(mut self, change: impl FnOnce(&mut ControllerOptions)) -> Self {
        change(&mut self.options);
        self
    }

    /// Makes it a replica that acts only while it leads.
    pub fn elected(mut self, election: Election) -> Self {
        self.election = Some(election);
        self
    }

    /// Makes it end at the trap's point.
    pub fn caught_in(mut self, trap: &Trap) -> Self {
        self.trap = Some(trap.clone());
        self
    }

    /// Lets `fate` decide about its requests to each API server, until the process ends.
    pub fn requests_meet(mut self, fate: impl Fn(&Call) -> Fate + Send + Sync + 'static) -> Self {
        self.requests_meet = Arc::new(fate);
        self
    }

    /// Starts the provider. It may not be ready when this returns.
    pub async fn start(&self, world: &World) -> Result<Replica> {
        let trap = self.trap.clone().unwrap_or_else(Trap::counting);
        let metrics = Arc::new(Metrics::new());
        let (take_hooks, hooks) = oneshot::channel();
        let on_request = {
            let (trap, requests_meet) = (trap.clone(), Arc::clone(&self.requests_meet));
            move |call: &Call| match trap.on_request(call) {
                Fate::Served => requests_meet(call),
                fate => fate,
            }
        };
        let setup = Setup {
            api_server: ApiServer::InProcess(world.management.service("provider", on_request.clone())),
            dial: world.dial(on_request),
            metrics: Arc::clone(&metrics),
            drivers: drivers(&self.drivers, world, &trap)?,
            election: self.election.clone(),
            options: self.options.clone(),
            health: TcpListener::bind("127.0.0.1:0").await?,
            diagnostics: Diagnostics::Off,
            runtime_extension: Some(RuntimeExtension::InProcess(take_hooks)),
            grace: Duration::from_secs(30),
        };
        let (stop, stopped) = oneshot::channel();
        let stopped = async move {
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        Ok(Replica {
            run: tokio::spawn(manager::run(setup, stopped)),
            trap,
            metrics,
            hooks: Some(hooks),
            stop: Some(stop),
        })
    }
}

impl Replica {
    /// Kills the provider: its started requests have no effect.
    pub fn kill(&mut self) {
        self.trap.kill();
        self.run.abort();
    }

    /// Asks the provider to stop, and waits for its end.
    pub async fn terminate(&mut self) -> Result<()> {
        if let Some(stop) = self.stop.take() {
            // If the provider has already ended, the next line reports it.
            let _ended = stop.send(());
        }
        (&mut self.run)
            .await
            .context("awaiting the manager")?
            .context("the manager failed")
    }

    /// Waits for the provider's end, and returns the reason.
    pub async fn ended(&mut self) -> Result<Result<(), manager::Error>> {
        (&mut self.run).await.context("awaiting the manager")
    }

    /// The trap of the provider.
    pub fn trap(&self) -> &Trap {
        &self.trap
    }

    /// The hooks of its Runtime Extension, for a single caller.
    pub async fn hooks(&mut self) -> Result<Hooks> {
        let hooks = self.hooks.take().context("the hooks were taken before")?;
        Ok(Hooks::new(hooks.await.context("the manager serves no hooks")?))
    }

    /// The content of `/metrics`.
    pub fn metrics(&self) -> String {
        self.metrics.encode()
    }

    /// The value of a metric, given its name with all labels.
    pub fn sample(&self, name: &str) -> Result<f64> {
        let text = self.metrics();
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
            .with_context(|| format!("no sample {name} in\n{text}"))?;
        value.trim().parse().with_context(|| format!("reading {name}"))
    }

    /// Waits until `/metrics` reports whether the driver `simulated` is reachable.
    pub async fn finds_driver_reachable(&self, reachable: bool) -> Result<()> {
        let value = u8::from(reachable);
        let line = format!(r#"capcmi_driver_reachable{{driver="simulated"}} {value}"#);
        eventually(DEADLINE, &line, async || {
            let metrics = self.metrics();
            ensure!(metrics.lines().any(|shown| shown == line), "{metrics}");
            Ok(())
        })
        .await
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The drivers of a drivers file, for a process that ends with this trap.
pub fn drivers(file: &str, world: &World, trap: &Trap) -> Result<Vec<(Settings, Arc<dyn Driver>)>> {
    let file: Value = serde_json::from_str(file).context("reading the drivers file")?;
    let entries = file["drivers"]
        .as_array()
        .context("the drivers file has no drivers")?;
    entries.iter().map(|entry| driver(entry, world, trap)).collect()
}

fn driver(entry: &Value, world: &World, trap: &Trap) -> Result<(Settings, Arc<dyn Driver>)> {
    let mut settings = Settings {
        name: String::new(),
        namespaces: Namespaces::All,
        limits: Limits::default(),
        credentials: None,
        create_settle_time: None,
    };
    let mut driver = None;
    for (key, value) in entry
        .as_object()
        .context("an entry of the drivers file is no object")?
    {
        match key.as_str() {
            "name" => settings.name = serde_json::from_value(value.clone())?,
            "credentials" => {
                let directory = serde_json::from_value(value["directory"].clone())?;
                settings.credentials = Some(CredentialsDirectory::new(directory));
            }
            "createSettleTime" => settings.create_settle_time = Some(duration(value)?),
            "namespaces" => settings.namespaces = Namespaces::Only(serde_json::from_value(value.clone())?),
            "maxConcurrentCalls" => {
                settings.limits.max_concurrent_calls = serde_json::from_value(value.clone())?;
            }
            "callsPerSecond" => settings.limits.calls_per_second = serde_json::from_value(value.clone())?,
            "burst" => settings.limits.burst = serde_json::from_value(value.clone())?,
            "timeouts" => {
                let all: BTreeMap<String, Value> = serde_json::from_value(value.clone())?;
                for (name, time) in all {
                    let timeouts = &mut settings.limits.timeouts;
                    if name == "default" {
                        timeouts.default = duration(&time)?;
                        continue;
                    }
                    let mut operations = cmi_driver::Operation::ALL.into_iter();
                    let named =
                        |operation: &cmi_driver::Operation| capcmi::driver::Timeouts::key(*operation) == name;
                    let operation = operations
                        .find(named)
                        .with_context(|| format!("`{name}` is no call"))?;
                    timeouts.by_operation.insert(operation, duration(&time)?);
                }
            }
            "simulated" => {
                let config = serde_json::from_value(value.clone()).context("reading `simulated`")?;
                let simulated = SimulatedDriver::with_clock(config, world.cloud_clock())?;
                driver = Some(Arc::new(simulated) as Arc<dyn Driver>);
            }
            "grpc" => {
                let endpoint = value["endpoint"].as_str().context("`grpc` has no endpoint")?;
                driver = Some(Arc::new(world.plugins.at(endpoint)));
            }
            other => bail!("the fast world does not know `{other}` of a drivers file"),
        }
    }
    let driver = driver.context("an entry has no driver")?;
    Ok((settings, Arc::new(Mortal::new(driver, trap.clone()))))
}

/// Reads `1s` or `1500ms`.
fn duration(value: &Value) -> Result<Duration> {
    let text = value.as_str().context("a duration is no text")?;
    cmi_grpc::cli::duration::parse(text).map_err(|error| anyhow::anyhow!("`{text}`: {error}"))
}
