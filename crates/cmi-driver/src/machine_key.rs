//! The identity of a machine, and names that follow from it.

use std::collections::BTreeMap;
use std::fmt;

use uuid::Uuid;

use super::{Code, MachineRef, ProviderId, Result, Status, is_dns_label, is_dns_subdomain, tags};

/// The most characters of a machine's name in a derived name, before the digest.
const LEGIBLE: usize = 40;

/// The identity of a machine: the name inside its cluster, and the machine object that it was made for.
///
/// The derived names and UUIDs are the same in every process and in every version, so a call that is repeated
/// after a crash finds the VM of the first one. The namespace of a driver keeps them apart from those of
/// other drivers. It must never change, since existing VMs have names from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineKey {
    /// The value of the tag [`tags::CLUSTER`].
    pub cluster: String,
    /// The machine's name.
    pub name: String,
    /// The value of the tag [`tags::MACHINE`]; empty for a client that sends none.
    pub identity: String,
}

impl MachineKey {
    /// Reads the identity from a request and the tags of its provider spec. Checks the machine's name and the
    /// tags that every call about a machine has (DRV-04).
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the name or the path of the tag.
    pub fn read(machine: &MachineRef, all: &BTreeMap<String, String>) -> Result<Self> {
        if !is_dns_subdomain(&machine.name) {
            let what = format!(
                "the machine name `{}` is not a DNS subdomain: use 1 to 253 lower case letters, digits, `-` \
                 and `.`, with a letter or digit at both ends",
                machine.name
            );
            return Err(Status::new(Code::InvalidArgument, what));
        }
        let cluster = tags::required(all, tags::CLUSTER)?;
        tags::required(all, tags::ROLE)?;
        let identity = all.get(tags::MACHINE).map_or("", String::as_str);
        if all.contains_key(tags::MACHINE) && identity.trim().is_empty() {
            return Err(tags::invalid(
                tags::MACHINE,
                "is blank: set a value or omit the tag",
            ));
        }
        Ok(Self {
            cluster: cluster.to_owned(),
            name: machine.name.clone(),
            identity: identity.to_owned(),
        })
    }

    /// Whether a VM with the same cluster and name belongs to this machine object, by its tags and its id. A
    /// call without the tag [`tags::MACHINE`] is about the VM with the id that the call names.
    pub fn owns(&self, vm_tags: &BTreeMap<String, String>, vm_id: &str, asked: Option<&ProviderId>) -> bool {
        let identity = vm_tags.get(tags::MACHINE).map_or("", String::as_str);
        let is_cluster = vm_tags.get(tags::CLUSTER) == Some(&self.cluster);
        let is_identity = identity == self.identity || self.identity.is_empty() && asked.is_some();
        is_cluster && is_identity && asked.is_none_or(|id| id.as_str() == vm_id)
    }

    /// The name for a lock of the machine: the same for all machine objects with this name in the cluster.
    pub fn lock_name(&self) -> String {
        format!("{}/{}", self.cluster, self.name)
    }

    /// The error for a machine whose VM does not exist, as the back end confirmed (DRV-30).
    pub fn not_found(&self) -> Status {
        let what = format!("cluster `{}` has no VM of machine `{}`", self.cluster, self.name);
        Status::new(Code::NotFound, what)
    }

    /// The error for a machine with several VMs, which an operator has to sort out.
    pub fn several<'a>(&self, ids: impl Iterator<Item = &'a str>) -> Status {
        let ids = ids.collect::<Vec<_>>().join(", ");
        Status::new(Code::OutOfRange, format!("{self} has several VMs: {ids}"))
    }

    /// A UUID of the machine object. Objects with equal names have different ones.
    pub fn derived_uuid(&self, namespace: Uuid) -> Uuid {
        digest(namespace, &[&self.cluster, &self.name, &self.identity])
    }

    /// A DNS label for the back end, with the beginning of the machine's name. Machine objects with the same
    /// name and cluster share it, so a back end with unique names takes only one VM for all of them.
    pub fn derived_name(&self, namespace: Uuid) -> String {
        let of_name = digest(namespace, &[&self.cluster, &self.name])
            .simple()
            .to_string();
        format!("{}-{}", legible(&self.name), &of_name[..16])
    }

    /// The host name of the guest, and so the name of its Node (DRV-14). It is the machine's name if a Linux
    /// guest uses that unchanged. Otherwise it has a digest: from `a.b`, cloud-init would make host `a` in
    /// domain `b`.
    pub fn host_name(&self, namespace: Uuid) -> String {
        if is_dns_label(&self.name) {
            return self.name.clone();
        }
        self.derived_name(namespace)
    }
}

impl fmt::Display for MachineKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "machine `{}` of cluster `{}`", self.name, self.cluster)
    }
}

/// The UUID of a list of texts. The digest includes their lengths, so `a` and `bc` differ from `ab` and `c`.
fn digest(namespace: Uuid, parts: &[&str]) -> Uuid {
    let parts = parts.iter().map(|part| format!("{}:{part}", part.len()));
    Uuid::new_v5(&namespace, parts.collect::<String>().as_bytes())
}

/// The beginning of a DNS subdomain, as a DNS label that can take a suffix.
fn legible(name: &str) -> String {
    let begin: String = name.replace('.', "-").chars().take(LEGIBLE).collect();
    begin.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MachineClass;

    const NAMESPACE: Uuid = Uuid::from_u128(0x9d4d_1b0e_5c1e_4f0b_8a53_6f1d_7c20_c3a1);

    fn key(cluster: &str, name: &str, identity: &str) -> MachineKey {
        MachineKey {
            cluster: cluster.to_owned(),
            name: name.to_owned(),
            identity: identity.to_owned(),
        }
    }

    fn tags<const N: usize>(all: [(&str, &str); N]) -> BTreeMap<String, String> {
        all.map(|(tag, value)| (tag.to_owned(), value.to_owned())).into()
    }

    fn read(name: &str, all: &BTreeMap<String, String>) -> Result<MachineKey> {
        MachineKey::read(&MachineRef::new(name, MachineClass::default()), all)
    }

    /// DRV-10
    #[test]
    fn derived_names_never_change() {
        let key = key("c1", "md-0-x7k2p", "b21d");
        // VMs of the libvirt driver from earlier versions have these values.
        let uuid = key.derived_uuid(NAMESPACE).to_string();
        assert_eq!(uuid, "849cb38e-e165-5cff-b75c-57da245b141d");
        assert_eq!(key.derived_name(NAMESPACE), "md-0-x7k2p-39cd3dff23e25e0c");
        assert_eq!(key.host_name(NAMESPACE), "md-0-x7k2p");
    }

    /// DRV-20, DRV-28
    #[test]
    fn cluster_and_name_make_the_derived_name_and_identity_the_uuid() {
        let one = key("a", "bc", "1");
        for other in [key("ab", "c", "1"), key("b", "bc", "1"), key("a", "bd", "1")] {
            assert_ne!(one.derived_name(NAMESPACE), other.derived_name(NAMESPACE));
            assert_ne!(one.derived_uuid(NAMESPACE), other.derived_uuid(NAMESPACE));
        }
        let other = key("a", "bc", "2");
        assert_eq!(one.derived_name(NAMESPACE), other.derived_name(NAMESPACE));
        assert_eq!(one.lock_name(), other.lock_name());
        assert_ne!(one.derived_uuid(NAMESPACE), other.derived_uuid(NAMESPACE));
    }

    /// DRV-14
    #[test]
    fn a_host_name_is_a_dns_label_for_every_name() {
        for name in [
            "a.b",
            &"a".repeat(253),
            &format!("{}.{}", "a".repeat(39), "b".repeat(200)),
        ] {
            let key = key("c", name, "");
            assert!(is_dns_label(&key.host_name(NAMESPACE)), "{name}");
            assert!(is_dns_label(&key.derived_name(NAMESPACE)), "{name}");
        }
        let of = |length| key("c", &"a".repeat(length), "").host_name(NAMESPACE);
        assert_ne!(of(252), of(253));
    }

    /// DRV-04
    #[test]
    fn a_call_about_a_machine_needs_its_name_and_its_tags() {
        let (cluster, role) = ((tags::CLUSTER, "c"), (tags::ROLE, "node"));
        for (name, all, problem) in [
            ("A", tags([cluster, role]), "machine name `A`"),
            ("m", tags([role]), "/tags/kubernetes.io~1cluster"),
            ("m", tags([cluster]), "/tags/kubernetes.io~1role"),
            (
                "m",
                tags([cluster, (tags::ROLE, " ")]),
                "/tags/kubernetes.io~1role",
            ),
            (
                "m",
                tags([cluster, role, (tags::MACHINE, "")]),
                "/tags/capcmi.io~1machine",
            ),
        ] {
            let status = read(name, &all).unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{status}");
            assert!(status.message().contains(problem), "{status}");
        }
        assert_eq!(read("m", &tags([cluster, role])).unwrap(), key("c", "m", ""));
        let all = tags([cluster, role, (tags::MACHINE, "i")]);
        assert_eq!(read("m", &all).unwrap(), key("c", "m", "i"));
    }

    /// DRV-03, DRV-20, DRV-28
    #[test]
    fn a_vm_belongs_to_the_machine_of_its_tags_or_of_the_asked_id() {
        let (machine, without) = (key("c", "m", "i"), key("c", "m", ""));
        let vm = |cluster, identity| tags([(tags::CLUSTER, cluster), (tags::MACHINE, identity)]);
        let untagged = tags([(tags::CLUSTER, "c")]);
        let id = |text: &str| Some(text.parse::<ProviderId>().unwrap());
        for (key, vm_tags, asked, expected) in [
            (&machine, vm("c", "i"), None, true),
            (&machine, vm("c", "i"), id("a"), true),
            (&machine, vm("c", "i"), id("b"), false),
            (&machine, vm("c", "j"), None, false),
            (&machine, vm("c", "j"), id("a"), false),
            (&machine, vm("d", "i"), None, false),
            (&machine, untagged.clone(), id("a"), false),
            (&without, untagged, None, true),
            (&without, vm("c", "i"), None, false),
            (&without, vm("c", "i"), id("a"), true),
            (&without, vm("d", "i"), id("a"), false),
        ] {
            let owns = key.owns(&vm_tags, "a", asked.as_ref());
            assert_eq!(owns, expected, "{key:?} {vm_tags:?} {asked:?}");
        }
    }
}
