//! Whether any object says which VM is whose.

use kube::Client;
use kube::Resource as _;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};

use super::judge::takes_part;
use super::{explained, is_refused};
use crate::api::v1alpha1::{InfraCluster, InfraMachine};
use crate::apiserver::Error;

/// Objects in one answer of the API server.
const PAGE: u32 = 100;

/// Whether there are identities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identities {
    /// There are.
    Exist,
    /// There are none in the whole cluster.
    Nowhere,
    /// There are none in the only namespace that this provider looks at, and it may not look further.
    NotInNamespace,
    /// The API server does not let the provider look. The text says what to do.
    Unknown(String),
}

/// Looks for identities in the whole cluster. A provider that may not list there, and looks at one namespace alone, looks there.
///
/// # Errors
/// The API server could not be reached, or answered with anything but a refusal.
pub async fn look(client: &Client, namespace: Option<&str>) -> Result<Identities, Error> {
    match exist(client, None).await {
        Ok(true) => Ok(Identities::Exist),
        Ok(false) => Ok(Identities::Nowhere),
        Err(error) if is_refused(&error) => match namespace {
            Some(namespace) => within(client, namespace).await,
            None => Ok(Identities::Unknown(unlisted(&error, "in the whole cluster"))),
        },
        Err(error) => Err(error),
    }
}

async fn within(client: &Client, namespace: &str) -> Result<Identities, Error> {
    match exist(client, Some(namespace)).await {
        Ok(true) => Ok(Identities::Exist),
        Ok(false) => Ok(Identities::NotInNamespace),
        Err(error) if is_refused(&error) => {
            let place = format!("in the namespace {namespace}");
            Ok(Identities::Unknown(unlisted(&error, &place)))
        }
        Err(error) => Err(error),
    }
}

fn unlisted(error: &Error, place: &str) -> String {
    format!(
        "whether there are any can't be found out ({}): grant the provider `list` on inframachines and infraclusters {place}",
        explained(error)
    )
}

async fn exist(client: &Client, namespace: Option<&str>) -> Result<bool, Error> {
    for resource in [
        ApiResource::erase::<InfraMachine>(&()),
        ApiResource::erase::<InfraCluster>(&()),
    ] {
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let listed = api.list(&page).await;
            let listed = listed.map_err(|error| Error::api("looking for identities", error))?;
            if listed.items.iter().any(is_identified) {
                return Ok(true);
            }
            match listed.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => break,
            }
        }
    }
    Ok(false)
}

fn is_identified(object: &DynamicObject) -> bool {
    let annotations = object.meta().annotations.iter().flatten();
    let reserved = annotations.map(|(key, _)| key.as_str()).any(takes_part);
    reserved || object.data.pointer("/spec/providerID").is_some()
}
