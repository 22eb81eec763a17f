//! The endpoint of a plugin, in the format of `CMI_ENDPOINT` (CMI-179).

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// The address that a plugin listens on and a client connects to.
///
/// The specification defines `tcp://`; `unix://` and `tls://` are extensions of this project (CMI-158).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `unix:///run/capcmi/driver.sock`: a socket in the file system, for a plugin on the same computer.
    Unix(PathBuf),
    /// `tcp://127.0.0.1:8080`: in plain text.
    Tcp(Authority),
    /// `tls://plugin.example:8443`: TLS, where both sides show a certificate.
    Tls(Authority),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// A name or an IP address; an IPv6 address without brackets.
    pub host: String,
    /// 0 lets a listener choose; a client can't use it.
    pub port: u16,
}

/// Text that is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid endpoint `{text}`: {problem}")]
pub struct ParseEndpointError {
    text: String,
    problem: EndpointProblem,
}

/// The mistake in an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointProblem {
    /// The scheme before `://` is missing or unknown.
    #[error("start it with `tcp://`, `tls://` or `unix://`")]
    Scheme,
    /// A socket's path is relative or missing.
    #[error("the path of the socket must be absolute, such as `unix:///run/capcmi/driver.sock`")]
    Path,
    /// There is nothing before the port.
    #[error("the host is missing, as in `tcp://127.0.0.1:8080`")]
    Host,
    /// There is no port after the host.
    #[error("the port is missing or invalid, as in `tcp://127.0.0.1:8080`")]
    Port,
    /// An IPv6 address without brackets.
    #[error("put the IPv6 address in brackets, such as `tcp://[::1]:8080`")]
    Brackets,
    /// Something that is neither host nor port.
    #[error("remove the text after the port")]
    Rest,
}

impl Authority {
    /// Whether it leads to nowhere but this computer: a loopback address, or `localhost`.
    pub fn is_loopback(&self) -> bool {
        match self.host.parse::<IpAddr>() {
            Ok(address) => address.to_canonical().is_loopback(),
            Err(_) => self.host.eq_ignore_ascii_case("localhost"),
        }
    }
}

impl FromStr for Authority {
    type Err = EndpointProblem;

    fn from_str(text: &str) -> Result<Self, EndpointProblem> {
        if text.contains(['/', '?', '#', '@']) {
            return Err(EndpointProblem::Rest);
        }
        let (host, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
            Some(None) => return Err(EndpointProblem::Brackets),
            Some(Some((host, rest))) => {
                if !matches!(host.parse(), Ok(IpAddr::V6(_))) {
                    return Err(EndpointProblem::Brackets);
                }
                (host, rest.strip_prefix(':').ok_or(EndpointProblem::Port)?)
            }
            None => text.rsplit_once(':').ok_or(EndpointProblem::Port)?,
        };
        if host.contains(':') && !text.starts_with('[') {
            return Err(EndpointProblem::Brackets);
        }
        if host.is_empty() || host.contains(char::is_whitespace) {
            return Err(EndpointProblem::Host);
        }
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        match port.parse() {
            Ok(port) if is_number => Ok(Self {
                host: host.to_owned(),
                port,
            }),
            Ok(_) | Err(_) => Err(EndpointProblem::Port),
        }
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Endpoint {
    type Err = ParseEndpointError;

    fn from_str(text: &str) -> Result<Self, ParseEndpointError> {
        parse(text).map_err(|problem| ParseEndpointError {
            text: text.to_owned(),
            problem,
        })
    }
}

/// Schemes are read in any case, as those of URLs are.
fn parse(text: &str) -> Result<Endpoint, EndpointProblem> {
    let (scheme, rest) = text.split_once("://").ok_or(EndpointProblem::Scheme)?;
    match scheme.to_ascii_lowercase().as_str() {
        "tcp" => Ok(Endpoint::Tcp(rest.parse()?)),
        "tls" => Ok(Endpoint::Tls(rest.parse()?)),
        "unix" if rest.starts_with('/') && rest.len() > 1 => Ok(Endpoint::Unix(rest.into())),
        "unix" => Err(EndpointProblem::Path),
        _ => Err(EndpointProblem::Scheme),
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp(authority) => write!(f, "tcp://{authority}"),
            Self::Tls(authority) => write!(f, "tls://{authority}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn problem(text: &str) -> EndpointProblem {
        text.parse::<Endpoint>().unwrap_err().problem
    }

    /// CMI-179, CMI-180
    #[test]
    fn an_endpoint_is_written_as_it_was_read() {
        for text in [
            "tcp://127.0.0.1:8080",
            "tcp://10.0.0.1:6443",
            "tcp://[::1]:0",
            "tls://plugin.example:8443",
            "unix:///run/plugin.sock",
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        let loud: Endpoint = "TCP://localhost:1".parse().unwrap();
        assert_eq!(loud.to_string(), "tcp://localhost:1");
    }

    /// CMI-179, OPS-13
    #[test]
    fn what_is_no_endpoint_is_refused_with_what_is_wrong() {
        for (text, expected) in [
            ("", EndpointProblem::Scheme),
            ("127.0.0.1:8080", EndpointProblem::Scheme),
            ("http://127.0.0.1:8080", EndpointProblem::Scheme),
            ("tcp:127.0.0.1:8080", EndpointProblem::Scheme),
            ("unix://", EndpointProblem::Path),
            ("unix:///", EndpointProblem::Path),
            ("unix://plugin.sock", EndpointProblem::Path),
            ("tcp://", EndpointProblem::Port),
            ("tcp://127.0.0.1", EndpointProblem::Port),
            ("tcp://127.0.0.1:", EndpointProblem::Port),
            ("tcp://127.0.0.1:+80", EndpointProblem::Port),
            ("tcp://127.0.0.1:99999", EndpointProblem::Port),
            ("tcp://[::1]", EndpointProblem::Port),
            ("tcp://:8080", EndpointProblem::Host),
            ("tcp://a b:8080", EndpointProblem::Host),
            ("tcp://::1:8080", EndpointProblem::Brackets),
            ("tcp://[::1:8080", EndpointProblem::Brackets),
            ("tcp://[localhost]:8080", EndpointProblem::Brackets),
            ("tcp://127.0.0.1:8080/", EndpointProblem::Rest),
            ("tls://user@host:8080", EndpointProblem::Rest),
        ] {
            assert_eq!(problem(text), expected, "{text}");
        }
        let said = "tcp://:8080".parse::<Endpoint>().unwrap_err().to_string();
        assert_eq!(
            said,
            "invalid endpoint `tcp://:8080`: the host is missing, as in `tcp://127.0.0.1:8080`"
        );
    }

    #[test]
    fn only_loopback_stays_on_this_computer() {
        let is_loopback = |text: &str| text.parse::<Authority>().unwrap().is_loopback();
        for text in [
            "127.0.0.1:1",
            "127.8.8.8:1",
            "[::1]:1",
            "LocalHost:1",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert!(is_loopback(text), "{text}");
        }
        for text in ["10.0.0.1:1", "0.0.0.0:1", "[::]:1", "localhost.example:1"] {
            assert!(!is_loopback(text), "{text}");
        }
    }
}
