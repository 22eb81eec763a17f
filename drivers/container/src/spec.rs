//! The provider spec of the driver.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use cmi_driver::fields::{invalid, known, not_blank, not_blank_if_present, out_of_range, unknown};
use cmi_driver::{ProviderSpec, Result, SpecSchema, StaticAddress};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::config::{Config, Size};

/// The field with the size.
pub const SIZE: &str = "size";
/// The field with the static address.
pub const NETWORK_ADDRESSES: &str = "networkAddresses";
/// The form of an IPv4 address.
const ADDRESS: &str = r"^((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(\.(?!$)|$)){4}$";

/// The description of a machine.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "Provider spec of the container driver")]
pub struct MachineSpec {
    /// The pool that the machine is placed in, by its name in the driver's configuration.
    #[serde(deserialize_with = "not_blank")]
    pub vm_pool: String,
    /// How many CPUs and how much memory, by its name in the driver's configuration. Can be changed while the
    /// machine lives.
    #[serde(deserialize_with = "not_blank")]
    pub size: String,
    /// The image of the root file system, by its name in the driver's configuration. Default: the pool's.
    #[serde(default, deserialize_with = "not_blank_if_present")]
    #[schemars(with = "String")]
    pub image: Option<String>,
    /// An IPv4 address in the bridge's network, outside of the DHCP range. Default: by DHCP.
    #[serde(default, deserialize_with = "address_if_there")]
    #[schemars(with = "String")]
    pub address: Option<Ipv4Addr>,
    /// The static address, which the provider sets. Like `address`.
    #[serde(default)]
    #[schemars(skip)]
    pub network_addresses: Vec<StaticAddress>,
    /// The host.
    #[serde(default, deserialize_with = "not_blank_if_present")]
    #[schemars(with = "String")]
    pub failure_domain: Option<String>,
    /// Tags of the machine. Can be changed while the machine lives.
    #[serde(default)]
    #[schemars(default)]
    pub tags: BTreeMap<String, String>,
}

/// The parts of the configuration that a spec asks for.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// The size.
    pub size: Size,
    /// The name of the image.
    pub image_name: &'a str,
    /// The folder of the image.
    pub image: &'a Path,
    /// The hosts that the machine may be placed on; one where the spec has a failure domain.
    pub hosts: Vec<&'a str>,
}

impl MachineSpec {
    /// Reads a spec, with its static address as `address`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the place of the field (DRV-02, DRV-04).
    pub fn read(spec: &ProviderSpec) -> Result<Self> {
        let mut read: Self = spec.decode()?;
        read.address = match (read.network_addresses.as_slice(), read.address) {
            ([], address) => address,
            (
                [
                    StaticAddress {
                        address: IpAddr::V4(address),
                        network: None,
                        ..
                    },
                ],
                None,
            ) => Some(*address),
            _ => {
                let what = "must be a single IPv4 address without a network, and excludes `address`";
                return Err(invalid(&format!("/{NETWORK_ADDRESSES}"), what));
            }
        };
        Ok(read)
    }

    /// Looks up the names of the spec in the configuration. A call about an existing machine does not need
    /// that: the machine has to be found and deleted even after its pool was removed from the configuration.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when the configuration lacks a name of the spec; OUT_OF_RANGE when no
    /// machine can have the address (DRV-CR-11).
    pub fn within<'a>(&self, config: &'a Config) -> Result<Wanted<'a>> {
        let pool = known(&config.vm_pools, &self.vm_pool, "/vmPool")?;
        let size = self.size_within(config)?;
        let wanted_image = self.image.as_ref().unwrap_or(&pool.image);
        let (image_name, image) = config
            .images
            .get_key_value(wanted_image)
            .ok_or_else(|| unknown("/image", wanted_image, config.images.keys()))?;
        let hosts: Vec<&str> = config
            .hosts_of(pool)
            .filter(|host| self.failure_domain.as_deref().is_none_or(|asked| asked == *host))
            .collect();
        if let Some(asked) = self.failure_domain.as_ref().filter(|_| hosts.is_empty()) {
            return Err(unknown("/failureDomain", asked, config.hosts_of(pool)));
        }
        self.check_address(config)?;
        Ok(Wanted {
            size,
            image_name,
            image,
            hosts,
        })
    }

    /// Finds the size in the configuration.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when the configuration does not have it.
    pub fn size_within(&self, config: &Config) -> Result<Size> {
        known(&config.sizes, &self.size, "/size").copied()
    }

    fn check_address(&self, config: &Config) -> Result<()> {
        let Some(address) = self.address else {
            return Ok(());
        };
        let Some(subnet) = config.bridge.address else {
            return Err(invalid(
                "/address",
                "needs `bridge.address` in the driver's configuration",
            ));
        };
        let is_leased = |range: crate::config::DhcpRange| range.contains(address);
        let gateway = IpAddr::V4(subnet.address);
        let fits = |given: &StaticAddress| {
            given.prefix == subnet.prefix && given.gateway.is_none_or(|given| given == gateway)
        };
        if !self.network_addresses.iter().all(fits) {
            let what = format!("has another prefix or gateway than `bridge.address`, {subnet}");
            return Err(out_of_range(&format!("/{NETWORK_ADDRESSES}"), &what));
        }
        if !subnet.has_host(address) || config.bridge.dhcp_range.is_some_and(is_leased) {
            let what = format!("is {address}; it must be in {subnet}, outside of the DHCP range");
            return Err(out_of_range("/address", &what));
        }
        Ok(())
    }

    /// Checks that the configuration has the host that the spec asks for.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the field and the configured hosts.
    pub fn check_failure_domain(&self, config: &Config) -> Result<()> {
        match &self.failure_domain {
            Some(asked) if !config.hosts.contains_key(asked) => {
                Err(unknown("/failureDomain", asked, config.hosts.keys()))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Returns the schema of a user's spec. The controller's tags are not in it: the controller adds them later.
pub fn schema(config: &Config) -> SpecSchema {
    let mut schema = Value::from(schemars::schema_for!(MachineSpec));
    let fields = &mut schema["properties"];
    // A field that may be left out may not be null.
    for field in fields.as_object_mut().into_iter().flatten() {
        if let Some(field) = field.1.as_object_mut() {
            field.remove("default");
        }
    }
    fields["vmPool"]["enum"] = json!(config.vm_pools.keys().collect::<Vec<_>>());
    fields[SIZE]["enum"] = json!(config.sizes.keys().collect::<Vec<_>>());
    fields["image"]["enum"] = json!(config.images.keys().collect::<Vec<_>>());
    fields["failureDomain"]["enum"] = json!(config.hosts.keys().collect::<Vec<_>>());
    fields["address"]["pattern"] = json!(ADDRESS);
    SpecSchema::new(schema)
}

fn address_if_there<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<Ipv4Addr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let refused = || serde::de::Error::custom(format!("`{text}` is no IPv4 address"));
    text.parse().map(Some).map_err(|_| refused())
}

#[cfg(test)]
mod tests {
    use cmi_driver::{Code, ProviderSpec, Status};

    use super::*;
    use crate::config::tests::example;

    fn with(change: &Value) -> ProviderSpec {
        let mut base = json!({"vmPool": "default", "size": "small"});
        for (key, value) in change.as_object().unwrap() {
            if value.is_null() {
                base.as_object_mut().unwrap().remove(key);
            } else {
                base[key] = value.clone();
            }
        }
        serde_json::from_value(base).unwrap()
    }

    fn refusal(change: &Value) -> Option<Status> {
        let config = example();
        with(change)
            .decode()
            .and_then(|spec: MachineSpec| spec.within(&config).map(|_| ()))
            .err()
    }

    /// DRV-04, DRV-CR-03
    #[test]
    fn schema_and_driver_refuse_the_same_specs() {
        use Code::InvalidArgument;
        let schema = schema(&example());
        schema.validate().unwrap();
        for (change, expected, place) in [
            (json!({}), None, ""),
            (json!({"image": "tiny", "failureDomain": "host-b"}), None, ""),
            (json!({"address": "192.168.150.20"}), None, ""),
            (json!({"tags": {"a": "b"}}), None, ""),
            (json!({"vmPool": null}), Some(InvalidArgument), "vmPool"),
            (json!({"vmPool": ""}), Some(InvalidArgument), "/vmPool"),
            (json!({"vmPool": "moon"}), Some(InvalidArgument), "/vmPool"),
            (json!({"vmPool": 7}), Some(InvalidArgument), "/vmPool"),
            (json!({"size": null}), Some(InvalidArgument), "size"),
            (json!({"size": "huge"}), Some(InvalidArgument), "/size"),
            (json!({"image": "none"}), Some(InvalidArgument), "/image"),
            (json!({"address": "here"}), Some(InvalidArgument), "/address"),
            (
                json!({"address": "192.168.150.256"}),
                Some(InvalidArgument),
                "/address",
            ),
            (
                json!({"failureDomain": "moon"}),
                Some(InvalidArgument),
                "/failureDomain",
            ),
            (json!({"tags": {"a": 1}}), Some(InvalidArgument), "/tags/a"),
            (json!({"colour": "blue"}), Some(InvalidArgument), "colour"),
        ] {
            let status = refusal(&change);
            assert_eq!(
                schema.check(&with(&change)).is_ok(),
                expected.is_none(),
                "schema: {change}"
            );
            assert_eq!(status.as_ref().map(Status::code), expected, "{change}");
            let message = status
                .map(|status| status.message().to_owned())
                .unwrap_or_default();
            assert!(message.contains(place), "{change}: {message}");
        }
    }

    /// DRV-CR-11
    #[test]
    fn an_address_outside_of_the_network_is_out_of_range() {
        for address in [
            "192.168.151.20",
            "192.168.150.1",
            "192.168.150.255",
            "192.168.150.150",
        ] {
            let status = refusal(&json!({"address": address})).unwrap();
            assert_eq!(status.code(), Code::OutOfRange, "{address}");
            assert!(status.message().contains("/address"), "{status}");
        }
        let edge = refusal(&json!({"vmPool": "edge", "failureDomain": "host-a"})).unwrap();
        assert_eq!(edge.code(), Code::InvalidArgument);
    }

    /// DRV-CR-11
    #[test]
    fn a_static_address_needs_the_prefix_and_gateway_of_the_bridge() {
        let config = example();
        let place = |change: Value| {
            let mut given = json!({"address": "192.168.150.20", "prefix": 24,
                "pool": {"apiGroup": "g", "kind": "Pool", "name": "p"}});
            given
                .as_object_mut()
                .unwrap()
                .extend(change.as_object().unwrap().clone());
            let spec = MachineSpec::read(&with(&json!({"networkAddresses": [given]}))).unwrap();
            spec.within(&config).map(|_| ()).map_err(|status| status.code())
        };
        for fits in [json!({}), json!({"gateway": "192.168.150.1"})] {
            assert_eq!(place(fits.clone()), Ok(()), "{fits}");
        }
        for other in [
            json!({"prefix": 16}),
            json!({"gateway": "192.168.150.2"}),
            json!({"gateway": "fd00::1"}),
            json!({"address": "192.168.150.100"}),
        ] {
            assert_eq!(place(other.clone()), Err(Code::OutOfRange), "{other}");
        }
    }

    #[test]
    fn a_static_address_is_the_address_of_the_machine() {
        let read = |addresses: &[(&str, Option<&str>)], address: Value| {
            let pool = json!({"apiGroup": "g", "kind": "Pool", "name": "p"});
            let given = addresses.iter().map(|(ip, network)| {
                let mut given = json!({"address": ip, "prefix": 24, "pool": pool});
                if let Some(network) = network {
                    given["network"] = json!(network);
                }
                given
            });
            let given: Vec<_> = given.collect();
            MachineSpec::read(&with(&json!({"networkAddresses": given, "address": address})))
        };
        let one = ("192.168.150.20", None);
        let spec = read(&[one], Value::Null).unwrap();
        assert_eq!(spec.address, Some(Ipv4Addr::new(192, 168, 150, 20)));
        for (addresses, address) in [
            (vec![one, ("192.168.150.21", None)], Value::Null),
            (vec![("fd00::2", None)], Value::Null),
            (vec![("192.168.150.20", Some("lan"))], Value::Null),
            (vec![one], json!("192.168.150.20")),
        ] {
            let status = read(&addresses, address).unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{addresses:?}");
            assert!(
                status.message().contains("/networkAddresses must be a single"),
                "{status}"
            );
        }
    }
}
