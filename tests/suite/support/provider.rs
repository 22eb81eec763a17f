//! The provider as a process of its own.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use management_cluster::Process;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

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
    /// The way to the API server, where it is not the direct one.
    pub kubeconfig: Option<PathBuf>,
}

/// A provider that runs.
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

    /// Called something else in logs and files.
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }

    /// With another flag.
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Reaches the API server another way.
    pub fn through(mut self, kubeconfig: PathBuf) -> Self {
        self.kubeconfig = Some(kubeconfig);
        self
    }

    /// The flags of these that no case has given a value of its own.
    fn unless_given<'a>(&self, defaults: &[&'a str]) -> Vec<&'a str> {
        let name = |flag: &str| flag.split('=').next().unwrap_or_default().to_owned();
        let is_given = |flag: &&str| self.flags.iter().any(|given| name(given) == name(flag));
        defaults.iter().copied().filter(|flag| !is_given(flag)).collect()
    }

    /// Starts it and waits until it is ready.
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

    /// Starts it.
    pub async fn launch(&self, world: &World) -> Result<Replica> {
        let drivers = world.folder.join(format!("{}-drivers.yaml", self.name));
        std::fs::write(&drivers, &self.drivers).context("writing the drivers file")?;
        let kubeconfig = match &self.kubeconfig {
            Some(path) => path.clone(),
            None => service_account(world).await?,
        };
        let (health, diagnostics) = (free_address()?, free_address()?);
        let mut command = Command::new(env!("CARGO_BIN_EXE_capcmi"));
        command
            .arg("run")
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--drivers-config={}", drivers.display()))
            .arg(format!("--namespace={}", world.namespace))
            .arg(format!("--health-addr={health}"))
            .arg(format!("--diagnostics-address={diagnostics}"))
            .args(self.unless_given(&[
                "--insecure-diagnostics",
                "--inventory-interval=1s",
                "--log-level=debug",
            ]))
            .args(&self.flags);
        let name = format!("{}-{}", world.namespace, self.name);
        let process = Process::start(world.management.folder(), &name, &command)?;
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
    /// All that it has logged.
    pub fn log(&self) -> Result<String> {
        std::fs::read_to_string(&self.log).context("reading the provider's log")
    }

    /// What it says at /metrics.
    pub async fn metrics(&self) -> Result<String> {
        let (code, body) = get(&self.diagnostics, "/metrics").await?;
        ensure!(code == 200, "/metrics answered {code}: {body}");
        Ok(body)
    }
}

/// The kubeconfig of the shipped ServiceAccount.
pub async fn service_account(world: &World) -> Result<PathBuf> {
    world
        .management
        .kubeconfig_for_service_account("capcmi-system", "capcmi-manager")
        .await
}

fn free_address() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").context("looking for a free port")?;
    Ok(listener.local_addr()?.to_string())
}

/// A GET over plain HTTP.
pub async fn get(address: &str, path: &str) -> Result<(u16, String)> {
    let exchange = async {
        let mut stream = tokio::net::TcpStream::connect(address).await?;
        stream
            .write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes())
            .await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    let answer = tokio::time::timeout(Duration::from_secs(10), exchange).await??;
    let code = answer.split(' ').nth(1).context("no status line")?.parse()?;
    Ok((
        code,
        answer
            .split_once("\r\n\r\n")
            .map_or_else(String::new, |(_, body)| body.to_owned()),
    ))
}
