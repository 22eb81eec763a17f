//! The objects, and what every write does to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::kind::Kind;
use crate::patch::{self, Strategy};
use crate::selector::Selector;

/// An error that the server answers with a `Status` object.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub code: u16,
    pub reason: String,
    pub message: String,
}

impl Refusal {
    pub(crate) fn new(code: u16, reason: &str, message: String) -> Self {
        Self {
            code,
            reason: reason.to_owned(),
            message,
        }
    }

    pub(crate) fn bad_request(message: String) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(crate) fn invalid(message: String) -> Self {
        Self::new(422, "Invalid", message)
    }

    pub(crate) fn not_found(what: &str) -> Self {
        Self::new(404, "NotFound", format!("{what} not found"))
    }

    fn conflict(message: String) -> Self {
        Self::new(409, "Conflict", message)
    }

    pub(crate) fn gone() -> Self {
        Self::new(410, "Expired", "the resource version is too old".to_owned())
    }

    pub(crate) fn status(&self) -> Value {
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        })
    }
}

/// Identifies an object: the place of its kind, its namespace (empty where it has none), and its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub kind: usize,
    pub namespace: String,
    pub name: String,
}

/// A change of an object, as watches see it.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub version: u64,
    pub key: Key,
    pub old: Option<Arc<Value>>,
    /// `None` when the object was removed; `last` is then how it was.
    pub new: Option<Arc<Value>>,
    pub last: Arc<Value>,
}

/// A part of an object that a write concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// All but the status, where that is a subresource.
    Main,
    /// The status alone.
    Status,
}

/// All objects and their history.
#[derive(Default)]
pub(crate) struct Store {
    pub kinds: Vec<Kind>,
    objects: BTreeMap<Key, Arc<Value>>,
    version: u64,
    uids: u64,
    pub changes: Vec<Change>,
    /// Watches that begin before this version are refused.
    pub oldest: u64,
    /// The fields that each manager applied last.
    applied: BTreeMap<(Key, String), Value>,
}

impl Store {
    pub(crate) fn of(kinds: Vec<Kind>) -> Self {
        Self {
            kinds,
            // Clients use version 0 for any version, so no object may have it.
            version: 1,
            ..Self::default()
        }
    }

    /// The resource version of the last write.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn get(&self, key: &Key) -> Result<Arc<Value>, Refusal> {
        let found = self.objects.get(key).cloned();
        found.ok_or_else(|| Refusal::not_found(&format!("{} \"{}\"", self.kinds[key.kind].plural, key.name)))
    }

    /// The objects of a kind, in the order of their keys; those of all namespaces where it is empty.
    pub(crate) fn list<'a>(
        &'a self,
        kind: usize,
        namespace: &'a str,
        selector: &'a Selector,
    ) -> impl Iterator<Item = (&'a Key, &'a Arc<Value>)> {
        self.objects.iter().filter(move |(key, object)| {
            key.kind == kind
                && (namespace.is_empty() || key.namespace == namespace)
                && selector.matches(object)
        })
    }

    /// Creates an object.
    pub(crate) fn create(
        &mut self,
        mut key: Key,
        mut object: Value,
        now: Timestamp,
        dry_run: bool,
    ) -> Result<Arc<Value>, Refusal> {
        let kind = self.kinds[key.kind].clone();
        let metadata = metadata(&mut object)?;
        if key.name.is_empty() {
            let name = metadata.get("name").and_then(Value::as_str).unwrap_or_default();
            name.clone_into(&mut key.name);
        }
        if key.name.is_empty() {
            let prefix = metadata
                .get("generateName")
                .and_then(Value::as_str)
                .unwrap_or_default();
            if prefix.is_empty() {
                return Err(Refusal::invalid("metadata.name: Required value".to_owned()));
            }
            key.name = format!("{prefix}{:05}", self.uids);
        }
        if self.objects.contains_key(&key) {
            let message = format!("{} \"{}\" already exists", kind.plural, key.name);
            return Err(Refusal::new(409, "AlreadyExists", message));
        }
        if metadata
            .get("resourceVersion")
            .is_some_and(|version| version != "" && !version.is_null())
        {
            let message = "resourceVersion should not be set on objects to be created".to_owned();
            return Err(Refusal::bad_request(message));
        }
        self.uids += 1;
        metadata.insert("name".to_owned(), json!(key.name));
        if kind.is_namespaced {
            metadata.insert("namespace".to_owned(), json!(key.namespace));
        }
        metadata.insert(
            "uid".to_owned(),
            json!(format!("00000000-0000-4000-8000-{:012}", self.uids)),
        );
        metadata.insert("creationTimestamp".to_owned(), json!(seconds(now)));
        metadata.insert("generation".to_owned(), json!(1));
        for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "managedFields"] {
            metadata.remove(field);
        }
        object["apiVersion"] = json!(kind.api_version());
        object["kind"] = json!(kind.kind);
        if kind.has_status
            && let Some(fields) = object.as_object_mut()
        {
            fields.remove("status");
        }
        if kind.kind == "Secret" {
            encode_string_data(&mut object);
        }
        drop_nulls(&mut object);
        Ok(self.put(key, None, object, dry_run))
    }

    /// Replaces an object, or its status.
    pub(crate) fn replace(
        &mut self,
        key: &Key,
        part: Part,
        object: Value,
        now: Timestamp,
        dry_run: bool,
    ) -> Result<Arc<Value>, Refusal> {
        let old = self.get(key)?;
        self.update(key, part, &old, object, now, dry_run)
    }

    /// Patches an object, or its status.
    #[allow(clippy::too_many_arguments)] // the parts of a request
    pub(crate) fn patch(
        &mut self,
        key: &Key,
        part: Part,
        strategy: Strategy,
        manager: &str,
        patch: &Value,
        now: Timestamp,
        dry_run: bool,
    ) -> Result<Arc<Value>, Refusal> {
        let old = match (self.get(key), strategy) {
            (Err(_), Strategy::Apply) if part == Part::Main => {
                let created = self.create(key.clone(), patch.clone(), now, dry_run)?;
                if !dry_run {
                    self.applied
                        .insert((key.clone(), manager.to_owned()), patch.clone());
                }
                return Ok(created);
            }
            (found, _) => found?,
        };
        let mut object = old.as_ref().clone();
        // A patch without a version is about whatever version there is.
        match strategy {
            Strategy::Json => patch::json(&mut object, patch)?,
            Strategy::Merge => json_patch::merge(&mut object, patch),
            Strategy::Apply => {
                let before = self.applied.get(&(key.clone(), manager.to_owned()));
                if let Some(before) = before {
                    patch::remove_unapplied(&mut object, before, patch);
                }
                json_patch::merge(&mut object, patch);
                if self.kinds[key.kind].kind == "Secret" {
                    encode_string_data(&mut object);
                }
            }
        }
        let updated = self.update(key, part, &old, object, now, dry_run)?;
        if strategy == Strategy::Apply && !dry_run {
            self.applied
                .insert((key.clone(), manager.to_owned()), patch.clone());
        }
        Ok(updated)
    }

    fn update(
        &mut self,
        key: &Key,
        part: Part,
        old: &Arc<Value>,
        mut wanted: Value,
        now: Timestamp,
        dry_run: bool,
    ) -> Result<Arc<Value>, Refusal> {
        let kind = &self.kinds[key.kind];
        let claimed = metadata(&mut wanted)?;
        for (field, what) in [("resourceVersion", "version"), ("uid", "UID")] {
            let claim = claimed
                .get(field)
                .filter(|claim| !claim.is_null() && **claim != "");
            if claim.is_some_and(|claim| *claim != old["metadata"][field]) {
                let message = format!("{} \"{}\": the object has another {what}", kind.plural, key.name);
                return Err(Refusal::conflict(message));
            }
        }
        let mut object = match part {
            Part::Status => {
                let mut object = old.as_ref().clone();
                object["status"] = wanted["status"].take();
                object
            }
            Part::Main => {
                if kind.has_status {
                    wanted["status"] = old["status"].clone();
                }
                wanted
            }
        };
        drop_nulls(&mut object);
        keep_server_fields(&mut object, old);
        if object == **old {
            return Ok(Arc::clone(old));
        }
        let is_deleted = object["metadata"]["deletionTimestamp"].is_string();
        if is_deleted && adds_finalizer(&object, old) {
            let message = "metadata.finalizers: Forbidden: no new finalizers can be added if the object is \
                being deleted";
            return Err(Refusal::invalid(message.to_owned()));
        }
        if part == Part::Main && !same_but_metadata(&object, old) {
            raise_generation(&mut object);
        }
        if is_deleted && finalizers(&object).is_empty() {
            return Ok(self.remove(key, object, now, dry_run));
        }
        Ok(self.put(key.clone(), Some(old), object, dry_run))
    }

    /// Deletes an object immediately, or when its last finalizer is removed.
    pub(crate) fn delete(
        &mut self,
        key: &Key,
        preconditions: &Value,
        now: Timestamp,
        dry_run: bool,
    ) -> Result<Arc<Value>, Refusal> {
        let old = self.get(key)?;
        for field in ["uid", "resourceVersion"] {
            let wanted = &preconditions[field];
            if !wanted.is_null() && *wanted != old["metadata"][field] {
                return Err(Refusal::conflict(format!("the precondition on {field} failed")));
            }
        }
        let mut object = old.as_ref().clone();
        if finalizers(&object).is_empty() {
            return Ok(self.remove(key, object, now, dry_run));
        }
        if object["metadata"]["deletionTimestamp"].is_string() {
            return Ok(old);
        }
        object["metadata"]["deletionTimestamp"] = json!(seconds(now));
        object["metadata"]["deletionGracePeriodSeconds"] = json!(0);
        raise_generation(&mut object);
        Ok(self.put(key.clone(), Some(&old), object, dry_run))
    }

    /// Removes an object whatever its finalizers; `None` where there is no such object.
    pub(crate) fn remove_named(
        &mut self,
        plural: &str,
        namespace: &str,
        name: &str,
        now: Timestamp,
    ) -> Option<Arc<Value>> {
        let key = Key {
            kind: self.kinds.iter().position(|kind| kind.plural == plural)?,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let object = self.get(&key).ok()?.as_ref().clone();
        Some(self.remove(&key, object, now, false))
    }

    fn put(&mut self, key: Key, old: Option<&Arc<Value>>, mut object: Value, dry_run: bool) -> Arc<Value> {
        let version = self.version + 1;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        let object = Arc::new(object);
        if !dry_run {
            self.version = version;
            self.objects.insert(key.clone(), Arc::clone(&object));
            self.changes.push(Change {
                version,
                key,
                old: old.cloned(),
                new: Some(Arc::clone(&object)),
                last: Arc::clone(&object),
            });
        }
        object
    }

    fn remove(&mut self, key: &Key, mut object: Value, now: Timestamp, dry_run: bool) -> Arc<Value> {
        if dry_run {
            return Arc::new(object);
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let last = Arc::new(object);
        let old = self.objects.remove(key);
        self.applied.retain(|(applied, _), _| applied != key);
        self.changes.push(Change {
            version: self.version,
            key: key.clone(),
            old,
            new: None,
            last: Arc::clone(&last),
        });
        self.collect_garbage(&last, now);
        last
    }

    /// Deletes the objects that an object owned, unless another owner of theirs is left.
    fn collect_garbage(&mut self, owner: &Value, now: Timestamp) {
        let uids: BTreeSet<&str> = self
            .objects
            .values()
            .filter_map(|o| o["metadata"]["uid"].as_str())
            .collect();
        let is_orphan = |object: &Value| {
            let owners = object["metadata"]["ownerReferences"].as_array();
            owners.is_some_and(|owners| {
                owners
                    .iter()
                    .any(|reference| reference["uid"] == owner["metadata"]["uid"])
                    && !owners
                        .iter()
                        .filter_map(|reference| reference["uid"].as_str())
                        .any(|u| uids.contains(u))
            })
        };
        let orphans = self.objects.iter().filter(|(_, object)| is_orphan(object));
        let orphans: Vec<_> = orphans.map(|(key, _)| key.clone()).collect();
        for key in orphans {
            // The object may have been deleted with another object of the list.
            let _gone = self.delete(&key, &Value::Null, now, false);
        }
    }

    /// Drops the history. Watches that are behind are answered 410.
    pub(crate) fn compact(&mut self) {
        self.version += 1;
        self.oldest = self.version;
        self.changes.clear();
    }
}

fn metadata(object: &mut Value) -> Result<&mut Map<String, Value>, Refusal> {
    if !object.is_object() {
        return Err(Refusal::bad_request("the body is no object".to_owned()));
    }
    if object["metadata"].is_null() {
        object["metadata"] = json!({});
    }
    let metadata = object["metadata"].as_object_mut();
    metadata.ok_or_else(|| Refusal::bad_request("metadata is no object".to_owned()))
}

/// Restores the fields of metadata that clients cannot change.
fn keep_server_fields(object: &mut Value, old: &Value) {
    let kept = [
        "uid",
        "name",
        "namespace",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "resourceVersion",
    ];
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        for field in kept {
            match old["metadata"].get(field) {
                Some(value) => drop(metadata.insert(field.to_owned(), value.clone())),
                None => drop(metadata.remove(field)),
            }
        }
    }
    object["apiVersion"] = old["apiVersion"].clone();
    object["kind"] = old["kind"].clone();
}

fn same_but_metadata(one: &Value, other: &Value) -> bool {
    let rest = |object: &Value| {
        let mut rest = object.clone();
        if let Some(fields) = rest.as_object_mut() {
            fields.remove("metadata");
            fields.remove("status");
        }
        rest
    };
    rest(one) == rest(other)
}

fn raise_generation(object: &mut Value) {
    let generation = object["metadata"]["generation"].as_u64().unwrap_or_default();
    object["metadata"]["generation"] = json!(generation + 1);
}

fn finalizers(object: &Value) -> Vec<&str> {
    let all = object["metadata"]["finalizers"].as_array();
    all.into_iter().flatten().filter_map(Value::as_str).collect()
}

fn adds_finalizer(object: &Value, old: &Value) -> bool {
    let before = finalizers(old);
    finalizers(object).iter().any(|name| !before.contains(name))
}

/// Removes null fields, as they are not stored, and empty lists and maps of metadata.
fn drop_nulls(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for field in ["finalizers", "ownerReferences", "annotations", "labels"] {
            let is_empty = metadata.get(field).is_some_and(|value| {
                value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
            });
            if is_empty {
                metadata.remove(field);
            }
        }
    }
    remove_nulls(object);
}

fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// Moves `stringData` of a Secret to `data`, as the server does.
fn encode_string_data(secret: &mut Value) {
    let Some(fields) = secret.as_object_mut() else {
        return;
    };
    let Some(Value::Object(texts)) = fields.remove("stringData") else {
        return;
    };
    let data = fields.entry("data").or_insert_with(|| json!({}));
    for (key, text) in texts {
        let bytes = k8s_bytes(text.as_str().unwrap_or_default());
        data[key] = json!(bytes);
    }
}

/// Standard base64 with padding.
fn k8s_bytes(text: &str) -> String {
    use base64::Engine as _;
    base64::prelude::BASE64_STANDARD.encode(text)
}

fn seconds(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
