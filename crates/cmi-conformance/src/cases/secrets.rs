//! Secrets stay secret, and errors speak.

use super::cases;
use crate::answer::{CaseResult, ensure};
use crate::echo::echoes;
use crate::judge::problem;
use crate::{Case, CaseError, Need, Setting, TestContext};
use cmi_driver::{Code, Operation, Status, USER_DATA, tags};

pub(super) const CASES: &[Case] = cases! {
    "secrets-do-not-come-back": "no answer and no message holds credentials or bootstrap data"
        ["OPS-11", "CMI-13", "CMI-165", "CMI-186"], [] => do_not_come_back;
    "secrets-are-not-logged": "no log holds credentials or bootstrap data"
        ["OPS-11", "CMI-13", "CMI-165", "CMI-186"], [Need::Setting(Setting::Logs)] => are_not_logged;
};

/// Fails unless an error says in words what is wrong, and can be written as text and
/// read back (DRV-06, DRV-17).
pub(super) fn speaks(status: &Status) -> CaseResult {
    if let Some(problem) = problem(status) {
        return Err(CaseError::Failed(format!("{status}: {problem}")));
    }
    let read: Option<Status> = status.to_string().parse().ok();
    ensure(read.is_some_and(|read| read.code() == status.code()), || {
        format!("`{status}` can't be read back")
    })
}

/// Makes calls that go well and calls that do not; the judge looks at every answer.
async fn calls(t: &TestContext) -> CaseResult {
    let request = t.machine_request("a");
    let invalid = request.clone().untagged(tags::CLUSTER);
    t.create(&invalid).await?.refused(Code::InvalidArgument)?;
    t.prepare(&request).await?;
    for operation in [
        Operation::GetMachineStatus,
        Operation::ListMachines,
        Operation::ShutDownMachine,
        Operation::DeleteMachine,
    ] {
        if t.offers(operation) {
            t.touch(operation, &invalid)
                .await?
                .refused(Code::InvalidArgument)?;
            t.touch(operation, &request).await?.ok_or(&[Code::Aborted])?;
        }
    }
    for secrets in t.config().bad_secrets.clone() {
        let wrong = request.clone().with_secrets(&secrets);
        t.create(&wrong).await?.refused(Code::Unauthenticated)?;
    }
    Ok(())
}

async fn do_not_come_back(t: TestContext) -> CaseResult {
    calls(&t).await.map_err(CaseError::in_preparation)?;
    match t.leaks().first() {
        None => Ok(()),
        Some(leak) => Err(CaseError::Failed(leak.clone())),
    }
}

async fn are_not_logged(t: TestContext) -> CaseResult {
    calls(&t).await.map_err(CaseError::in_preparation)?;
    let request = t.machine_request("a");
    let mut unread = None;
    for path in &t.config().logs {
        let log = match std::fs::read(path) {
            Ok(log) => log,
            Err(error) => {
                unread = Some(format!("`logs`: {} can't be read: {error}", path.display()));
                continue;
            }
        };
        let log = String::from_utf8_lossy(&log);
        ensure(!log.contains(&t.canary()), || {
            format!("the log {} holds the value of `{USER_DATA}`", path.display())
        })?;
        let public = &t.config().public_secret_keys;
        let secret = |key: &str| key != USER_DATA && !public.contains(key);
        for (key, value) in request.class.secrets.iter().filter(|(key, _)| secret(key)) {
            ensure(!echoes(&log, value.expose()), || {
                format!("the log {} holds the value of `{key}`", path.display())
            })?;
        }
    }
    // A file that is not where its author looks for it leaks nothing.
    unread.map_or(Ok(()), |reason| Err(CaseError::Inconclusive(reason)))
}
