//! What the driver gets: the provider spec, and the secrets as far as a call needs them.

use super::Context;
use crate::api::v1alpha1::InfraMachine;
use crate::apiserver::{Error, InvalidSecret, secrets};
use crate::driver::{MachineClass, ProviderSpec};

/// What a secret read came to.
pub type Class = Result<MachineClass, InvalidSecret>;

/// The class for every call but a create: the spec and the credentials.
pub async fn with_credentials(
    ctx: &Context,
    machine: &InfraMachine,
    spec: ProviderSpec,
) -> Result<Class, Error> {
    let reference = machine
        .spec
        .secret_ref
        .as_ref()
        .map(|reference| reference.name.as_str());
    let secrets = secrets::credentials(&ctx.client, namespace(machine), reference).await?;
    Ok(secrets.map(|secrets| MachineClass {
        provider_spec: spec,
        secrets,
    }))
}

/// Adds the bootstrap data, for a create.
pub async fn with_bootstrap_data(
    ctx: &Context,
    machine: &InfraMachine,
    class: MachineClass,
    name: &str,
) -> Result<Class, Error> {
    let MachineClass {
        provider_spec,
        secrets,
    } = class;
    let secrets = secrets::bootstrap_data(&ctx.client, namespace(machine), name, secrets).await?;
    Ok(secrets.map(|secrets| MachineClass {
        provider_spec,
        secrets,
    }))
}

fn namespace(machine: &InfraMachine) -> &str {
    machine.metadata.namespace.as_deref().unwrap_or_default()
}
