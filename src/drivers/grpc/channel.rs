//! A bare connection to a plugin, for those from whom the driver would hide something: the conformance suite.

use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use super::config::{ConfigError, ENDPOINT_VARIABLE, GrpcConfig};

impl GrpcConfig {
    /// A connection to the plugin that nothing is checked on; it is made when it is first used, and again when it is lost.
    ///
    /// # Errors
    /// [`ConfigError`] when the configuration leads to no plugin.
    pub fn channel(&self) -> Result<Channel, ConfigError> {
        let target = self.target(std::env::var(ENDPOINT_VARIABLE).ok())?;
        // The scheme says what to dial, which the connector does: this one is only what requests say.
        let origin = Endpoint::from(target.origin());
        Ok(origin.connect_with_connector_lazy(service_fn(move |_origin| {
            let target = target.clone();
            async move { target.dial().await.map(|dialled| TokioIo::new(dialled.stream)) }
        })))
    }
}
