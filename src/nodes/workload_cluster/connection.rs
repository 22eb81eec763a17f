//! Requests to an API server that may be hostile. A response is read only up to a size limit and only as far
//! as it is needed, and is never quoted.

use std::sync::Arc;

use futures::FutureExt as _;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use kube::Client;
use kube::client::{Body, ClientBuilder};
use serde::Deserialize;

use super::{Dial, InvalidKubeconfig, Unreachable, kubeconfig};

/// The most bytes of one response. A Node has some tens of KiB.
const MAX_BYTES: usize = 1 << 20;

/// A client of one workload cluster, for one reconcile.
pub struct Connection(Client);

/// A response of the API server.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status.
    pub code: StatusCode,
    /// The body.
    pub text: String,
}

/// Connects over the network, to the server that the kubeconfig names.
pub fn network() -> Dial {
    Arc::new(|document| {
        let client = async move {
            let config = kubeconfig::config(&document).await?;
            let builder = ClientBuilder::try_from(config);
            let builder = builder.map_err(|error| InvalidKubeconfig::Unusable(error.into()))?;
            Ok(builder.build())
        };
        client.boxed()
    })
}

impl Connection {
    /// A connection to the API server of this client.
    pub(crate) fn new(client: Client) -> Self {
        Self(client)
    }

    /// Sends a request and reads the answer, whatever its status.
    ///
    /// # Errors
    /// No response came, or it is too large.
    pub async fn send(&self, request: Request<Vec<u8>>) -> Result<Answer, Unreachable> {
        let response = self.0.send(request.map(Body::from)).await;
        let (head, body) = response
            .map_err(|error| Unreachable::Failed(error.into()))?
            .into_parts();
        let body = Limited::new(body, MAX_BYTES).collect().await;
        let body = body.map_err(Unreachable::Failed)?;
        let text = String::from_utf8(body.to_bytes().into());
        Ok(Answer {
            code: head.status,
            text: text.map_err(|_not_text| Unreachable::NotAnApiServer)?,
        })
    }
}

impl Answer {
    /// The response as a refusal: the code and Kubernetes' reason. The message is left out, since it may be
    /// anything.
    pub fn refusal(&self) -> Unreachable {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Status {
            reason: Option<String>,
        }
        let status: Status = serde_json::from_str(&self.text).unwrap_or_default();
        let reason = status.reason.unwrap_or_default();
        let is_word = reason.len() <= 64 && reason.chars().all(|letter| letter.is_ascii_alphabetic());
        Unreachable::Refused {
            code: self.code.as_u16(),
            reason: if is_word { reason } else { String::new() },
        }
    }
}
