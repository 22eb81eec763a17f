//! The settings of a configuration, except for the provider spec.

use std::fmt;

use serde::Serialize;

/// A setting of a configuration, except for the provider spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Setting {
    /// `badSecrets`.
    BadSecrets,
    /// `restrictedSecrets`.
    RestrictedSecrets,
    /// `mandatoryFields`.
    MandatoryFields,
    /// `invalidSpecs`.
    InvalidSpecs,
    /// `outOfRangeSpecs`.
    OutOfRangeSpecs,
    /// `quotaBreakingSpec`.
    QuotaBreakingSpec,
    /// `fullFailureDomain`.
    FullFailureDomain,
    /// `incompatibleChange`.
    IncompatibleChange,
    /// `staticAddresses`.
    StaticAddresses,
    /// `hotUpdates`.
    HotUpdates,
    /// `persistentVolumes.own`.
    #[serde(rename = "persistentVolumes.own")]
    OwnVolumes,
    /// `persistentVolumes.foreign`.
    #[serde(rename = "persistentVolumes.foreign")]
    ForeignVolumes,
    /// `migration`.
    Migration,
    /// `migration.broken`.
    #[serde(rename = "migration.broken")]
    BrokenMigration,
    /// `longestName`.
    LongestName,
    /// `manyMachines`.
    ManyMachines,
    /// `logs`.
    Logs,
}

/// Writes the place of the setting in the configuration.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
