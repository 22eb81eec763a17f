//! The last eviction, recorded in the progress of the InfraMachine. It is written before the eviction, so
//! that the next pod is not evicted too soon after a crash. Pure.

use std::fmt::Write as _;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::api::progress::Task;

/// The most volumes that a drain waits for at a time. The cache drops longer annotations.
pub const MAX_VOLUMES: usize = 24;
/// The most characters of a pod's namespace and name.
const MAX_NAME: usize = 180;

/// An eviction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Eviction {
    /// Namespace and name of the pod, for operators.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// When the eviction was requested.
    pub evicted_at: Timestamp,
    /// The termination grace period of the pod.
    pub grace_seconds: u32,
    /// Whether the API server refused the eviction after its dry run had succeeded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refused: bool,
    /// The hashes of its volumes' names in `node.status.volumesAttached`. A name may be hundreds of
    /// characters long.
    pub volumes: Vec<String>,
}

impl Eviction {
    /// An eviction of a pod, with its volumes that are attached to its Node.
    pub fn new(pod: &str, uid: &str, evicted_at: Timestamp, grace_seconds: u32, attached: &[&str]) -> Self {
        Self {
            pod: pod.chars().take(MAX_NAME).collect(),
            uid: uid.to_owned(),
            evicted_at,
            grace_seconds,
            refused: false,
            volumes: attached.iter().take(MAX_VOLUMES).map(|name| hash(name)).collect(),
        }
    }

    /// The same eviction, marked as refused by the API server.
    pub fn refused(self) -> Self {
        Self {
            refused: true,
            ..self
        }
    }

    /// Reads the last eviction. A malformed record is ignored, and the next pod is then evicted without a
    /// wait.
    pub fn of(metadata: &ObjectMeta) -> Option<Self> {
        Task::VolumeDrain.progress(metadata)
    }

    /// The attached volumes that this eviction waits for.
    pub fn awaited<'a>(&self, attached: &'a [String]) -> Vec<&'a str> {
        let awaited = attached.iter().filter(|name| self.volumes.contains(&hash(name)));
        awaited.map(String::as_str).collect()
    }
}

fn hash(name: &str) -> String {
    let digest = Sha256::digest(name);
    digest.iter().take(8).fold(String::new(), |mut text, byte| {
        // Writing to a String can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::annotations;

    /// The next reconcile has only the annotations that the cache keeps.
    #[test]
    fn the_largest_record_is_kept_by_the_cache_and_read_again() {
        let names: Vec<_> = (0..100).map(|n| format!("{}{n}", "v".repeat(300))).collect();
        let attached: Vec<_> = names.iter().map(String::as_str).collect();
        let uid = "12345678-1234-1234-1234-123456789012";
        let at = Timestamp::new(1_700_000_000, 123_456_789).unwrap();
        let eviction = Eviction::new(&"p".repeat(400), uid, at, u32::MAX, &attached);
        let mut metadata = ObjectMeta::default();
        let taint = format!("{uid}/{}", "k".repeat(317));
        for (task, progress) in [
            (Task::NotReadyTaint, json!(taint)),
            (
                Task::InPlaceUpdate,
                json!(format!("{uid}/{}/requested", i64::MAX)),
            ),
            (Task::VolumeDrain, json!(eviction)),
        ] {
            let text = task.with_progress(&metadata, progress).unwrap();
            metadata.annotations = Some([(annotations::PROGRESS.to_owned(), text)].into());
        }
        crate::api::bounded::bound(&mut metadata);
        assert_eq!(Eviction::of(&metadata), Some(eviction.clone()));
        assert_eq!(eviction.awaited(&names).len(), MAX_VOLUMES);
        assert!(eviction.awaited(&["other".to_owned()]).is_empty());
    }
}
