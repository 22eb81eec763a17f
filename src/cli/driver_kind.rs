//! The kinds of drivers there are, and how each is built.
//!
//! A new kind is a variant here with its arm in [`DriverKind::build`], and a key of
//! [`super::drivers_file::DriverEntry`] with its line in `into_kind`.

use std::sync::Arc;

use crate::driver::Driver;

/// A driver that can be built.
#[derive(Debug)]
pub(super) enum DriverKind {
    #[cfg(test)]
    Mute(mute::MuteConfig),
}

impl DriverKind {
    /// Builds the driver. Makes no call.
    ///
    /// # Errors
    /// The driver's, when it can't be had with this configuration.
    pub(super) fn build(self) -> anyhow::Result<Arc<dyn Driver>> {
        match self {
            #[cfg(test)]
            Self::Mute(config) => config.build(),
        }
    }
}

/// A kind for tests.
#[cfg(test)]
pub(super) mod mute {
    use std::sync::Arc;

    use garde::Validate;
    use serde::Deserialize;

    use crate::driver::Driver;

    #[derive(Clone, Debug, Deserialize, Validate)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    pub(in super::super) struct MuteConfig {
        #[serde(default)]
        #[garde(range(max = 11))]
        pub volume: u8,
    }

    impl MuteConfig {
        pub(super) fn build(self) -> anyhow::Result<Arc<dyn Driver>> {
            anyhow::bail!("it says nothing, at volume {}", self.volume)
        }
    }
}
