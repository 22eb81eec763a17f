//! The answers of the calls to credentials that are missing, wrong, or not sufficient.

use super::family;
use super::faults::{prepared, sound};
use crate::answer::CaseResult;
use crate::{Case, Need, SecretMap, Setting, TestContext};
use cmi_driver::{Code, Operation};

pub(super) const BAD: &[Case] = family! {
    "-bad-secrets": "missing or wrong credentials are UNAUTHENTICATED"
        [Need::Setting(Setting::BadSecrets)] => bad_secrets;
    "create" CreateMachine ["DRV-CR-16", "PLG-CR-16", "DRV-16", "CMI-96", "CMI-38"];
    "delete" DeleteMachine ["DRV-DE-16", "PLG-DE-16", "DRV-24", "CMI-112", "CMI-38"];
    "status" GetMachineStatus ["DRV-GS-16", "PLG-GS-16", "DRV-31", "CMI-124", "CMI-38"];
    "list" ListMachines ["DRV-LM-16", "PLG-LM-16", "DRV-38", "CMI-143", "CMI-38"];
    "shut-down" ShutDownMachine ["PLG-SD-16", "CMI-134", "CMI-38"];
};

pub(super) const RESTRICTED: &[Case] = family! {
    "-restricted-secrets": "credentials without the permission are PERMISSION_DENIED"
        [Need::Setting(Setting::RestrictedSecrets)] => restricted_secrets;
    "create" CreateMachine ["DRV-CR-07", "PLG-CR-07", "CMI-32"];
    "delete" DeleteMachine ["DRV-DE-07", "PLG-DE-07", "CMI-32"];
    "status" GetMachineStatus ["DRV-GS-07", "PLG-GS-07", "CMI-32"];
    "list" ListMachines ["DRV-LM-07", "PLG-LM-07", "CMI-32"];
    "shut-down" ShutDownMachine ["PLG-SD-07", "CMI-32"];
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
        t.invoke(operation, &wrong, None).await?.refused(code)?;
    }
    if id.is_none() {
        t.has_none(&request).await?;
    }
    sound(t, operation, &request, id.as_ref()).await
}
