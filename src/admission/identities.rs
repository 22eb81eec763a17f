//! Finds out whether any object has an identity: a reserved annotation or a providerID.

use std::ops::ControlFlow;

use kube::Client;
use kube::Resource as _;
use kube::api::ListParams;

use super::identity_presence::IdentityPresence;
use super::is_refused;
use crate::api::v1alpha1::{InfraCluster, InfraMachine};
use crate::apiserver::{Error, pages};
use cmi_driver::ErrorChain;

/// Whether there are identities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identities {
    /// There are identities.
    Exist,
    /// There are no identities in the whole cluster.
    Nowhere,
    /// There are no identities in the only namespace that this provider watches, and it may not look further.
    NotInNamespace,
    /// The API server does not let the provider look. The text says what to do.
    Unknown(String),
}

/// Searches the whole cluster for identities. A provider that watches one namespace alone, and may not list
/// the whole cluster, searches that namespace.
///
/// # Errors
/// The API server could not be reached, or answered with anything but a refusal.
pub async fn find(client: &Client, namespace: Option<&str>) -> Result<Identities, Error> {
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
            let place = format!("in namespace {namespace}");
            Ok(Identities::Unknown(unlisted(&error, &place)))
        }
        Err(error) => Err(error),
    }
}

fn unlisted(error: &Error, place: &str) -> String {
    format!(
        "cannot check for existing identities ({}): grant the provider `list` on inframachines and \
            infraclusters {place}",
        ErrorChain(error)
    )
}

async fn exist(client: &Client, namespace: Option<&str>) -> Result<bool, Error> {
    for path in [
        InfraMachine::url_path(&(), namespace),
        InfraCluster::url_path(&(), namespace),
    ] {
        let mut found = false;
        let read = pages::each(
            client,
            &path,
            ListParams::default(),
            |IdentityPresence { is_there }| {
                found = is_there;
                if found {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            },
        );
        read.await
            .map_err(|error| Error::api("looking for identities", error))?;
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}
