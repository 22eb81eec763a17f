//! What a configuration may say besides the provider spec.

/// What a configuration may say besides the provider spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// `incompatibleChange`.
    IncompatibleChange,
    /// `hotUpdates`.
    HotUpdates,
    /// `persistentVolumes.own`.
    OwnVolumes,
    /// `persistentVolumes.foreign`.
    ForeignVolumes,
    /// `migration`.
    Migration,
    /// `migration.broken`.
    BrokenMigration,
    /// `longestName`.
    LongestName,
    /// `manyMachines`.
    ManyMachines,
    /// `logs`.
    Logs,
}

impl Setting {
    /// Where it stands in the configuration.
    pub const fn path(self) -> &'static str {
        match self {
            Self::BadSecrets => "badSecrets",
            Self::RestrictedSecrets => "restrictedSecrets",
            Self::MandatoryFields => "mandatoryFields",
            Self::InvalidSpecs => "invalidSpecs",
            Self::OutOfRangeSpecs => "outOfRangeSpecs",
            Self::QuotaBreakingSpec => "quotaBreakingSpec",
            Self::IncompatibleChange => "incompatibleChange",
            Self::HotUpdates => "hotUpdates",
            Self::OwnVolumes => "persistentVolumes.own",
            Self::ForeignVolumes => "persistentVolumes.foreign",
            Self::Migration => "migration",
            Self::BrokenMigration => "migration.broken",
            Self::LongestName => "longestName",
            Self::ManyMachines => "manyMachines",
            Self::Logs => "logs",
        }
    }
}
