//! The record of a machine: its identity, its sources and its progress.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use cmi_driver::{Code, Result, Status};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::config::Size;
use crate::errors::status;
use crate::identity::MachineKey;
use crate::spec::MachineSpec;

/// The name of the file in a machine's folder.
pub const FILE: &str = "record.json";

/// A machine, as the driver made it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The machine's name.
    pub name: String,
    /// The value of the tag `kubernetes.io/cluster`.
    pub cluster: String,
    /// The value of the tag `capcmi.io/machine`.
    pub identity: String,
    /// When the machine was made.
    pub created_at: Timestamp,
    /// When the driver last started the machine; none when it never did. Such a machine is not initialized.
    pub started_at: Option<Timestamp>,
    /// Whether the deletion of the machine has begun.
    pub deleting: bool,
    /// The pool that the machine was made in.
    pub vm_pool: String,
    /// The host that it was placed on.
    pub host: String,
    /// The image that it was made from.
    pub image: String,
    /// The folder of the image.
    pub image_folder: PathBuf,
    /// Its address, where its spec has one.
    pub address: Option<Ipv4Addr>,
    /// The name of its size.
    pub size: String,
    /// Its CPU time, in CPUs.
    pub cpus: u32,
    /// Its memory, MiB.
    pub memory_mib: u64,
    /// All tags but the reserved ones.
    pub tags: BTreeMap<String, String>,
}

impl Record {
    /// The machine that the folder is for.
    pub fn key(&self) -> MachineKey {
        MachineKey {
            cluster: self.cluster.clone(),
            name: self.name.clone(),
            identity: self.identity.clone(),
        }
    }

    /// The size of the machine.
    pub fn size(&self) -> Size {
        Size {
            cpus: self.cpus,
            memory_mib: self.memory_mib,
        }
    }

    /// Returns the first field that differs from a spec. Fields that can be changed while the
    /// machine lives do not count, and neither does a new default of the configuration.
    pub fn difference(&self, spec: &MachineSpec) -> Option<&'static str> {
        let is_same = |asked: Option<&String>, has: &String| asked.is_none_or(|asked| asked == has);
        [
            ("vmPool", self.vm_pool == spec.vm_pool),
            ("image", is_same(spec.image.as_ref(), &self.image)),
            ("address", self.address == spec.address),
            ("failureDomain", is_same(spec.failure_domain.as_ref(), &self.host)),
        ]
        .into_iter()
        .find_map(|(field, same)| (!same).then_some(field))
    }

    /// Reads the record in a machine's folder; `None` when there is no folder.
    ///
    /// # Errors
    /// INTERNAL when the driver can't have written it.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let file = folder.join(FILE);
        let text = match std::fs::read(&file) {
            // A folder appears with its record in it.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|error| status(&format!("reading {}", file.display()), error))?,
        };
        serde_json::from_slice(&text).map(Some).map_err(|error| {
            let what = format!(
                "{} cannot be read as the record of a machine: {error}",
                file.display()
            );
            Status::new(Code::Internal, what).with_source(error)
        })
    }

    /// Writes the record into a machine's folder: after a crash there is the old one or the new one.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).map_err(|error| {
            Status::new(Code::Internal, "encoding the record of a machine failed").with_source(error)
        })?;
        let (new, file) = (folder.join("record.new"), folder.join(FILE));
        std::fs::write(&new, text)
            .and_then(|()| std::fs::rename(&new, &file))
            .map_err(|error| status(&format!("writing {}", file.display()), error))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    pub(crate) fn record() -> Record {
        Record {
            name: "m".to_owned(),
            cluster: "c".to_owned(),
            identity: "i".to_owned(),
            created_at: Timestamp::UNIX_EPOCH,
            started_at: None,
            deleting: false,
            vm_pool: "default".to_owned(),
            host: "host-a".to_owned(),
            image: "debian".to_owned(),
            image_folder: "/srv/images/debian".into(),
            address: None,
            size: "small".to_owned(),
            cpus: 1,
            memory_mib: 2048,
            tags: BTreeMap::from([("a".to_owned(), "ä\u{1}".to_owned())]),
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Record::read(&folder.path().join("none")).unwrap(), None);
        assert_eq!(Record::read(folder.path()).unwrap(), None);
        record().write(folder.path()).unwrap();
        assert_eq!(Record::read(folder.path()).unwrap(), Some(record()));
    }

    #[test]
    fn a_broken_record_is_an_error_and_not_an_absent_machine() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["", "{}", "x"] {
            std::fs::write(folder.path().join(FILE), text).unwrap();
            assert_eq!(
                Record::read(folder.path()).unwrap_err().code(),
                Code::Internal,
                "{text}"
            );
        }
    }

    /// DRV-CR-06
    #[test]
    fn a_difference_is_named_unless_it_is_hot_updatable() {
        let spec = |change: serde_json::Value| -> MachineSpec {
            let mut spec = json!({"vmPool": "default", "size": "small"});
            for (key, value) in change.as_object().unwrap() {
                spec[key] = value.clone();
            }
            serde_json::from_value(spec).unwrap()
        };
        for (change, field) in [
            (json!({}), None),
            (json!({"image": "debian", "failureDomain": "host-a"}), None),
            (json!({"tags": {"a": "b"}, "size": "large"}), None),
            (json!({"vmPool": "edge"}), Some("vmPool")),
            (json!({"image": "tiny"}), Some("image")),
            (json!({"address": "192.168.150.20"}), Some("address")),
            (json!({"failureDomain": "host-b"}), Some("failureDomain")),
        ] {
            assert_eq!(record().difference(&spec(change.clone())), field, "{change}");
        }
    }
}
