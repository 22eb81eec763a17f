//! The configuration of the suite: the facts about a driver that it needs.

mod contradiction;
mod setting;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use garde::Validate;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::{Map, Value};

pub use contradiction::{changed_places, slow_calls_hang, with_capabilities};
pub use setting::Setting;

use super::hooks::Hook;
use super::secret_scan::{MIN_SECRET, is_long_enough};
use cmi_driver::{
    AddressPool, JsonPointer, MachineClass, MachineClassKind, ProviderSpec, Secrets, StaticAddress,
};

/// The longest name where the configuration gives none, in characters: that of a label in DNS.
const MAX_LABEL: usize = 63;

/// The number of VMs in a long list where the configuration gives none.
const MANY_MACHINES: usize = 25;
/// The delay of a slow call in cases about deadlines, as a multiple of the deadline.
const TIMES_THE_DEADLINE: u32 = 40;

/// Secret values by key.
pub type SecretMap = BTreeMap<String, SecretString>;

/// The facts about a driver that the suite needs. Only `providerSpec` is required: each further field lets
/// more cases run. A *change* is a JSON merge patch on `providerSpec`; `null` removes a field.
#[derive(Clone, Debug, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(allow_unvalidated)]
#[garde(custom(public_keys_exist))]
#[garde(custom(secrets_can_be_found))]
#[garde(custom(credentials_are_taken))]
#[garde(custom(contradiction::agree))]
pub struct Config {
    /// A spec of the smallest possible VM. The suite adds the tags. Required.
    #[garde(custom(not_empty))]
    pub provider_spec: Map<String, Value>,
    /// The credentials of every call, each of 12 bytes or more. Default: none.
    #[serde(default)]
    pub secrets: SecretMap,
    /// Keys of `secrets` whose values are not secret and may appear in answers, such as the id of an account
    /// that is part of a provider id. Default: none.
    #[serde(default)]
    pub public_secret_keys: BTreeSet<String>,
    /// Missing or wrong credentials: the driver must answer UNAUTHENTICATED to each. `{}` means no
    /// credentials. Default: none.
    #[serde(default)]
    pub bad_secrets: Vec<SecretMap>,
    /// Credentials that are known but may do nothing: PERMISSION_DENIED. Default: none.
    #[serde(default)]
    pub restricted_secrets: Option<SecretMap>,
    /// Whether the driver takes no credentials. Then the rules about wrong credentials do not apply. Default:
    /// false.
    #[serde(default)]
    pub no_credentials: bool,
    /// The required fields of `providerSpec`, as JSON pointers: `/region`. Default: none.
    #[serde(default)]
    #[garde(custom(pointers))]
    pub mandatory_fields: Vec<String>,
    /// Changes that make the spec invalid. Default: none.
    #[serde(default)]
    pub invalid_specs: Vec<Value>,
    /// Changes that request more, or less, of a resource than exists. Default: none.
    #[serde(default)]
    pub out_of_range_specs: Vec<Value>,
    /// A change that exceeds a quota or a pool's capacity. Default: none.
    #[serde(default)]
    pub quota_breaking_spec: Option<Value>,
    /// A failure domain without room for another VM of the sample spec; the others have room. Default: none.
    #[serde(default)]
    pub full_failure_domain: Option<String>,
    /// A change that requires another VM, so that an existing VM with the same name does not fit. Default:
    /// none.
    #[serde(default)]
    pub incompatible_change: Option<Value>,
    /// Free static addresses for VMs, for a driver that can set them. Default: none.
    #[serde(default)]
    pub static_addresses: Option<FreeAddresses>,
    /// Changes that UpdateMachine can make to a running VM. Default: none.
    #[serde(default)]
    pub hot_updates: Vec<Value>,
    /// Sample volumes for GetVolumeIDs. Default: none.
    #[serde(default)]
    pub persistent_volumes: PersistentVolumes,
    /// A sample class of the back end's own kind. Default: none.
    #[serde(default)]
    pub migration: Option<Migration>,
    /// Whether the back end has at most one VM per name, so that no machine can have several. Default: false.
    #[serde(default)]
    pub unique_names: bool,
    /// The most characters of a machine's name, 20–253. Default: the suite tries 63, and longer names count
    /// as not tried.
    #[serde(default)]
    #[garde(inner(range(min = 20, max = 253)))]
    pub longest_name: Option<usize>,
    /// The number of VMs in the case about long lists, 2–1000: more than a page of the back end. Default: 25,
    /// or 210 if the driver creates them fast, and longer lists count as not tried.
    #[serde(default)]
    #[garde(inner(range(min = 2, max = 1000)))]
    pub many_machines: Option<usize>,
    /// The number of concurrent cases. Default: 8.
    #[serde(default = "Config::default_parallel")]
    #[garde(range(min = 1, max = 256))]
    pub parallel: usize,
    /// The longest time of a call, in seconds: a longer one counts as hung. Default: 300.
    #[serde(default = "Config::default_call_seconds")]
    #[garde(range(min = 0.1, max = 3600.0))]
    pub call_seconds: f64,
    /// The longest time that a guest may take to stop, in seconds. Default: 300.
    #[serde(default = "Config::default_shut_down_seconds")]
    #[garde(range(min = 0.1, max = 3600.0))]
    pub shut_down_seconds: f64,
    /// The deadline in cases about deadlines, in milliseconds. Default: 50.
    #[serde(default = "Config::default_short_deadline_ms")]
    #[garde(range(min = 1, max = 10_000))]
    pub short_deadline_ms: u64,
    /// Commands that cause faults, by hook; each is a program and its arguments, run
    /// without a shell. Default: none.
    #[serde(default)]
    #[garde(custom(commands))]
    pub hooks: BTreeMap<Hook, Vec<String>>,
    /// The driver's log files; no secret may be found in them. Default: none.
    #[serde(default)]
    pub logs: Vec<PathBuf>,
}

/// Consecutive free addresses of a network.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FreeAddresses {
    /// The first of five addresses.
    pub first: IpAddr,
    /// The length of the prefix of their network.
    pub prefix: u8,
    /// The gateway of their network. Default: none.
    #[serde(default)]
    pub gateway: Option<IpAddr>,
    /// Their network, as the driver names it. Default: the driver's first.
    #[serde(default)]
    pub network: Option<String>,
}

impl FreeAddresses {
    /// Returns the address at a place, as an IPAM provider allocates it.
    pub fn at(&self, place: u8) -> StaticAddress {
        let address = match self.first {
            IpAddr::V4(first) => Ipv4Addr::from_bits(first.to_bits().wrapping_add(place.into())).into(),
            IpAddr::V6(first) => Ipv6Addr::from_bits(first.to_bits().wrapping_add(place.into())).into(),
        };
        StaticAddress {
            address,
            prefix: self.prefix,
            gateway: self.gateway,
            network: self.network.clone(),
            pool: AddressPool {
                api_group: "ipam.cluster.x-k8s.io".to_owned(),
                kind: "InClusterIPPool".to_owned(),
                name: "conformance".to_owned(),
            },
        }
    }
}

/// Sample volumes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PersistentVolumes {
    /// Volumes of the back end.
    #[serde(default)]
    pub own: Vec<OwnVolume>,
    /// `PersistentVolumeSpec` objects of anything else.
    #[serde(default)]
    pub foreign: Vec<Value>,
}

impl PersistentVolumes {
    /// The specs of the back end's volumes.
    pub fn own_specs(&self) -> Vec<Value> {
        self.own.iter().map(|volume| volume.spec.clone()).collect()
    }
}

/// A volume of the back end.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OwnVolume {
    /// The `PersistentVolumeSpec`.
    pub spec: Value,
    /// The expected id from GetVolumeIDs.
    pub volume_id: String,
}

/// A sample class of the back end's own kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Migration {
    /// API group of the class. Default: empty.
    #[serde(default)]
    pub api_group: String,
    /// Kind of the class.
    pub kind: String,
    /// The class.
    pub class: Map<String, Value>,
    /// The expected machine class for `metadata: {name: kept}`.
    pub expected: Map<String, Value>,
    /// Classes that can't be converted. Default: none.
    #[serde(default)]
    pub broken: Vec<Map<String, Value>>,
}

impl Migration {
    /// The kind in the terms of the contract.
    pub fn class_kind(&self) -> MachineClassKind {
        MachineClassKind {
            api_group: self.api_group.clone(),
            kind: self.kind.clone(),
        }
    }
}

/// The reason why a configuration can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The text is no YAML, or has a field that does not exist.
    #[error("cannot read the suite's configuration: {0}")]
    Yaml(#[from] serde_saphyr::Error),
    /// A field has a value that it can't have.
    #[error("invalid configuration of the suite: {0}")]
    Value(#[from] garde::Report),
}

impl Config {
    /// Reads YAML.
    ///
    /// # Errors
    /// [`ConfigError`] with the field's path.
    pub fn read(yaml: &str) -> Result<Self, ConfigError> {
        let config: Self = serde_saphyr::from_str(yaml)?;
        config.validate()?;
        Ok(config)
    }

    /// Returns the class of all machines: spec and credentials, without tags.
    pub fn class(&self) -> MachineClass {
        MachineClass {
            provider_spec: ProviderSpec(self.provider_spec.clone()),
            secrets: secrets(&self.secrets),
        }
    }

    /// Returns the longest time of a call: a longer one counts as hung.
    pub fn call_limit(&self) -> Duration {
        Duration::from_secs_f64(self.call_seconds)
    }

    /// Returns the longest time that a guest may take to stop.
    pub fn shut_down_limit(&self) -> Duration {
        Duration::from_secs_f64(self.shut_down_seconds)
    }

    /// Returns the length of the longest name that is tried, in characters.
    pub fn longest_name(&self) -> usize {
        self.longest_name.unwrap_or(MAX_LABEL)
    }

    /// Returns the number of VMs in the case about long lists.
    pub fn many_machines(&self) -> usize {
        self.many_machines.unwrap_or(MANY_MACHINES)
    }

    /// Returns the deadline in cases about deadlines.
    pub fn short_deadline(&self) -> Duration {
        Duration::from_millis(self.short_deadline_ms)
    }

    /// Returns the delay that the hook `slow` adds to each call.
    pub fn slow(&self) -> Duration {
        self.short_deadline().saturating_mul(TIMES_THE_DEADLINE)
    }

    /// Returns the mandatory fields. [`Config::read`] has refused invalid pointers.
    pub fn mandatory(&self) -> Vec<JsonPointer> {
        self.mandatory_fields
            .iter()
            .filter_map(|text| text.parse().ok())
            .collect()
    }

    /// Whether the setting applies to this driver.
    pub fn can_say(&self, setting: Setting) -> bool {
        !(self.no_credentials && matches!(setting, Setting::BadSecrets | Setting::RestrictedSecrets))
    }

    /// Whether the configuration has the setting.
    pub fn says(&self, setting: Setting) -> bool {
        match setting {
            Setting::BadSecrets => !self.bad_secrets.is_empty(),
            Setting::RestrictedSecrets => self.restricted_secrets.is_some(),
            Setting::MandatoryFields => !self.mandatory_fields.is_empty(),
            Setting::InvalidSpecs => !self.invalid_specs.is_empty(),
            Setting::OutOfRangeSpecs => !self.out_of_range_specs.is_empty(),
            Setting::QuotaBreakingSpec => self.quota_breaking_spec.is_some(),
            Setting::FullFailureDomain => self.full_failure_domain.is_some(),
            Setting::IncompatibleChange => self.incompatible_change.is_some(),
            Setting::StaticAddresses => self.static_addresses.is_some(),
            Setting::HotUpdates => !self.hot_updates.is_empty(),
            Setting::OwnVolumes => !self.persistent_volumes.own.is_empty(),
            Setting::ForeignVolumes => !self.persistent_volumes.foreign.is_empty(),
            Setting::Migration => self.migration.is_some(),
            Setting::BrokenMigration => self.migration.as_ref().is_some_and(|m| !m.broken.is_empty()),
            Setting::LongestName => self.longest_name.is_some(),
            Setting::ManyMachines => self.many_machines.is_some(),
            Setting::Logs => !self.logs.is_empty(),
        }
    }

    fn default_parallel() -> usize {
        8
    }

    fn default_call_seconds() -> f64 {
        300.0
    }

    fn default_shut_down_seconds() -> f64 {
        300.0
    }

    fn default_short_deadline_ms() -> u64 {
        50
    }
}

/// Returns the values as a driver takes them.
pub fn secrets(map: &SecretMap) -> Secrets {
    map.iter()
        .map(|(key, value)| (key.clone(), value.expose_secret().as_bytes().to_vec().into()))
        .collect()
}

fn not_empty<C>(spec: &Map<String, Value>, _: &C) -> garde::Result {
    if spec.is_empty() {
        return Err(garde::Error::new("must have the fields that a VM requires"));
    }
    Ok(())
}

fn public_keys_exist<C>(config: &Config, _: &C) -> garde::Result {
    let unknown = |key: &&String| !config.secrets.contains_key(*key);
    match config.public_secret_keys.iter().find(unknown) {
        Some(key) => Err(garde::Error::new(format!(
            "publicSecretKeys: `{key}` is not a key of `secrets`"
        ))),
        None => Ok(()),
    }
}

fn credentials_are_taken<C>(config: &Config, _: &C) -> garde::Result {
    let has_some =
        !config.secrets.is_empty() || !config.bad_secrets.is_empty() || config.restricted_secrets.is_some();
    if config.no_credentials && has_some {
        return Err(garde::Error::new(
            "noCredentials: remove `secrets`, `badSecrets` and `restrictedSecrets`",
        ));
    }
    Ok(())
}

/// Refuses values that are too short to be found in other text, since they could leak without being noticed:
/// refused credentials as well as those that work. An empty value can't leak.
fn secrets_can_be_found<C>(config: &Config, _: &C) -> garde::Result {
    let bad = config.bad_secrets.iter().map(|map| ("badSecrets", map));
    let restricted = config.restricted_secrets.iter();
    let restricted = restricted.map(|map| ("restrictedSecrets", map));
    let maps = std::iter::once(("secrets", &config.secrets))
        .chain(bad)
        .chain(restricted);
    for (field, map) in maps {
        let too_short = |(key, value): &(&String, &SecretString)| {
            let value = value.expose_secret();
            !value.is_empty()
                && !config.public_secret_keys.contains(*key)
                && !is_long_enough(value.as_bytes())
        };
        if let Some((key, _)) = map.iter().find(too_short) {
            return Err(garde::Error::new(format!(
                "{field}: the value of `{key}` is too short to detect in other text; it requires \
                    {MIN_SECRET} bytes: if it is not secret, add the key to `publicSecretKeys`"
            )));
        }
    }
    Ok(())
}

fn pointers<C>(fields: &[String], _: &C) -> garde::Result {
    fields.iter().try_for_each(|field| {
        field
            .parse::<JsonPointer>()
            .map(|_| ())
            .map_err(|error| garde::Error::new(error.to_string()))
    })
}

fn commands<C>(hooks: &BTreeMap<Hook, Vec<String>>, _: &C) -> garde::Result {
    if let Some((hook, _)) = hooks.iter().find(|(_, command)| command.is_empty()) {
        return Err(garde::Error::new(format!("`{hook}` has no program")));
    }
    match hooks.keys().find(|hook| hook.lasts()) {
        Some(hook) if !hooks.contains_key(&Hook::Restore) => Err(garde::Error::new(format!(
            "`{hook}` lasts until it is undone: add a command `restore`"
        ))),
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_lines_are_a_configuration() {
        let config = Config::read(
            "providerSpec:\n  region: eu-1\n  size: small\nsecrets:\n  token: not-a-real-token\n",
        )
        .unwrap();
        assert_eq!(
            (config.longest_name(), config.parallel, config.many_machines()),
            (63, 8, 25)
        );
        assert!(!config.says(Setting::BadSecrets) && !config.says(Setting::LongestName));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, path) in [
            ("secrets: {}", "providerSpec"),
            ("providerSpec: {a: b}\nsecrez: {}", "secrez"),
            ("providerSpec: {}", "provider_spec"),
            ("providerSpec: {a: b}\nparallel: 0", "parallel"),
            ("providerSpec: {a: b}\nlongestName: 254", "longest_name"),
            ("providerSpec: {a: b}\nmandatoryFields: [region]", "JSON pointer"),
            (
                "providerSpec: {a: b}\nsecrets: {id: a}\npublicSecretKeys: [ids]",
                "`ids` is not a key",
            ),
            (
                "providerSpec: {a: b}\nsecrets: {pin: '12345'}",
                "`pin` is too short",
            ),
            ("providerSpec: {a: b}\nsecrets: {pin: '12345678901'}", "12 bytes"),
            (
                "providerSpec: {a: b}\nsecrets: {pin: '123456789012'}\nnoCredentials: true",
                "noCredentials",
            ),
            (
                "providerSpec: {a: b}\nsecrets: {pin: '12345'}",
                "publicSecretKeys",
            ),
            (
                "providerSpec: {a: b}\nbadSecrets: [{}, {pin: unknown}]",
                "badSecrets: the value of `pin` is too short",
            ),
            (
                "providerSpec: {a: b}\nrestrictedSecrets: {pin: powerless}",
                "restrictedSecrets: the value of `pin` is too short",
            ),
            ("providerSpec: {a: b}\nhooks: {explode: [a]}", "explode"),
            ("providerSpec: {a: b}\nhooks: {plant: []}", "plant"),
            ("providerSpec: {a: b}\nhooks: {unavailable: [a]}", "restore"),
        ] {
            let error = Config::read(text).unwrap_err();
            assert!(error.to_string().contains(path), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_public_or_empty_may_be_short() {
        let public = "secrets: {pin: '12345'}\npublicSecretKeys: [pin]\nbadSecrets: [{pin: '1'}]";
        let empty = "secrets: {pin: ''}\nbadSecrets: [{key: ''}]\nrestrictedSecrets: {name: ''}";
        for secrets in [public, empty] {
            Config::read(&format!("providerSpec: {{a: b}}\n{secrets}")).unwrap();
        }
    }

    /// OPS-11
    #[test]
    fn secrets_are_not_printed() {
        let config = Config::read("providerSpec: {a: b}\nsecrets: {token: canary-of-a-test}").unwrap();
        assert!(!format!("{config:?}").contains("canary"));
    }
}
