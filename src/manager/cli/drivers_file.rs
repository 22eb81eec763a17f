//! The file that configures the drivers.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use garde::Validate;
use serde::{Deserialize, Deserializer};

use super::driver_kind::DriverKind;
use crate::driver::{CredentialsDirectory, Limits, Namespaces, Settings, Timeouts};
use cmi_driver::Operation;
use cmi_grpc::cli::config_file;
use cmi_grpc::cli::duration::WrittenDuration;
use cmi_grpc::client::GrpcConfig;
use cmi_simulated::SimulatedConfig;

/// The entry of `namespaces` that stands for every namespace.
const ANY_NAMESPACE: &str = "*";

/// The configuration of a driver, as the file has it.
#[derive(Debug)]
pub struct DriverConfig {
    /// The settings that every kind of driver has.
    pub settings: Settings,
    /// The kind, with its own settings.
    pub kind: DriverKind,
}

/// Why a file can't be used. No snippet of the file is shown: a secret may stand beside the mistake (OPS-11).
#[derive(Debug, thiserror::Error)]
pub(super) enum DriversFileError {
    #[error("cannot read drivers file {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("invalid drivers file {}: {what}", path.display())]
    Invalid { path: PathBuf, what: String },
}

#[derive(Debug, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DriversFile {
    #[garde(dive)]
    drivers: Option<Vec<DriverEntry>>,
}

/// An entry of the file: the settings that every kind of driver has, and one key for its kind.
#[derive(Debug, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DriverEntry {
    #[garde(custom(dns_label))]
    name: String,
    #[garde(length(min = 1), inner(inner(custom(namespace))))]
    namespaces: Option<Vec<String>>,
    #[garde(range(min = 1))]
    max_concurrent_calls: Option<u32>,
    #[garde(range(min = 1))]
    calls_per_second: Option<u32>,
    #[garde(range(min = 1))]
    burst: Option<u32>,
    #[garde(skip)]
    #[serde(default)]
    timeouts: BTreeMap<CallName, WrittenDuration>,
    #[garde(skip)]
    create_settle_time: Option<WrittenDuration>,
    #[garde(dive)]
    credentials: Option<CredentialsEntry>,
    #[garde(dive)]
    #[serde(default, deserialize_with = "with_defaults")]
    simulated: Option<SimulatedConfig>,
    #[garde(dive)]
    #[serde(default, deserialize_with = "with_defaults")]
    grpc: Option<GrpcConfig>,
}

/// The credentials for machines that name no Secret.
#[derive(Debug, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CredentialsEntry {
    /// The directory with a mounted Secret.
    #[garde(custom(absolute))]
    directory: PathBuf,
}

/// Reads a kind without settings, such as `simulated:`, with all its defaults.
fn with_defaults<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Option::<T>::deserialize(deserializer).map(|given| Some(given.unwrap_or_default()))
}

/// A key of `timeouts`: `default`, or the name of a call, such as `createMachine`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
enum CallName {
    Default,
    Call(Operation),
}

impl TryFrom<String> for CallName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text == "default" {
            return Ok(Self::Default);
        }
        Operation::ALL
            .into_iter()
            .find(|operation| Timeouts::key(*operation) == text)
            .map(Self::Call)
            .ok_or_else(|| {
                let calls = Operation::ALL.map(Timeouts::key).join(", ");
                format!("`{text}` is not a call: use default or one of {calls}")
            })
    }
}

/// Reads, parses and validates the file.
///
/// # Errors
/// The mistake in the file, with its place.
pub(super) fn load(path: &Path) -> Result<Vec<DriverConfig>, DriversFileError> {
    let text = std::fs::read_to_string(path).map_err(|source| DriversFileError::Read {
        path: path.to_owned(),
        source,
    })?;
    parse(&text).map_err(|what| DriversFileError::Invalid {
        path: path.to_owned(),
        what,
    })
}

fn parse(text: &str) -> Result<Vec<DriverConfig>, String> {
    let entries = if is_blank(text) {
        Vec::new()
    } else {
        let file: DriversFile = config_file::parse(text).map_err(|error| error.to_string())?;
        file.drivers.unwrap_or_default()
    };
    if entries.is_empty() {
        return Err("drivers: add at least one driver, with its name and kind".to_owned());
    }
    let mut names = BTreeSet::new();
    let mut drivers = Vec::new();
    for (index, entry) in entries.into_iter().enumerate() {
        if !names.insert(entry.name.clone()) {
            return Err(format!(
                "drivers[{index}].name: `{}` is already used: driver names must be unique",
                entry.name
            ));
        }
        let driver = entry
            .into_driver()
            .map_err(|what| format!("drivers[{index}]: {what}"))?;
        drivers.push(driver);
    }
    Ok(drivers)
}

/// Whether the text has only comments, blank lines and `---`.
fn is_blank(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim);
    lines.all(|line| line.is_empty() || line.starts_with('#') || line == "---")
}

impl DriverEntry {
    /// The keys for the kinds of drivers. An entry has exactly one.
    const KINDS: [&str; 2] = ["simulated", "grpc"];

    fn into_driver(self) -> Result<DriverConfig, String> {
        Ok(DriverConfig {
            settings: Settings {
                name: self.name.clone(),
                namespaces: self.namespaces()?,
                limits: self.limits(),
                credentials: self
                    .credentials
                    .as_ref()
                    .map(|credentials| CredentialsDirectory::new(credentials.directory.clone())),
                create_settle_time: self.create_settle_time.map(|WrittenDuration(time)| time),
            },
            kind: self.into_kind()?,
        })
    }

    fn into_kind(self) -> Result<DriverKind, String> {
        let given: [Option<DriverKind>; Self::KINDS.len()] = [
            self.simulated.map(DriverKind::Simulated),
            self.grpc.map(DriverKind::Grpc),
        ];
        let mut given = given.into_iter().flatten();
        let kinds = || Self::KINDS.join(", ");
        match (given.next(), given.next()) {
            (Some(kind), None) => Ok(kind),
            (None, _) => Err(format!("the kind is missing: add one of {}", kinds())),
            (Some(_), Some(_)) => Err(format!("several kinds are set: keep one of {}", kinds())),
        }
    }

    fn namespaces(&self) -> Result<Namespaces, String> {
        match &self.namespaces {
            None => Ok(Namespaces::All),
            Some(names) if *names == [ANY_NAMESPACE] => Ok(Namespaces::All),
            Some(names) if names.iter().any(|name| name == ANY_NAMESPACE) => Err(format!(
                "namespaces: `{ANY_NAMESPACE}` includes every namespace: remove it or the others"
            )),
            Some(names) => Ok(Namespaces::Only(names.iter().cloned().collect())),
        }
    }

    fn limits(&self) -> Limits {
        let defaults = Limits::default();
        // The validation has refused zero already, with its place.
        let given = |number: Option<u32>| number.and_then(NonZeroU32::new);
        let calls_per_second = given(self.calls_per_second).unwrap_or(defaults.calls_per_second);
        let mut timeouts = Timeouts::default();
        for (call, WrittenDuration(duration)) in &self.timeouts {
            match call {
                CallName::Default => timeouts.default = *duration,
                CallName::Call(operation) => {
                    timeouts.by_operation.insert(*operation, *duration);
                }
            }
        }
        Limits {
            max_concurrent_calls: given(self.max_concurrent_calls).unwrap_or(defaults.max_concurrent_calls),
            calls_per_second,
            burst: given(self.burst).unwrap_or(calls_per_second),
            timeouts,
        }
    }
}

/// Checks that a path is absolute, since the working directory of the process can't be relied on.
fn absolute<C>(path: &Path, _context: &C) -> garde::Result {
    if path.is_absolute() {
        Ok(())
    } else {
        Err(garde::Error::new(
            "must be an absolute path, such as /etc/capcmi/credentials/ours",
        ))
    }
}

fn namespace<C>(name: &str, context: &C) -> garde::Result {
    if name == ANY_NAMESPACE {
        Ok(())
    } else {
        dns_label(name, context)
    }
}

/// Checks that a name is a DNS label, since names end up in labels of metrics and in annotations.
fn dns_label<C>(name: &str, _context: &C) -> garde::Result {
    if cmi_driver::is_dns_label(name) {
        Ok(())
    } else {
        Err(garde::Error::new(
            "must be 1 to 63 lower case letters, digits and dashes, without a dash at either end",
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[track_caller]
    fn assert_refused(text: &str, parts: &[&str]) {
        let error = parse(text).unwrap_err();
        for part in parts {
            assert!(error.contains(part), "no `{part}` in: {error}");
        }
    }

    #[test]
    fn a_driver_has_defaults_for_all_but_its_name_and_kind() {
        let drivers = parse("drivers: [{name: a, simulated: {}}]").unwrap();
        let settings = &drivers[0].settings;
        assert_eq!(
            (settings.name.as_str(), &settings.namespaces),
            ("a", &Namespaces::All)
        );
        assert_eq!(settings.limits.max_concurrent_calls.get(), 32);
        assert_eq!(
            settings.limits.timeouts.of(Operation::CreateMachine),
            Duration::from_mins(10)
        );
    }

    #[test]
    fn everything_can_be_said() {
        let drivers = parse(
            "drivers:\n- name: a\n  namespaces: [x, y]\n  maxConcurrentCalls: 4\n  callsPerSecond: 5\n  \
             timeouts: {default: 20s, createMachine: 1h, getVolumeIDs: 1s}\n  createSettleTime: \
             2m\n  simulated: {quota: 3}\n\
             - {name: b, namespaces: ['*'], simulated: {}}\n",
        )
        .unwrap();
        let limits = &drivers[0].settings.limits;
        assert!(drivers[0].settings.namespaces.contain("x") && !drivers[0].settings.namespaces.contain("z"));
        assert_eq!((limits.max_concurrent_calls.get(), limits.burst.get()), (4, 5));
        assert_eq!(
            limits.timeouts.of(Operation::CreateMachine),
            Duration::from_hours(1)
        );
        assert_eq!(
            limits.timeouts.of(Operation::GetMachineStatus),
            Duration::from_secs(20)
        );
        assert_eq!(
            limits.timeouts.of(Operation::GetVolumeIds),
            Duration::from_secs(1)
        );
        assert_eq!(
            drivers[0].settings.create_settle_time,
            Some(Duration::from_mins(2))
        );
        assert_eq!(drivers[1].settings.namespaces, Namespaces::All);
        assert_eq!(drivers[1].settings.create_settle_time, None);
    }

    /// OPS-13
    #[test]
    fn unknown_keys_are_refused_with_their_place_and_what_is_known() {
        assert_refused(
            "drivers: [{name: a, simulated: {loud: 1}}]",
            &["loud", "quota", "line 1"],
        );
        assert_refused(
            "drivers: [{name: a, colour: 1, simulated: {}}]",
            &["colour", "namespaces"],
        );
        assert_refused("driver: []", &["driver", "drivers"]);
        assert_refused(
            "drivers: [{name: a, timeouts: {creatMachine: 1s}, simulated: {}}]",
            &["creatMachine", "createMachine"],
        );
    }

    #[test]
    fn values_out_of_range_are_refused_with_their_path() {
        assert_refused(
            "drivers: [{name: a, simulated: {bootSeconds: -1}}]",
            &["drivers[0].simulated.bootSeconds"],
        );
        assert_refused("drivers: [{name: A_, simulated: {}}]", &["drivers[0].name"]);
        assert_refused(
            "drivers: [{name: a, namespaces: [], simulated: {}}]",
            &["drivers[0].namespaces"],
        );
        for key in ["maxConcurrentCalls", "callsPerSecond", "burst"] {
            assert_refused(
                &format!("drivers: [{{name: a, {key}: 0, simulated: {{}}}}]"),
                &["line 1", &format!("drivers[0].{key}")],
            );
        }
        assert_refused(
            "drivers: [{name: a, timeouts: {default: soon}, simulated: {}}]",
            &["soon", "15s"],
        );
    }

    /// OPS-13
    #[test]
    fn what_cannot_be_read_is_refused_with_its_path() {
        let cases = [
            ("burst: -1, simulated: {}", "drivers[0].burst: "),
            ("simulated: {quota: many}", "drivers[0].simulated.quota: "),
            ("simulated: {loud: 1}", "drivers[0].simulated.loud: "),
            ("grpc: {tls: {caFil: /a}}", "drivers[0].grpc.tls.caFil: "),
            (
                "timeouts: {default: soon}, simulated: {}",
                "drivers[0].timeouts.default: ",
            ),
            ("namespaces: [], simulated: {}", "drivers[0].namespaces:"),
        ];
        for (entry, place) in cases {
            let error = parse(&format!("drivers: [{{name: a, {entry}}}]")).unwrap_err();
            assert!(error.contains(place), "no `{place}` in: {error}");
        }
    }

    #[test]
    fn the_directory_of_the_credentials_is_an_absolute_path() {
        let drivers =
            parse("drivers: [{name: a, credentials: {directory: /etc/ours}, simulated: {}}]").unwrap();
        assert_eq!(
            drivers[0].settings.credentials,
            Some(CredentialsDirectory::new("/etc/ours".into()))
        );
        assert_refused(
            "drivers: [{name: a, credentials: {directory: ours}, simulated: {}}]",
            &["drivers[0].credentials.directory", "absolute path"],
        );
        assert_refused(
            "drivers: [{name: a, credentials: {}, simulated: {}}]",
            &["directory"],
        );
    }

    #[test]
    fn a_kind_with_no_settings_has_its_defaults() {
        let drivers = parse("drivers:\n- name: a\n  simulated:\n- name: b\n  grpc:\n").unwrap();
        assert!(matches!(drivers[0].kind, DriverKind::Simulated(_)));
        assert!(matches!(drivers[1].kind, DriverKind::Grpc(_)));
    }

    #[test]
    fn names_are_taken_once_and_a_driver_is_of_one_kind() {
        assert_refused(
            "drivers: [{name: a, simulated: {}}, {name: a, simulated: {}}]",
            &["drivers[1].name", "`a` is already used"],
        );
        assert_refused("drivers: [{name: a}]", &["drivers[0]", "add one of simulated"]);
        assert_refused(
            "drivers: [{name: a, simulated: {}, grpc: {}}]",
            &["drivers[0]", "several kinds", "simulated, grpc"],
        );
        assert_refused(
            "drivers: [{name: a, namespaces: ['*', b], simulated: {}}]",
            &["drivers[0]", "namespaces"],
        );
    }

    #[test]
    fn a_plugin_is_said_by_its_endpoint_and_how_it_is_reached() {
        let drivers = parse(
            "drivers: [{name: a, grpc: {endpoint: 'tls://a:1', tls: {caFile: /a/ca.crt}, \
                connectTimeoutSeconds: 3}}]",
        );
        assert!(matches!(drivers.unwrap()[0].kind, DriverKind::Grpc(_)));
        assert_refused(
            "drivers: [{name: a, grpc: {keepaliveSeconds: 1}}]",
            &["drivers[0].grpc.keepaliveSeconds"],
        );
        assert_refused(
            "drivers: [{name: a, grpc: {tls: {caFil: /a}}}]",
            &["caFil", "caFile"],
        );
    }

    #[test]
    fn a_file_without_a_driver_is_refused_with_what_has_to_be_in_it() {
        for text in ["", "# nothing yet\n", "---\n", "drivers:\n", "drivers: []"] {
            assert_refused(text, &["drivers", "at least one driver"]);
        }
    }

    /// OPS-11
    #[test]
    fn a_mistake_beside_a_secret_does_not_show_the_secret() {
        let error =
            parse("drivers:\n- name: a\n  # canary-4711\n  simulated: {bootSeconds: -1}\n").unwrap_err();
        assert!(!error.contains("canary"), "{error}");
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = load(Path::new("/nowhere/drivers.yaml")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot read drivers file /nowhere/drivers.yaml"
        );
    }
}
