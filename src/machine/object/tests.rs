//! What a write changes.

use std::future::ready;

use tokio::time::{Instant, sleep};

use super::*;
use crate::api::conditions::{self, reason};
use crate::api::v1alpha1::OperationState;
use crate::machine::fakes::Server;
use crate::machine::fixtures::{at, machine, ownership};

fn changes(machine: &InfraMachine) -> Vec<String> {
    missing_annotations(machine, &ownership(machine))
        .unwrap()
        .into_iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect()
}

#[test]
fn a_label_changes_no_plan_and_a_note_a_new_spec_or_a_deletion_may() {
    let decides = |change: &dyn Fn(&mut InfraMachine)| {
        let (before, mut after) = (machine().identified().build(), machine().identified().build());
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
fn ownership_writes_what_is_missing_and_nothing_twice() {
    assert_eq!(changes(&machine().build()).len(), 6);
    assert_eq!(changes(&machine().identified().build()), Vec::<String>::new());
    let refused = machine().identified().annotated(labels::INSTANCE, "none").build();
    assert_eq!(changes(&refused), [format!("{}=\"may-exist\"", labels::INSTANCE)]);
}

#[test]
fn a_state_of_the_driver_is_kept_for_its_own_machine_and_dropped_with_a_copied_identity() {
    let own = machine().identified().annotated(labels::LAST_KNOWN_STATE, "czE=");
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

#[tokio::test(start_paused = true)]
async fn a_call_that_takes_long_is_told_of_once_and_its_answer_can_be_written_all_the_same() {
    let server = Server::with(&machine().identified().build());
    let ctx = server.context(Vec::new());
    let mut object = Object::new(&ctx, Arc::new(server.object()));
    object.awaiting(Operation::CreateMachine, ready(())).await;
    object
        .awaiting(Operation::CreateMachine, sleep(Duration::from_secs(4)))
        .await;
    assert_eq!(
        server.version(),
        "1",
        "one that is answered soon is not worth a write"
    );

    let began = Instant::now();
    let said = async {
        sleep(Duration::from_mins(1)).await;
        server.object().status.unwrap()
    };
    let during = object.awaiting(Operation::CreateMachine, said).await;
    assert_eq!(
        began.elapsed().as_secs(),
        60,
        "the write does not hold up the call"
    );
    let last = during.last_operation.unwrap();
    assert_eq!(last.state, OperationState::Processing);
    assert_eq!(last.operation.as_deref(), Some("CreateMachine"));
    let ready = conditions::get(&during.conditions, conditions::READY).unwrap();
    assert_eq!(
        (ready.status.as_str(), ready.reason.as_str()),
        ("False", reason::CREATING)
    );
    let since = Timestamp::from_second(last.last_update_time.0.as_second()).unwrap();
    assert!(
        ready.message.contains(&since.to_string()),
        "since when: {}",
        ready.message
    );
    assert_eq!(server.version(), "2", "written once");

    object.patch_provider_id("sim://1", &[]).await.unwrap();
    let done = object.patch_status(|machine| {
        let mut status = machine.status.clone().unwrap();
        status.last_operation = None;
        status
    });
    assert!(done.await.unwrap());
    assert_eq!(server.object().spec.provider_id.as_deref(), Some("sim://1"));
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_not_lost_where_it_could_not_be_told_that_the_call_takes_long() {
    let server = Server::with(&machine().identified().build());
    let ctx = server.context(Vec::new());
    let mut object = Object::new(&ctx, Arc::new(server.object()));
    server.touch();
    let call = async {
        sleep(Duration::from_mins(1)).await;
        7
    };
    assert_eq!(object.awaiting(Operation::DeleteMachine, call).await, 7);
    assert_eq!(
        server.version(),
        "2",
        "what was decided on an older version is not written"
    );
}

/// A create is issued only on an object that was written a moment ago, so that a cache that
/// is behind creates nothing.
#[test]
fn every_create_is_noted_before_it_is_issued_and_keeps_clusterctl_waiting() {
    let (unanswered, _) = UnansweredCreates::default().with(at(7));
    let changes =
        |machine: &InfraMachine| annotations_of_a_create(machine, &ownership(machine), &unanswered).unwrap();
    let first = changes(&machine().build());
    assert_eq!(first[labels::CREATE_ISSUED_AT], json!(at(7).to_string()));
    assert_eq!(first[labels::BLOCK_MOVE], labels::BLOCK_MOVE_VALUE);
    assert_eq!(first[labels::INSTANCE], "may-exist");
    let again = changes(&machine().identified().build());
    assert!(again.contains_key(labels::CREATE_ISSUED_AT), "{again:?}");
    let blocked_by_a_user = machine().identified().annotated(labels::BLOCK_MOVE, "").build();
    assert!(!changes(&blocked_by_a_user).contains_key(labels::BLOCK_MOVE));
}

#[test]
fn the_providerid_takes_the_note_of_its_create_with_it() {
    let noted = |times: &str| {
        machine()
            .identified()
            .annotated(labels::CREATE_ISSUED_AT, times)
            .build()
    };
    let one = at(7).to_string();
    assert_eq!(
        create_is_over(&noted(&one), None),
        Some((labels::CREATE_ISSUED_AT, None))
    );
    let made = Some(Answered {
        issued: at(9),
        made: true,
    });
    assert_eq!(
        create_is_over(&noted(&format!("{},{one}", at(9))), made),
        Some((labels::CREATE_ISSUED_AT, Some(one))),
        "an earlier one may still be carried out"
    );
    assert_eq!(create_is_over(&machine().identified().build(), None), None);
}
