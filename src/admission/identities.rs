//! Finds out whether any object has an identity: a reserved annotation.

use std::ops::ControlFlow;

use kube::api::ListParams;
use kube::{Client, Resource as _};
use kube_fleet::pages;

use crate::api::MetadataOnly;
use crate::api::annotations::RESERVED_ANNOTATIONS;
use crate::api::v1alpha1::{InfraCluster, InfraMachine};
use crate::apiserver::Error;

/// Whether there are identities in the namespaces that the provider watches.
///
/// # Errors
/// The API server could not be reached, or denied the list.
pub async fn exist(client: &Client, namespace: Option<&str>) -> Result<bool, Error> {
    for path in [
        InfraMachine::url_path(&(), namespace),
        InfraCluster::url_path(&(), namespace),
    ] {
        let mut is_found = false;
        let look = |MetadataOnly(metadata): MetadataOnly| {
            let annotations = metadata.annotations.unwrap_or_default();
            is_found = RESERVED_ANNOTATIONS
                .iter()
                .any(|key| annotations.contains_key(*key));
            if is_found {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let looked = pages::each(client, &path, ListParams::default(), look).await;
        looked.map_err(|error| Error::api("looking for identities", error))?;
        if is_found {
            return Ok(true);
        }
    }
    Ok(false)
}
