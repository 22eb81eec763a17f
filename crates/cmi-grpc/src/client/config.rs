//! The configuration of a plugin in the drivers file: its address, TLS and timeouts.

use std::path::PathBuf;
use std::time::Duration;

use garde::Validate;
use rustls::pki_types::ServerName;
use serde::Deserialize;

use super::target::{Target, TlsFiles};
use crate::endpoint::{Authority, Endpoint, ParseEndpointError};

/// The environment variable for a plugin's endpoint, from the CMI specification (CMI-156, CMI-181).
pub const ENDPOINT_VARIABLE: &str = "CMI_ENDPOINT";

/// The `grpc:` key of a driver.
#[derive(Clone, Debug, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GrpcConfig {
    /// The plugin's address: `unix:///path`, `tcp://host:port` or `tls://host:port`. Defaults to the value of
    /// the environment variable `CMI_ENDPOINT`.
    #[garde(skip)]
    pub endpoint: Option<String>,
    /// How this client authenticates a plugin over `tls://`, and itself to the plugin.
    #[garde(dive)]
    pub tls: Option<TlsConfig>,
    /// Allows `tcp://` to another host, although every hop in between can read the secrets.
    #[garde(skip)]
    pub insecure: bool,
    /// From the first packet until the plugin has described itself; 1–8, since a probe waits for it.
    #[garde(range(min = 1, max = 8))]
    pub connect_timeout_seconds: u32,
    /// Silence during a call until the client pings the plugin; 10–3600. Servers close connections with too
    /// frequent pings.
    #[garde(range(min = 10, max = 3600))]
    pub keepalive_seconds: u32,
    /// How long the answer to a ping may take before the connection is closed; 1–300.
    #[garde(range(min = 1, max = 300))]
    pub keepalive_timeout_seconds: u32,
}

/// The files of a TLS connection, PEM. They are read again for every connection.
#[derive(Clone, Debug, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TlsConfig {
    /// Certificates of the authorities that may vouch for the plugin.
    #[garde(skip)]
    pub ca_file: PathBuf,
    /// The client's certificate and its chain.
    #[garde(skip)]
    pub cert_file: Option<PathBuf>,
    /// The key of our certificate.
    #[garde(skip)]
    pub key_file: Option<PathBuf>,
    /// The expected name in the plugin's certificate, if it differs from the endpoint's host.
    #[garde(skip)]
    pub server_name: Option<String>,
}

/// Why a configuration leads to no plugin. Each names the key.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Neither the file nor the environment has an endpoint.
    #[error("grpc.endpoint is missing, and CMI_ENDPOINT is not set")]
    NoEndpoint,
    /// The endpoint can't be read.
    #[error("{key}: {source}")]
    Endpoint {
        /// The setting.
        key: &'static str,
        /// The mistake.
        #[source]
        source: ParseEndpointError,
    },
    /// No plugin can be reached at port 0.
    #[error("grpc.endpoint: {endpoint} has no port")]
    NoPort {
        /// The endpoint.
        endpoint: Endpoint,
    },
    /// Secrets would cross a network in plain text.
    #[error(
        "grpc.insecure: {endpoint} is on another host, and tcp:// sends secrets unencrypted: use tls://, or \
            set `insecure: true` if the network is trusted"
    )]
    Insecure {
        /// The endpoint.
        endpoint: Endpoint,
    },
    /// A key that this endpoint has no use for.
    #[error("{key}: has no effect with {endpoint}; remove it")]
    Meaningless {
        /// The key.
        key: &'static str,
        /// The endpoint.
        endpoint: Endpoint,
    },
    /// A TLS endpoint needs an authority that vouches for the plugin.
    #[error("grpc.tls.caFile is missing: {endpoint} requires a CA")]
    NoAuthority {
        /// The endpoint.
        endpoint: Endpoint,
    },
    /// A certificate without its key, or a key without its certificate.
    #[error("grpc.tls.{missing} is missing: certFile and keyFile are both required")]
    HalfAnIdentity {
        /// The key that is not there.
        missing: &'static str,
    },
    /// The name can't be in a certificate.
    #[error("{key}: `{name}` is not a host name or address")]
    ServerName {
        /// The setting.
        key: &'static str,
        /// The name.
        name: String,
    },
}

impl Default for GrpcConfig {
    fn default() -> Self {
        Self {
            endpoint: None,
            tls: None,
            insecure: false,
            connect_timeout_seconds: 5,
            keepalive_seconds: 30,
            keepalive_timeout_seconds: 10,
        }
    }
}

/// How a connection is looked after.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    pub connect: Duration,
    pub keepalive: Duration,
    pub keepalive_answer: Duration,
}

impl GrpcConfig {
    /// Where to connect to.
    ///
    /// # Errors
    /// [`ConfigError`] with the key that is wrong.
    pub(super) fn target(&self, variable: Option<String>) -> Result<Target, ConfigError> {
        let endpoint = self.endpoint(variable)?;
        let meaningless = |key| {
            Err(ConfigError::Meaningless {
                key,
                endpoint: endpoint.clone(),
            })
        };
        match (&endpoint, &self.tls) {
            (Endpoint::Tcp(Authority { port: 0, .. }) | Endpoint::Tls(Authority { port: 0, .. }), _) => {
                Err(ConfigError::NoPort { endpoint })
            }
            (Endpoint::Unix(_) | Endpoint::Tcp(_), Some(_)) => meaningless("grpc.tls"),
            (Endpoint::Unix(_) | Endpoint::Tls(_), _) if self.insecure => meaningless("grpc.insecure"),
            (Endpoint::Unix(path), None) => Ok(Target::Unix(path.clone())),
            (Endpoint::Tcp(authority), None) if !self.insecure && !authority.is_loopback() => {
                Err(ConfigError::Insecure { endpoint })
            }
            (Endpoint::Tcp(authority), None) => Ok(Target::Tcp(authority.clone())),
            (Endpoint::Tls(_), None) => Err(ConfigError::NoAuthority { endpoint }),
            (Endpoint::Tls(authority), Some(tls)) => {
                Ok(Target::Tls(authority.clone(), tls.files(&authority.host)?))
            }
        }
    }

    fn endpoint(&self, variable: Option<String>) -> Result<Endpoint, ConfigError> {
        let (key, text) = match (&self.endpoint, variable.filter(|text| !text.is_empty())) {
            (Some(text), _) => ("grpc.endpoint", text.clone()),
            (None, Some(text)) => (ENDPOINT_VARIABLE, text),
            (None, None) => return Err(ConfigError::NoEndpoint),
        };
        text.parse()
            .map_err(|source| ConfigError::Endpoint { key, source })
    }

    pub(super) fn timeouts(&self) -> Timeouts {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        Timeouts {
            connect: seconds(self.connect_timeout_seconds),
            keepalive: seconds(self.keepalive_seconds),
            keepalive_answer: seconds(self.keepalive_timeout_seconds),
        }
    }
}

impl TlsConfig {
    fn files(&self, host: &str) -> Result<TlsFiles, ConfigError> {
        let identity = match (&self.cert_file, &self.key_file) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (None, None) => None,
            (Some(_), None) => return Err(ConfigError::HalfAnIdentity { missing: "keyFile" }),
            (None, Some(_)) => return Err(ConfigError::HalfAnIdentity { missing: "certFile" }),
        };
        let (key, name) = match &self.server_name {
            Some(name) => ("grpc.tls.serverName", name.as_str()),
            None => ("grpc.endpoint", host),
        };
        Ok(TlsFiles {
            authorities: self.ca_file.clone(),
            identity,
            server_name: ServerName::try_from(name.to_owned()).map_err(|_| ConfigError::ServerName {
                key,
                name: name.to_owned(),
            })?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(config: &str, variable: Option<&str>) -> Result<Target, String> {
        serde_saphyr::from_str::<GrpcConfig>(config)
            .unwrap()
            .target(variable.map(ToOwned::to_owned))
            .map_err(|error| error.to_string())
    }

    #[track_caller]
    fn assert_refused(config: &str, parts: &[&str]) {
        let error = target(config, None).unwrap_err();
        for part in parts {
            assert!(error.contains(part), "no `{part}` in: {error}");
        }
    }

    /// CMI-156, CMI-167
    #[test]
    fn the_environment_says_where_the_plugin_is_when_the_file_does_not() {
        let from_file = target("endpoint: 'tcp://127.0.0.1:1'", Some("tcp://127.0.0.1:2")).unwrap();
        assert!(matches!(from_file, Target::Tcp(Authority { port: 1, .. })));
        let from_variable = target("{}", Some("unix:///run/cmi.sock")).unwrap();
        assert!(matches!(from_variable, Target::Unix(_)));
        assert_refused("{}", &["grpc.endpoint", "CMI_ENDPOINT"]);
        let wrong = target("{}", Some("localhost:1")).unwrap_err();
        assert!(wrong.starts_with("CMI_ENDPOINT: "), "{wrong}");
    }

    /// CMI-160, CMI-192
    #[test]
    fn secrets_go_in_the_clear_only_where_the_configuration_allows_it() {
        for near in ["tcp://127.0.0.1:1", "tcp://[::1]:1", "tcp://localhost:1"] {
            assert!(target(&format!("endpoint: '{near}'"), None).is_ok(), "{near}");
        }
        assert_refused(
            "endpoint: 'tcp://10.0.0.1:6443'",
            &["grpc.insecure", "10.0.0.1:6443", "insecure: true"],
        );
        assert!(target("{endpoint: 'tcp://10.0.0.1:6443', insecure: true}", None).is_ok());
    }

    /// A new connection that takes as long as a probe would leave no time for a probe on the old one.
    #[test]
    fn a_connection_may_take_less_time_than_a_probe() {
        let seconds = |seconds: u32| GrpcConfig {
            connect_timeout_seconds: seconds,
            ..GrpcConfig::default()
        };
        assert!(seconds(8).validate().is_ok());
        for wrong in [0, 9, 300] {
            let error = seconds(wrong).validate().unwrap_err().to_string();
            assert!(
                error.contains("connectTimeoutSeconds") || error.contains("connect_timeout_seconds"),
                "{error}"
            );
        }
    }

    #[test]
    fn keys_that_do_not_fit_the_endpoint_are_refused_by_their_path() {
        let tls = "tls: {caFile: /ca.crt}";
        assert_refused(&format!("{{endpoint: 'unix:///s', {tls}}}"), &["grpc.tls: "]);
        assert_refused(
            &format!("{{endpoint: 'tcp://localhost:1', {tls}}}"),
            &["grpc.tls: "],
        );
        assert_refused("{endpoint: 'unix:///s', insecure: true}", &["grpc.insecure: "]);
        assert_refused("endpoint: 'tcp://127.0.0.1:0'", &["grpc.endpoint", "no port"]);
        assert_refused("endpoint: 'tls://a:1'", &["grpc.tls.caFile"]);
        assert_refused(
            "{endpoint: 'tls://a:1', tls: {caFile: /ca.crt, certFile: /tls.crt}}",
            &["grpc.tls.keyFile"],
        );
        assert_refused(
            "{endpoint: 'tls://a:1', tls: {caFile: /ca.crt, serverName: 'a b'}}",
            &["grpc.tls.serverName", "a b"],
        );
    }
}
