//! What the driver gets: the provider spec, and the secrets as far as a call needs them.

use super::ExecuteError;
use crate::api::ObjectMetaExt as _;
use crate::api::v1alpha1::InfraMachine;
use crate::apiserver::secrets;
use crate::configured_driver::ConfiguredDriver;
use crate::credentials;
use crate::identity;
use crate::machine::Context;
use crate::machine::object::Object;
use crate::machine::status::SecretMovability;
use cmi_driver::{MachineClass, ProviderSpec};

/// The class for every call but a create: the spec, and the credentials that the VM was made
/// with or is to be made with.
pub async fn with_credentials(
    ctx: &Context,
    object: &mut Object<'_>,
    driver: &ConfiguredDriver,
    provider_spec: ProviderSpec,
) -> Result<MachineClass, ExecuteError> {
    let machine = object.get();
    let field = match identity::recorded_secret(machine) {
        Some(_) if identity::changed_secret(machine).is_some() => SECRET_ANNOTATION,
        _ => secrets::SECRET_REF,
    };
    let name = identity::credentials(machine);
    let read = credentials::movable(&ctx.client, driver, namespace(machine), name, field).await?;
    let (secrets, is_movable) = read?;
    let movability = match name {
        Some(name) if !is_movable => SecretMovability::LeftBehind(name.to_owned()),
        Some(_) | None => SecretMovability::Movable,
    };
    object.record_secret_movability(movability);
    Ok(MachineClass {
        provider_spec,
        secrets,
    })
}

const SECRET_ANNOTATION: &str = "the annotation infrastructure.capcmi.io/secret";

/// Adds the bootstrap data, for a create.
pub async fn with_bootstrap_data(
    ctx: &Context,
    machine: &InfraMachine,
    class: MachineClass,
    name: &str,
) -> Result<MachineClass, ExecuteError> {
    let secrets = secrets::bootstrap_data(&ctx.client, namespace(machine), name, class.secrets).await??;
    Ok(MachineClass {
        provider_spec: class.provider_spec,
        secrets,
    })
}

fn namespace(machine: &InfraMachine) -> &str {
    machine.metadata.namespace()
}
