//! The provider as a separate process.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use management_cluster::{Process, eventually};
pub use testbed::get;
use testbed::{Launch, Launched};

use super::{DEADLINE, World};

/// How a provider is started.
#[derive(Clone)]
pub struct Provider {
    /// Name of the process in logs.
    pub name: String,
    /// The drivers file.
    pub drivers: String,
    /// Further flags.
    pub flags: Vec<String>,
    /// The kubeconfig for another way to the API server.
    pub kubeconfig: Option<PathBuf>,
}

/// A running provider.
pub struct Replica {
    /// The process.
    pub process: Process,
    /// `127.0.0.1:port` of /healthz and /readyz.
    pub health: String,
    /// `127.0.0.1:port` of /metrics, over HTTP.
    pub diagnostics: String,
    log: PathBuf,
}

impl Provider {
    /// A provider with the given `drivers:` entries.
    pub fn new(drivers: impl Into<String>) -> Self {
        Self {
            name: "provider".to_owned(),
            drivers: drivers.into(),
            flags: Vec::new(),
            kubeconfig: None,
        }
    }

    /// Sets the name in logs and files.
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Adds a flag.
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Uses another way to the API server.
    pub fn through(mut self, kubeconfig: PathBuf) -> Self {
        self.kubeconfig = Some(kubeconfig);
        self
    }

    /// Starts the provider, and waits until it is ready.
    pub async fn start(&self, world: &World) -> Result<Replica> {
        let mut replica = self.launch(world).await?;
        let health = replica.health.clone();
        replica
            .process
            .wait_until(DEADLINE, async || {
                get(&health, "/readyz").await.is_ok_and(|(code, _)| code == 200)
            })
            .await?;
        Ok(replica)
    }

    /// Starts the provider.
    pub async fn launch(&self, world: &World) -> Result<Replica> {
        let drivers = world.folder.join(format!("{}-drivers.yaml", self.name));
        std::fs::write(&drivers, &self.drivers).context("writing the drivers file")?;
        let kubeconfig = match &self.kubeconfig {
            Some(path) => path.clone(),
            None => service_account(world).await?,
        };
        let mut flags = vec![format!("--namespace={}", world.namespace)];
        let defaults = [
            "--insecure-diagnostics",
            "--inventory-interval=1s",
            "--driver-unreachable-grace=1s",
            "--log-level=debug",
        ];
        let is_given = |flag: &&str| self.flags.iter().any(|given| name_of(given) == name_of(flag));
        flags.extend(
            defaults
                .iter()
                .filter(|flag| !is_given(flag))
                .map(|&flag| flag.to_owned()),
        );
        flags.extend(self.flags.iter().cloned());
        let launch = Launch {
            binary: env!("CARGO_BIN_EXE_capcmi-manager").into(),
            name: format!("{}-{}", world.namespace, self.name),
            drivers,
            kubeconfig,
            flags,
        };
        let Launched {
            process,
            health,
            diagnostics,
        } = launch.start(&world.management)?;
        let log = process.log().to_owned();
        Ok(Replica {
            process,
            health,
            diagnostics,
            log,
        })
    }
}

impl Replica {
    /// The log of the provider.
    pub fn log(&self) -> Result<String> {
        std::fs::read_to_string(&self.log).context("reading the provider's log")
    }

    /// The content of /metrics.
    pub async fn metrics(&self) -> Result<String> {
        let (code, body) = get(&self.diagnostics, "/metrics").await?;
        ensure!(code == 200, "/metrics answered {code}: {body}");
        Ok(body)
    }

    /// Waits until /metrics reports whether the driver `simulated` is reachable.
    pub async fn finds_driver_reachable(&self, reachable: bool) -> Result<()> {
        let value = u8::from(reachable);
        let line = format!(r#"capcmi_driver_reachable{{driver="simulated"}} {value}"#);
        eventually(DEADLINE, &line, async || {
            let metrics = self.metrics().await?;
            ensure!(metrics.lines().any(|shown| shown == line), "{metrics}");
            Ok(())
        })
        .await
    }

    /// Whether /metrics reports that it leads.
    pub async fn leads(&self) -> Result<bool> {
        let metrics = self.metrics().await?;
        Ok(metrics.lines().any(|line| line == "capcmi_leader 1"))
    }
}

/// The kubeconfig of the shipped ServiceAccount.
pub async fn service_account(world: &World) -> Result<PathBuf> {
    testbed::service_account(&world.management).await
}

fn name_of(flag: &str) -> &str {
    flag.split('=').next().unwrap_or_default()
}
