//! Free TCP ports of the loopback interface.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context, Result};

/// How often a start is repeated when another program has taken the port in the meantime.
const TRIES: usize = 5;

/// A port that no process listens on now.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("looking for a free port")?;
    Ok(listener.local_addr()?.port())
}

/// Runs `start` with `N` different free ports. Retries with other ports if one was taken before it was used.
pub(crate) async fn with_free_ports<const N: usize, T>(
    mut start: impl AsyncFnMut([u16; N]) -> Result<T>,
) -> Result<T> {
    let mut tries = 1;
    loop {
        let mut ports = [0; N];
        for index in 0..N {
            while ports[index] == 0 || ports[..index].contains(&ports[index]) {
                ports[index] = free_port()?;
            }
        }
        match start(ports).await {
            Err(error) if tries < TRIES && is_port_clash(&error) => tries += 1,
            result => return result,
        }
    }
}

/// The text of Go's and Rust's error for `EADDRINUSE`, from the program's log.
pub(crate) fn is_port_clash(error: &anyhow::Error) -> bool {
    format!("{error:#}")
        .to_lowercase()
        .contains("address already in use")
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[tokio::test]
    async fn a_start_is_repeated_with_other_ports_only_when_one_was_taken() -> Result<()> {
        let mut seen = Vec::new();
        let started = with_free_ports(async |ports: [u16; 2]| {
            seen.push(ports);
            if seen.len() < 3 {
                bail!("listen tcp 127.0.0.1:{}: bind: address already in use", ports[0]);
            }
            Ok(ports)
        })
        .await?;
        assert_eq!(seen.len(), 3);
        assert_ne!(started[0], started[1]);
        let mut tries = 0;
        let other = with_free_ports(async |_: [u16; 1]| -> Result<()> {
            tries += 1;
            bail!("no such file")
        });
        assert!(other.await.is_err());
        assert_eq!(tries, 1);
        Ok(())
    }
}
