//! The drivers in `examples/drivers/python`, run as processes.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use futures::Stream;
use management_cluster::hollow_kubelet::{Guest, GuestEvent};
use management_cluster::{Process, RunFolder};
use serde_json::Value;
use tokio::net::TcpStream;

use crate::example_driver::{self, ExampleDriver};
use crate::guests::{LOOK, Seen};
use crate::provider::free_address;

const START_DEADLINE: Duration = Duration::from_mins(2);

/// The Python of the drivers' virtual environment. The first request creates it.
#[derive(Clone, Debug)]
pub struct Python {
    interpreter: PathBuf,
}

/// EC2 as moto serves it.
#[derive(Debug)]
pub struct Ec2 {
    /// `127.0.0.1:port`.
    pub address: String,
    /// The certificate authorities that the driver would trust if EC2 served with TLS.
    authorities: PathBuf,
    _process: Process,
}

/// `examples/drivers/python`.
pub fn python_drivers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/drivers/python")
}

/// The sources of the kit for drivers in Python, which are on `PYTHONPATH`.
pub fn python_kit() -> PathBuf {
    python_drivers().join("../../../sdk/python/src")
}

impl Python {
    /// Finds or makes the environment.
    ///
    /// # Errors
    /// When there is no fitting `python3`, or its packages can't be had.
    pub async fn find() -> Result<Self> {
        let folder = example_driver::prepare(&python_drivers().join("environment.sh")).await?;
        Ok(Self {
            interpreter: folder.join("bin/python"),
        })
    }

    /// The interpreter.
    pub fn interpreter(&self) -> &Path {
        &self.interpreter
    }

    /// The command that starts the minimal driver, with the fault layer of its kit and a folder for its back
    /// end; it lacks `CMI_ENDPOINT`.
    pub fn minimal_command(&self, cloud: &Path) -> Command {
        let mut command = Command::new(&self.interpreter);
        command
            .args(["-m", "cmitest"])
            .arg(python_drivers().join("minimal/driver.py"))
            .env("PYTHONPATH", python_kit())
            .env("CAPCMI_FAULTS", cloud.join("faults"))
            .env("MINIMAL_CLOUD", cloud);
        command
    }

    /// The command that starts the EC2 driver; it lacks `CMI_ENDPOINT`.
    pub fn ec2_driver_command(&self, ec2: &Ec2) -> Command {
        let mut command = Command::new(&self.interpreter);
        command
            .args(["-m", "ec2driver"])
            .env(
                "PYTHONPATH",
                [python_drivers().join("ec2"), python_kit()]
                    .map(|path| path.display().to_string())
                    .join(":"),
            )
            .env("AWS_CA_BUNDLE", &ec2.authorities)
            .env("AWS_REGION", "eu-central-1")
            .env("AWS_ENDPOINT_URL_EC2", format!("http://{}", ec2.address))
            // moto is never behind. The suite waits for as long after each VM that it makes.
            .env("EC2_DRIVER_CONSISTENCY_WINDOW_SECONDS", "0.05")
            .env("EC2_DRIVER_WAIT_TIMEOUT_SECONDS", "2");
        command
    }

    /// Starts the EC2 driver at a socket in the folder, and waits until it serves.
    ///
    /// # Errors
    /// When it ends instead, or takes too long.
    pub async fn ec2_driver(&self, folder: &RunFolder, name: &str, ec2: &Ec2) -> Result<ExampleDriver> {
        example_driver::serve(folder, name, self.ec2_driver_command(ec2)).await
    }

    /// Starts EC2, and waits until it answers.
    ///
    /// # Errors
    /// When it ends instead, or takes too long.
    pub async fn ec2(&self, folder: &RunFolder, name: &str) -> Result<Ec2> {
        let address = free_address()?;
        let authorities = folder.path().join(format!("{name}-authorities.pem"));
        let mut command = Command::new(&self.interpreter);
        command
            .current_dir(python_drivers().join("ec2/tests"))
            .args(["ec2_server.py", &address])
            .arg(&authorities);
        let mut process = Process::start(folder, name, &command)?;
        process
            .wait_until(START_DEADLINE, async || {
                TcpStream::connect(&address).await.is_ok()
            })
            .await?;
        Ok(Ec2 {
            address,
            authorities,
            _process: process,
        })
    }
}

/// A running instance, as the console of EC2 describes it.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ec2Guest {
    /// `aws:///zone/i-…`.
    pub provider_id: String,
    /// Its private DNS name.
    pub node_name: String,
    /// Its private address.
    pub address: String,
    /// Whether the network drops packets that are not from or to its address.
    pub source_dest_check: bool,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// Its user data, in base64.
    user_data: String,
}

impl Ec2Guest {
    fn guest(&self) -> Guest {
        Guest {
            provider_id: self.provider_id.clone(),
            node_name: self.node_name.clone(),
            // User data that is not base64 counts as empty, as at EC2.
            user_data: BASE64_STANDARD.decode(&self.user_data).unwrap_or_default(),
            addresses: vec![("InternalIP".to_owned(), self.address.clone())],
        }
    }
}

impl Ec2 {
    /// The instances that run.
    ///
    /// # Errors
    /// When the console does not answer.
    pub async fn instances(&self) -> Result<Vec<Ec2Guest>> {
        Ok(serde_json::from_value(self.console("guests").await?)?)
    }

    /// The events of the guests. The software in an instance is not part of moto.
    pub fn guests(self: &Arc<Self>) -> impl Stream<Item = GuestEvent> + Send + 'static {
        let start = (Arc::clone(self), Seen::default(), VecDeque::new());
        futures::stream::unfold(start, |(ec2, mut seen, mut events)| async move {
            loop {
                if let Some(event) = events.pop_front() {
                    return Some((event, (ec2, seen, events)));
                }
                if let Ok(running) = ec2.instances().await {
                    let running = running.into_iter().map(|vm| (vm.provider_id.clone(), vm));
                    events.extend(seen.events(&running.collect(), Ec2Guest::guest));
                }
                if events.is_empty() {
                    tokio::time::sleep(LOOK).await;
                }
            }
        })
    }

    /// Reads a page of moto's console; see `ec2_server.py` for its pages.
    ///
    /// # Errors
    /// When it does not answer, or not in JSON.
    pub async fn console(&self, what: &str) -> Result<Value> {
        let (code, body) = crate::get(&self.address, &format!("/console/{what}")).await?;
        ensure!(code == 200, "the console of EC2 answers {code}: {body}");
        serde_json::from_str(&body).with_context(|| format!("the console of EC2 says {body}"))
    }
}
