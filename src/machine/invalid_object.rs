//! An InfraMachine that can't be read. The API server's schema rejects such objects. But the schema can
//! change, and stored objects do not change with it.
//!
//! No VM is created for such an object. The object can be deleted with its VM, because the record in an
//! annotation holds the identity, the driver and the applied spec.

use kube::Resource as _;
use kube::api::GetParams;
use kube::core::Request;
use kube::core::error_boundary::InvalidObject;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::Context;
use crate::api::v1alpha1::{AddressFromPool, InfraMachine, InfraMachineSpec};
use crate::api::{self, DeserializeGuard, ObjectMetaExt as _};
use crate::apiserver::{Error, NewEvent};

/// Reports by one event and in the log that an InfraMachine can't be read. Returns the live object if it is
/// being deleted.
pub async fn to_delete(invalid: &InvalidObject, ctx: &Context) -> Result<Option<InfraMachine>, Error> {
    let name = invalid.metadata.name();
    let object = DeserializeGuard::<InfraMachine>(Err(invalid.clone()));
    let event = NewEvent::unreadable(&invalid.error);
    if ctx.events.record_once(&object, event).await {
        tracing::error!(name, error = invalid.error, "cannot read an InfraMachine");
    }
    if invalid.metadata.deletion_timestamp.is_none() {
        return Ok(None);
    }
    live(ctx, invalid).await.map(Some)
}

/// Returns the live object with the id of its VM. Its guest gets the default time to shut down.
async fn live(ctx: &Context, invalid: &InvalidObject) -> Result<InfraMachine, Error> {
    let action = "reading an invalid InfraMachine";
    let namespace = invalid.metadata.namespace();
    let name = invalid.metadata.name();
    let request = Request::new(InfraMachine::url_path(&(), Some(namespace)))
        .get(name, &GetParams::default())
        .map_err(|error| Error::api(action, kube::Error::BuildRequest(error)))?;
    let text = ctx.client.request_text(request).await;
    let text = text.map_err(|error| Error::api(action, error))?;
    let live = api::metadata(&text).map_err(|error| Error::api(action, kube::Error::SerdeError(error)))?;
    if live.uid != invalid.metadata.uid || live.deletion_timestamp.is_none() {
        // The name belongs to another object now, or a restored backup has undone the deletion. The cache
        // will show the change.
        return Err(Error::Conflict { action });
    }
    Ok(InfraMachine {
        spec: spec(&text),
        metadata: live,
        status: None,
    })
}

/// Returns the fields that a deletion needs beside the record: the id of the VM, and as many pools as there
/// are claims. All other fields are skipped, because they may be nested deeper than the JSON parser allows.
fn spec(object: &str) -> InfraMachineSpec {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Spec {
        #[serde(rename = "providerID")]
        provider_id: Option<String>,
        addresses_from_pools: Vec<IgnoredAny>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Object {
        spec: Spec,
    }
    let Object { spec } = serde_json::from_str(object).unwrap_or_default();
    let pools = spec.addresses_from_pools.into_iter();
    InfraMachineSpec {
        provider_id: spec.provider_id,
        addresses_from_pools: pools.map(|_| AddressFromPool::default()).collect(),
        ..InfraMachineSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provider_id_is_read_from_an_unreadable_spec() {
        let deep = format!("{}1{}", r#"{"a":"#.repeat(300), "}".repeat(300));
        let object =
            format!(r#"{{"spec": {{"driver": [], "providerSpec": {deep}, "providerID": "sim://1"}}}}"#);
        assert_eq!(spec(&object).provider_id.as_deref(), Some("sim://1"));
        let two = format!(r#"{{"spec": {{"driver": [], "addressesFromPools": [{deep}, "x"]}}}}"#);
        assert_eq!(spec(&two).addresses_from_pools.len(), 2);
        for nothing in ["{}", r#"{"spec": "text"}"#, r#"{"spec": {"providerID": 1}}"#] {
            assert_eq!(spec(nothing), InfraMachineSpec::default());
        }
    }
}
