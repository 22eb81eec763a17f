//! The smallest HTTP client, for /readyz and /metrics on this computer.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Far above the usual: moto takes seconds to start, and many seconds on a busy computer.
const DEADLINE: Duration = Duration::from_mins(1);

/// A GET over plain HTTP: status code and body.
///
/// # Errors
/// When nothing answers in time, or not in HTTP.
pub async fn get(address: &str, path: &str) -> Result<(u16, String)> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream
            .write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes())
            .await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    let answer = tokio::time::timeout(DEADLINE, exchange).await??;
    let code = answer.split(' ').nth(1).context("no status line")?.parse()?;
    let body = answer
        .split_once("\r\n\r\n")
        .map_or_else(String::new, |(_, body)| body.to_owned());
    Ok((code, body))
}
