//! Tests the writes to an object.

use std::future::ready;

use tokio::time::{Instant, sleep};

use super::*;
use crate::api::conditions::{self, reason};
use crate::api::identity::VmState;
use crate::api::v1alpha1::{OperationState, SecretReference};
use crate::machine::fakes::Server;
use crate::machine::fixtures::{at, machine, now, record};

#[tokio::test]
async fn the_record_is_written_where_it_differs_and_with_the_finalizer() {
    let server = Server::with(&machine().build());
    let ctx = server.context(Vec::new());
    let mut object = Object::new(&ctx, Arc::new(server.object()), HasStatus::Yes);
    let none = VmRecord::new(object.get(), "c-1").unwrap();
    object.own(&none).await.unwrap();
    object.own(&none).await.unwrap();
    assert_eq!(server.version(), "2", "written once");
    assert_eq!(identity::record(&server.object()), Some(none.clone()));
    assert!(server.is_kept());
    server.touch();
    let stale = object.own(&none).await;
    assert!(matches!(stale, Err(Error::Conflict { .. })), "{stale:?}");
}

/// A driver's answer stays valid when other clients write.
#[tokio::test]
async fn a_change_of_the_record_is_made_to_the_record_as_it_is_now() {
    let server = Server::with(&machine().known("sim://1").build());
    let ctx = server.context(Vec::new());
    let mut object = Object::new(&ctx, Arc::new(server.object()), HasStatus::Yes);
    let newer = machine()
        .known("sim://1")
        .record(|record| record.cluster = "c-2".to_owned())
        .build();
    server.annotate(
        annotations::VM_RECORD,
        identity::annotation(&newer, annotations::VM_RECORD).unwrap(),
    );
    let accepted = VmEvent::ShutDownAccepted { at: at(9) };
    let change = |record: VmRecord| record.after(accepted);
    object
        .change_record("testing", change, Moves::AsBefore, None)
        .await
        .unwrap();
    let record = identity::record(&server.object()).unwrap();
    assert_eq!(record.cluster, "c-2");
    assert_eq!(record.state.name(), "ShuttingDown");
    server.annotate(annotations::VM_RECORD, "");
    let lost = object
        .record_last_known_state(LastKnownState::new(vec![1]).as_ref())
        .await;
    assert!(matches!(lost, Err(Error::Conflict { .. })), "{lost:?}");
}

/// The status describes the spec of the plan, and not a later change by a user.
#[tokio::test]
async fn a_spec_that_changed_during_a_call_is_not_observed() {
    let server = Server::with(&machine().identified().generation(1).build());
    let ctx = server.context(Vec::new());
    let mut object = Object::new(&ctx, Arc::new(server.object()), HasStatus::Yes);
    server.touch();
    object.patch_provider_id("sim://1", None).await.unwrap();
    assert_eq!(object.as_planned().metadata, object.get().metadata);

    server.change(|machine| {
        machine.spec.secret_ref = Some(SecretReference {
            name: "other".to_owned(),
        });
        machine.metadata.generation = Some(7);
    });
    let change = |record: VmRecord| record.after(VmEvent::UpdateIssued);
    let written = object.change_record("testing", change, Moves::AsBefore, None);
    written.await.unwrap();
    assert_eq!(object.get().metadata.generation, Some(7));
    let described = |machine: &InfraMachine| InfraMachineStatus {
        observed_generation: machine.metadata.generation,
        ..InfraMachineStatus::default()
    };
    object.patch_status(described).await.unwrap();
    assert_eq!(server.object().status.unwrap().observed_generation, Some(1));
}

/// The refusal of one create does not cover other creates.
#[tokio::test]
async fn a_refusal_reverts_only_its_own_create_and_unblocks_a_move() {
    for (issued, left) in [(0, "Refused"), (1, "Creating")] {
        let blocked = machine()
            .identified()
            .annotated(annotations::BLOCK_MOVE, annotations::BLOCK_MOVE_VALUE);
        let server = Server::with(&blocked.build());
        let ctx = server.context(Vec::new());
        let mut object = Object::new(&ctx, Arc::new(server.object()), HasStatus::Yes);
        server.touch();
        let refused = VmEvent::CreateRefused {
            issued: at(issued),
            left_something: true,
        };
        let change = |record: VmRecord| record.after(refused);
        let written = object.change_record("testing", change, Moves::Unblocked, None);
        written.await.unwrap();
        let record = identity::record(&server.object()).unwrap();
        assert_eq!(record.state.name(), left);
        assert_eq!(server.annotation(annotations::BLOCK_MOVE), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_call_is_reported_once_and_its_answer_is_still_written() {
    let server = Server::with(&machine().identified().build());
    let ctx = server.context(Vec::new());
    let mut object = Object::new(&ctx, Arc::new(server.object()), HasStatus::Yes);
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

    object.patch_provider_id("sim://1", None).await.unwrap();
    let mut done = object.get().status.clone().unwrap();
    done.last_operation = None;
    object.patch_status(|_| done).await.unwrap();
    assert_eq!(server.object().spec.provider_id.as_deref(), Some("sim://1"));
}

#[tokio::test(start_paused = true)]
async fn an_answer_survives_a_failed_report_of_the_long_call() {
    let server = Server::with(&machine().identified().build());
    let ctx = server.context(Vec::new());
    let mut object = Object::new(&ctx, Arc::new(server.object()), HasStatus::Yes);
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

#[tokio::test]
async fn status_of_an_older_version_is_not_written() {
    let server = Server::with(&machine().identified().build());
    let ctx = server.context(Vec::new());
    let mut object = Object::new(&ctx, Arc::new(server.object()), HasStatus::Yes);
    server.touch();
    let provisioned = InfraMachineStatus {
        ready: true,
        ..InfraMachineStatus::default()
    };
    let refused = object.patch_status(|_| provisioned).await;
    assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
    assert!(!server.object().status.unwrap_or_default().ready);
}

/// The write of the providerID also ends the create and unblocks clusterctl.
#[tokio::test]
async fn the_provider_id_ends_its_create_and_lets_a_move_go_on() {
    let server = Server::with(&machine().build());
    let ctx = server.context(Vec::new());
    let mut object = Object::new(&ctx, Arc::new(server.object()), HasStatus::Yes);
    let issued = VmState::Creating {
        issued: at(7),
        several: false,
    };
    object.record_create(&record(object.get(), issued)).await.unwrap();
    let owned = server.object();
    assert_eq!(
        owned.spec.provider_id, None,
        "no driver has said that it is there"
    );
    assert_eq!(identity::vm_state(&owned), issued);
    let state = LastKnownState::new(b"s1".to_vec());
    object.patch_provider_id("sim://1", state.as_ref()).await.unwrap();
    assert_eq!(server.version(), "3", "one write");
    let known = server.object();
    assert_eq!(known.spec.provider_id.as_deref(), Some("sim://1"));
    assert_eq!(identity::vm_state(&known), VmState::Exists { unanswered: None });
    assert_eq!(identity::annotation(&known, annotations::BLOCK_MOVE), None);
    assert_eq!(identity::last_known_state(&known), state);
    object.patch_provider_id("sim://1", None).await.unwrap();
    assert_eq!(server.version(), "3", "nothing is written twice");
}

/// The object is always written before a create, so that a stale cache creates nothing.
#[tokio::test]
async fn each_create_is_recorded_first_and_blocks_a_move() {
    for (fixture, block) in [
        (machine(), annotations::BLOCK_MOVE_VALUE),
        (machine().identified(), annotations::BLOCK_MOVE_VALUE),
        (
            machine()
                .identified()
                .annotated(annotations::BLOCK_MOVE, "a user's"),
            "a user's",
        ),
    ] {
        let server = Server::with(&fixture.build());
        let ctx = server.context(Vec::new());
        let mut object = Object::new(&ctx, Arc::new(server.object()), HasStatus::Yes);
        let issued = VmState::Creating {
            issued: now(),
            several: false,
        };
        object.record_create(&record(object.get(), issued)).await.unwrap();
        assert_eq!(identity::vm_state(&server.object()), issued);
        assert_eq!(server.annotation(annotations::BLOCK_MOVE).as_deref(), Some(block));
        server.touch();
        let stale = object.record_create(&record(object.get(), issued)).await;
        let is_refused = matches!(stale, Err(Error::Conflict { .. }));
        assert!(is_refused, "also where nothing changes: {stale:?}");
    }
}
