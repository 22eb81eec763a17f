//! Forwarding of one request to the API server, with the hook's fault.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response, StatusCode, Uri, header, uri::Authority};
use http_body_util::{BodyExt, BodyStream, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{Error, body::Incoming};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use serde_json::json;

use super::{Fault, Gate, ProxiedRequest};

type Hook = Box<dyn Fn(&ProxiedRequest) -> Fault + Send + Sync>;
type Body = UnsyncBoxBody<Bytes, Error>;

/// The API server behind a proxy.
pub(super) struct Upstream {
    client: Client<HttpsConnector<HttpConnector>, Incoming>,
    address: Authority,
    hook: Hook,
    writes: AtomicU64,
}

impl Upstream {
    pub(super) fn new(url: &str, authority: &str, hook: Hook) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(authority.as_bytes())?)
            .context("trusting the API server")?;
        let tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_only()
            .enable_http1()
            .build();
        let address = url
            .parse::<Uri>()?
            .authority()
            .cloned()
            .context("the API server's URL has no host")?;
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self {
            client,
            address,
            hook,
            writes: AtomicU64::new(0),
        })
    }

    pub(super) async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let count = || self.writes.fetch_add(1, Ordering::Relaxed);
        let seen = ProxiedRequest::new(request.method(), request.uri(), count);
        let fault = (self.hook)(&seen);
        match &fault {
            Fault::Refuse(status) => return refusal(*status, "refused by the proxy of a test"),
            Fault::HoldBefore(gate) => gate.pass().await,
            Fault::None | Fault::HoldAfter(_) | Fault::HoldBody(_) => {}
        }
        let answer = match self.forward(request).await {
            Ok(answer) => answer,
            Err(error) => return refusal(StatusCode::BAD_GATEWAY, &format!("{error:#}")),
        };
        match fault {
            Fault::HoldAfter(gate) => gate.pass().await,
            Fault::HoldBody(gate) => return answer.map(|body| held(body, gate)),
            Fault::None | Fault::HoldBefore(_) | Fault::Refuse(_) => {}
        }
        answer.map(BodyExt::boxed_unsync)
    }

    async fn forward(&self, mut request: Request<Incoming>) -> Result<Response<Incoming>> {
        let target = request
            .uri()
            .path_and_query()
            .context("the request has no path")?
            .clone();
        *request.uri_mut() = Uri::builder()
            .scheme("https")
            .authority(self.address.clone())
            .path_and_query(target)
            .build()?;
        // These headers concern the connection to the proxy. The client adds its own.
        request.headers_mut().remove(header::HOST);
        request.headers_mut().remove(header::CONNECTION);
        self.client
            .request(request)
            .await
            .context("forwarding to the API server")
    }
}

/// A body whose parts pass the gate one by one.
fn held(body: Incoming, gate: Gate) -> Body {
    let parts = BodyStream::new(body).then(move |part| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            part
        }
    });
    StreamBody::new(parts).boxed_unsync()
}

/// An error answer in the form of Kubernetes.
fn refusal(status: StatusCode, message: &str) -> Response<Body> {
    let body = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure",
        "message": message, "reason": status.canonical_reason().unwrap_or_default().replace(' ', ""),
        "code": status.as_u16(),
    });
    let body = Full::new(Bytes::from(body.to_string()))
        .map_err(|never| match never {})
        .boxed_unsync();
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("application/json"),
    );
    answer
}
