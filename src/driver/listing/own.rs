//! Finds the VMs of one machine in a list.

use std::collections::BTreeSet;

use cmi_driver::{Code, ListedMachine, ProviderId, Result, Status};

/// Returns the VMs of the machine with this name and machine id. An entry without a machine id counts by its
/// name, if `by_name`.
pub fn own<'a>(
    machines: &'a [ListedMachine],
    name: &str,
    id: Option<&str>,
    by_name: bool,
) -> BTreeSet<&'a ProviderId> {
    let is_own = |machine: &&ListedMachine| match &machine.machine_id {
        Some(listed) => id == Some(listed),
        None => by_name && machine.machine_name == name,
    };
    let own = machines.iter().filter(is_own);
    own.map(|machine| &machine.provider_id).collect()
}

/// Returns the only VM of the machine, as [`own`] finds it, and `None` if the list has none.
///
/// # Errors
/// OUT_OF_RANGE for several VMs, ALREADY_EXISTS if only another machine has a VM of this name.
pub fn only_own(
    machines: &[ListedMachine],
    name: &str,
    id: Option<&str>,
    by_name: bool,
) -> Result<Option<ProviderId>> {
    let own = own(machines, name, id, by_name);
    let namesakes = machines.iter().filter(|machine| machine.machine_name == name);
    let namesakes: BTreeSet<_> = namesakes.map(|machine| &machine.provider_id).collect();
    let (code, message) = match (own.first(), own.len()) {
        (None, _) if namesakes.is_empty() => return Ok(None),
        (None, _) => (
            Code::AlreadyExists,
            format!(
                "the driver lists VM {} with name `{name}`, which belongs to another machine: delete that \
                    VM, or replace the machine by one with another name",
                in_words(&namesakes)
            ),
        ),
        (Some(id), 1) => return Ok(Some(ProviderId::clone(id))),
        (Some(_), _) => (
            Code::OutOfRange,
            format!(
                "the driver lists several VMs of machine `{name}`: {}",
                in_words(&own)
            ),
        ),
    };
    Err(Status::new(code, message))
}

fn in_words(ids: &BTreeSet<&ProviderId>) -> String {
    let quoted: Vec<_> = ids.iter().map(|id| format!("`{id}`")).collect();
    quoted.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machines(of: &[(&str, &str, Option<&str>)]) -> Vec<ListedMachine> {
        let listed = |(id, name, machine_id): &(&str, &str, Option<&str>)| ListedMachine {
            machine_id: machine_id.map(str::to_owned),
            ..ListedMachine::new(id.parse().unwrap(), *name)
        };
        of.iter().map(listed).collect()
    }

    fn only(of: &[(&str, &str, Option<&str>)], by_name: bool) -> std::result::Result<Option<String>, Code> {
        let found = only_own(&machines(of), "m", Some("u-1"), by_name);
        let found = found.map(|id| id.map(|id| id.as_str().to_owned()));
        found.map_err(|status| status.code())
    }

    /// CTL-GS-12
    #[test]
    fn a_list_without_the_name_leads_to_a_create_and_one_with_it_never() {
        let one = || Some("sim://1".to_owned());
        for by_name in [false, true] {
            let others = [("sim://2", "m-2", None), ("sim://3", "", None)];
            assert_eq!(only(&others, by_name), Ok(None));
            let own = ("sim://1", "m", Some("u-1"));
            let with_another = [own, own, ("sim://2", "m", Some("u-2"))];
            assert_eq!(only(&with_another, by_name), Ok(one()));
            let nameless = [("sim://1", "", Some("u-1"))];
            assert_eq!(only(&nameless, by_name), Ok(one()), "its id tells");
            let another = [("sim://1", "m", Some("u-2"))];
            let answer = only(&another, by_name);
            assert_eq!(answer, Err(Code::AlreadyExists), "it says whose it is");
            let twice = [own, ("sim://2", "m", Some("u-1"))];
            assert_eq!(only(&twice, by_name), Err(Code::OutOfRange));
        }
        let untagged = [("sim://1", "m", None)];
        assert_eq!(only(&untagged, true), Ok(one()), "a create was issued for it");
        let answer = only(&untagged, false);
        assert_eq!(answer, Err(Code::AlreadyExists), "it is another's");
    }

    #[test]
    fn a_deletion_selects_listed_vms_by_tag_and_untagged_ones_by_name() {
        let listed = machines(&[
            ("sim://1", "m", Some("u-1")),
            ("sim://2", "", Some("u-1")),
            ("sim://3", "m", None),
            ("sim://4", "m", Some("u-2")),
            ("sim://5", "n", None),
        ]);
        let own: Vec<_> = own(&listed, "m", Some("u-1"), true)
            .into_iter()
            .map(ProviderId::as_str)
            .collect();
        assert_eq!(own, ["sim://1", "sim://2", "sim://3"]);
    }
}
