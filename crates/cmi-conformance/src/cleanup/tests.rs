//! Tests the cleanup's requests to a driver, call by call.

use std::sync::Mutex;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::tracker::Tracker;
use cmi_driver::{
    CreateMachineRequest, DeclaredCapabilities, DeleteMachineResponse, LastKnownState, Machine, PluginInfo,
    Readiness, Result, Status,
};

/// Answers deletions by a script, whose last line repeats, and records the requests.
struct Scripted {
    asked: Mutex<Vec<DeleteMachineRequest>>,
    answers: Mutex<Vec<std::result::Result<(), Code>>>,
}

#[async_trait]
impl Driver for Scripted {
    async fn get_plugin_info(&self) -> Result<PluginInfo> {
        Err(Status::unimplemented(Operation::GetPluginInfo))
    }

    async fn get_plugin_capabilities(&self) -> Result<DeclaredCapabilities> {
        Ok(Capabilities::minimal().into())
    }

    async fn probe(&self) -> Result<Readiness> {
        Ok(Readiness::Ready)
    }

    async fn create_machine(&self, _request: CreateMachineRequest) -> Result<Machine> {
        Err(Status::unimplemented(Operation::CreateMachine))
    }

    async fn delete_machine(&self, request: DeleteMachineRequest) -> Result<DeleteMachineResponse> {
        self.asked.lock().unwrap().push(request);
        let mut answers = self.answers.lock().unwrap();
        let answer = if answers.len() > 1 {
            answers.remove(0)
        } else {
            answers[0]
        };
        let said = |code| Status::new(code, "so it is written in the script");
        answer.map(|()| DeleteMachineResponse::default()).map_err(said)
    }
}

/// Returns the remaining VMs and the requests.
async fn cleared(
    tracker: &Tracker,
    window: Duration,
    answers: &[std::result::Result<(), Code>],
) -> (Vec<Leftover>, Vec<DeleteMachineRequest>) {
    let driver = Scripted {
        asked: Mutex::default(),
        answers: Mutex::new(answers.to_vec()),
    };
    let capabilities = Capabilities {
        consistency_window: window,
        ..Capabilities::minimal()
    };
    let limit = Duration::from_mins(1);
    let liveness = Liveness::new(limit, CancellationToken::new());
    let (config, ledger) = (config(), Ledger::default());
    let cleanup = Cleanup {
        driver: &driver,
        capabilities: &capabilities,
        config: &config,
        ledger: &ledger,
        limit,
        liveness: &liveness,
    };
    let deleted = cleanup.delete(tracker.take()).await;
    let left = cleanup.confirm(vec![deleted], 1).await;
    (left, driver.asked.into_inner().unwrap())
}

fn config() -> Config {
    Config::read("providerSpec: {size: small}").unwrap()
}

fn machine_request() -> MachineRequest {
    MachineRequest::new(&config(), &Capabilities::minimal(), "c", "a", "canary")
}

/// A machine whose create had this answer.
fn tracked(answer: &Result<Machine>) -> Tracker {
    let tracker = Tracker::default();
    tracker.record_request(&machine_request());
    tracker.answered(&machine_request(), answer);
    tracker
}

fn made() -> Machine {
    Machine {
        last_known_state: LastKnownState::new(b"seven".to_vec()),
        ..Machine::new("test://a".parse().unwrap(), "a")
    }
}

#[tokio::test(start_paused = true)]
async fn a_vm_is_deleted_by_all_that_its_create_gave_and_again_by_its_name() {
    let tracker = tracked(&Ok(made()));
    let (left, asked) = cleared(&tracker, Duration::ZERO, &[Ok(())]).await;
    assert_eq!(left, Vec::<Leftover>::new());
    let ids: Vec<_> = asked.iter().map(|request| request.provider_id.clone()).collect();
    assert_eq!(ids, [Some(made().provider_id), None]);
    assert!(
        asked
            .iter()
            .all(|request| request.last_known_state == made().last_known_state)
    );
}

/// INI-18: code 17 carries the existing VM.
#[tokio::test(start_paused = true)]
async fn a_vm_that_is_not_initialized_is_one_that_was_made() {
    let status = Status::new(Code::Uninitialized, "it is there").with_machine(made());
    let tracker = tracked(&Err(status));
    let (left, asked) = cleared(&tracker, Duration::ZERO, &[Err(Code::InvalidArgument)]).await;
    assert_eq!(asked[0].provider_id, Some(made().provider_id));
    assert_eq!(left.len(), 1, "what was made is not invalid: {left:?}");
}

#[tokio::test(start_paused = true)]
async fn what_got_no_answer_is_deleted_again_when_it_may_have_been_made() {
    let tracker = Tracker::default();
    tracker.record_request(&machine_request());
    let before = tokio::time::Instant::now();
    let (left, asked) = cleared(&tracker, Duration::ZERO, &[Ok(())]).await;
    assert_eq!((left.len(), asked.len()), (0, 2));
    assert_eq!(before.elapsed(), ON_ITS_WAY);
}

#[tokio::test(start_paused = true)]
async fn cleanup_does_not_wait_after_a_refused_create() {
    let tracker = tracked(&Err(Status::new(Code::InvalidArgument, "no such size")));
    let before = tokio::time::Instant::now();
    let (left, asked) = cleared(&tracker, Duration::ZERO, &[Err(Code::InvalidArgument)]).await;
    assert_eq!((left.len(), asked.len()), (0, 1));
    assert_eq!(before.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn cleanup_does_not_repeat_calls_with_refused_credentials() {
    let tracker = tracked(&Err(Status::new(Code::Unauthenticated, "no token")));
    let before = tokio::time::Instant::now();
    let (_left, asked) = cleared(&tracker, Duration::ZERO, &[Err(Code::Unauthenticated)]).await;
    assert_eq!((asked.len(), before.elapsed()), (1, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn cleanup_deletes_again_after_the_consistency_window() {
    let tracker = Tracker::default();
    tracker.record(&machine_request());
    let window = Duration::from_secs(30);
    let before = tokio::time::Instant::now();
    let (left, asked) = cleared(&tracker, window, &[Ok(())]).await;
    assert_eq!((left.len(), asked.len()), (0, 2));
    assert_eq!(before.elapsed(), window);
}

#[tokio::test(start_paused = true)]
async fn cleanup_deletes_by_name_when_the_driver_rejects_the_id() {
    for refusal in [Code::InvalidArgument, Code::FailedPrecondition, Code::NotFound] {
        let tracker = Tracker::default();
        tracker.record_request(&machine_request());
        tracker.answered(&machine_request(), &Ok(made()));
        let (left, asked) = cleared(&tracker, Duration::ZERO, &[Err(refusal), Ok(())]).await;
        assert_eq!((left.len(), asked.len()), (0, 2), "{refusal}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_never_ends_is_reported_once_with_what_it_answers() {
    let tracker = tracked(&Ok(made()));
    let before = tokio::time::Instant::now();
    let (left, _) = cleared(&tracker, Duration::ZERO, &[Err(Code::Aborted)]).await;
    assert!(
        before.elapsed() <= Duration::from_mins(1),
        "{:?}",
        before.elapsed()
    );
    let [left] = left.as_slice() else {
        panic!("{left:?}");
    };
    let sentence = left.to_string();
    assert!(
        sentence.contains("`a` of cluster `c`") && sentence.contains("Aborted"),
        "{sentence}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_does_not_end_is_reported_with_the_time_that_it_had() {
    for (is_gone, seconds) in [(false, 60), (true, 5)] {
        let limit = Duration::from_mins(1);
        let liveness = Liveness::new(limit, CancellationToken::new());
        if is_gone {
            liveness.died("CreateMachine");
        }
        let cleanup = Cleanup {
            driver: &Scripted {
                asked: Mutex::default(),
                answers: Mutex::default(),
            },
            capabilities: &Capabilities::minimal(),
            config: &config(),
            ledger: &Ledger::default(),
            limit,
            liveness: &liveness,
        };
        let before = tokio::time::Instant::now();
        let never = std::future::pending::<Result<()>>;
        let ended = cleanup.repeat(Operation::DeleteMachine, Repeat::Any, never).await;
        assert_eq!(before.elapsed(), Duration::from_secs(seconds));
        let (code, reason) = ended.unwrap_err();
        assert_eq!(code, None);
        assert_eq!(reason, format!("DeleteMachine did not end within {seconds}s"));
    }
}

/// A driver may refuse to delete a VM that it refused to create, with any code.
#[tokio::test(start_paused = true)]
async fn a_refused_create_leaves_nothing_if_its_spec_stays_refused() {
    for refusal in [Code::OutOfRange, Code::ResourceExhausted, Code::Internal] {
        let tracker = Tracker::default();
        let wrong = machine_request().changed(&serde_json::json!({"size": "of-the-moon"}));
        tracker.record_request(&wrong);
        tracker.answered(&wrong, &Err(Status::new(refusal, "there is no such size")));
        let before = tokio::time::Instant::now();
        let (left, asked) = cleared(&tracker, Duration::ZERO, &[Err(refusal), Ok(())]).await;
        assert_eq!((left.len(), asked.len()), (0, 2), "{refusal}");
        let sample = &asked[1].machine.class.provider_spec;
        assert_eq!(
            sample,
            &machine_request().class.provider_spec,
            "the tags stay, too"
        );
        assert_eq!(before.elapsed(), Duration::ZERO);
    }
}

/// An OK is a promise where the back end is never behind.
#[tokio::test(start_paused = true)]
async fn deleted_vms_of_a_lost_driver_are_left_only_within_its_window() {
    let tracker = Tracker::default();
    for (window, left_behind) in [(Duration::ZERO, 0), (Duration::from_secs(1), 1)] {
        tracker.record_request(&machine_request());
        tracker.answered(&machine_request(), &Ok(made()));
        let answers = [Ok(()), Err(Code::Unavailable)];
        let (left, _) = cleared(&tracker, window, &answers).await;
        assert_eq!(left.len(), left_behind, "{window:?}: {left:?}");
    }
    // If a driver answers that it can no longer delete the VM, its first answer does not count.
    tracker.record_request(&machine_request());
    tracker.answered(&machine_request(), &Ok(made()));
    let (left, _) = cleared(&tracker, Duration::ZERO, &[Ok(()), Err(Code::Internal)]).await;
    assert_eq!(left.len(), 1, "{left:?}");
}
