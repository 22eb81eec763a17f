//! The NoCloud seed: an ISO 9660 image for cloud-init, with user data and instance metadata.

use std::io::Cursor;
use std::net::IpAddr;
use std::sync::Arc;

use cmi_driver::{Code, Result, StaticAddress, Status};
use hadris_iso::joliet::JolietLevel;
use hadris_iso::read::PathSeparator;
use hadris_iso::write::options::{BaseIsoLevel, CreationFeatures, IsoFormatOptions};
use hadris_iso::write::{File, InputFiles, IsoImageWriter};

/// cloud-init recognizes the volume by this label.
const LABEL: &str = "cidata";
/// The sector size of an ISO image, bytes.
const SECTOR: usize = 2048;
/// An upper limit for descriptors, path tables and two directories of three files each, bytes.
const OVERHEAD: usize = 64 * SECTOR;

/// Instance data for a guest, in addition to its user data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The instance ID, unique for each guest.
    pub id: String,
    /// The name of the guest.
    pub hostname: String,
    /// The ProviderID that its kubelet has to report.
    pub provider_id: String,
    /// Its network interfaces. The first one has the preferred default route.
    pub interfaces: Vec<Interface>,
}

/// A network interface of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its MAC address.
    pub mac: String,
    /// How it gets addresses.
    pub addressing: Addressing,
    /// Its static addresses. Their families use no DHCP.
    pub addresses: Vec<StaticAddress>,
}

/// How an interface gets addresses. A guest without a network manager that works in the background waits in
/// vain for a server that does not exist, so the configuration names only the ways that its network may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addressing {
    /// By DHCP for IPv4.
    pub dhcp4: bool,
    /// By IPv6 router advertisement.
    pub accept_ra: bool,
    /// By DHCPv6.
    pub dhcp6: bool,
}

impl Addressing {
    /// For a network that the driver knows nothing about.
    pub const ANY: Self = Self {
        dhcp4: true,
        accept_ra: true,
        dhcp6: true,
    };
}

/// The route metric of the second interface; each further one has a higher one. Guests use lower metrics, or
/// at most this one, for the first interface.
const METRIC: usize = 2000;

impl Instance {
    /// Returns the instance metadata. The host name is quoted, since YAML would read `1001` as a number and
    /// `no` as a boolean.
    fn meta_data(&self) -> String {
        format!(
            "instance-id: {}\nlocal-hostname: \"{}\"\nprovider_id: {}\n",
            self.id, self.hostname, self.provider_id
        )
    }

    /// Returns the network configuration.
    fn network_config(&self) -> String {
        let interfaces = self.interfaces.iter().enumerate();
        let interfaces = interfaces.map(|(index, interface)| interface.config(index));
        format!("version: 2\nethernets:\n{}", interfaces.collect::<String>())
    }
}

impl Interface {
    /// Returns its part of the network configuration. It is matched by its MAC address, since its name
    /// depends on the guest. The DHCP server knows the guest by the same address: two guests of an image with
    /// a machine-id in it would share a lease. The guest does not wait for the second and further interfaces.
    fn config(&self, index: usize) -> String {
        let has = |is_ipv6: bool| {
            let mut all = self.addresses.iter();
            all.any(|address| address.address.is_ipv6() == is_ipv6)
        };
        let (is_static4, is_static6) = (has(false), has(true));
        let dhcp4 = self.addressing.dhcp4 && !is_static4;
        let dhcp6 = self.addressing.dhcp6 && !is_static6;
        // Without a gateway, the routes come from the advertisements, as may a further address.
        let has_gateway6 = self.gateway6().is_some();
        let accept_ra = self.addressing.accept_ra && !has_gateway6;
        let mut lines = vec![
            format!("  eth{index}:"),
            format!("    match: {{macaddress: \"{}\"}}", self.mac),
            format!("    set-name: eth{index}"),
            format!("    dhcp4: {dhcp4}"),
        ];
        let mut add = |is_used: bool, line: &str| {
            if is_used {
                lines.push(format!("    {line}"));
            }
        };
        add(dhcp4, "dhcp-identifier: mac");
        add(dhcp6, "dhcp6: true");
        add(accept_ra, "accept-ra: true");
        // Guests accept advertisements unless told otherwise.
        add(has_gateway6, "accept-ra: false");
        let addresses = self.addresses.iter();
        let addresses: Vec<_> = addresses
            .map(|given| format!("\"{}/{}\"", given.address, given.prefix))
            .collect();
        add(
            !addresses.is_empty(),
            &format!("addresses: [{}]", addresses.join(", ")),
        );
        let gateway6 = self.gateway6().filter(|_| index == 0);
        let routes = self.routes(index, gateway6);
        add(!routes.is_empty(), &format!("routes: [{}]", routes.join(", ")));
        if let Some(gateway) = gateway6 {
            add(true, &format!("gateway6: \"{gateway}\""));
        }
        if index > 0 {
            let metric = METRIC + index;
            add(true, "optional: true");
            // cloud-init refuses overrides that differ between the families.
            add(dhcp4, &format!("dhcp4-overrides: {{route-metric: {metric}}}"));
            add(dhcp6, &format!("dhcp6-overrides: {{route-metric: {metric}}}"));
        }
        lines.into_iter().map(|line| line + "\n").collect()
    }
}

impl Interface {
    /// Returns the gateways of the static addresses, each one once.
    fn gateways(&self) -> Vec<IpAddr> {
        let mut gateways: Vec<_> = self.addresses.iter().filter_map(|given| given.gateway).collect();
        gateways.sort_unstable();
        gateways.dedup();
        gateways
    }

    /// Returns the IPv6 gateway for the field `gateway6`, which has no metric. For ifupdown and
    /// systemd-networkd, cloud-init 22.4 turns a route to `::/0` into a route to `::/64`.
    fn gateway6(&self) -> Option<IpAddr> {
        self.gateways().into_iter().find(IpAddr::is_ipv6)
    }

    /// Returns the default routes through the other gateways.
    fn routes(&self, index: usize, gateway6: Option<IpAddr>) -> Vec<String> {
        let metric = if index > 0 {
            format!(", metric: {}", METRIC + index)
        } else {
            String::new()
        };
        let route = |gateway: &IpAddr| {
            let to = if gateway.is_ipv6() { "::/0" } else { "0.0.0.0/0" };
            format!("{{to: \"{to}\", via: \"{gateway}\"{metric}}}")
        };
        let mut others = self.gateways();
        others.retain(|gateway| Some(*gateway) != gateway6);
        others.iter().map(route).collect()
    }
}

/// Builds the image. User data may be of any size, and need not be text.
///
/// # Errors
/// INTERNAL when the image can't be written.
pub fn image(instance: &Instance, user_data: &[u8]) -> Result<Vec<u8>> {
    let file = |name: &str, contents: &[u8]| File::File {
        name: Arc::new(name.to_owned()),
        contents: contents.to_vec(),
    };
    let meta_data = instance.meta_data();
    let network_config = instance.network_config();
    let files = InputFiles {
        path_separator: PathSeparator::ForwardSlash,
        files: vec![
            file("meta-data", meta_data.as_bytes()),
            file("network-config", network_config.as_bytes()),
            file("user-data", user_data),
        ],
    };
    let room = user_data.len().next_multiple_of(SECTOR) + OVERHEAD;
    let mut image = Cursor::new(vec![0; room]);
    IsoImageWriter::create(&mut image, files, options()).map_err(|error| {
        Status::new(Code::Internal, "cannot write the seed of the guest").with_source(Text(error.to_string()))
    })?;
    Ok(image.into_inner())
}

/// Returns the format of the image. cloud-init needs Joliet names: plain ISO 9660 names have no `-` and no
/// lower case.
fn options() -> IsoFormatOptions {
    IsoFormatOptions {
        volume_name: LABEL.to_owned(),
        system_id: None,
        volume_set_id: None,
        publisher_id: None,
        preparer_id: None,
        application_id: None,
        sector_size: SECTOR,
        path_separator: PathSeparator::ForwardSlash,
        features: CreationFeatures {
            filenames: BaseIsoLevel::Level1 {
                supports_lowercase: false,
                supports_rrip: false,
            },
            long_filenames: false,
            joliet: Some(JolietLevel::Level3),
            rock_ridge: None,
            el_torito: None,
            ..CreationFeatures::default()
        },
        // The label is in lower case.
        strict_charset: false,
    }
}

/// An error message of the image writer.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Text(String);

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn instance() -> Instance {
        Instance {
            id: "9f1c".to_owned(),
            hostname: "md-0-x7k2p".to_owned(),
            provider_id: "libvirt://host-a/9f1c".to_owned(),
            interfaces: vec![Interface {
                mac: "52:01:02:03:04:05".to_owned(),
                addressing: Addressing::ANY,
                addresses: Vec::new(),
            }],
        }
    }

    fn network(addressing: &[Addressing]) -> serde_json::Value {
        let interfaces = addressing
            .iter()
            .enumerate()
            .map(|(index, addressing)| Interface {
                mac: format!("52:01:02:03:04:{index:02x}"),
                addressing: *addressing,
                addresses: Vec::new(),
            });
        let instance = Instance {
            interfaces: interfaces.collect(),
            ..instance()
        };
        serde_saphyr::from_str(&instance.network_config()).unwrap()
    }

    /// The files by their Joliet names. Reads the directory records without the library that wrote them.
    fn files(image: &[u8]) -> Vec<(String, Vec<u8>)> {
        let number = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().unwrap()) as usize;
        let joliet = (16..32)
            .map(|sector| sector * SECTOR)
            .find(|at| image[*at] == 2)
            .unwrap();
        assert_eq!(&image[joliet + 1..joliet + 6], b"CD001");
        let (mut at, length) = (number(joliet + 158) * SECTOR, number(joliet + 166));
        let end = at + length;
        let mut files = Vec::new();
        while at < end && image[at] != 0 {
            let (from, size) = (number(at + 2) * SECTOR, number(at + 10));
            let name = &image[at + 33..at + 33 + usize::from(image[at + 32])];
            if name.len() > 1 {
                let name: Vec<u16> = name
                    .chunks(2)
                    .map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
                    .collect();
                files.push((
                    String::from_utf16(&name).unwrap(),
                    image[from..from + size].to_vec(),
                ));
            }
            at += usize::from(image[at]);
        }
        files
    }

    /// DRV-13, DRV-14
    #[test]
    fn a_seed_has_the_label_and_the_files_that_cloud_init_looks_for() {
        let image = image(&instance(), b"#cloud-config\n").unwrap();
        assert_eq!(image.len() % SECTOR, 0);
        assert_eq!(&image[16 * SECTOR + 40..16 * SECTOR + 47], b"cidata ");
        let files = files(&image);
        let names: Vec<_> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["meta-data", "network-config", "user-data"]);
        assert_eq!(
            String::from_utf8(files[0].1.clone()).unwrap(),
            "instance-id: 9f1c\nlocal-hostname: \"md-0-x7k2p\"\nprovider_id: libvirt://host-a/9f1c\n"
        );
        assert_eq!(
            String::from_utf8(files[1].1.clone()).unwrap(),
            "version: 2\nethernets:\n  eth0:\n    match: {macaddress: \"52:01:02:03:04:05\"}\n    \
             set-name: eth0\n    dhcp4: true\n    dhcp-identifier: mac\n    dhcp6: true\n    \
             accept-ra: true\n"
        );
    }

    #[test]
    fn the_network_configuration_names_only_ways_that_exist() {
        let any = Addressing::ANY;
        for (addressing, expected) in [
            (
                Addressing {
                    accept_ra: false,
                    dhcp6: false,
                    ..any
                },
                serde_json::json!({"dhcp4": true, "dhcp-identifier": "mac"}),
            ),
            (
                Addressing { dhcp4: false, ..any },
                serde_json::json!({"dhcp4": false, "dhcp6": true, "accept-ra": true}),
            ),
            (
                Addressing {
                    dhcp4: false,
                    dhcp6: false,
                    ..any
                },
                serde_json::json!({"dhcp4": false, "accept-ra": true}),
            ),
        ] {
            let mut interface = network(&[addressing])["ethernets"]["eth0"].take();
            for field in ["match", "set-name"] {
                assert!(interface.as_object_mut().unwrap().remove(field).is_some());
            }
            assert_eq!(interface, expected);
        }
    }

    #[test]
    fn static_addresses_replace_dhcp_of_their_family() {
        let address = |address: &str, prefix: u8, gateway: Option<&str>| {
            let pool = serde_json::json!({"apiGroup": "g", "kind": "Pool", "name": "p"});
            let mut given = serde_json::json!({"address": address, "prefix": prefix, "pool": pool});
            if let Some(gateway) = gateway {
                given["gateway"] = gateway.into();
            }
            serde_json::from_value::<StaticAddress>(given).unwrap()
        };
        let interface = |mac: &str, addresses: Vec<StaticAddress>| Interface {
            mac: mac.to_owned(),
            addressing: Addressing::ANY,
            addresses,
        };
        let instance = Instance {
            interfaces: vec![
                interface(
                    "52:01:02:03:04:00",
                    vec![
                        address("10.0.0.2", 24, Some("10.0.0.1")),
                        address("10.0.0.3", 24, Some("10.0.0.1")),
                        address("fd00::2", 64, Some("fe80::1")),
                    ],
                ),
                interface(
                    "52:01:02:03:04:01",
                    vec![address("10.1.0.2", 16, Some("10.1.0.1"))],
                ),
                interface("52:01:02:03:04:02", vec![address("fd01::2", 64, None)]),
            ],
            ..instance()
        };
        let network: serde_json::Value = serde_saphyr::from_str(&instance.network_config()).unwrap();
        let mut interfaces = ["eth0", "eth1", "eth2"].map(|name| network["ethernets"][name].clone());
        for interface in &mut interfaces {
            for field in ["match", "set-name"] {
                assert!(interface.as_object_mut().unwrap().remove(field).is_some());
            }
        }
        let expected = [
            serde_json::json!({
                "dhcp4": false, "accept-ra": false,
                "addresses": ["10.0.0.2/24", "10.0.0.3/24", "fd00::2/64"],
                "routes": [{"to": "0.0.0.0/0", "via": "10.0.0.1"}], "gateway6": "fe80::1",
            }),
            serde_json::json!({
                "dhcp4": false, "dhcp6": true, "accept-ra": true, "optional": true,
                "dhcp6-overrides": {"route-metric": 2001}, "addresses": ["10.1.0.2/16"],
                "routes": [{"to": "0.0.0.0/0", "via": "10.1.0.1", "metric": 2001}],
            }),
            serde_json::json!({
                "dhcp4": true, "dhcp-identifier": "mac", "accept-ra": true, "optional": true,
                "dhcp4-overrides": {"route-metric": 2002}, "addresses": ["fd01::2/64"],
            }),
        ];
        assert_eq!(interfaces, expected);
    }

    #[test]
    fn the_first_interface_has_the_preferred_route() {
        let network = network(&[Addressing::ANY, Addressing::ANY]);
        let [first, second] = ["eth0", "eth1"].map(|name| &network["ethernets"][name]);
        assert_eq!(second["match"]["macaddress"], "52:01:02:03:04:01");
        assert_eq!(second["set-name"], "eth1");
        assert_eq!(second["optional"], true);
        for field in ["dhcp4-overrides", "dhcp6-overrides"] {
            assert_eq!(second[field], serde_json::json!({"route-metric": 2001}));
            assert!(first[field].is_null());
        }
    }

    #[test]
    fn a_name_is_text_whatever_yaml_takes_it_for() {
        for name in ["1001", "true", "no", "2024-01-01", "1e3", "null"] {
            let instance = Instance {
                hostname: name.to_owned(),
                ..instance()
            };
            let read: BTreeMap<String, serde_json::Value> =
                serde_saphyr::from_str(&instance.meta_data()).unwrap();
            assert_eq!(read["local-hostname"], name);
        }
    }

    #[test]
    fn user_data_of_any_size_and_content_comes_out_as_it_went_in() {
        for size in [0, 1, 2047, 2048, 2049, 100_000, 2 * 1024 * 1024] {
            let data: Vec<u8> = (0..size).map(|at| u8::try_from(at * 7 % 256).unwrap()).collect();
            let image = image(&instance(), &data).unwrap();
            let (_, found) = files(&image).pop().unwrap();
            assert!(found == data, "{size} bytes");
        }
    }
}
