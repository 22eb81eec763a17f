//! Assembles the input of a driver call: the provider spec and the secrets.

use std::sync::LazyLock;

use super::{ExecuteError, Executor};
use crate::api::identity;
use crate::api::{ObjectMetaExt as _, annotations};
use crate::apiserver::secrets;
use crate::driver::credentials;
use cmi_driver::{MachineClass, ProviderSpec};

/// The location of a Secret's name, as error messages give it.
static SECRET_OF_RECORD: LazyLock<String> =
    LazyLock::new(|| format!("madeFrom.secret in annotation {}", annotations::VM_RECORD));

impl Executor<'_, '_, '_> {
    /// Returns the class for every call except a create: the spec and the credentials of the VM.
    pub async fn with_credentials(&self, provider_spec: ProviderSpec) -> Result<MachineClass, ExecuteError> {
        let machine = self.object.get();
        let field = match identity::changed_secret(machine) {
            Some(_) => &SECRET_OF_RECORD,
            None => secrets::SECRET_REF,
        };
        let name = identity::credentials(machine);
        let (client, driver) = (&self.ctx.client, self.permit.configured_driver());
        let namespace = machine.metadata.namespace();
        let secrets = credentials::read(client, driver, namespace, name.as_deref(), field).await??;
        Ok(MachineClass {
            provider_spec,
            secrets,
        })
    }

    /// Adds the bootstrap data for a create.
    pub async fn with_bootstrap_data(
        &self,
        class: MachineClass,
        name: &str,
    ) -> Result<MachineClass, ExecuteError> {
        let namespace = self.object.get().metadata.namespace();
        let secrets = secrets::bootstrap_data(&self.ctx.client, namespace, name, class.secrets).await??;
        Ok(MachineClass {
            provider_spec: class.provider_spec,
            secrets,
        })
    }
}
