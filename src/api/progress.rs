//! The progress of tasks that other controllers carry out for a machine, in one annotation. Pure.
//!
//! Each task has one value in a JSON object. A writer replaces the whole annotation, so every patch carries
//! the resource version of the object that the value was read from. The annotation is in the metadata, so
//! `clusterctl move` moves it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::annotations::PROGRESS;

/// A task, by its key in the annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// The Node that was freed of the not-ready taint.
    NotReadyTaint,
    /// The last evicted pod of a drain.
    VolumeDrain,
    /// The update in place that Cluster API has requested.
    InPlaceUpdate,
}

impl Task {
    const fn key(self) -> &'static str {
        match self {
            Self::NotReadyTaint => "notReadyTaint",
            Self::VolumeDrain => "volumeDrain",
            Self::InPlaceUpdate => "inPlaceUpdate",
        }
    }

    /// Reads the progress of the task. An unreadable value counts as no progress.
    pub fn progress<T: DeserializeOwned>(self, metadata: &ObjectMeta) -> Option<T> {
        serde_json::from_value(all(metadata).remove(self.key())?).ok()
    }

    /// Returns the value of the annotation with this progress of the task, and the other tasks as they are.
    ///
    /// # Errors
    /// The progress can't be serialized as JSON.
    pub fn with_progress(
        self,
        metadata: &ObjectMeta,
        progress: impl Serialize,
    ) -> serde_json::Result<String> {
        let mut all = all(metadata);
        all.insert(self.key().to_owned(), serde_json::to_value(progress)?);
        Ok(Value::Object(all).to_string())
    }
}

fn all(metadata: &ObjectMeta) -> Map<String, Value> {
    let annotations = metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get(PROGRESS));
    text.and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(progress: &str) -> ObjectMeta {
        ObjectMeta {
            annotations: Some([(PROGRESS.to_owned(), progress.to_owned())].into()),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn a_task_changes_only_its_own_progress() {
        let before = metadata(r#"{"volumeDrain":{"pod":"p"},"later":1}"#);
        let after = Task::NotReadyTaint.with_progress(&before, "n/k").unwrap();
        assert_eq!(
            after,
            r#"{"later":1,"notReadyTaint":"n/k","volumeDrain":{"pod":"p"}}"#
        );
        let after = Task::NotReadyTaint
            .with_progress(&metadata(&after), "o/k")
            .unwrap();
        let of = |task: Task| task.progress::<Value>(&metadata(&after));
        assert_eq!(of(Task::NotReadyTaint), Some("o/k".into()));
        assert_eq!(of(Task::VolumeDrain), Some(serde_json::json!({"pod": "p"})));
        assert_eq!(of(Task::InPlaceUpdate), None);
    }

    #[test]
    fn unreadable_progress_is_none_and_is_replaced() {
        for unreadable in ["", "text", "[]", r#"{"notReadyTaint": 1}"#] {
            let metadata = metadata(unreadable);
            assert_eq!(Task::NotReadyTaint.progress::<String>(&metadata), None);
            let after = Task::NotReadyTaint.with_progress(&metadata, "n/k").unwrap();
            assert_eq!(after, r#"{"notReadyTaint":"n/k"}"#, "{unreadable}");
        }
    }
}
