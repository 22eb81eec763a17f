//! The hooks of the conformance suite: acts of an administrator, of a crash or of another client.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use capcmi_driver_container::identity::{MachineKey, Names as _};
use capcmi_driver_container::record::Record;
use cmi_conformance::{Hook, HookCall, Hooks};
use jiff::Timestamp;
use serde_json::json;

use crate::lab::{Lab, key};

/// A machine that is never started, and takes all memory of a host.
const BALLAST: &str = "ballast";

/// The hooks of a lab.
pub struct LabHooks {
    lab: Arc<Lab>,
    /// The lock of the state folder, which keeps a driver from becoming ready.
    held: Mutex<Option<File>>,
}

impl LabHooks {
    /// The hooks of this lab.
    pub fn new(lab: Arc<Lab>) -> Self {
        Self {
            lab,
            held: Mutex::default(),
        }
    }

    fn fault(&self, name: &str) -> PathBuf {
        self.lab.at("faults").join(name)
    }

    fn format(&self) -> PathBuf {
        self.lab.at("state/format")
    }

    /// Takes the state folder's mark away, as an unmounted file system does.
    fn take_format(&self) -> Result<()> {
        Ok(fs::rename(self.format(), self.lab.at("faults/format"))?)
    }

    /// Starts another driver, which does not get the state folder.
    fn hold(&self) -> Result<()> {
        self.lab.kill_driver()?;
        let lock = File::open(self.lab.at("state/lock"))?;
        lock.lock()?;
        *self.held.lock().unwrap() = Some(lock);
        self.lab.start_driver()?;
        self.lab.serves()
    }

    fn restore(&self) -> Result<()> {
        *self.held.lock().unwrap() = None;
        for fault in ["slow", "failing-starts", "lost-start", "lost-delete"] {
            without(fs::remove_file(self.fault(fault)))?;
        }
        for host in ["host-a", "host-b"] {
            without(fs::remove_dir_all(self.lab.machine(BALLAST, host)))?;
        }
        let taken = self.lab.at("faults/format");
        if taken.exists() {
            if self.format().is_dir() {
                fs::remove_dir(self.format())?;
            }
            fs::rename(taken, self.format())?;
        }
        Ok(())
    }

    /// Makes a machine without a container.
    fn plant(&self, key: &MachineKey, host: &str, memory_mib: u64) -> Result<()> {
        let record = Record {
            name: key.name.clone(),
            cluster: key.cluster.clone(),
            identity: key.identity.clone(),
            created_at: Timestamp::now(),
            started_at: Some(Timestamp::now()),
            deleting: false,
            vm_pool: "default".to_owned(),
            host: host.to_owned(),
            image: "tiny".to_owned(),
            image_folder: self.lab.at("tiny"),
            address: None,
            size: "small".to_owned(),
            cpus: 1,
            memory_mib,
            tags: [].into(),
        };
        let folder = self.lab.state().machine(&key.folder_name());
        fs::create_dir(&folder)?;
        Ok(record.write(&folder)?)
    }

    /// Ends and removes the container of a machine.
    fn end(&self, folder: &Path) -> Result<Record> {
        let record = record(folder)?;
        self.lab
            .runc(&["delete", "--force", &record.key().uuid().to_string()])?;
        Ok(record)
    }

    /// As if the driver had been killed before the first start.
    fn uninitialize(&self, folder: &Path) -> Result<()> {
        let record = Record {
            started_at: None,
            ..self.end(folder)?
        };
        Ok(record.write(folder)?)
    }

    fn fail_initialize(&self, times: u64) -> Result<()> {
        for entry in fs::read_dir(self.lab.state().machines())? {
            self.uninitialize(&entry?.path())?;
        }
        Ok(fs::write(self.fault("failing-starts"), times.to_string())?)
    }

    /// A number that grows with each change: the time of the last change, in nanoseconds.
    fn last_change(&self) -> Result<u128> {
        let machines = self.lab.state().machines();
        let mut last = written_at(&machines)?;
        for entry in fs::read_dir(&machines)? {
            // A record is written as a new file in the folder.
            last = last.max(written_at(&entry?.path())?);
        }
        Ok(last)
    }

    fn call(&self, call: &HookCall) -> Result<Vec<u8>> {
        let folder = self.lab.machine(&call.machine, &call.cluster);
        match call.hook {
            Hook::Unavailable | Hook::Unhealthy => self.take_format()?,
            Hook::Unknown => {
                self.take_format()?;
                fs::create_dir(self.format())?;
            }
            Hook::Internal => {
                self.take_format()?;
                fs::write(self.format(), "another format")?;
            }
            Hook::Slow => fs::write(self.fault("slow"), format!("{}e-3", call.amount))?,
            Hook::LoseResponse => {
                fs::write(self.fault("lost-start"), "")?;
                fs::write(self.fault("lost-delete"), "")?;
            }
            Hook::FailInitialize => self.fail_initialize(call.amount)?,
            Hook::Starting => self.hold()?,
            Hook::Exhaust => {
                for host in ["host-a", "host-b"] {
                    self.plant(&key(BALLAST, host), host, 100_000)?;
                }
            }
            Hook::Restore => self.restore()?,
            Hook::Restart => {
                self.lab.kill_driver()?;
                self.lab.start_driver()?;
            }
            Hook::Plant => {
                let key = MachineKey {
                    identity: call.identity.clone(),
                    ..key(&call.machine, &call.cluster)
                };
                self.plant(&key, "host-a", 256)?;
            }
            Hook::Lock => fs::write(folder.join("locked"), "as a test asked")?,
            Hook::Unlock => fs::remove_file(folder.join("locked"))?,
            Hook::Vanish => {
                self.end(&folder)?;
                fs::remove_dir_all(&folder)?;
            }
            Hook::Uninitialize => self.uninitialize(&folder)?,
            Hook::Mutations => return Ok(self.last_change()?.to_string().into_bytes()),
            Hook::UserData => {
                return Ok(fs::read(
                    folder.join("upper/var/lib/cloud/seed/nocloud/user-data"),
                )?);
            }
            Hook::VmSpec => {
                let record = record(&folder)?;
                return Ok(json!({"tags": record.tags, "size": record.size})
                    .to_string()
                    .into_bytes());
            }
        }
        Ok(Vec::new())
    }
}

fn record(folder: &Path) -> Result<Record> {
    Record::read(folder)?.with_context(|| format!("there is no machine in {}", folder.display()))
}

/// Accepts that something does not exist.
fn without(removed: std::io::Result<()>) -> std::io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// A machine that is being removed has no time.
fn written_at(path: &Path) -> Result<u128> {
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
        metadata => Ok(metadata?
            .modified()?
            .duration_since(SystemTime::UNIX_EPOCH)?
            .as_nanos()),
    }
}

#[async_trait]
impl Hooks for LabHooks {
    fn supports(&self, _hook: Hook) -> bool {
        true
    }

    async fn run(&self, call: &HookCall) -> Result<Vec<u8>> {
        tokio::task::block_in_place(|| self.call(call))
    }
}
