//! Messages of the Identity service but its capabilities.

use super::field::{Field, FieldError, FieldProblem, TEXT};
use crate::proto::cmi::v1;
use cmi_driver::{PluginInfo, Readiness};

/// The most bytes of a plugin's name (CMI-53).
const PLUGIN_NAME: usize = 63;

impl From<PluginInfo> for v1::GetPluginInfoResponse {
    fn from(info: PluginInfo) -> Self {
        let PluginInfo {
            name,
            version,
            manifest,
        } = info;
        Self {
            name,
            version,
            manifest: manifest.into_iter().collect(),
        }
    }
}

impl TryFrom<v1::GetPluginInfoResponse> for PluginInfo {
    type Error = FieldError;

    fn try_from(response: v1::GetPluginInfoResponse) -> Result<Self, FieldError> {
        let name = Field("name").text(response.name, PLUGIN_NAME)?;
        if !is_domain_name(&name) {
            return Err(Field("name").wrong(FieldProblem::Malformed(
                "is not a domain name: use labels of letters, digits and `-`, alphanumeric at both ends, \
                    separated by dots",
            )));
        }
        Ok(Self {
            name,
            version: Field("version").text(response.version, TEXT)?,
            manifest: Field("manifest").map(response.manifest)?,
        })
    }
}

/// As RFC 1035 §2.3.1 has it, but a label may begin with a digit, as the interface allows (CMI-51, CMI-53).
fn is_domain_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let inner = label
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        inner && !label.is_empty() && !label.starts_with('-') && !label.ends_with('-')
    };
    name.split('.').all(is_label)
}

impl From<Readiness> for v1::ProbeResponse {
    fn from(readiness: Readiness) -> Self {
        Self {
            ready: Some(match readiness {
                Readiness::Ready => true,
                Readiness::NotReady => false,
            }),
        }
    }
}

impl From<v1::ProbeResponse> for Readiness {
    /// Without the field the plugin is ready (CMI-71).
    fn from(response: v1::ProbeResponse) -> Self {
        match response.ready {
            Some(false) => Self::NotReady,
            Some(true) | None => Self::Ready,
        }
    }
}
