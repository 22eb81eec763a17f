//! The platform: a folder with a file for each VM. `examples/drivers/hook.py` causes its faults.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cmi_driver::{Code, Readiness, Result, SecretValue, Status, tags};

use crate::Size;

/// The folder.
pub struct Cloud(PathBuf);

/// The content of a file.
#[derive(serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    pub id: String,
    pub machine: String,
    pub spec: Settings,
    #[serde(default)]
    pub is_off: bool,
    #[serde(default)]
    user_data: String,
    #[serde(default)]
    locked: bool,
}

/// The settings of an instance.
#[derive(serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    pub vm_pool: String,
    pub size: Size,
    pub root_fs_size: u32,
    pub tags: BTreeMap<String, String>,
}

impl Cloud {
    /// Makes the folder where it is missing.
    pub fn open(folder: PathBuf) -> io::Result<Self> {
        for name in ["vms", "faults"] {
            fs::create_dir_all(folder.join(name))?;
        }
        Ok(Self(folder))
    }

    pub fn readiness(&self) -> Result<Readiness> {
        if self.has("unhealthy") {
            return Err(Status::new(Code::FailedPrecondition, "the folder has a fault"));
        }
        let starts = self.has("starting");
        Ok(if starts {
            Readiness::NotReady
        } else {
            Readiness::Ready
        })
    }

    /// Returns the VMs of a cluster.
    pub async fn instances(&self, cluster: &str) -> Result<Vec<Instance>> {
        self.request().await?;
        let mut found = Vec::new();
        for entry in fs::read_dir(self.0.join("vms")).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let is_of = |instance: &Instance| {
                instance
                    .spec
                    .tags
                    .get(tags::CLUSTER)
                    .is_some_and(|tag| tag == cluster)
            };
            found.extend(read(&path)?.filter(is_of));
        }
        Ok(found)
    }

    /// Makes a VM, with its tags in the same request.
    pub async fn create(&self, name: &str, spec: Settings, data: Option<&SecretValue>) -> Result<Instance> {
        self.request().await?;
        if self.has("exhaust") {
            return Err(Status::new(
                Code::ResourceExhausted,
                "the folder has no room for a VM",
            ));
        }
        let made = Instance {
            id: format!("folder:///{}", uuid::Uuid::new_v4().simple()),
            machine: name.to_owned(),
            spec,
            is_off: false,
            user_data: BASE64_STANDARD.encode(data.map_or(&[][..], SecretValue::expose)),
            locked: false,
        };
        self.write(&made)?;
        self.changed()?;
        self.lose("loseCreate")?;
        Ok(made)
    }

    /// Deletes a VM, if it exists.
    pub async fn delete(&self, id: &str) -> Result<()> {
        if self.unlocked(id).await?.is_none() {
            return Ok(());
        }
        match fs::remove_file(self.file(id)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(error)),
            _ => {
                self.changed()?;
                self.lose("loseDelete")
            }
        }
    }

    /// Stops the guest of a VM.
    pub async fn stop(&self, id: &str) -> Result<()> {
        let Some(mut instance) = self.unlocked(id).await? else {
            return Ok(());
        };
        instance.is_off = true;
        self.write(&instance)?;
        self.changed()
    }

    /// Returns a VM that may be changed.
    async fn unlocked(&self, id: &str) -> Result<Option<Instance>> {
        self.request().await?;
        let found = read(&self.file(id))?;
        if found.as_ref().is_some_and(|instance| instance.locked) {
            return Err(Status::new(
                Code::FailedPrecondition,
                format!("VM {id} is locked"),
            ));
        }
        Ok(found)
    }

    /// The file of a VM, which no later VM has.
    fn file(&self, id: &str) -> PathBuf {
        self.0
            .join(format!("vms/{}.json", id.trim_start_matches("folder:///")))
    }

    /// Puts a file in its place whole.
    fn write(&self, instance: &Instance) -> Result<()> {
        let file = self.file(&instance.id);
        let unfinished = file.with_extension("unfinished");
        let text = serde_json::to_vec(instance)
            .map_err(io::Error::from)
            .map_err(failed)?;
        fs::write(&unfinished, text).map_err(failed)?;
        fs::rename(unfinished, file).map_err(failed)
    }

    /// Fails or waits, as a request to a platform that has a fault.
    async fn request(&self) -> Result<()> {
        if let Ok(milliseconds) = fs::read_to_string(self.0.join("faults/slow")) {
            let wait = milliseconds.trim().parse().unwrap_or_default();
            tokio::time::sleep(Duration::from_millis(wait)).await;
        }
        for (fault, code, message) in [
            ("unavailable", Code::Unavailable, "the folder can't be reached"),
            ("unknown", Code::Unknown, "the folder reports an unknown error"),
            ("internal", Code::Internal, "the folder contradicts itself"),
        ] {
            if self.has(fault) {
                return Err(Status::new(code, message));
            }
        }
        Ok(())
    }

    /// Counts a change.
    fn changed(&self) -> Result<()> {
        let changes = fs::File::options()
            .create(true)
            .append(true)
            .open(self.0.join("changes"));
        changes.and_then(|mut file| file.write_all(b".")).map_err(failed)
    }

    /// Loses an answer where it should.
    fn lose(&self, fault: &str) -> Result<()> {
        match fs::remove_file(self.0.join("faults").join(fault)) {
            Ok(()) => Err(Status::new(Code::Unavailable, "the folder's answer was lost")),
            Err(_) => Ok(()),
        }
    }

    fn has(&self, fault: &str) -> bool {
        self.0.join("faults").join(fault).exists()
    }
}

/// Reads a file; `None` when its VM was deleted since.
fn read(file: &Path) -> Result<Option<Instance>> {
    match fs::read(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        text => serde_json::from_slice(&text.map_err(failed)?)
            .map_err(io::Error::from)
            .map_err(failed),
    }
}

fn failed(error: io::Error) -> Status {
    Status::new(Code::Unknown, "cannot use the folder").with_source(error)
}
