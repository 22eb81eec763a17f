//! The platform: a folder with a file for each VM, in place of the client of yours. The faults are those of
//! `examples/drivers/hook.py`.

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cmi_driver::{
    Code, ListedMachine, Machine, MachineKey, ProviderId, Readiness, Result, SecretValue, Status, tags,
};

use crate::Spec;

/// The folder.
pub struct Cloud(PathBuf);

/// The content of a file.
#[derive(Clone, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Vm {
    pub id: String,
    pub machine: String,
    pub spec: Spec,
    #[serde(default)]
    user_data: String,
    #[serde(default)]
    locked: bool,
}

impl Vm {
    /// Whether the VM belongs to the machine, and not only has its name.
    pub fn is_of(&self, key: &MachineKey, asked: Option<&ProviderId>) -> bool {
        key.owns(&self.spec.tags, &self.id, asked)
    }

    /// The VM in the terms of the driver contract.
    pub fn machine(&self) -> Result<Machine> {
        Ok(Machine::new(self.provider_id()?, self.machine.clone()))
    }

    /// The VM in a list, with its owner.
    pub fn listed(&self) -> Result<ListedMachine> {
        let mut listed = ListedMachine::new(self.provider_id()?, self.machine.clone());
        listed.cluster_id = self.spec.tags.get(tags::CLUSTER).cloned();
        listed.machine_id = self.spec.tags.get(tags::MACHINE).cloned();
        Ok(listed)
    }

    fn provider_id(&self) -> Result<ProviderId> {
        let invalid = |error| Status::new(Code::Internal, "a VM has an invalid id").with_source(error);
        self.id.parse().map_err(invalid)
    }

    /// The name of the file, which no later VM has.
    fn file(&self) -> String {
        format!("vms/{}.json", self.id.trim_start_matches("folder:///"))
    }
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
    pub async fn vms(&self, cluster: &str) -> Result<Vec<Vm>> {
        self.request().await?;
        let mut found = Vec::new();
        for entry in fs::read_dir(self.0.join("vms")).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let text = match fs::read(path) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue, // deleted since
                text => text.map_err(failed)?,
            };
            let vm: Vm = serde_json::from_slice(&text)
                .map_err(io::Error::from)
                .map_err(failed)?;
            if vm.spec.tags.get(tags::CLUSTER).is_some_and(|tag| tag == cluster) {
                found.push(vm);
            }
        }
        Ok(found)
    }

    /// Makes a VM, with its tags in the same request.
    pub async fn create(&self, key: &MachineKey, spec: Spec, data: Option<&SecretValue>) -> Result<Vm> {
        self.request().await?;
        if self.has("exhaust") {
            return Err(Status::new(
                Code::ResourceExhausted,
                "the folder has no room for a VM",
            ));
        }
        let vm = Vm {
            id: format!("folder:///{}", uuid::Uuid::new_v4().simple()),
            machine: key.name.clone(),
            spec,
            user_data: BASE64_STANDARD.encode(data.map_or(&[][..], SecretValue::expose)),
            locked: false,
        };
        let unfinished = self.0.join(vm.file()).with_extension("unfinished");
        let text = serde_json::to_vec(&vm).map_err(io::Error::from).map_err(failed)?;
        fs::write(&unfinished, text).map_err(failed)?;
        fs::rename(unfinished, self.0.join(vm.file())).map_err(failed)?;
        self.changed("loseCreate")?;
        Ok(vm)
    }

    /// Deletes a VM. One that is gone is no error.
    pub async fn delete(&self, vm: &Vm) -> Result<()> {
        self.request().await?;
        if vm.locked {
            return Err(Status::new(
                Code::FailedPrecondition,
                format!("VM {} is locked", vm.id),
            ));
        }
        match fs::remove_file(self.0.join(vm.file())) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(error)),
            _ => self.changed("loseDelete"),
        }
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

    /// Counts a change, and loses its answer where it should.
    fn changed(&self, lost: &str) -> Result<()> {
        let changes = fs::File::options()
            .create(true)
            .append(true)
            .open(self.0.join("changes"));
        changes
            .and_then(|mut file| file.write_all(b"."))
            .map_err(failed)?;
        if fs::remove_file(self.0.join("faults").join(lost)).is_ok() {
            return Err(Status::new(Code::Unavailable, "the folder's answer was lost"));
        }
        Ok(())
    }

    fn has(&self, fault: &str) -> bool {
        self.0.join("faults").join(fault).exists()
    }
}

fn failed(error: io::Error) -> Status {
    Status::new(Code::Unknown, "cannot use the folder").with_source(error)
}
