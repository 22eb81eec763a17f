//! The provider spec of the simulated driver.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize as _;
use serde_json::{Map, Value};

use super::config::{Pool, SimulatedConfig, Size};
use cmi_driver::{Code, ProviderSpec, Result, StaticAddress, Status, tags};

/// The fields that there are.
const FIELDS: [&str; 8] = [
    VM_POOL,
    SIZE,
    ROOT_FS_SIZE,
    tags::FAILURE_DOMAIN,
    SOURCE_DEST_CHECK,
    TAGS,
    LABELS,
    NETWORK_ADDRESSES,
];
/// The pool that the VM takes a place of. Required.
pub const VM_POOL: &str = "vmPool";
/// The name of the VM's size. Required.
pub const SIZE: &str = "size";
/// Root file system, GB.
pub const ROOT_FS_SIZE: &str = "rootFsSize";
/// Whether the network drops packets without the VM's address as source or destination. `false` requires an
/// initialization.
pub const SOURCE_DEST_CHECK: &str = "sourceDestCheck";
/// The VM's tags.
pub const TAGS: &str = "tags";
/// The VM's labels; they can be changed during its life.
pub const LABELS: &str = "labels";
/// The VM's static addresses, which the provider sets.
pub const NETWORK_ADDRESSES: &str = "networkAddresses";

/// A provider spec whose fields have the right types.
#[derive(Clone, Debug, PartialEq)]
pub struct VmSpec {
    /// The pool that the VM takes a place of.
    pub pool: String,
    /// The name of the VM's size.
    pub size: String,
    /// Root file system, GB; `None` for the size's default.
    pub root_fs_gb: Option<u64>,
    /// The requested zone.
    pub zone: Option<String>,
    /// Whether the check is to be on.
    pub source_dest_check: bool,
    /// The VM's tags.
    pub tags: BTreeMap<String, String>,
    /// The VM's labels.
    pub labels: BTreeMap<String, String>,
    /// The VM's static addresses.
    pub static_addresses: Vec<StaticAddress>,
}

/// The tags that a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tagged {
    /// None: it is about the class.
    Not,
    /// `kubernetes.io/cluster`: it is about a cluster.
    Cluster,
    /// `kubernetes.io/cluster`: it is about one machine. `capcmi.io/machine` names the owner, and may not be
    /// blank. A client of the published interface alone sends neither this tag nor `kubernetes.io/role`, and
    /// finds its VMs by name.
    Machine,
}

impl Tagged {
    const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Not => &[],
            Self::Cluster | Self::Machine => &[tags::CLUSTER],
        }
    }
}

/// The parts of the configuration that a spec refers to.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The pool.
    pub pool: &'a Pool,
    /// The zones that the VM may be placed in; empty in a cloud without zones.
    pub zones: &'a BTreeSet<String>,
    /// The size.
    pub size: &'a Size,
    /// Root file system, GB.
    pub root_fs_gb: u32,
}

impl VmSpec {
    /// Reads a spec: mandatory fields and tags exist, and every field has its type (DRV-02, DRV-04).
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the place of the field.
    pub fn read(spec: &ProviderSpec, tagged: Tagged) -> Result<Self> {
        let object = &spec.0;
        if let Some(unknown) = object.keys().find(|key| !FIELDS.contains(&key.as_str())) {
            return Err(invalid(
                &format!("/{unknown}"),
                &format!("is no field; there are {}", FIELDS.join(", ")),
            ));
        }
        let tags = texts(object, TAGS)?;
        for name in tagged.names() {
            if tags.get(*name).is_none_or(|value| value.trim().is_empty()) {
                return Err(invalid(
                    &format!("/{TAGS}/{}", name.replace('/', "~1")),
                    "is required and has to be a text",
                ));
            }
        }
        let is_blank = |value: &String| value.trim().is_empty();
        if tagged == Tagged::Machine && tags.get(tags::MACHINE).is_some_and(is_blank) {
            let place = format!("/{TAGS}/{}", tags::MACHINE.replace('/', "~1"));
            return Err(invalid(&place, "may be left out, and is blank"));
        }
        Ok(Self {
            pool: text(object, VM_POOL)?.ok_or_else(|| missing(VM_POOL))?,
            size: text(object, SIZE)?.ok_or_else(|| missing(SIZE))?,
            root_fs_gb: object.get(ROOT_FS_SIZE).map(gigabytes).transpose()?,
            zone: text(object, tags::FAILURE_DOMAIN)?,
            source_dest_check: switch(object, SOURCE_DEST_CHECK)?.unwrap_or(true),
            tags,
            labels: texts(object, LABELS)?,
            static_addresses: static_addresses(object)?,
        })
    }

    /// The cluster that the VM belongs to; empty when the tag is missing.
    pub fn cluster(&self) -> &str {
        self.tags.get(tags::CLUSTER).map_or("", String::as_str)
    }

    /// The machine object that the VM belongs to; empty when the tag is missing.
    pub fn machine(&self) -> &str {
        self.tags.get(tags::MACHINE).map_or("", String::as_str)
    }

    /// Looks up the spec's pool and size in the configuration. A call about an existing VM does not: the VM
    /// has to be found and deleted even after its pool or size was removed from the configuration.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for an unknown name, OUT_OF_RANGE for a value outside the limits (DRV-CR-11).
    pub fn within<'a>(&self, config: &'a SimulatedConfig) -> Result<Wanted<'a>> {
        let unknown = |field: &str, value: &str, known: Vec<&String>| {
            invalid(
                &format!("/{field}"),
                &format!("is `{value}`, which does not exist; there are {known:?}"),
            )
        };
        let pool = config
            .pools
            .get(&self.pool)
            .ok_or_else(|| unknown(VM_POOL, &self.pool, config.pools.keys().collect()))?;
        let size = config
            .sizes
            .get(&self.size)
            .ok_or_else(|| unknown(SIZE, &self.size, config.sizes.keys().collect()))?;
        let zones = config.zones_of(pool);
        if let Some(zone) = self.zone.as_ref().filter(|zone| !zones.contains(*zone)) {
            return Err(unknown(tags::FAILURE_DOMAIN, zone, zones.iter().collect()));
        }
        Ok(Wanted {
            pool,
            zones,
            size,
            root_fs_gb: self.root_fs_within(size)?,
        })
    }

    fn root_fs_within(&self, size: &Size) -> Result<u32> {
        let (min, max) = (size.min_root_fs_gb, size.max_root_fs_gb);
        match self.root_fs_gb {
            None => Ok(size.root_fs_gb()),
            Some(asked) => u32::try_from(asked)
                .ok()
                .filter(|gb| (min..=max).contains(gb))
                .ok_or_else(|| {
                    Status::new(
                        Code::OutOfRange,
                        format!(
                            "the provider spec's /{ROOT_FS_SIZE} is {asked} GB; a VM of size {} has {min} to \
                        {max} GB",
                            self.size
                        ),
                    )
                }),
        }
    }
}

fn invalid(place: &str, problem: &str) -> Status {
    Status::new(
        Code::InvalidArgument,
        format!("the provider spec's {place} {problem}"),
    )
}

fn missing(field: &str) -> Status {
    invalid(&format!("/{field}"), "is required and is missing")
}

fn text(object: &Map<String, Value>, field: &str) -> Result<Option<String>> {
    match object.get(field) {
        None => Ok(None),
        Some(Value::String(text)) if !text.trim().is_empty() => Ok(Some(text.clone())),
        Some(_) => Err(invalid(
            &format!("/{field}"),
            "has to be a text that is not blank",
        )),
    }
}

fn switch(object: &Map<String, Value>, field: &str) -> Result<Option<bool>> {
    match object.get(field) {
        None => Ok(None),
        Some(Value::Bool(on)) => Ok(Some(*on)),
        Some(_) => Err(invalid(&format!("/{field}"), "has to be true or false")),
    }
}

/// A whole number, which JSON may also write as `20.0`.
fn gigabytes(value: &Value) -> Result<u64> {
    let whole = value.as_u64().or_else(|| {
        let number = value
            .as_f64()
            .filter(|number| number.fract() == 0.0 && *number >= 0.0)?;
        format!("{number:.0}").parse().ok().or(Some(u64::MAX))
    });
    whole.ok_or_else(|| {
        invalid(
            &format!("/{ROOT_FS_SIZE}"),
            "has to be a whole number of GB, and not negative",
        )
    })
}

fn static_addresses(object: &Map<String, Value>) -> Result<Vec<StaticAddress>> {
    let given = object.get(NETWORK_ADDRESSES).map(Vec::deserialize).transpose();
    let given = given.map_err(|error| {
        let place = format!("/{NETWORK_ADDRESSES}");
        invalid(&place, &format!("has to be a list of addresses: {error}"))
    })?;
    Ok(given.unwrap_or_default())
}

fn texts(object: &Map<String, Value>, field: &str) -> Result<BTreeMap<String, String>> {
    let entries = match object.get(field) {
        None => return Ok(BTreeMap::new()),
        Some(Value::Object(entries)) => entries,
        Some(_) => return Err(invalid(&format!("/{field}"), "has to be an object of texts")),
    };
    entries
        .iter()
        .map(|(key, value)| match value {
            Value::String(text) => Ok((key.clone(), text.clone())),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                Err(invalid(
                    &format!("/{field}/{}", key.replace('~', "~0").replace('/', "~1")),
                    "has to be a text",
                ))
            }
        })
        .collect()
}
