//! What the calls answer to credentials that are missing, wrong, or not enough.

use super::cases;
use super::faults::{prepared, sound};
use crate::answer::CaseResult;
use crate::{Case, Need, SecretMap, Setting, TestContext};
use cmi_driver::{Code, Operation};

pub(super) const CASES: &[Case] = cases! {
    "create-bad-secrets": "credentials that are missing or wrong are UNAUTHENTICATED"
        ["DRV-CR-16", "PLG-CR-16", "DRV-16", "CMI-96", "CMI-38"],
        [Need::Setting(Setting::BadSecrets)] => |t| bad_secrets(t, Operation::CreateMachine);
    "delete-bad-secrets": "credentials that are missing or wrong are UNAUTHENTICATED"
        ["DRV-DE-16", "PLG-DE-16", "DRV-24", "CMI-112", "CMI-38"],
        [Need::Setting(Setting::BadSecrets)] => |t| bad_secrets(t, Operation::DeleteMachine);
    "status-bad-secrets": "credentials that are missing or wrong are UNAUTHENTICATED"
        ["DRV-GS-16", "PLG-GS-16", "DRV-31", "CMI-124", "CMI-38"],
        [Need::Call(Operation::GetMachineStatus), Need::Setting(Setting::BadSecrets)]
            => |t| bad_secrets(t, Operation::GetMachineStatus);
    "list-bad-secrets": "credentials that are missing or wrong are UNAUTHENTICATED"
        ["DRV-LM-16", "PLG-LM-16", "DRV-38", "CMI-143", "CMI-38"],
        [Need::Call(Operation::ListMachines), Need::Setting(Setting::BadSecrets)]
            => |t| bad_secrets(t, Operation::ListMachines);
    "shut-down-bad-secrets": "credentials that are missing or wrong are UNAUTHENTICATED"
        ["PLG-SD-16", "CMI-134", "CMI-38"],
        [Need::Call(Operation::ShutDownMachine), Need::Setting(Setting::BadSecrets)]
            => |t| bad_secrets(t, Operation::ShutDownMachine);
    "create-restricted-secrets": "credentials that may not do this are PERMISSION_DENIED"
        ["DRV-CR-07", "PLG-CR-07", "CMI-32"],
        [Need::Setting(Setting::RestrictedSecrets)] => |t| restricted_secrets(t, Operation::CreateMachine);
    "delete-restricted-secrets": "credentials that may not do this are PERMISSION_DENIED"
        ["DRV-DE-07", "PLG-DE-07", "CMI-32"],
        [Need::Setting(Setting::RestrictedSecrets)] => |t| restricted_secrets(t, Operation::DeleteMachine);
    "status-restricted-secrets": "credentials that may not do this are PERMISSION_DENIED"
        ["DRV-GS-07", "PLG-GS-07", "CMI-32"],
        [Need::Call(Operation::GetMachineStatus), Need::Setting(Setting::RestrictedSecrets)]
            => |t| restricted_secrets(t, Operation::GetMachineStatus);
    "list-restricted-secrets": "credentials that may not do this are PERMISSION_DENIED"
        ["DRV-LM-07", "PLG-LM-07", "CMI-32"],
        [Need::Call(Operation::ListMachines), Need::Setting(Setting::RestrictedSecrets)]
            => |t| restricted_secrets(t, Operation::ListMachines);
    "shut-down-restricted-secrets": "credentials that may not do this are PERMISSION_DENIED"
        ["PLG-SD-07", "CMI-32"],
        [Need::Call(Operation::ShutDownMachine), Need::Setting(Setting::RestrictedSecrets)]
            => |t| restricted_secrets(t, Operation::ShutDownMachine);
};

async fn bad_secrets(t: TestContext, operation: Operation) -> CaseResult {
    let bad = t.config().bad_secrets.clone();
    refused_secrets(&t, operation, &bad, Code::Unauthenticated).await
}

async fn restricted_secrets(t: TestContext, operation: Operation) -> CaseResult {
    let restricted: Vec<_> = t.config().restricted_secrets.clone().into_iter().collect();
    refused_secrets(&t, operation, &restricted, Code::PermissionDenied).await
}

async fn refused_secrets(t: &TestContext, operation: Operation, all: &[SecretMap], code: Code) -> CaseResult {
    let (request, id) = prepared(t, operation).await?;
    for secrets in all {
        let wrong = request.clone().with_secrets(secrets);
        t.invoke(operation, &wrong).await?.refused(code)?;
    }
    if id.is_none() {
        t.has_none(&request).await?;
    }
    sound(t, operation, &request, id.as_ref()).await
}
