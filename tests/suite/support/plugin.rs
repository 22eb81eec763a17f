//! The simulated driver as a plugin: a separate process that the provider calls over gRPC.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use management_cluster::Process;
use serde_json::{Value, json};
use testbed::free_address;
use tokio::net::{TcpStream, UnixStream};

use super::authority::{CertificateFiles, PLUGIN};
use super::cloud::drivers_file;
use super::{DEADLINE, World};

/// A plugin of a case. It ends with its case.
pub struct Plugin {
    name: String,
    place: Place,
    config: PathBuf,
    flags: Vec<String>,
    process: Option<Process>,
}

/// The plugin's address.
enum Place {
    Socket(PathBuf),
    Tls(String, CertificateFiles),
}

impl Plugin {
    /// Starts a plugin with this configuration of the simulated driver, and waits until it listens.
    pub async fn start(world: &World, name: &str, config: &Value) -> Result<Self> {
        let mut plugin = Self::absent(world, name, config)?;
        plugin.listen(world).await?;
        Ok(plugin)
    }

    /// Like [`Plugin::start`], but without starting the process.
    pub fn absent(world: &World, name: &str, config: &Value) -> Result<Self> {
        let socket = Place::Socket(world.folder.join(format!("{name}.sock")));
        Self::at(world, socket, name, config)
    }

    /// Like [`Plugin::start`], behind TLS with the certificates in the folder of the case.
    pub async fn secured(world: &World, name: &str, config: &Value) -> Result<Self> {
        let place = Place::Tls(free_address()?, CertificateFiles::of(&world.folder));
        let mut plugin = Self::at(world, place, name, config)?;
        plugin.listen(world).await?;
        Ok(plugin)
    }

    fn at(world: &World, place: Place, name: &str, config: &Value) -> Result<Self> {
        let plugin = Self {
            name: format!("{}-{name}-plugin", world.namespace),
            place,
            config: world.folder.join(format!("{name}-plugin.yaml")),
            flags: Vec::new(),
            process: None,
        };
        plugin.configure(config)?;
        Ok(plugin)
    }

    /// Adds a flag for the next start.
    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    /// Starts the process and waits until it listens.
    pub async fn listen(&mut self, world: &World) -> Result<()> {
        let mut command = Command::new(testbed::program("capcmi")?);
        command
            .args(["driver", "serve", "simulated"])
            .arg(format!("--endpoint={}", self.endpoint()))
            .arg(format!("--config={}", self.config.display()))
            .args(self.place.flags())
            .args(&self.flags);
        let mut process = Process::start(world.management.folder(), &self.name, &command)?;
        process
            .wait_until(DEADLINE, async || self.place.answers().await)
            .await?;
        self.process = Some(process);
        Ok(())
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Writes the configuration for the next start.
    pub fn configure(&self, config: &Value) -> Result<()> {
        std::fs::write(&self.config, config.to_string()).context("writing the plugin's configuration")
    }

    /// The log since the last start.
    pub fn log(&self) -> Result<String> {
        let process = self.process.as_ref().context("the plugin does not run")?;
        std::fs::read_to_string(process.log()).context("reading the plugin's log")
    }

    /// The plugin's address.
    pub fn endpoint(&self) -> String {
        match &self.place {
            Place::Socket(path) => format!("unix://{}", path.display()),
            Place::Tls(address, _) => format!("tls://{address}"),
        }
    }

    /// A drivers file with this plugin, and further keys of the driver's entry.
    pub fn drivers(&self, entry: Value) -> String {
        let mut grpc = json!({"endpoint": self.endpoint()});
        if let Place::Tls(_, files) = &self.place {
            let (certificate, key) = &files.provider;
            grpc["tls"] = json!({
                "caFile": files.authority, "certFile": certificate, "keyFile": key, "serverName": PLUGIN,
            });
        }
        drivers_file(json!({"grpc": grpc}), entry)
    }
}

impl Place {
    fn flags(&self) -> Vec<String> {
        match self {
            Self::Socket(_) => Vec::new(),
            Self::Tls(_, files) => vec![
                format!("--tls-cert-file={}", files.plugin.0.display()),
                format!("--tls-key-file={}", files.plugin.1.display()),
                format!("--client-ca-file={}", files.authority.display()),
            ],
        }
    }

    /// Whether the plugin listens.
    async fn answers(&self) -> bool {
        match self {
            Self::Socket(path) => UnixStream::connect(path).await.is_ok(),
            Self::Tls(address, _) => TcpStream::connect(address).await.is_ok(),
        }
    }
}
