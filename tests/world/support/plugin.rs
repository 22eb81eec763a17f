//! The simulated driver as a plugin that ends and comes back. `crates/capcmi-cli/tests/wire` tests the
//! connection and the protocol.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use cmi_driver::{
    Code, DeclaredCapabilities, Operation, PluginInfo, Readiness, Request, Status, forward_calls,
};
use cmi_simulated::SimulatedDriver;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::World;
use super::cloud::drivers_file;

/// The plugins of a world, by their endpoints.
#[derive(Clone, Default)]
pub struct Plugins(Arc<Mutex<BTreeMap<String, Connection>>>);

/// A plugin of a case.
pub struct Plugin {
    endpoint: String,
    config: Value,
    connection: Connection,
}

/// The connection of a provider to a plugin, which may be down.
#[derive(Clone, Default)]
pub struct Connection(watch::Sender<Process>);

#[derive(Clone, Default)]
struct Process {
    /// None while the process does not run.
    driver: Option<Arc<SimulatedDriver>>,
    starts: u64,
}

impl Plugins {
    /// Returns the connection to an endpoint, whether or not a plugin listens there.
    pub fn at(&self, endpoint: &str) -> Connection {
        self.0.lock().entry(endpoint.to_owned()).or_default().clone()
    }
}

impl Plugin {
    /// A plugin with this configuration of the simulated driver, which listens.
    pub fn start(world: &World, name: &str, config: &Value) -> Result<Self> {
        let endpoint = format!("memory:{name}");
        let mut plugin = Self {
            connection: world.plugins.at(&endpoint),
            config: config.clone(),
            endpoint,
        };
        plugin.listen(world)?;
        Ok(plugin)
    }

    /// Starts the process.
    pub fn listen(&mut self, world: &World) -> Result<()> {
        let config = serde_json::from_value(self.config.clone()).context("reading the configuration")?;
        let driver = Arc::new(SimulatedDriver::with_clock(config, world.cloud_clock())?);
        self.connection.0.send_modify(|process| {
            process.driver = Some(driver);
            process.starts += 1;
        });
        Ok(())
    }

    /// Kills the process: calls that run end with it, and their callers learn that.
    pub fn kill(&mut self) {
        self.connection.0.send_modify(|process| process.driver = None);
    }

    /// Sets the configuration for the next start.
    pub fn configure(&mut self, config: &Value) {
        self.config = config.clone();
    }

    /// A drivers file with this plugin, and further keys of the driver's entry.
    pub fn drivers(&self, entry: Value) -> String {
        drivers_file(json!({"grpc": {"endpoint": self.endpoint}}), entry)
    }
}

impl Connection {
    /// The driver and the number of its connection, if the plugin runs.
    fn connected(&self) -> cmi_driver::Result<(Arc<SimulatedDriver>, u64)> {
        let process = self.0.borrow().clone();
        let refused = || Status::new(Code::Unavailable, "connection refused").with_never_sent();
        Ok((process.driver.ok_or_else(refused)?, process.starts))
    }

    /// Makes a call. Its answer is lost when the plugin ends first.
    async fn through<T>(&self, call: impl Future<Output = cmi_driver::Result<T>>) -> cmi_driver::Result<T> {
        let starts = self.0.borrow().starts;
        let mut process = self.0.subscribe();
        let ends = process.wait_for(|process| process.driver.is_none() || process.starts != starts);
        tokio::select! {
            biased;
            _ = ends => Err(Status::new(Code::Unavailable, "connection reset")),
            answer = call => answer,
        }
    }

    async fn call<R: Request>(&self, request: R) -> cmi_driver::Result<R::Response> {
        let (driver, _) = self.connected()?;
        self.through(request.send(&*driver)).await
    }
}

forward_calls! {
    impl Driver for Connection {
        fn connection_generation(&self) -> u64 {
            self.0.borrow().starts
        }

        async fn prepare_call(&self, _operation: Operation) -> cmi_driver::Result<()> {
            self.connected().map(drop)
        }

        async fn get_plugin_info(&self) -> cmi_driver::Result<PluginInfo> {
            let (driver, _) = self.connected()?;
            self.through(driver.get_plugin_info()).await
        }

        async fn get_plugin_capabilities(&self) -> cmi_driver::Result<DeclaredCapabilities> {
            let (driver, connection_generation) = self.connected()?;
            let declared = self.through(driver.get_plugin_capabilities()).await?;
            Ok(DeclaredCapabilities { connection_generation, ..declared })
        }

        async fn probe(&self) -> cmi_driver::Result<Readiness> {
            let (driver, _) = self.connected()?;
            self.through(driver.probe()).await
        }
    }
}
