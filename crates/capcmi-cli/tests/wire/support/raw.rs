//! Calls at the level of HTTP/2: a client library hides the frames before and after a response.

use anyhow::{Context as _, Result};
use bytes::{BufMut as _, Bytes, BytesMut};
use h2::client::SendRequest;
use http::{HeaderMap, Request};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::TIMEOUT;

pub struct Connection(SendRequest<Bytes>);

pub struct Answer {
    pub headers: HeaderMap,
    /// The trailers; empty for an answer with headers only.
    pub trailers: HeaderMap,
}

impl Connection {
    pub async fn open<IO>(io: IO) -> Result<Self>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (requests, connection) = h2::client::handshake(io).await?;
        tokio::spawn(connection);
        Ok(Self(requests.ready().await?))
    }

    /// Makes a call with additional headers.
    pub async fn call(
        &mut self,
        path: &str,
        message: &impl Message,
        headers: &[(&'static str, &str)],
    ) -> Result<Answer> {
        timeout(TIMEOUT, self.answer(path, message.encode_to_vec(), headers))
            .await
            .with_context(|| format!("waiting for {path}"))?
    }

    async fn answer(
        &mut self,
        path: &str,
        message: Vec<u8>,
        headers: &[(&'static str, &str)],
    ) -> Result<Answer> {
        let mut request = Request::post(format!("http://plugin{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut frame = BytesMut::new();
        frame.put_u8(0);
        frame.put_u32(u32::try_from(message.len())?);
        frame.put_slice(&message);

        let (response, mut body) = self.0.send_request(request.body(())?, false)?;
        body.send_data(frame.freeze(), true)?;
        let (head, mut stream) = response.await?.into_parts();
        while let Some(data) = stream.data().await {
            let data = data?;
            stream.flow_control().release_capacity(data.len())?;
        }
        Ok(Answer {
            headers: head.headers,
            trailers: stream.trailers().await?.unwrap_or_default(),
        })
    }
}

impl Answer {
    /// Returns the gRPC status, from the trailers or the headers.
    pub fn code(&self) -> Result<tonic::Code> {
        let status = self
            .trailers
            .get("grpc-status")
            .or(self.headers.get("grpc-status"));
        Ok(tonic::Code::from_bytes(
            status.context("there is no grpc-status")?.as_bytes(),
        ))
    }
}
