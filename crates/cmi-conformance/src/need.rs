//! What a case can't run without.

use std::fmt;

use super::config::Setting;
use super::hooks::Hook;
use cmi_driver::{Operation, tags};

/// What a case can't run without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The driver offers this call.
    Call(Operation),
    /// The back end can be made to do this.
    Hook(Hook),
    /// The configuration says this.
    Setting(Setting),
    /// The driver is a plugin behind an endpoint.
    Endpoint,
    /// The back end takes a second VM of a name.
    SecondVm,
    /// The driver can give a VM the tag `capcmi.io/machine`.
    MachineTag,
}

/// The beginning of the name of a need that is a hook.
const HOOK: &str = "hook ";

impl Need {
    /// Whether nothing stands in for the need with this name: without it, a rule was not tried in full,
    /// although other cases have tried it. The effects of a hook show in no other way, nor does what a driver
    /// makes of its own invalid specs.
    pub fn has_no_substitute(name: &str) -> bool {
        let settings = [Setting::MandatoryFields, Setting::InvalidSpecs];
        name.starts_with(HOOK)
            || settings
                .iter()
                .any(|setting| Self::Setting(*setting).to_string() == name)
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(operation) => write!(f, "{operation}"),
            Self::Hook(hook) => write!(f, "{HOOK}`{hook}`"),
            Self::Setting(setting) => write!(f, "`{setting}`"),
            Self::Endpoint => f.write_str("an endpoint"),
            Self::SecondVm => f.write_str("no `uniqueNames`"),
            Self::MachineTag => write!(f, "`{}` in `hot_updatable`", tags::MACHINE),
        }
    }
}
