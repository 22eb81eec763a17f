//! ProviderIDs of VMs on named hosts.

use std::fmt;

use uuid::Uuid;

use super::{Code, ProviderId, Result, Status, is_dns_label};

/// A ProviderID of the form `<scheme>://<host>/<uuid>`: the host finds the VM without asking others, and the
/// UUID follows from the machine (see [`MachineKey::derived_uuid`](super::MachineKey::derived_uuid)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostedId {
    /// The driver's scheme, such as `libvirt`.
    pub scheme: &'static str,
    /// The host, as the configuration names it: a DNS label.
    pub host: String,
    /// The UUID of the VM.
    pub uuid: Uuid,
}

impl HostedId {
    /// Reads an id that CreateMachine has returned. Only one spelling of a UUID is accepted, since ids are
    /// compared byte for byte.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the form of an id.
    pub fn parse(scheme: &'static str, text: &str) -> Result<Self> {
        let parts = text
            .strip_prefix(scheme)
            .and_then(|rest| rest.strip_prefix("://"))
            .and_then(|rest| rest.split_once('/'))
            .filter(|(host, _)| is_dns_label(host));
        let id = parts.and_then(|(host, uuid)| {
            let (host, uuid) = (host.to_owned(), uuid.parse().ok()?);
            Some(Self { scheme, host, uuid })
        });
        id.filter(|id| id.to_string() == text).ok_or_else(|| {
            let form =
                format!("the ProviderID must be `{scheme}://<host>/<uuid>`, as CreateMachine returned it");
            Status::new(Code::InvalidArgument, form)
        })
    }

    /// The id in the type of the driver contract.
    ///
    /// # Errors
    /// INTERNAL when the host's name is too long for an id.
    pub fn provider_id(&self) -> Result<ProviderId> {
        self.to_string().parse().map_err(|error| {
            Status::new(Code::Internal, format!("`{self}` is not a ProviderID")).with_source(error)
        })
    }
}

impl fmt::Display for HostedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/{}", self.scheme, self.host, self.uuid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hosted_id_has_one_form() {
        let id = HostedId {
            scheme: "acme",
            host: "host-a".to_owned(),
            uuid: Uuid::from_u128(0x849c_b38e_e165_5cff_b75c_57da_245b_141d),
        };
        let text = id.provider_id().unwrap().to_string();
        assert_eq!(text, "acme://host-a/849cb38e-e165-5cff-b75c-57da245b141d");
        assert_eq!(HostedId::parse("acme", &text).unwrap(), id);
        let upper = format!("acme://host-a/{}", id.uuid.to_string().to_uppercase());
        for wrong in [
            "",
            "acme://host-a",
            "acme:///x",
            "acme://host-a/x",
            &text.replace("acme", "aws"),
            &text.replace("host-a", "host_a"),
            &upper,
            &format!("{text}/"),
        ] {
            let status = HostedId::parse("acme", wrong).unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{wrong}");
        }
    }
}
