//! The checks before every driver call.
//!
//! The rules apply in this order: leadership, capabilities, the driver's rate, and leadership again, since
//! the wait may have been long. [`super::Permit`] bounds how many calls run in parallel, and admits creates.

use std::sync::Arc;

use super::Limits;
use super::breaker::{Breakers, ClassKey};
use super::bucket::TokenBucket;
use super::capability_cache::CapabilityCache;
use super::driver_client::DriverClient;
use super::prober::Prober;
use cmi_driver::{
    Capabilities, Code, DeclaredCapabilities, MachineClass, Operation, PluginInfo, ProviderSpec, Readiness,
    Request, Result, Status, tags,
};

/// A driver whose calls have to pass leadership and capabilities, and wait for the rate.
#[derive(Debug)]
pub(super) struct GuardedDriver {
    client: DriverClient,
    capabilities: Arc<CapabilityCache>,
    prober: Arc<Prober>,
    breakers: Arc<Breakers>,
    tokens: TokenBucket,
}

impl GuardedDriver {
    pub(super) fn new(
        client: DriverClient,
        capabilities: Arc<CapabilityCache>,
        prober: Arc<Prober>,
        limits: &Limits,
    ) -> Self {
        Self {
            client,
            capabilities,
            prober,
            breakers: Arc::default(),
            tokens: TokenBucket::new(limits.calls_per_second, limits.burst),
        }
    }

    /// Checks whether the call may be made, before it waits for the driver's rate.
    async fn check_callable(&self, operation: Operation) -> Result<()> {
        self.client.check_leadership()?;
        let declared = self.capabilities.get().await;
        let capabilities = declared.map_err(Status::with_never_sent)?.capabilities;
        let supported = capabilities.check_supported(operation);
        supported.map_err(Status::with_never_sent)
    }

    pub(super) fn breakers(&self) -> &Arc<Breakers> {
        &self.breakers
    }

    /// Returns the class for the machine's breaker.
    pub(super) fn key(&self, class: &MachineClass) -> ClassKey {
        match self.capabilities.declared() {
            Some(declared) => ClassKey::of(class, &declared.capabilities.tag_path),
            None => ClassKey::of(class, &Capabilities::minimal().tag_path),
        }
    }

    /// Makes a call under all the rules.
    async fn call<R: Request>(&self, request: R) -> Result<R::Response> {
        self.check_callable(R::OPERATION).await?;
        let failure_domain = request
            .class()
            .filter(|_| R::OPERATION == Operation::CreateMachine)
            .and_then(|class| failure_domain(&class.provider_spec))
            .map(str::to_owned);
        self.tokens.take().await;
        let answer = self.client.send(request).await;
        let answer = answer.map_err(|status| in_failure_domain(status, failure_domain.as_deref()));
        self.prober.record_answer(&answer);
        answer
    }
}

/// Returns the failure domain that a provider spec names.
pub fn failure_domain(spec: &ProviderSpec) -> Option<&str> {
    spec.0.get(tags::FAILURE_DOMAIN)?.as_str()
}

/// Adds the failure domain that a create named to an answer that there is no capacity.
fn in_failure_domain(status: Status, named: Option<&str>) -> Status {
    match named {
        Some(name) if status.code() == Code::ResourceExhausted => {
            let message = format!("{}{}", status.message(), full_failure_domain(name));
            status.with_message(message)
        }
        Some(_) | None => status,
    }
}

/// Describes a failure domain without capacity, and the remedies.
pub fn full_failure_domain(name: &str) -> String {
    format!(
        "; the Machine names failure domain `{name}`: free capacity there, or replace the Machine by \
            one for another failure domain"
    )
}

cmi_driver::forward_calls! {
    impl Driver for GuardedDriver {
        fn connection_generation(&self) -> u64 {
            self.client.driver.connection_generation()
        }

        async fn get_plugin_info(&self) -> Result<PluginInfo> {
            self.client.get_plugin_info().await
        }

        async fn get_plugin_capabilities(&self) -> Result<DeclaredCapabilities> {
            self.client.check_leadership()?;
            self.capabilities.get().await
        }

        async fn probe(&self) -> Result<Readiness> {
            self.client.probe().await
        }

        async fn prepare_call(&self, operation: Operation) -> Result<()> {
            self.check_callable(operation).await?;
            self.client.prepare_call(operation).await
        }
    }
}
