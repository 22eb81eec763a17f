//! Addresses to listen on, as Go programs write them: `:8443`, `127.0.0.1:0`, `[::1]:9440`.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use anyhow::Context as _;
use tokio::net::TcpListener;

/// An address to listen on; without a host, all addresses of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BindAddress {
    host: String,
    port: u16,
}

impl FromStr for BindAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text} is not an address such as :8443 or 127.0.0.1:8443");
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Ok(Self {
            host: host.to_owned(),
            port: port.parse().map_err(|_| wrong())?,
        })
    }
}

impl fmt::Display for BindAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl BindAddress {
    pub(super) async fn bind(&self) -> anyhow::Result<TcpListener> {
        let bound = if self.host.is_empty() {
            // A kernel without IPv6 has IPv4 addresses only.
            match TcpListener::bind((Ipv6Addr::UNSPECIFIED, self.port)).await {
                Ok(listener) => Ok(listener),
                Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, self.port)).await,
            }
        } else {
            TcpListener::bind((self.host.as_str(), self.port)).await
        };
        bound.with_context(|| format!("cannot listen on {self}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_go_programs_read_them() {
        for text in [":8443", "127.0.0.1:0", "[::1]:9440", "localhost:1"] {
            assert_eq!(text.parse::<BindAddress>().unwrap().to_string(), text);
        }
        for text in ["8443", ":", "", ":99999"] {
            assert!(text.parse::<BindAddress>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn no_host_is_every_address() {
        let listener = ":0".parse::<BindAddress>().unwrap().bind().await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    }
}
