//! What a write changes.

use super::*;
use crate::machine::fixtures::{claim, machine};

fn changes(machine: &InfraMachine) -> Vec<String> {
    missing_annotations(machine, &claim(machine))
        .unwrap()
        .into_iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect()
}

#[test]
fn a_label_changes_no_plan_and_a_note_a_new_spec_or_a_deletion_may() {
    let decides = |change: &dyn Fn(&mut InfraMachine)| {
        let (before, mut after) = (machine().claimed().build(), machine().claimed().build());
        change(&mut after);
        decides_the_same(&before, &after)
    };
    assert!(decides(&|after| {
        after.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
        after.metadata.resource_version = Some("9".to_owned());
    }));
    assert!(!decides(&|after| after.metadata.generation = Some(2)));
    assert!(!decides(&|after| after.metadata.annotations = None));
    let deleted = machine().deleted_at(crate::machine::fixtures::now()).build();
    assert!(!decides(&|after| {
        after
            .metadata
            .deletion_timestamp
            .clone_from(&deleted.metadata.deletion_timestamp);
    }));
}

#[test]
fn a_claim_writes_what_is_missing_and_nothing_twice() {
    assert_eq!(changes(&machine().build()).len(), 6);
    assert_eq!(changes(&machine().claimed().build()), Vec::<String>::new());
    let refused = machine().claimed().annotated(labels::INSTANCE, "none").build();
    assert_eq!(changes(&refused), [format!("{}=\"may-exist\"", labels::INSTANCE)]);
}

#[test]
fn a_state_of_the_driver_is_kept_for_its_own_machine_and_dropped_with_a_copied_identity() {
    let own = machine().claimed().annotated(labels::LAST_KNOWN_STATE, "czE=");
    assert_eq!(changes(&own.clone().build()), Vec::<String>::new());
    let copied = own.annotated(labels::MACHINE_ID, "ns1/other/u-9").build();
    let changes = changes(&copied);
    assert!(
        changes.contains(&format!("{}=null", labels::LAST_KNOWN_STATE)),
        "{changes:?}"
    );
    assert!(
        changes.contains(&format!("{}=\"ns1/m1/u-1\"", labels::MACHINE_ID)),
        "{changes:?}"
    );
    assert!(
        !changes.iter().any(|change| change.starts_with(labels::DRIVER)),
        "what is the same for both stays: {changes:?}"
    );
}
