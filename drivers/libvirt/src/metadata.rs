//! The driver's metadata of a domain: its machine, and the spec that it was created from.

use std::collections::BTreeMap;
use std::io;

use cmi_driver::{Code, Result, StaticAddress, Status};
use jiff::Timestamp;
use quick_xml::Writer;
use quick_xml::events::BytesText;
use serde::{Deserialize, Serialize};

use crate::addresses::Sightings;
use crate::identity::{MachineKey, Names as _};
use crate::spec::{self, VmSpec};

/// The namespace of the element: `virsh metadata DOMAIN https://capcmi.io/libvirt/1.0` shows it.
pub const NAMESPACE: &str = "https://capcmi.io/libvirt/1.0";
/// The prefix of the namespace in a domain's XML.
pub const PREFIX: &str = "capcmi";
const ELEMENT: &str = "machine";
/// The namespace of the element that locks a domain. An administrator adds it, with the reason as its text.
pub const LOCK_NAMESPACE: &str = "https://capcmi.io/libvirt/lock";

/// The content of the element, as JSON: a tag may have characters that XML can't represent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The machine's name.
    pub name: String,
    /// The value of the tag `kubernetes.io/cluster`.
    pub cluster: String,
    /// The value of the tag `capcmi.io/machine`.
    pub identity: String,
    /// The ProviderID that was reported for the domain.
    pub provider_id: String,
    /// When the domain was made.
    pub created_at: Timestamp,
    /// Whether the domain was ever started. Until then, it does not count as a machine.
    pub started: bool,
    /// When the driver last started the domain. Earlier versions did not record it.
    #[serde(default)]
    pub started_at: Option<Timestamp>,
    /// Whether the deletion of the domain has begun.
    pub deleting: bool,
    /// The pool that the machine was made in.
    pub vm_pool: String,
    /// The size that it was made with.
    pub size: String,
    /// The size of its root file system when it was made, in bytes.
    pub root_fs_bytes: u64,
    /// The sizes of its data disks, GB.
    pub disks_gb: Vec<u64>,
    /// The networks of its interfaces.
    pub networks: Vec<String>,
    /// Its static addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub network_addresses: Vec<StaticAddress>,
    /// The image that it was made from.
    pub image: String,
    /// The host that the spec asked for, or that it was placed on.
    pub host: String,
    /// All tags but the reserved ones.
    pub tags: BTreeMap<String, String>,
}

/// The reason for a lock, from the administrator's element.
pub fn lock_reason(element: &str) -> String {
    #[derive(Default, Deserialize)]
    struct Lock {
        #[serde(rename = "$text", default)]
        text: String,
    }
    // An element without a reason locks as well.
    let read: Lock = quick_xml::de::from_str(element).unwrap_or_default();
    if read.text.is_empty() {
        "no reason given".to_owned()
    } else {
        read.text
    }
}

impl Record {
    /// The machine in the metadata. A domain whose UUID differs from the machine's is a copy.
    pub fn key(&self) -> MachineKey {
        MachineKey {
            cluster: self.cluster.clone(),
            name: self.name.clone(),
            identity: self.identity.clone(),
        }
    }

    /// The static addresses of the machine's interfaces.
    pub fn static_addresses(&self) -> Sightings {
        let mut given = Sightings::default();
        for (interface, mac) in self.macs().iter().enumerate() {
            for address in spec::addresses_of(&self.network_addresses, interface, &self.networks) {
                given.add(mac, &address.address.to_string());
            }
        }
        given
    }

    /// The MAC addresses of the machine's interfaces.
    pub fn macs(&self) -> Vec<String> {
        self.key().macs(self.networks.len())
    }

    /// Whether the metadata belongs to this machine, including its machine object.
    pub fn is_of(&self, key: &MachineKey) -> bool {
        self.key() == *key
    }

    /// Returns the first field that differs between the VM and a spec. Ignores hot-updatable fields and
    /// changed defaults in the configuration.
    pub fn difference(&self, spec: &VmSpec) -> Option<&'static str> {
        let gigabytes = |bytes: u64| bytes / crate::spec::GB;
        [
            ("vmPool", self.vm_pool == spec.vm_pool),
            ("size", self.size == spec.size),
            (
                "image",
                spec.image.as_ref().is_none_or(|image| *image == self.image),
            ),
            (
                "rootFsSize",
                spec.root_fs_size
                    .is_none_or(|gb| gb == gigabytes(self.root_fs_bytes)),
            ),
            (
                "networks",
                spec.networks.as_ref().is_none_or(|names| *names == self.networks),
            ),
            (
                spec::NETWORK_ADDRESSES,
                spec.network_addresses == self.network_addresses,
            ),
            ("disks", spec.disk_sizes().eq(self.disks_gb.iter().copied())),
            (
                "failureDomain",
                spec.failure_domain.as_ref().is_none_or(|host| *host == self.host),
            ),
        ]
        .into_iter()
        .find_map(|(field, same)| (!same).then_some(field))
    }

    /// Encodes the metadata as JSON. JSON escapes all characters that XML can't represent except two. Those
    /// two occur only in strings, where an escape is valid.
    fn to_json(&self) -> serde_json::Result<String> {
        let text = serde_json::to_string(self)?;
        Ok(text.replace('\u{fffe}', "\\ufffe").replace('\u{ffff}', "\\uffff"))
    }

    /// Writes the element into a domain's XML.
    ///
    /// # Errors
    /// The metadata can't be encoded, or the writer fails.
    pub fn write<W: io::Write>(&self, writer: &mut Writer<W>) -> io::Result<()> {
        let text = self.to_json()?;
        let name = format!("{PREFIX}:{ELEMENT}");
        writer
            .create_element(&name)
            .with_attribute((format!("xmlns:{PREFIX}").as_str(), NAMESPACE))
            .write_text_content(BytesText::new(&text))?;
        Ok(())
    }

    /// Encodes the element for an existing domain. libvirt adds the namespace.
    ///
    /// # Errors
    /// INTERNAL when the element can't be written.
    pub fn to_element(&self) -> Result<String> {
        let failed = |error: io::Error| {
            Status::new(Code::Internal, "cannot encode the metadata of a domain").with_source(error)
        };
        let text = self.to_json().map_err(|error| failed(error.into()))?;
        let mut writer = Writer::new(Vec::new());
        writer
            .create_element(ELEMENT)
            .write_text_content(BytesText::new(&text))
            .map_err(failed)?;
        String::from_utf8(writer.into_inner()).map_err(|error| failed(io::Error::other(error)))
    }

    /// Parses the element that libvirt returns.
    ///
    /// # Errors
    /// INTERNAL when the driver can't have written it, so something else has changed it.
    pub fn parse(element: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Element {
            #[serde(rename = "$text")]
            text: String,
        }
        let broken = "cannot parse the driver's metadata of a domain";
        let read: Element = quick_xml::de::from_str(element)
            .map_err(|error| Status::new(Code::Internal, broken).with_source(error))?;
        serde_json::from_str(&read.text)
            .map_err(|error| Status::new(Code::Internal, format!("{broken}: {error}")))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn record() -> Record {
        Record {
            name: "m".to_owned(),
            cluster: "c".to_owned(),
            identity: "i".to_owned(),
            provider_id: "libvirt://host-a/x".to_owned(),
            created_at: Timestamp::UNIX_EPOCH,
            started: false,
            started_at: None,
            deleting: false,
            vm_pool: "default".to_owned(),
            size: "small".to_owned(),
            root_fs_bytes: 20 * crate::spec::GB,
            disks_gb: vec![5],
            networks: vec!["lan".to_owned()],
            network_addresses: Vec::new(),
            image: "debian".to_owned(),
            host: "host-a".to_owned(),
            tags: BTreeMap::new(),
        }
    }

    #[test]
    fn any_tag_is_read_as_it_was_written() {
        let mut written = record();
        for value in ["", " a ", "<&>\"']]>", "a\nb\r\tc", "\u{1}\u{7f}", "ä😀", "&amp;"] {
            written.tags.insert(format!("k{value}"), value.to_owned());
        }
        assert_eq!(Record::parse(&written.to_element().unwrap()).unwrap(), written);
        let mut writer = Writer::new(Vec::new());
        written.write(&mut writer).unwrap();
        let text = String::from_utf8(writer.into_inner()).unwrap();
        assert!(text.starts_with("<capcmi:machine xmlns:capcmi="), "{text}");
        assert_eq!(Record::parse(&text).unwrap(), written);
    }

    /// Parsed by libvirt itself: the library contains its test driver.
    #[test]
    fn libvirt_takes_any_tag() {
        virt::error::clear_error_callback();
        let connect = virt::connect::Connect::open(Some("test:///default")).unwrap();
        for value in [
            "\u{1}",
            "\u{7f}\u{85}",
            "\u{fffd}",
            "\u{fffe}",
            "\u{ffff}",
            "\u{1fffe}",
        ] {
            let mut written = record();
            written.tags.insert(format!("k{value}"), value.to_owned());
            let mut writer = Writer::new(Vec::new());
            written.write(&mut writer).unwrap();
            let xml = format!(
                "<domain type='test'><name>m</name><metadata>{}</metadata><memory>65536</memory>\
                 <os><type>hvm</type></os></domain>",
                String::from_utf8(writer.into_inner()).unwrap()
            );
            let element = virt_sys::VIR_DOMAIN_METADATA_ELEMENT.cast_signed();
            let domain = virt::domain::Domain::define_xml(&connect, &xml).unwrap();
            let read = || Record::parse(&domain.get_metadata(element, Some(NAMESPACE), 0).unwrap());
            assert_eq!(read().unwrap(), written, "{value:?}");
            let again = written.to_element().unwrap();
            domain
                .set_metadata(element, Some(&again), Some(PREFIX), Some(NAMESPACE), 0)
                .unwrap();
            assert_eq!(read().unwrap(), written, "{value:?}");
            domain.undefine().unwrap();
        }
    }

    #[test]
    fn what_the_driver_did_not_write_is_an_error_and_no_machine() {
        for text in ["<machine/>", "<machine>x</machine>", "<machine>{}</machine>", "x"] {
            assert_eq!(Record::parse(text).unwrap_err().code(), Code::Internal, "{text}");
        }
    }

    /// DRV-CR-06
    #[test]
    fn an_incompatible_field_is_named_and_hot_fields_are_ignored() {
        let spec = |change: serde_json::Value| -> VmSpec {
            let mut spec = serde_json::json!({"vmPool": "default", "size": "small", "disks": [{"size": 5}]});
            for (key, value) in change.as_object().unwrap() {
                spec[key] = value.clone();
            }
            serde_json::from_value(spec).unwrap()
        };
        for (change, field) in [
            (serde_json::json!({}), None),
            (
                serde_json::json!({"rootFsSize": 20, "image": "debian", "failureDomain": "host-a"}),
                None,
            ),
            (
                serde_json::json!({"tags": {"a": "b"}, "cpuShares": 9, "memoryMib": 99}),
                None,
            ),
            (serde_json::json!({"vmPool": "edge"}), Some("vmPool")),
            (serde_json::json!({"size": "large"}), Some("size")),
            (serde_json::json!({"image": "tiny"}), Some("image")),
            (serde_json::json!({"rootFsSize": 21}), Some("rootFsSize")),
            (serde_json::json!({"networks": ["lan"]}), None),
            (serde_json::json!({"networks": ["lan", "lan"]}), Some("networks")),
            (
                serde_json::json!({"networkAddresses": [{"address": "10.0.0.2", "prefix": 24,
                    "pool": {"apiGroup": "g", "kind": "Pool", "name": "p"}}]}),
                Some("networkAddresses"),
            ),
            (serde_json::json!({"disks": []}), Some("disks")),
            (serde_json::json!({"disks": [{"size": 6}]}), Some("disks")),
            (
                serde_json::json!({"failureDomain": "host-b"}),
                Some("failureDomain"),
            ),
        ] {
            assert_eq!(record().difference(&spec(change.clone())), field, "{change}");
        }
    }
}
