//! Requests to a workload cluster for objects whose names its user chooses.

use http::StatusCode;
use kube::api::GetParams;
use kube::core::Request;
use serde::de::DeserializeOwned;

use super::{Connection, Unreachable};

/// Whether a name may be part of a path.
pub fn is_name(text: &str) -> bool {
    let fits = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-.".contains(letter);
    !text.is_empty() && text.len() <= 253 && text.chars().all(fits) && !text.starts_with('.')
}

/// The object of this name, if it exists.
pub async fn get<T: DeserializeOwned>(
    connection: &Connection,
    path: &str,
    name: &str,
) -> Result<Option<T>, Unreachable> {
    text(connection, path, name)
        .await?
        .as_deref()
        .map(parse)
        .transpose()
}

/// The object of this name as JSON text, if it exists.
pub async fn text(connection: &Connection, path: &str, name: &str) -> Result<Option<String>, Unreachable> {
    let request = Request::new(path).get(name, &GetParams::default())?;
    let answer = connection.send(request).await?;
    match answer.code {
        StatusCode::OK => Ok(Some(answer.text)),
        StatusCode::NOT_FOUND => Ok(None),
        _ => Err(answer.refusal()),
    }
}

/// Parses a response. The error omits the parser's message, which would quote the response.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Unreachable> {
    serde_json::from_str(text).map_err(|_quotes| Unreachable::NotAnApiServer)
}

/// The name of the Node comes from a Machine's status, which the API server does not check.
impl From<kube::core::request::Error> for Unreachable {
    fn from(error: kube::core::request::Error) -> Self {
        Self::Failed(error.into())
    }
}
