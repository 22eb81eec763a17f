//! The XML of domains and volumes for libvirt. The writer escapes all names and texts.

use std::io;

use cmi_driver::{Code, Result, Status};
use quick_xml::Writer;
use quick_xml::events::BytesText;

use crate::config::{DirectBoot, Firmware, ImageFormat, Network, VirtType};
use crate::identity::data_disk;
use crate::metadata::Record;

type Xml = Writer<Vec<u8>>;

/// A domain.
#[derive(Debug)]
pub struct Domain<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its UUID.
    pub uuid: &'a str,
    /// Whether it runs with KVM or is emulated.
    pub virt_type: VirtType,
    /// Its metadata.
    pub record: &'a Record,
    /// Virtual CPUs.
    pub cpus: u32,
    /// The maximum memory, MiB.
    pub memory_mib: u64,
    /// The memory of the guest at its start, MiB.
    pub current_memory_mib: u64,
    /// Its share of the host's processors.
    pub cpu_shares: Option<u64>,
    /// What starts the boot loader.
    pub firmware: Firmware,
    /// The kernel, for a guest without a boot loader.
    pub direct_boot: Option<&'a DirectBoot>,
    /// Path of the volume of the root file system, on the host.
    pub root_path: &'a str,
    /// How the guest gets its bootstrap data.
    pub bootstrap: Bootstrap<'a>,
    /// Path of the file for its serial console, on the host.
    pub console_path: &'a str,
    /// Paths of the volumes of its data disks, on the host.
    pub data_paths: &'a [String],
    /// Its network interfaces.
    pub interfaces: &'a [Interface<'a>],
}

/// A network interface.
#[derive(Debug)]
pub struct Interface<'a> {
    /// Its MAC address.
    pub mac: &'a str,
    /// The network that it is attached to.
    pub network: &'a Network,
}

/// How a guest gets its bootstrap data.
#[derive(Debug)]
pub enum Bootstrap<'a> {
    /// A NoCloud seed, in the volume at this path on the host.
    Seed(&'a str),
    /// QEMU's `fw_cfg`. Ignition reads no instance metadata, so host name and ProviderID are separate
    /// entries.
    Ignition {
        /// The file for Ignition, by its path on the host.
        path: &'a str,
        /// The name of the guest.
        hostname: &'a str,
        /// The ProviderID that its kubelet has to report.
        provider_id: &'a str,
    },
}

/// A volume to create.
#[derive(Debug)]
pub struct Volume<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its size as the guest sees it, bytes.
    pub capacity: u64,
    /// Its format.
    pub format: ImageFormat,
    /// Path and format of the image below this volume.
    pub backing: Option<(&'a str, ImageFormat)>,
}

impl Domain<'_> {
    /// Returns the XML of the domain.
    ///
    /// # Errors
    /// INTERNAL when the XML can't be written.
    pub fn to_xml(&self) -> Result<String> {
        document("domain", |writer| self.write(writer))
    }

    fn write(&self, xml: &mut Xml) -> io::Result<()> {
        let kind = match self.virt_type {
            VirtType::Kvm => "kvm",
            VirtType::Qemu => "qemu",
        };
        element(xml, "domain", &[("type", kind)], |xml| {
            text(xml, "name", self.name)?;
            text(xml, "uuid", self.uuid)?;
            element(xml, "metadata", &[], |xml| self.record.write(xml))?;
            mebibytes(xml, "memory", self.memory_mib)?;
            mebibytes(xml, "currentMemory", self.current_memory_mib)?;
            text(xml, "vcpu", &self.cpus.to_string())?;
            if let Some(shares) = self.cpu_shares {
                element(xml, "cputune", &[], |xml| {
                    text(xml, "shares", &shares.to_string())
                })?;
            }
            if let Bootstrap::Ignition {
                path,
                hostname,
                provider_id,
            } = self.bootstrap
            {
                element(xml, "sysinfo", &[("type", "fwcfg")], |xml| {
                    empty(xml, "entry", &[("name", "opt/com.coreos/config"), ("file", path)])?;
                    fw_cfg(xml, "opt/io.capcmi/hostname", hostname)?;
                    fw_cfg(xml, "opt/io.capcmi/provider_id", provider_id)
                })?;
            }
            self.write_boot(xml)?;
            element(xml, "features", &[], |xml| {
                empty(xml, "acpi", &[])?;
                empty(xml, "apic", &[])
            })?;
            let cpu = match self.virt_type {
                VirtType::Kvm => "host-model",
                VirtType::Qemu => "maximum",
            };
            empty(xml, "cpu", &[("mode", cpu)])?;
            empty(xml, "clock", &[("offset", "utc")])?;
            text(xml, "on_poweroff", "destroy")?;
            text(xml, "on_reboot", "restart")?;
            text(xml, "on_crash", "destroy")?;
            element(xml, "devices", &[], |xml| self.write_devices(xml))
        })
    }

    fn write_boot(&self, xml: &mut Xml) -> io::Result<()> {
        let firmware: &[_] = match self.firmware {
            Firmware::Bios => &[],
            Firmware::Efi | Firmware::EfiSecureBoot => &[("firmware", "efi")],
        };
        element(xml, "os", firmware, |xml| {
            let machine = [("arch", "x86_64"), ("machine", "q35")];
            element(xml, "type", &machine, |xml| {
                xml.write_event(quick_xml::events::Event::Text(BytesText::new("hvm")))
            })?;
            self.write_secure_boot(xml)?;
            let Some(boot) = self.direct_boot else {
                return empty(xml, "boot", &[("dev", "hd")]);
            };
            text(xml, "kernel", &boot.kernel)?;
            if let Some(initrd) = &boot.initrd {
                text(xml, "initrd", initrd)?;
            }
            text(xml, "cmdline", &boot.command_line)
        })
    }

    /// Writes whether the firmware has Secure Boot. Otherwise libvirt takes its first UEFI file that fits,
    /// and on Debian that one starts only signed boot loaders.
    fn write_secure_boot(&self, xml: &mut Xml) -> io::Result<()> {
        let enabled = match self.firmware {
            Firmware::Bios => return Ok(()),
            Firmware::Efi => "no",
            Firmware::EfiSecureBoot => "yes",
        };
        element(xml, "firmware", &[], |xml| {
            for feature in ["secure-boot", "enrolled-keys"] {
                empty(xml, "feature", &[("enabled", enabled), ("name", feature)])?;
            }
            Ok(())
        })
    }

    fn write_devices(&self, xml: &mut Xml) -> io::Result<()> {
        write_disk(xml, "vda", self.root_path, "qcow2", Purpose::Root)?;
        if let Bootstrap::Seed(path) = self.bootstrap {
            // A disk instead of a CD-ROM: cloud kernels have no driver for a CD-ROM.
            write_disk(xml, "vdb", path, "raw", Purpose::Seed)?;
        }
        for (index, (path, letter)) in self.data_paths.iter().zip('c'..='z').enumerate() {
            write_disk(xml, &format!("vd{letter}"), path, "qcow2", Purpose::Data(index))?;
        }
        for interface in self.interfaces {
            write_interface(xml, interface)?;
        }
        element(xml, "serial", &[("type", "pty")], |xml| {
            empty(xml, "log", &[("file", self.console_path), ("append", "on")])?;
            empty(xml, "target", &[("port", "0")])
        })?;
        element(xml, "console", &[("type", "pty")], |xml| {
            empty(xml, "target", &[("type", "serial"), ("port", "0")])
        })?;
        element(xml, "channel", &[("type", "unix")], |xml| {
            empty(
                xml,
                "target",
                &[("type", "virtio"), ("name", "org.qemu.guest_agent.0")],
            )
        })?;
        element(xml, "rng", &[("model", "virtio")], |xml| {
            element(xml, "backend", &[("model", "random")], |xml| {
                xml.write_event(quick_xml::events::Event::Text(BytesText::new("/dev/urandom")))
            })
        })?;
        empty(xml, "memballoon", &[("model", "virtio")])
    }
}

impl Volume<'_> {
    /// Returns the XML of the volume. Only the owner of the file may read it, since a seed contains secrets.
    ///
    /// # Errors
    /// INTERNAL when the XML can't be written.
    pub fn to_xml(&self) -> Result<String> {
        document("volume", |xml| {
            element(xml, "volume", &[], |xml| {
                text(xml, "name", self.name)?;
                let capacity = self.capacity.to_string();
                xml.create_element("capacity")
                    .with_attribute(("unit", "bytes"))
                    .write_text_content(BytesText::new(&capacity))?;
                element(xml, "target", &[], |xml| {
                    empty(xml, "format", &[("type", self.format.name())])?;
                    element(xml, "permissions", &[], |xml| text(xml, "mode", "0600"))
                })?;
                let Some((path, format)) = self.backing else {
                    return Ok(());
                };
                element(xml, "backingStore", &[], |xml| {
                    text(xml, "path", path)?;
                    empty(xml, "format", &[("type", format.name())])
                })
            })
        })
    }
}

/// What a disk is for.
#[derive(Clone, Copy)]
enum Purpose {
    Root,
    Seed,
    Data(usize),
}

/// Writes a disk by its path. With pool and volume instead, libvirt's AppArmor profile of the guest lacks the
/// file, and QEMU may not open it.
fn write_disk(xml: &mut Xml, at: &str, path: &str, format: &str, purpose: Purpose) -> io::Result<()> {
    element(xml, "disk", &[("type", "file"), ("device", "disk")], |xml| {
        empty(xml, "driver", &[("name", "qemu"), ("type", format)])?;
        empty(xml, "source", &[("file", path)])?;
        empty(xml, "target", &[("dev", at), ("bus", "virtio")])?;
        match purpose {
            Purpose::Root => Ok(()),
            Purpose::Seed => empty(xml, "readonly", &[]),
            Purpose::Data(index) => text(xml, "serial", &data_disk(index)),
        }
    })
}

fn write_interface(xml: &mut Xml, interface: &Interface<'_>) -> io::Result<()> {
    let Network {
        network,
        bridge,
        open_v_switch,
        vlan,
        mtu,
    } = interface.network;
    // The configuration has exactly one of the two.
    let (kind, name) = match (network, bridge) {
        (Some(network), _) => ("network", network.as_str()),
        (None, bridge) => ("bridge", bridge.as_deref().unwrap_or_default()),
    };
    element(xml, "interface", &[("type", kind)], |xml| {
        empty(xml, "mac", &[("address", interface.mac)])?;
        empty(xml, "source", &[(kind, name)])?;
        if *open_v_switch {
            empty(xml, "virtualport", &[("type", "openvswitch")])?;
        }
        if let Some(vlan) = vlan {
            element(xml, "vlan", &[], |xml| {
                empty(xml, "tag", &[("id", &vlan.to_string())])
            })?;
        }
        empty(xml, "model", &[("type", "virtio")])?;
        match mtu {
            Some(mtu) => empty(xml, "mtu", &[("size", &mtu.to_string())]),
            None => Ok(()),
        }
    })
}

fn document(what: &str, write: impl FnOnce(&mut Xml) -> io::Result<()>) -> Result<String> {
    let failed = |error: io::Error| {
        let message = format!("cannot write the XML of a {what}");
        Status::new(Code::Internal, message).with_source(error)
    };
    let mut writer = Writer::new(Vec::new());
    write(&mut writer).map_err(failed)?;
    String::from_utf8(writer.into_inner()).map_err(|error| failed(io::Error::other(error)))
}

fn element(
    xml: &mut Xml,
    name: &str,
    attributes: &[(&str, &str)],
    content: impl FnOnce(&mut Xml) -> io::Result<()>,
) -> io::Result<()> {
    xml.create_element(name)
        .with_attributes(attributes.iter().copied())
        .write_inner_content(content)?;
    Ok(())
}

fn empty(xml: &mut Xml, name: &str, attributes: &[(&str, &str)]) -> io::Result<()> {
    xml.create_element(name)
        .with_attributes(attributes.iter().copied())
        .write_empty()?;
    Ok(())
}

fn text(xml: &mut Xml, name: &str, content: &str) -> io::Result<()> {
    xml.create_element(name)
        .write_text_content(BytesText::new(content))?;
    Ok(())
}

fn fw_cfg(xml: &mut Xml, name: &str, content: &str) -> io::Result<()> {
    xml.create_element("entry")
        .with_attribute(("name", name))
        .write_text_content(BytesText::new(content))?;
    Ok(())
}

fn mebibytes(xml: &mut Xml, name: &str, amount: u64) -> io::Result<()> {
    let amount = amount.to_string();
    xml.create_element(name)
        .with_attribute(("unit", "MiB"))
        .write_text_content(BytesText::new(&amount))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::config::tests::example;
    use crate::metadata::tests::record;

    static LAN: LazyLock<Network> = LazyLock::new(|| example().networks["lan"].clone());
    static STORAGE: LazyLock<Network> = LazyLock::new(|| example().networks["storage"].clone());
    static INTERFACES: LazyLock<[Interface<'static>; 1]> = LazyLock::new(|| {
        [Interface {
            mac: "52:01:02:03:04:05",
            network: &LAN,
        }]
    });

    fn domain(record: &Record) -> Domain<'_> {
        Domain {
            name: "m-1",
            uuid: "0b0b",
            virt_type: VirtType::Qemu,
            record,
            cpus: 2,
            memory_mib: 2048,
            current_memory_mib: 1024,
            cpu_shares: Some(512),
            firmware: Firmware::Bios,
            direct_boot: None,
            root_path: "/pool/root.qcow2",
            bootstrap: Bootstrap::Seed("/pool/seed.iso"),
            console_path: "/pool/console.log",
            data_paths: &[],
            interfaces: &*INTERFACES,
        }
    }

    #[test]
    fn a_domain_has_what_the_machine_asks_for() {
        let record = record();
        let xml = domain(&record).to_xml().unwrap();
        for part in [
            "<domain type=\"qemu\"><name>m-1</name><uuid>0b0b</uuid><metadata><capcmi:machine ",
            "<memory unit=\"MiB\">2048</memory><currentMemory \
                unit=\"MiB\">1024</currentMemory><vcpu>2</vcpu>",
            "<cputune><shares>512</shares></cputune>",
            "<os><type arch=\"x86_64\" machine=\"q35\">hvm</type><boot dev=\"hd\"/></os>",
            "<cpu mode=\"maximum\"/>",
            "<source file=\"/pool/root.qcow2\"/><target dev=\"vda\" bus=\"virtio\"/></disk>",
            "<source file=\"/pool/seed.iso\"/><target dev=\"vdb\" bus=\"virtio\"/><readonly/></disk>",
            "<interface type=\"network\"><mac address=\"52:01:02:03:04:05\"/><source network=\"default\"/>",
            "<log file=\"/pool/console.log\" append=\"on\"/>",
            "org.qemu.guest_agent.0",
        ] {
            assert!(xml.contains(part), "{part} is not in {xml}");
        }
    }

    #[test]
    fn the_domain_has_ignition_firmware_kernel_disks_and_bridge_as_requested() {
        let record = record();
        let boot = DirectBoot {
            kernel: "/k".to_owned(),
            initrd: Some("/i".to_owned()),
            command_line: "a=\"<b>\" & c".to_owned(),
        };
        let paths = ["/pool/data-0.qcow2", "/pool/data-1.qcow2"].map(str::to_owned);
        let interfaces = [("52:a", &*LAN), ("56:a", &*STORAGE)];
        let interfaces = interfaces.map(|(mac, network)| Interface { mac, network });
        let domain = Domain {
            virt_type: VirtType::Kvm,
            firmware: Firmware::Efi,
            direct_boot: Some(&boot),
            bootstrap: Bootstrap::Ignition {
                path: "/pool/i.ign",
                hostname: "m-1",
                provider_id: "libvirt://host-a/0b0b",
            },
            data_paths: &paths,
            interfaces: &interfaces,
            cpu_shares: None,
            ..domain(&record)
        };
        let xml = domain.to_xml().unwrap();
        for part in [
            "<domain type=\"kvm\">",
            "<cpu mode=\"host-model\"/>",
            "<sysinfo type=\"fwcfg\"><entry name=\"opt/com.coreos/config\" file=\"/pool/i.ign\"/>\
                <entry name=\"opt/io.capcmi/hostname\">m-1</entry>\
                <entry name=\"opt/io.capcmi/provider_id\">libvirt://host-a/0b0b</entry></sysinfo>",
            "<os firmware=\"efi\">",
            "<firmware><feature enabled=\"no\" name=\"secure-boot\"/>\
                <feature enabled=\"no\" name=\"enrolled-keys\"/></firmware>",
            "<kernel>/k</kernel><initrd>/i</initrd><cmdline>a=&quot;&lt;b&gt;&quot; &amp; c</cmdline>",
            "<source file=\"/pool/data-0.qcow2\"/><target dev=\"vdc\" bus=\"virtio\"/>\
                <serial>data-0</serial></disk>",
            "<target dev=\"vdd\" bus=\"virtio\"/><serial>data-1</serial></disk>",
            "<interface type=\"network\"><mac address=\"52:a\"/><source network=\"default\"/>\
                <model type=\"virtio\"/></interface>",
            "<interface type=\"bridge\"><mac address=\"56:a\"/><source bridge=\"br0\"/>\
                <virtualport type=\"openvswitch\"/><vlan><tag id=\"20\"/></vlan>\
                <model type=\"virtio\"/><mtu size=\"9000\"/></interface>",
        ] {
            assert!(xml.contains(part), "{part} is not in {xml}");
        }
        assert!(!xml.contains("vdb") && !xml.contains("cputune"), "{xml}");
        let signed = Domain {
            firmware: Firmware::EfiSecureBoot,
            ..domain
        };
        let xml = signed.to_xml().unwrap();
        assert!(
            xml.contains("<feature enabled=\"yes\" name=\"secure-boot\"/>"),
            "{xml}"
        );
    }

    #[test]
    fn a_volume_is_for_its_owner_alone_and_stands_on_its_image() {
        let volume = Volume {
            name: "a&b",
            capacity: 20_000_000_000,
            format: ImageFormat::Qcow2,
            backing: Some(("/images/<x>", ImageFormat::Raw)),
        };
        assert_eq!(
            volume.to_xml().unwrap(),
            "<volume><name>a&amp;b</name><capacity unit=\"bytes\">20000000000</capacity>\
             <target><format type=\"qcow2\"/><permissions><mode>0600</mode></permissions></target>\
             <backingStore><path>/images/&lt;x&gt;</path><format type=\"raw\"/></backingStore></volume>"
        );
    }
}
