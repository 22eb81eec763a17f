//! What a write changes.

use std::future::ready;

use tokio::time::{Instant, sleep};

use super::*;
use crate::api::conditions::{self, reason};
use crate::api::v1alpha1::{InfraMachineInitialization, OperationState};
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
    let refused = machine()
        .identified()
        .annotated(annotations::VM_EXISTENCE, "none")
        .build();
    assert_eq!(
        changes(&refused),
        [format!("{}=\"may-exist\"", annotations::VM_EXISTENCE)]
    );
}

/// The administrator brings it with the VM.
#[test]
fn a_state_of_the_driver_is_kept_for_a_vm_that_is_adopted() {
    let machine = machine().annotated(annotations::LAST_KNOWN_STATE, "czE=").build();
    let adopting = Ownership {
        adopted: Some("sim://1".parse().unwrap()),
        ..ownership(&machine)
    };
    let key = annotations::LAST_KNOWN_STATE;
    assert!(
        !missing_annotations(&machine, &adopting)
            .unwrap()
            .contains_key(key)
    );
    let made = missing_annotations(&machine, &ownership(&machine)).unwrap();
    assert_eq!(made[key], Value::Null, "of a VM that is made, there is none yet");
}

#[test]
fn a_state_of_the_driver_is_kept_for_its_own_machine_and_dropped_with_a_copied_identity() {
    let own = machine()
        .identified()
        .annotated(annotations::LAST_KNOWN_STATE, "czE=");
    assert_eq!(changes(&own.clone().build()), Vec::<String>::new());
    let copied = own.annotated(annotations::MACHINE_ID, "ns1/other/u-9").build();
    let changes = changes(&copied);
    assert!(
        changes.contains(&format!("{}=null", annotations::LAST_KNOWN_STATE)),
        "{changes:?}"
    );
    assert!(
        changes.contains(&format!("{}=\"ns1/m1/u-1\"", annotations::MACHINE_ID)),
        "{changes:?}"
    );
    assert!(
        !changes
            .iter()
            .any(|change| change.starts_with(annotations::DRIVER)),
        "what is the same for both stays: {changes:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_takes_long_is_reported_once_and_its_answer_can_be_written_all_the_same() {
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
    let since = jiff::Timestamp::from_second(last.last_update_time.0.as_second()).unwrap();
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

fn provisioned(machine: &InfraMachine) -> InfraMachineStatus {
    let mut status = machine.status.clone().unwrap_or_default();
    status.initialization = Some(InfraMachineInitialization {
        provisioned: Some(true),
    });
    status
}

/// The call that the status reports is done, and is not to be made again.
#[tokio::test]
async fn status_write_ignores_only_changes_without_effect_on_the_plan() {
    let server = Server::with(&machine().identified().build());
    let ctx = server.context(Vec::new());
    let mut object = Object::new(&ctx, Arc::new(server.object()));
    server.touch();
    assert!(object.patch_status(provisioned).await.unwrap());
    assert!(server.object().is_provisioned());
    server.ask_again();
    let refused = object.patch_status(|_| InfraMachineStatus::default()).await;
    assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
    assert!(server.object().is_provisioned());
}

/// The providerID comes with the end of the create, and clusterctl may go on.
#[tokio::test]
async fn the_provider_id_ends_its_create_and_lets_a_move_go_on() {
    let server = Server::with(&machine().build());
    let ctx = server.context(Vec::new());
    let mut object = Object::new(&ctx, Arc::new(server.object()));
    let (unanswered, _) = UnansweredCreates::default().with(at(7));
    let ownership = ownership(object.get());
    object.record_create(&ownership, &unanswered).await.unwrap();
    let owned = server.object();
    assert_eq!(
        owned.spec.provider_id, None,
        "no driver has said that it is there"
    );
    assert!(UnansweredCreates::of(&owned).is_some());

    let state = (annotations::LAST_KNOWN_STATE, Some("czE=".to_owned()));
    object.patch_provider_id("sim://1", &[state]).await.unwrap();
    assert_eq!(server.version(), "3", "one write");
    let known = server.object();
    assert_eq!(known.spec.provider_id.as_deref(), Some("sim://1"));
    assert_eq!(identity::annotation(&known, annotations::CREATE_ISSUED_AT), None);
    assert_eq!(identity::annotation(&known, annotations::BLOCK_MOVE), None);
    assert_eq!(
        identity::annotation(&known, annotations::LAST_KNOWN_STATE),
        Some("czE=")
    );

    object.patch_provider_id("sim://1", &[]).await.unwrap();
    assert_eq!(server.version(), "3", "nothing is written twice");
}

/// A create is issued only on an object that was written a moment ago, so that a cache that
/// is behind creates nothing.
#[test]
fn every_create_is_noted_before_it_is_issued_and_keeps_clusterctl_waiting() {
    let (unanswered, _) = UnansweredCreates::default().with(at(7));
    let changes =
        |machine: &InfraMachine| annotations_of_a_create(machine, &ownership(machine), &unanswered).unwrap();
    let first = changes(&machine().build());
    assert_eq!(first[annotations::CREATE_ISSUED_AT], json!(at(7).to_string()));
    assert_eq!(first[annotations::BLOCK_MOVE], annotations::BLOCK_MOVE_VALUE);
    assert_eq!(first[annotations::VM_EXISTENCE], "may-exist");
    let again = changes(&machine().identified().build());
    assert!(again.contains_key(annotations::CREATE_ISSUED_AT), "{again:?}");
    let blocked_by_a_user = machine()
        .identified()
        .annotated(annotations::BLOCK_MOVE, "")
        .build();
    assert!(!changes(&blocked_by_a_user).contains_key(annotations::BLOCK_MOVE));
}

#[test]
fn the_providerid_takes_the_note_of_its_create_with_it() {
    let noted = |times: &str| {
        machine()
            .identified()
            .annotated(annotations::CREATE_ISSUED_AT, times)
            .build()
    };
    let one = at(7).to_string();
    assert_eq!(
        create_is_over(&noted(&one), None),
        Some((annotations::CREATE_ISSUED_AT, None))
    );
    let made = Some(AnsweredCreate {
        issued: at(9),
        made: true,
    });
    assert_eq!(
        create_is_over(&noted(&format!("{},{one}", at(9))), made),
        Some((annotations::CREATE_ISSUED_AT, Some(one))),
        "an earlier one may still be carried out"
    );
    assert_eq!(create_is_over(&machine().identified().build(), None), None);
}

/// The API server keeps an object that has the finalizer of another as well, and clusterctl may be moving it.
#[tokio::test]
async fn an_object_that_another_keeps_holds_up_no_move_when_the_vm_is_gone() {
    for (blocked_by, left) in [(annotations::BLOCK_MOVE_VALUE, None), ("mine", Some("mine"))] {
        let machine = machine()
            .provisioned()
            .annotated(annotations::BLOCK_MOVE, blocked_by);
        let server = Server::with(&machine.kept_by("example.com/theirs").build());
        let ctx = server.context(Vec::new());
        let mut object = Object::new(&ctx, Arc::new(server.object()));
        object.remove_finalizer().await.unwrap();
        let kept = server.object();
        assert_eq!(
            kept.metadata.finalizers.as_deref(),
            Some(&["example.com/theirs".to_owned()][..])
        );
        assert_eq!(identity::annotation(&kept, annotations::BLOCK_MOVE), left);
        assert_eq!(server.version(), "2", "in the same write");
    }
}

/// Wherever the object is moved meanwhile, its VM may be half updated.
#[tokio::test]
async fn update_is_recorded_once_before_its_call_and_blocks_a_move() {
    let server = Server::with(&machine().provisioned().build());
    let ctx = server.context(Vec::new());
    let mut object = Object::new(&ctx, Arc::new(server.object()));
    for _ in 0..2 {
        object.issue_update().await.unwrap();
        let noted = server.object();
        assert!(identity::is_update_issued(&noted));
        assert!(identity::blocks_move(&noted.metadata));
        assert_eq!(server.version(), "2", "written once");
    }
}
