//! The requirements of a case.

use std::fmt;

use super::config::Setting;
use super::hooks::Hook;
use cmi_driver::{Operation, tags};

/// A requirement of a case. Without it, the case cannot run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The driver offers this call.
    Call(Operation),
    /// A hook for the back end.
    Hook(Hook),
    /// A setting of the configuration.
    Setting(Setting),
    /// The driver is a plugin behind an endpoint.
    Endpoint,
    /// The back end takes a second VM of a name.
    SecondVm,
    /// The driver can give a VM the tag `capcmi.io/machine`.
    MachineTag,
    /// The driver's lists have the state of VMs.
    ListState,
    /// The driver can set static addresses.
    AddressPath,
}

/// The beginning of the name of a need that is a hook.
const HOOK: &str = "hook ";

impl Need {
    /// Whether the need with this name has no substitute. Without such a need, a rule was not fully tried,
    /// even if other cases have tried it. Nothing else shows the effects of a hook, or a driver's reaction to
    /// its own invalid specs.
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
            Self::ListState => f.write_str("`list_has_state`"),
            Self::AddressPath => f.write_str("`address_path`"),
        }
    }
}
