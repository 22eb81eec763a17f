//! Secrets stay secret, and errors describe the problem.

use super::cases;
use crate::answer::{CaseResult, ensure};
use crate::answer_checker::problem;
use crate::config::secrets;
use crate::secret_scan::Haystack;
use crate::{Case, CaseError, Need, SecretMap, Setting, TestContext};
use cmi_driver::{Code, Operation, Status, USER_DATA, tags};

/// Logs are read after all other cases.
const LOGS: Need = Need::Setting(Setting::Logs);

pub(super) const CASES: &[Case] = cases! {
    "secrets-do-not-come-back": "no answer or message contains credentials or bootstrap data"
        ["OPS-11", "CMI-13", "CMI-165", "CMI-186"], [] => do_not_come_back;
    "secrets-are-not-logged": "no log contains credentials or bootstrap data"
        ["OPS-11", "CMI-13", "CMI-165", "CMI-186"], [LOGS] => are_not_logged;
};

/// Fails unless an error describes the problem, and can be written as text and read back (DRV-06, DRV-17).
pub(super) fn speaks(status: &Status) -> CaseResult {
    if let Some(problem) = problem(status) {
        return Err(CaseError::Failed(format!("{status}: {problem}")));
    }
    let read: Option<Status> = status.to_string().parse().ok();
    ensure(read.is_some_and(|read| read.code() == status.code()), || {
        format!("`{status}` can't be read back")
    })
}

/// Makes succeeding and failing calls; every answer is checked.
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
        if t.supports(operation) {
            t.invoke(operation, &invalid, None)
                .await?
                .refused(Code::InvalidArgument)?;
            t.invoke(operation, &request, None)
                .await?
                .ok_or(&[Code::Aborted])?;
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

/// Runs after all other cases, so that the logs include the driver's lines about back-end failures.
async fn are_not_logged(t: TestContext) -> CaseResult {
    calls(&t).await.map_err(CaseError::in_preparation)?;
    let secrets = all_secrets(&t);
    let (mut unread, mut any_has_lines) = (None, false);
    for path in &t.config().logs {
        let log = match std::fs::read(path) {
            Ok(log) => log,
            Err(error) => {
                unread = Some(format!("`logs`: {} can't be read: {error}", path.display()));
                continue;
            }
        };
        any_has_lines |= !log.is_empty();
        if log.is_empty() {
            t.warn(format!(
                "the log {} is empty, so that no secret could be found there: is it the one that the driver \
                 writes?",
                path.display()
            ));
        }
        let log = String::from_utf8_lossy(&log);
        let haystack = Haystack::new(&log);
        for (key, secret) in &secrets {
            ensure(!haystack.holds(secret), || {
                format!("the log {} holds the value of `{key}`", path.display())
            })?;
        }
    }
    if !any_has_lines {
        t.goes_only_so_far_for_want_of(format!("lines in {LOGS}"));
    }
    // A log that can't be read shows no leak.
    unread.map_or(Ok(()), |reason| Err(CaseError::Inconclusive(reason)))
}

/// Returns the secret values that the driver received in this run. Refused credentials may be valid
/// elsewhere.
fn all_secrets(t: &TestContext) -> Vec<(String, Vec<u8>)> {
    let config = t.config();
    let kept = |map: &SecretMap| {
        let all = secrets(map);
        let kept = all
            .iter()
            .filter(|(key, _)| !config.public_secret_keys.contains(*key));
        kept.map(|(key, value)| (key.to_owned(), value.expose().to_vec()))
            .collect::<Vec<_>>()
    };
    let mut all = kept(&config.secrets);
    let refused = config.bad_secrets.iter().chain(&config.restricted_secrets);
    all.extend(refused.flat_map(kept));
    let own = t.machine_request("a").class.secrets;
    all.extend(
        own.get(USER_DATA)
            .map(|data| (USER_DATA.to_owned(), data.expose().to_vec())),
    );
    all.push((USER_DATA.to_owned(), t.canary().into_bytes()));
    all
}
