//! The provider spec of the driver.

use std::collections::BTreeMap;

use cmi_driver::fields::{known, not_blank, not_blank_if_present, out_of_range, unknown};
use cmi_driver::{Result, SpecSchema, StaticAddress};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::config::{Config, Image, Network, Size, VmPool};

/// The field with the VM's share of the host's processors.
pub const CPU_SHARES: &str = "cpuShares";
/// The field with the guest's current memory.
pub const MEMORY_MIB: &str = "memoryMib";
/// The field with the size of the root file system.
const ROOT_FS_SIZE: &str = "rootFsSize";
/// The CPU shares that the kernel accepts with both versions of control groups.
const SHARES: std::ops::RangeInclusive<u64> = 2..=10_000;
/// The least memory that a guest can run with.
const LEAST_MEMORY_MIB: u64 = 64;
/// The field with the networks.
const NETWORKS: &str = "networks";
/// The field with the static addresses.
pub const NETWORK_ADDRESSES: &str = "networkAddresses";
/// The field with the data disks.
const DISKS: &str = "disks";
/// The most network interfaces of a VM.
const MAX_NETWORKS: usize = 8;
/// The most data disks of a VM.
const MAX_DISKS: usize = 16;
/// A decimal GB, the unit of disk sizes.
pub const GB: u64 = 1_000_000_000;

/// The provider spec of a VM.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "Provider spec of the libvirt driver")]
pub struct VmSpec {
    /// The pool that the VM is placed in, by its name in the driver's configuration.
    #[serde(deserialize_with = "not_blank")]
    pub vm_pool: String,
    /// How many CPUs and how much memory, by its name in the driver's configuration.
    #[serde(deserialize_with = "not_blank")]
    pub size: String,
    /// The image that the VM boots from, by its name in the driver's configuration. Default: the pool's.
    #[serde(default, deserialize_with = "not_blank_if_present")]
    #[schemars(with = "String")]
    pub image: Option<String>,
    /// Root file system, GB. Default: as large as the image.
    #[serde(default, deserialize_with = "whole_if_there")]
    #[schemars(with = "u64")]
    pub root_fs_size: Option<u64>,
    /// The networks of the VM's interfaces, by their names in the driver's configuration. The first one has
    /// the preferred default route. Default: the pool's network.
    #[serde(default, deserialize_with = "names_if_there")]
    #[schemars(with = "Vec<String>", length(min = 1, max = MAX_NETWORKS))]
    pub networks: Option<Vec<String>>,
    /// The static addresses, which the provider sets.
    #[serde(default)]
    #[schemars(skip)]
    pub network_addresses: Vec<StaticAddress>,
    /// The data disks. They are empty when the VM is created, and deleted with it. The guest finds the first
    /// one at `/dev/disk/by-id/virtio-data-0`. Default: none.
    #[serde(default, deserialize_with = "not_too_many")]
    #[schemars(length(max = MAX_DISKS))]
    pub disks: Vec<DataDisk>,
    /// Share of the host's processors while they are short. A VM without this field has 100 on a host with
    /// control groups version 2, and 1024 with version 1. Can be changed while the VM lives. Default: the
    /// host's.
    #[serde(default, deserialize_with = "whole_if_there")]
    #[schemars(with = "u64", range(min = *SHARES.start(), max = *SHARES.end()))]
    pub cpu_shares: Option<u64>,
    /// Current memory of the guest, MiB; the balloon takes the rest of the size's memory. Can be changed
    /// while the VM lives. Default: all.
    #[serde(default, deserialize_with = "whole_if_there")]
    #[schemars(with = "u64", range(min = LEAST_MEMORY_MIB))]
    pub memory_mib: Option<u64>,
    /// The host.
    #[serde(default, deserialize_with = "not_blank_if_present")]
    #[schemars(with = "String")]
    pub failure_domain: Option<String>,
    /// The tags of the VM. Can be changed while the VM lives.
    #[serde(default)]
    #[schemars(default)]
    pub tags: BTreeMap<String, String>,
}

/// A data disk of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(inline)]
pub struct DataDisk {
    /// Its size, GB.
    #[serde(deserialize_with = "whole")]
    pub size: u64,
}

/// The parts of the configuration that a spec names.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// The pool.
    pub pool: &'a VmPool,
    /// The size.
    pub size: &'a Size,
    /// The networks with their names, one for each interface.
    pub networks: Vec<(&'a str, &'a Network)>,
    /// The name of the image.
    pub image_name: &'a str,
    /// The image.
    pub image: &'a Image,
    /// The hosts that the VM may be placed on; a single one if the spec has a failure domain.
    pub hosts: Vec<&'a str>,
}

impl Wanted<'_> {
    /// The host of the VM, if there is no choice.
    pub fn only_host(&self) -> Option<&str> {
        match self.hosts.as_slice() {
            [only] => Some(only),
            _ => None,
        }
    }
}

/// Returns the static addresses of an interface. An address without a network is for the first interface, any
/// other for the first interface of its network.
pub fn addresses_of<'a>(
    all: &'a [StaticAddress],
    interface: usize,
    networks: &[impl AsRef<str>],
) -> Vec<&'a StaticAddress> {
    let place = |address: &&StaticAddress| match &address.network {
        Some(name) => networks.iter().position(|network| network.as_ref() == name),
        None => Some(0),
    };
    all.iter()
        .filter(|address| place(address) == Some(interface))
        .collect()
}

impl VmSpec {
    /// The sizes of the data disks, GB.
    pub fn disk_sizes(&self) -> impl Iterator<Item = u64> {
        self.disks.iter().map(|disk| disk.size)
    }

    /// Looks up the spec's pool, size, image and hosts in the configuration. Calls about an existing VM must
    /// not need them: the VM can be found and deleted after its pool or size was removed.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when the configuration lacks a name; OUT_OF_RANGE when the pool or the size does not
    /// allow a number (DRV-CR-11).
    pub fn within<'a>(&self, config: &'a Config) -> Result<Wanted<'a>> {
        let pool = known(&config.vm_pools, &self.vm_pool, "/vmPool")?;
        let size = known(&config.sizes, &self.size, "/size")?;
        let wanted_image = self.image.as_ref().unwrap_or(&pool.image);
        let (image_name, image) = config
            .images
            .get_key_value(wanted_image)
            .ok_or_else(|| unknown("/image", wanted_image, config.images.keys()))?;
        let networks = self.networks_within(config, pool)?;
        let hosts: Vec<&str> = config
            .hosts_of(pool)
            .filter(|host| self.failure_domain.as_deref().is_none_or(|asked| asked == *host))
            .collect();
        if let Some(asked) = self.failure_domain.as_ref().filter(|_| hosts.is_empty()) {
            return Err(unknown("/failureDomain", asked, config.hosts_of(pool)));
        }
        let root = self.root_fs_size.map(|size| (ROOT_FS_SIZE.to_owned(), size));
        let data = self.disks.iter().enumerate();
        let data = data.map(|(index, disk)| (format!("{DISKS}/{index}/size"), disk.size));
        let most = pool.max_disk_gb;
        for (field, asked) in root.into_iter().chain(data) {
            if !(1..=most).contains(&asked) {
                let what = format!("is {asked} GB: the pool allows 1 to {most} GB");
                return Err(out_of_range(&format!("/{field}"), &what));
            }
        }
        self.check_hot(size.memory_mib)?;
        Ok(Wanted {
            pool,
            size,
            networks,
            image_name,
            image,
            hosts,
        })
    }

    fn networks_within<'a>(
        &self,
        config: &'a Config,
        pool: &'a VmPool,
    ) -> Result<Vec<(&'a str, &'a Network)>> {
        let default = std::slice::from_ref(&pool.network);
        let asked = self.networks.as_deref().unwrap_or(default).iter().enumerate();
        let of = |(index, name): (usize, &String)| match config.networks.get_key_value(name) {
            Some((name, network)) => Ok((name.as_str(), network)),
            None => Err(unknown(
                &format!("/{NETWORKS}/{index}"),
                name,
                config.networks.keys(),
            )),
        };
        let networks: Vec<_> = asked.map(of).collect::<Result<_>>()?;
        let names = || networks.iter().map(|(name, _)| *name);
        for (index, address) in self.network_addresses.iter().enumerate() {
            if let Some(name) = &address.network
                && !names().any(|known| known == name)
            {
                let place = format!("/{NETWORK_ADDRESSES}/{index}/network");
                return Err(unknown(&place, name, names()));
            }
        }
        Ok(networks)
    }

    /// Checks that the configuration has the spec's host.
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

    /// Checks the numbers that can be changed while a VM lives, given the maximum of its memory.
    ///
    /// # Errors
    /// OUT_OF_RANGE with the field (DRV-CR-11).
    pub fn check_hot(&self, most_memory_mib: u64) -> Result<()> {
        if let Some(asked) = self.cpu_shares
            && !SHARES.contains(&asked)
        {
            let what = format!("is {asked}: use {} to {}", SHARES.start(), SHARES.end());
            return Err(out_of_range(&format!("/{CPU_SHARES}"), &what));
        }
        if let Some(asked) = self.memory_mib
            && !(LEAST_MEMORY_MIB..=most_memory_mib).contains(&asked)
        {
            let what = format!("is {asked}: use {LEAST_MEMORY_MIB} to {most_memory_mib}");
            return Err(out_of_range(&format!("/{MEMORY_MIB}"), &what));
        }
        Ok(())
    }
}

/// Returns the schema of a user's spec. It lacks the controller's tags, since the controller adds them later.
pub fn schema(config: &Config) -> SpecSchema {
    let mut schema = Value::from(schemars::schema_for!(VmSpec));
    let fields = &mut schema["properties"];
    // An optional field may be absent, but not null.
    for field in fields.as_object_mut().into_iter().flatten() {
        if let Some(field) = field.1.as_object_mut() {
            field.remove("default");
        }
    }
    fields["vmPool"]["enum"] = json!(config.vm_pools.keys().collect::<Vec<_>>());
    fields["size"]["enum"] = json!(config.sizes.keys().collect::<Vec<_>>());
    fields["image"]["enum"] = json!(config.images.keys().collect::<Vec<_>>());
    fields["failureDomain"]["enum"] = json!(config.hosts.keys().collect::<Vec<_>>());
    fields[NETWORKS]["items"]["enum"] = json!(config.networks.keys().collect::<Vec<_>>());
    let largest = config.vm_pools.values().map(|pool| pool.max_disk_gb).max();
    let limit = |size: &mut Value| {
        size["minimum"] = json!(1);
        size["maximum"] = json!(largest);
    };
    limit(&mut fields[ROOT_FS_SIZE]);
    limit(&mut fields[DISKS]["items"]["properties"]["size"]);
    SpecSchema::new(schema)
}

fn names_if_there<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<Vec<String>>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    if !(1..=MAX_NETWORKS).contains(&names.len()) {
        let what = format!("must have 1 to {MAX_NETWORKS} names");
        return Err(serde::de::Error::custom(what));
    }
    Ok(Some(names))
}

fn not_too_many<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<DataDisk>, D::Error> {
    let disks = Vec::deserialize(deserializer)?;
    if disks.len() > MAX_DISKS {
        let what = format!("must have at most {MAX_DISKS} disks");
        return Err(serde::de::Error::custom(what));
    }
    Ok(disks)
}

fn whole_if_there<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<u64>, D::Error> {
    whole(deserializer).map(Some)
}

/// Reads an integer, which may also be written as `20.0`.
fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<u64, D::Error> {
    let number = serde_json::Number::deserialize(deserializer)?;
    let whole = number.as_u64().or_else(|| {
        let number = number
            .as_f64()
            .filter(|number| number.fract() == 0.0 && *number >= 0.0)?;
        // A number that is too large must be out of range, not a type error.
        format!("{number:.0}").parse().ok().or(Some(u64::MAX))
    });
    let refused = || serde::de::Error::custom("must be a whole number that is not negative");
    whole.ok_or_else(refused)
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
            .and_then(|spec: VmSpec| spec.within(&config).map(|_| ()))
            .err()
    }

    /// DRV-04, DRV-CR-03, DRV-CR-11
    #[test]
    fn what_the_schema_refuses_is_what_the_driver_refuses_with_the_field() {
        use Code::{InvalidArgument, OutOfRange};
        let schema = schema(&example());
        schema.validate().unwrap();
        for (change, expected, place) in [
            (json!({}), None, ""),
            (json!({"rootFsSize": 20}), None, ""),
            (json!({"rootFsSize": 20.0}), None, ""),
            (json!({"image": "tiny", "failureDomain": "host-b"}), None, ""),
            (
                json!({"tags": {"a": "b"}, "cpuShares": 512, "memoryMib": 1024}),
                None,
                "",
            ),
            (
                json!({"networks": ["storage", "lan"], "disks": [{"size": 1}, {"size": 100}]}),
                None,
                "",
            ),
            (json!({"disks": []}), None, ""),
            (json!({"networks": []}), Some(InvalidArgument), "/networks"),
            (json!({"networks": "lan"}), Some(InvalidArgument), "/networks"),
            (
                json!({"networks": ["lan", "moon"]}),
                Some(InvalidArgument),
                "/networks/1",
            ),
            (
                json!({"networks": vec!["lan"; 9]}),
                Some(InvalidArgument),
                "/networks",
            ),
            (
                json!({"disks": [{"size": 1}, {}]}),
                Some(InvalidArgument),
                "/disks/1",
            ),
            (
                json!({"disks": [{"size": 1, "colour": 1}]}),
                Some(InvalidArgument),
                "/disks/0/colour",
            ),
            (
                json!({"disks": [{"size": "1"}]}),
                Some(InvalidArgument),
                "/disks/0/size",
            ),
            (
                json!({"disks": [{"size": 1}, {"size": 0}]}),
                Some(OutOfRange),
                "/disks/1/size",
            ),
            (
                json!({"disks": vec![json!({"size": 1}); 17]}),
                Some(InvalidArgument),
                "/disks",
            ),
            (json!({"vmPool": null}), Some(InvalidArgument), "vmPool"),
            (json!({"vmPool": ""}), Some(InvalidArgument), "/vmPool"),
            (json!({"vmPool": "moon"}), Some(InvalidArgument), "/vmPool"),
            (json!({"vmPool": 7}), Some(InvalidArgument), "/vmPool"),
            (json!({"size": null}), Some(InvalidArgument), "size"),
            (json!({"size": "huge"}), Some(InvalidArgument), "/size"),
            (json!({"image": "none"}), Some(InvalidArgument), "/image"),
            (json!({"rootFsSize": "20"}), Some(InvalidArgument), "/rootFsSize"),
            (json!({"rootFsSize": -1}), Some(InvalidArgument), "/rootFsSize"),
            (json!({"rootFsSize": 1.5}), Some(InvalidArgument), "/rootFsSize"),
            (json!({"rootFsSize": 0}), Some(OutOfRange), "/rootFsSize"),
            (json!({"rootFsSize": 1e30}), Some(OutOfRange), "/rootFsSize"),
            (json!({"cpuShares": 1}), Some(OutOfRange), "/cpuShares"),
            (json!({"memoryMib": 1}), Some(OutOfRange), "/memoryMib"),
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

    #[test]
    fn an_address_is_for_the_first_interface_or_that_of_its_network() {
        let address = |ip: &str, network: Option<&str>| {
            let pool = json!({"apiGroup": "g", "kind": "Pool", "name": "p"});
            let mut address = json!({"address": ip, "prefix": 24, "pool": pool});
            if let Some(network) = network {
                address["network"] = json!(network);
            }
            address
        };
        let spec = |addresses: Value, networks: Value| {
            with(&json!({"networkAddresses": addresses, "networks": networks}))
        };
        let all = json!([
            address("10.0.0.2", None),
            address("fd00::2", Some("lan")),
            address("10.1.0.2", Some("storage")),
        ]);
        let read: VmSpec = spec(all.clone(), json!(["lan", "storage", "lan"]))
            .decode()
            .unwrap();
        let config = example();
        read.within(&config).unwrap();
        let of = |interface| {
            let found = addresses_of(&read.network_addresses, interface, &["lan", "storage", "lan"]);
            found
                .iter()
                .map(|address| address.address.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            [of(0), of(1), of(2)],
            [vec!["10.0.0.2", "fd00::2"], vec!["10.1.0.2"], vec![]]
        );
        let status = refusal(&json!({"networkAddresses": all, "networks": ["lan"]})).unwrap();
        assert_eq!(status.code(), Code::InvalidArgument);
        let message = status.message();
        assert!(
            message.contains("/networkAddresses/2/network is `storage`"),
            "{message}"
        );
        assert!(
            schema(&config).check(&spec(all, json!(["lan"]))).is_err(),
            "users can set it"
        );
    }

    /// DRV-CR-11
    #[test]
    fn limits_from_other_fields_are_checked_beside_the_schema() {
        for change in [
            json!({"rootFsSize": 101}),
            json!({"disks": [{"size": 101}], "vmPool": "default"}),
            json!({"memoryMib": 4096}),
            json!({"size": "large", "memoryMib": 10_000}),
        ] {
            assert_eq!(refusal(&change).unwrap().code(), Code::OutOfRange, "{change}");
        }
        let edge = refusal(&json!({"vmPool": "edge", "failureDomain": "host-a"})).unwrap();
        assert_eq!(edge.code(), Code::InvalidArgument);
    }
}
