//! The configuration of a simulated cloud.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use garde::Validate;
use secrecy::SecretString;
use serde::Deserialize;

use super::faults::Fault;
use super::subnet::Subnet;
use cmi_driver::{Operation, is_dns_label};

/// The limit on the durations in the configuration, seconds: one day.
const MAX_SECONDS: f64 = 86_400.0;

/// Configuration of the simulated driver. Every field has a default: `{}` is a cloud of three zones,
/// one pool and four sizes.
#[derive(Clone, Debug, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SimulatedConfig {
    /// The zones there are. Default: `zone-a`, `zone-b`, `zone-c`. Empty: a cloud without failure domains.
    #[garde(custom(dns_labels))]
    pub zones: BTreeSet<String>,
    /// Pools by name, at least one. Default: `default`, which holds what its subnet 10.100.0.0/16 holds.
    #[garde(length(min = 1), dive, custom(pools_apart))]
    pub pools: BTreeMap<String, Pool>,
    /// Sizes by name, at least one. Default: `xsmall` (1 CPU, 2 GiB), `small` (2, 4), `medium`
    /// (4, 8), `large` (8, 16).
    #[garde(length(min = 1), dive)]
    pub sizes: BTreeMap<String, Size>,
    /// The most VMs of all pools and clusters together. Default: no limit.
    #[garde(skip)]
    pub quota: Option<u32>,
    /// From the order of a VM until its guest runs, seconds. Default: 2.
    #[garde(range(min = 0.0, max = MAX_SECONDS))]
    pub boot_seconds: f64,
    /// The longest additional boot time, seconds; uniformly distributed. Default: 1.
    #[garde(range(min = 0.0, max = MAX_SECONDS))]
    pub boot_jitter_seconds: f64,
    /// From the boot until the driver knows the VM's address, seconds. Default: 0, known from the order.
    #[garde(range(min = 0.0, max = MAX_SECONDS))]
    pub address_seconds: f64,
    /// From the order to stop until the guest is stopped, seconds. Default: 1.
    #[garde(range(min = 0.0, max = MAX_SECONDS))]
    pub shut_down_seconds: f64,
    /// ShutDownMachine answers OK as soon as the guest has accepted to stop, instead of ABORTED until it is
    /// stopped. Default: false.
    #[garde(skip)]
    pub accepts_shut_down: bool,
    /// UpdateMachine adds the tag `capcmi.io/machine` to an adopted VM that lacks it, and `hot_updatable`
    /// lists the tag. Default: false.
    #[garde(skip)]
    pub adds_machine_tag: bool,
    /// The driver declares that its lists have addresses and power states. Default: true.
    #[garde(skip)]
    pub list_has_state: bool,
    /// From the order to delete until the VM is gone, seconds. Default: 1.
    #[garde(range(min = 0.0, max = MAX_SECONDS))]
    pub delete_seconds: f64,
    /// How long DeleteMachine waits for the VM to be gone before it answers ABORTED, seconds. Default: 5.
    #[garde(range(min = 0.0, max = MAX_SECONDS))]
    pub delete_wait_seconds: f64,
    /// The consistency window that the driver declares, seconds. Default: 0.
    #[garde(range(min = 0.0, max = MAX_SECONDS))]
    pub consistency_window_seconds: f64,
    /// How long a new VM is missing from GetMachineStatus and ListMachines, seconds, at most
    /// `consistencyWindowSeconds`. CreateMachine finds it immediately, as in clouds with client tokens.
    /// Default: 0.
    #[garde(range(min = 0.0, max = self.consistency_window_seconds))]
    pub hide_new_seconds: f64,
    /// How long every call takes, milliseconds. Default: 0.
    #[garde(range(max = 86_400_000))]
    pub latency_ms: u64,
    /// File that persists the cloud, shared by every process that names it. It holds user data and has mode
    /// 0600. Default: not set, the cloud ends with the process.
    #[garde(skip)]
    pub state_file: Option<PathBuf>,
    /// The file for the log of calls, as JSON lines. Default: not set.
    #[garde(skip)]
    pub call_log: Option<PathBuf>,
    /// The faults. Default: none.
    #[garde(dive)]
    pub faults: Vec<Fault>,
    /// File with a list of further faults, JSON or YAML, read again whenever it changes; they precede
    /// `faults`. It need not exist. Default: not set.
    #[garde(skip)]
    pub faults_file: Option<PathBuf>,
    /// The valid tokens, for the secret key `token`. Default: none is required.
    #[garde(dive)]
    pub credentials: Option<Credentials>,
    /// Optional calls that the driver does not offer. Default: none.
    #[garde(custom(optional_calls))]
    pub disabled_calls: BTreeSet<Operation>,
}

/// Where VMs are placed.
#[derive(Clone, Debug, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Pool {
    /// The most VMs. 0 is a full pool. Default: as many as the subnet has addresses.
    #[garde(custom(within_subnet(self.subnet)))]
    pub capacity: Option<u32>,
    /// The IPv4 network that addresses are taken from, `10.100.0.0/16`; pools may not overlap. Required.
    #[garde(skip)]
    pub subnet: Subnet,
    /// The zones of the pool. Default: all zones.
    #[garde(skip)]
    pub zones: Option<BTreeSet<String>>,
    /// The most VMs of the pool in a zone, by zone. 0 is a full zone. Default: no limit.
    #[serde(default)]
    #[garde(skip)]
    pub zone_capacity: BTreeMap<String, u32>,
}

/// A size: the resources of its VMs.
#[derive(Clone, Debug, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Size {
    /// CPUs. Required.
    #[garde(range(min = 1))]
    pub cpu: u32,
    /// Memory, GiB. Required.
    #[garde(range(min = 1))]
    pub memory_gib: u32,
    /// Smallest root file system, GB. Default: 10.
    #[serde(default = "Size::default_min_root_fs")]
    #[garde(range(min = 1, max = self.max_root_fs_gb))]
    pub min_root_fs_gb: u32,
    /// Largest root file system, GB. Default: 1000.
    #[serde(default = "Size::default_max_root_fs")]
    #[garde(skip)]
    pub max_root_fs_gb: u32,
    /// Root file system of a VM whose spec names none, GB. Default: the smallest.
    #[garde(inner(range(min = self.min_root_fs_gb, max = self.max_root_fs_gb)))]
    pub default_root_fs_gb: Option<u32>,
}

/// The valid tokens of the cloud.
#[derive(Clone, Debug, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Credentials {
    /// May do everything. Any token that is not named here is UNAUTHENTICATED. Required.
    #[garde(skip)]
    pub token: SecretString,
    /// May read; PERMISSION_DENIED for every call that changes a VM. Default: none.
    #[garde(skip)]
    pub read_only_token: Option<SecretString>,
    /// Is known but may do nothing: PERMISSION_DENIED for every call. Default: none.
    #[garde(skip)]
    pub powerless_token: Option<SecretString>,
}

impl Size {
    fn default_min_root_fs() -> u32 {
        10
    }

    fn default_max_root_fs() -> u32 {
        1000
    }

    fn of(cpu: u32, memory_gib: u32) -> Self {
        Self {
            cpu,
            memory_gib,
            min_root_fs_gb: Self::default_min_root_fs(),
            max_root_fs_gb: Self::default_max_root_fs(),
            default_root_fs_gb: None,
        }
    }

    /// Root file system of a VM whose spec names none, GB.
    pub fn root_fs_gb(&self) -> u32 {
        self.default_root_fs_gb.unwrap_or(self.min_root_fs_gb)
    }
}

impl Pool {
    /// The most VMs.
    pub fn capacity(&self) -> u32 {
        self.capacity.unwrap_or_else(|| self.subnet.hosts())
    }
}

impl Default for SimulatedConfig {
    fn default() -> Self {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Self {
            zones: names(&["zone-a", "zone-b", "zone-c"]),
            pools: BTreeMap::from([(
                "default".to_owned(),
                Pool {
                    zone_capacity: BTreeMap::new(),
                    capacity: None,
                    subnet: Subnet::DEFAULT,
                    zones: None,
                },
            )]),
            sizes: [
                ("xsmall", 1, 2),
                ("small", 2, 4),
                ("medium", 4, 8),
                ("large", 8, 16),
            ]
            .into_iter()
            .map(|(name, cpu, memory)| (name.to_owned(), Size::of(cpu, memory)))
            .collect(),
            quota: None,
            boot_seconds: 2.0,
            boot_jitter_seconds: 1.0,
            address_seconds: 0.0,
            shut_down_seconds: 1.0,
            accepts_shut_down: false,
            adds_machine_tag: false,
            list_has_state: true,
            delete_seconds: 1.0,
            delete_wait_seconds: 5.0,
            consistency_window_seconds: 0.0,
            hide_new_seconds: 0.0,
            latency_ms: 0,
            state_file: None,
            call_log: None,
            faults: Vec::new(),
            faults_file: None,
            credentials: None,
            disabled_calls: BTreeSet::new(),
        }
    }
}

impl SimulatedConfig {
    /// Checks the rules that the types cannot express.
    ///
    /// # Errors
    /// Every wrong field, by its path.
    pub fn check(&self) -> anyhow::Result<()> {
        self.validate()
            .map_err(|report| anyhow::anyhow!("the configuration of the simulated driver: {report}"))?;
        for (name, pool) in &self.pools {
            let unknown = pool
                .zones
                .iter()
                .flatten()
                .find(|zone| !self.zones.contains(*zone));
            if let Some(zone) = unknown {
                anyhow::bail!("pools.{name}.zones: there is no zone `{zone}`; `zones` has to name it");
            }
        }
        Ok(())
    }

    /// Returns the zones of a pool; empty if the cloud has no zones.
    pub fn zones_of<'a>(&'a self, pool: &'a Pool) -> &'a BTreeSet<String> {
        pool.zones.as_ref().unwrap_or(&self.zones)
    }

    /// Whether the driver offers an operation.
    pub fn supports(&self, operation: Operation) -> bool {
        !self.disabled_calls.contains(&operation)
    }

    /// The consistency window that the driver declares.
    pub fn consistency_window(&self) -> Duration {
        Duration::from_secs_f64(self.consistency_window_seconds)
    }
}

fn optional_calls<C>(disabled: &BTreeSet<Operation>, _: &C) -> garde::Result {
    let required = cmi_driver::Capabilities::minimal();
    match disabled.iter().find(|operation| required.supports(**operation)) {
        Some(operation) => Err(garde::Error::new(format!(
            "{operation} is a required call and can't be switched off"
        ))),
        None => Ok(()),
    }
}

fn dns_labels<C>(names: &BTreeSet<String>, _: &C) -> garde::Result {
    match names.iter().find(|name| !is_dns_label(name)) {
        Some(name) => Err(garde::Error::new(format!(
            "`{name}` is no DNS label: lower case letters, digits and `-`, at most 63"
        ))),
        None => Ok(()),
    }
}

fn within_subnet(subnet: Subnet) -> impl FnOnce(&Option<u32>, &()) -> garde::Result {
    let hosts = subnet.hosts();
    move |capacity, ()| match capacity {
        Some(capacity) if *capacity > hosts => Err(garde::Error::new(format!(
            "{capacity} VMs need addresses, and the subnet has only {hosts}"
        ))),
        Some(_) | None => Ok(()),
    }
}

fn pools_apart<C>(pools: &BTreeMap<String, Pool>, _: &C) -> garde::Result {
    let pools: Vec<_> = pools.iter().collect();
    for (index, (name, pool)) in pools.iter().enumerate() {
        if !is_dns_label(&name.to_ascii_lowercase()) {
            return Err(garde::Error::new(format!(
                "`{name}` is no pool name: letters, digits and `-`, at most 63"
            )));
        }
        if let Some((other, _)) = pools[..index]
            .iter()
            .find(|(_, other)| other.subnet.overlaps(pool.subnet))
        {
            return Err(garde::Error::new(format!(
                "the subnets of `{other}` and `{name}` overlap"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> anyhow::Result<SimulatedConfig> {
        let config: SimulatedConfig = serde_saphyr::from_str(text)?;
        config.check()?;
        Ok(config)
    }

    #[test]
    fn an_empty_configuration_is_a_cloud_with_a_pool_sizes_and_three_zones() {
        let config = read("{}").unwrap();
        assert_eq!(config.zones.len(), 3);
        assert!(config.pools["default"].capacity() >= 10_000);
        assert_eq!(
            config.sizes.keys().collect::<Vec<_>>(),
            ["large", "medium", "small", "xsmall"]
        );
    }

    #[test]
    fn what_is_wrong_is_named_by_its_path() {
        for (text, path) in [
            ("zonez: []", "zonez"),
            ("bootSeconds: -1", "boot_seconds"),
            ("hideNewSeconds: 3", "hide_new_seconds"),
            ("pools: {}", "pools"),
            ("pools: {a: {subnet: 10.0.0.0/30, capacity: 9}}", "capacity"),
            (
                "pools: {a: {subnet: 10.0.0.0/8}, b: {subnet: 10.1.0.0/16}}",
                "overlap",
            ),
            ("pools: {a: {subnet: 10.0.0.0/8, zones: [moon]}}", "moon"),
            ("sizes: {a: {cpu: 0, memoryGib: 1}}", "cpu"),
            ("disabledCalls: [CreateMachine]", "CreateMachine"),
            ("faults: [{operation: CreateMachine}]", "faults"),
        ] {
            let message = format!("{:#}", read(text).unwrap_err());
            assert!(message.contains(path), "{text}: {message}");
        }
    }

    /// OPS-11
    #[test]
    fn tokens_are_not_printed() {
        let config = read("credentials: {token: canary-1, readOnlyToken: canary-2}").unwrap();
        assert!(!format!("{config:?}").contains("canary"));
    }
}
