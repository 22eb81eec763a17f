//! The PersistentVolumes of a pod, by its claims.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::nodes::volume_drain::next_eviction::{Pod, claims_of_its_own};
use crate::nodes::workload_cluster::request::{get, is_name, parse, text};
use crate::nodes::workload_cluster::{Connection, Unreachable};

/// The largest PersistentVolume that is sent to a driver.
const MAX_SPEC_BYTES: usize = 16 * 1024;

/// The PersistentVolumes of the claims that no other pod of the Node uses.
pub async fn specs(connection: &Connection, pod: &Pod, pods: &[Pod]) -> Result<Vec<Value>, Unreachable> {
    #[derive(Deserialize)]
    struct Claim {
        #[serde(default)]
        spec: ClaimSpec,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct ClaimSpec {
        volume_name: String,
    }
    #[derive(Deserialize)]
    struct PersistentVolume<'a> {
        #[serde(borrow)]
        spec: &'a RawValue,
    }
    let claims = format!("/api/v1/namespaces/{}/persistentvolumeclaims", pod.namespace);
    let mut specs = Vec::new();
    for name in claims_of_its_own(pod, pods) {
        let claim: Option<Claim> = get(connection, &claims, name).await?;
        let Some(claim) = claim.filter(|claim| is_name(&claim.spec.volume_name)) else {
            continue;
        };
        let Some(text) = text(connection, "/api/v1/persistentvolumes", &claim.spec.volume_name).await? else {
            continue;
        };
        let volume: PersistentVolume<'_> =
            serde_json::from_str(&text).map_err(|_quotes| Unreachable::NotAnApiServer)?;
        if volume.spec.get().len() <= MAX_SPEC_BYTES {
            specs.push(parse(volume.spec.get())?);
        }
    }
    Ok(specs)
}
