//! Finds the lists that show the VMs of each Cluster.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use kube::Resource as _;
use kube_fleet::{ByVersion, NamespacedName};
use serde_json::{Map, Value};

use super::owner::{Scope, infra_cluster_of};
use crate::api::cluster_api::{Cluster, cluster_name};
use crate::api::identity::{self, Role};
use crate::api::v1alpha1::{InfraCluster, InfraMachine, InfraMachineTemplate};
use crate::api::{DeserializeGuard, ObjectMetaExt as _, annotations};
use crate::driver::listing::{ClassId, ClassRef};
use crate::reconcile::caches::{CachedMachine, cluster_owners};
use cmi_driver::{JsonPointer, ProviderSpec, tags};

/// The class of a deleted machine. Its list shows a VM that was left behind, even if the machine was the last
/// of its class.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RetainedClass {
    /// The configured driver.
    pub driver: String,
    /// The Cluster.
    pub cluster: NamespacedName,
    /// The class.
    pub class: ClassRef,
}

/// A Cluster and the lists of one driver that show its VMs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedCluster {
    /// The Cluster.
    pub scope: Scope,
    /// Whether the Cluster is known to be paused. The driver is then not asked.
    pub is_paused: bool,
    /// The classes to list.
    pub classes: BTreeSet<ClassRef>,
    /// The ids of the classes of deleted machines only.
    pub retained: BTreeSet<ClassId>,
}

/// The objects that determine the lists. They may be out of date, because the result of a list is classified
/// with a live read.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// Clusters of Cluster API.
    pub clusters: Vec<Arc<Cluster>>,
    /// This provider's clusters.
    pub infra_clusters: Vec<Arc<DeserializeGuard<InfraCluster>>>,
    /// This provider's machines. Each is unpacked only when it is read, because a whole unpacked fleet would
    /// take many times the memory of a cache.
    pub infra_machines: Vec<CachedMachine>,
    /// This provider's templates.
    pub templates: Vec<Arc<DeserializeGuard<InfraMachineTemplate>>>,
}

/// Returns a cluster id for each Cluster, recorded by one of its machines, if any.
fn cluster_ids(machines: &[CachedMachine]) -> HashMap<NamespacedName, String> {
    let mut ids = HashMap::new();
    for machine in machines {
        let facts = machine.facts();
        if let (Some(cluster), Some(id)) = (facts.cluster.as_deref(), facts.own_cluster_id.as_deref()) {
            let cluster = NamespacedName::new(machine.key().namespace(), cluster);
            ids.entry(cluster).or_insert_with(|| id.to_owned());
        }
    }
    ids
}

/// A class of a Cluster's machines.
type ClusterClass = (NamespacedName, ClassRef);

/// The classes of the machines of a driver, as known from the last scan. An unchanged machine is not unpacked
/// again.
#[derive(Debug, Default)]
pub struct MachineClasses(ByVersion<JsonPointer, ClusterClass>);

impl MachineClasses {
    /// Returns the classes of a driver's current and future machines, each once.
    pub async fn update(
        &mut self,
        machines: &[CachedMachine],
        driver: &str,
        tag_path: &JsonPointer,
    ) -> HashSet<Arc<ClusterClass>> {
        let mut classes = HashSet::new();
        let has_driver = |machine: &&CachedMachine| machine.facts().used_driver.as_deref() == Some(driver);
        let read = |machine: &CachedMachine| class_of_machine(&*machine.object()?, driver, tag_path);
        let of_class = |_: &CachedMachine, class: &Arc<ClusterClass>| {
            classes.insert(Arc::clone(class));
        };
        let machines = machines.iter().filter(has_driver);
        self.0.update(tag_path, machines, read, of_class).await;
        classes
    }
}

/// Returns the Clusters that use a driver, each with the classes to list. The classes come from its machines,
/// from deleted machines, and from its templates, so that a Cluster without machines is scanned, too.
///
/// `resolve` returns the driver of a template, from the driver that it names and its namespace.
pub fn watched(
    objects: &Objects,
    driver: &str,
    classes: impl IntoIterator<Item = Arc<ClusterClass>>,
    resolve: impl Fn(Option<&str>, &str) -> Option<String>,
    tag_path: &JsonPointer,
    retained: &[RetainedClass],
) -> Vec<WatchedCluster> {
    let scopes = scopes(objects);
    let mut found: BTreeMap<&NamespacedName, BTreeSet<ClassRef>> = BTreeMap::new();
    // Returns whether the class was new.
    let mut add = |cluster: &NamespacedName, class: ClassRef| {
        let Some((key, (scope, _))) = scopes.get_key_value(cluster) else {
            return false;
        };
        cluster_of(&class, tag_path).as_ref() == Some(&scope.cluster_id)
            && found.entry(key).or_default().insert(class)
    };
    for class in classes {
        let (cluster, class) = &*class;
        add(cluster, class.clone());
    }
    let mut of_deleted_alone: HashMap<&NamespacedName, BTreeSet<ClassId>> = HashMap::new();
    for retained in retained.iter().filter(|retained| retained.driver == driver) {
        if add(&retained.cluster, retained.class.clone()) {
            let of_cluster = of_deleted_alone.entry(&retained.cluster).or_default();
            of_cluster.insert(retained.class.id());
        }
    }
    let with_machines: Vec<(NamespacedName, ClassRef)> = found
        .iter()
        .flat_map(|(key, classes)| classes.iter().map(|class| ((*key).clone(), class.clone())))
        .collect();
    for template in readable(&objects.templates) {
        let namespace = template.metadata.namespace();
        if resolve(template.spec.template.spec.driver.as_deref(), namespace).as_deref() != Some(driver) {
            continue;
        }
        for (key, (scope, _)) in clusters_of_template(template, &scopes) {
            let Some(class) = class_of_template(template, &scope.cluster_id, tag_path) else {
                continue;
            };
            let is_listed = |(cluster, known): &(NamespacedName, ClassRef)| {
                cluster == key && is_alike(known, &class, tag_path)
            };
            if !with_machines.iter().any(is_listed) {
                found.entry(key).or_default().insert(class);
            }
        }
    }
    found
        .into_iter()
        .map(|(key, classes)| {
            let (scope, is_paused) = scopes[key].clone();
            WatchedCluster {
                scope,
                is_paused,
                classes,
                retained: of_deleted_alone.remove(key).unwrap_or_default(),
            }
        })
        .collect()
}

fn readable<K>(all: &[Arc<DeserializeGuard<K>>]) -> impl Iterator<Item = &K> {
    all.iter().filter_map(|object| object.0.as_ref().ok())
}

/// The Clusters, with their ids and whether they are paused.
fn scopes(objects: &Objects) -> BTreeMap<NamespacedName, (Scope, bool)> {
    let infra: HashMap<NamespacedName, &DeserializeGuard<InfraCluster>> = objects
        .infra_clusters
        .iter()
        .map(|object| (NamespacedName::of(object.meta()), &**object))
        .collect();
    let siblings = cluster_ids(&objects.infra_machines);
    let scope = |cluster: &Cluster| {
        let key = NamespacedName::of(&cluster.metadata);
        let uid = cluster.metadata.uid.clone()?;
        let carrier = infra_cluster_of(cluster).and_then(|key| infra.get(&key).copied());
        let annotations = carrier.and_then(|carrier| carrier.meta().annotations.as_ref());
        let written = annotations
            .and_then(|all| all.get(annotations::CLUSTER_ID))
            .cloned();
        let is_paused =
            cluster.is_paused() || annotations.is_some_and(|all| all.contains_key(annotations::PAUSED));
        let cluster_id = written
            .or_else(|| siblings.get(&key).cloned())
            .unwrap_or_else(|| uid.clone());
        let scope = Scope {
            cluster: key.clone(),
            uid,
            cluster_id,
        };
        Some((key, (scope, is_paused)))
    };
    objects
        .clusters
        .iter()
        .filter_map(|cluster| scope(cluster))
        .collect()
}

/// The class of a machine that this driver has, or is about to create.
fn class_of_machine(
    object: &DeserializeGuard<InfraMachine>,
    driver: &str,
    tag_path: &JsonPointer,
) -> Option<ClusterClass> {
    let machine = object.0.as_ref().ok()?;
    let made = identity::bound(machine).filter(|made| made.driver == driver)?;
    let cluster = NamespacedName::new(
        machine.metadata.namespace.as_deref()?,
        cluster_name(&machine.metadata)?,
    );
    Some((cluster, ClassRef::of_made(made, tag_path)?))
}

/// The class of a template's machines, as workers. The template does not tell which of them run the control
/// plane.
fn class_of_template(
    template: &InfraMachineTemplate,
    cluster_id: &str,
    tag_path: &JsonPointer,
) -> Option<ClassRef> {
    let wanted = &template.spec.template.spec;
    let mut spec = ProviderSpec(wanted.provider_spec.clone());
    let tag_map = spec.object_at(tag_path).ok()?;
    tag_map.insert(tags::CLUSTER.to_owned(), Value::from(cluster_id));
    tag_map.insert(tags::ROLE.to_owned(), Value::from(Role::Node.tag()));
    let secret = wanted.secret_ref.as_ref().map(|reference| reference.name.clone());
    Some(ClassRef {
        secret: secret.filter(|name| !name.is_empty()),
        spec: serde_json::to_string(&spec).ok()?,
    })
}

fn clusters_of_template<'a>(
    template: &'a InfraMachineTemplate,
    scopes: &'a BTreeMap<NamespacedName, (Scope, bool)>,
) -> impl Iterator<Item = (&'a NamespacedName, &'a (Scope, bool))> {
    let meta = &template.metadata;
    let name = cluster_name(meta);
    scopes.iter().filter(move |(key, (scope, _))| {
        Some(key.namespace()) == meta.namespace.as_deref()
            && (name == Some(key.name()) || cluster_owners(meta).any(|owner| owner.uid == scope.uid))
    })
}

/// Whether a list of one class shows the same VMs as a list of the other. Both must have the same account and
/// spec, apart from the fields that differ between the machines of a template.
fn is_alike(one: &ClassRef, other: &ClassRef, tag_path: &JsonPointer) -> bool {
    let bare = |class: &ClassRef| {
        let mut spec: ProviderSpec = serde_json::from_str(&class.spec).ok()?;
        spec.remove_tags(tag_path, &[tags::ROLE]);
        spec.0.remove(tags::FAILURE_DOMAIN);
        Some(spec)
    };
    one.secret == other.secret && bare(one).is_some() && bare(one) == bare(other)
}

/// The cluster id in the tags of a class.
fn cluster_of(class: &ClassRef, tag_path: &JsonPointer) -> Option<String> {
    let spec: ProviderSpec = serde_json::from_str(&class.spec).ok()?;
    let id = spec.get(tag_path)?.get(tags::CLUSTER)?.as_str()?;
    Some(id.to_owned())
}

/// Removes the machine tag of a spec at any place, because the driver's tag path may be unknown. An adopted
/// VM has the tag of another machine, but still belongs to the class of its siblings.
pub fn remove_identity(spec: &mut Map<String, Value>) {
    spec.remove(tags::MACHINE);
    for value in spec.values_mut() {
        if let Value::Object(inner) = value {
            remove_identity(inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use kube_fleet::store;

    use futures::FutureExt as _;
    use serde_json::json;

    use super::*;
    use crate::api::identity::fixtures::existing;
    use crate::api::labels;

    fn object<K: serde::de::DeserializeOwned>(value: Value) -> Arc<K> {
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn readable<K: serde::de::DeserializeOwned>(value: Value) -> Arc<DeserializeGuard<K>> {
        Arc::new(DeserializeGuard(Ok(serde_json::from_value(value).unwrap())))
    }

    fn cluster(name: &str, paused: bool) -> Arc<Cluster> {
        object(json!({
            "metadata": {"namespace": "ns", "name": name, "uid": format!("u-{name}")},
            "spec": {"paused": paused, "infrastructureRef":
                {"apiGroup": "infrastructure.capcmi.io", "kind": "InfraCluster", "name": name}},
        }))
    }

    fn infra_cluster(name: &str, id: &str) -> Arc<DeserializeGuard<InfraCluster>> {
        readable(json!({
            "metadata": {"namespace": "ns", "name": name, "annotations": {annotations::CLUSTER_ID: id}},
            "spec": {},
        }))
    }

    /// A machine of Cluster `c` that was made with these tags.
    fn machine(name: &str, tag_map: &Value) -> Arc<DeserializeGuard<InfraMachine>> {
        let mut spec =
            json!({"size": "s", "tags": {"kubernetes.io/role": "node", "capcmi.io/machine": name}});
        spec["tags"]
            .as_object_mut()
            .unwrap()
            .extend(tag_map.as_object().unwrap().clone());
        readable(json!({
            "metadata": {"namespace": "ns", "name": name, "uid": name, "labels": {labels::CLUSTER_NAME: "c"},
            "annotations": {annotations::VM_RECORD: existing(
                &format!("ns/{name}/{name}"),
                &json!({"driver": "pool", "secret": "account", "providerSpec": spec}),
            )}},
            "spec": {"providerSpec": {}},
        }))
    }

    fn cached(machines: impl IntoIterator<Item = Arc<DeserializeGuard<InfraMachine>>>) -> Vec<CachedMachine> {
        let (cache, mut writer) = store();
        for machine in machines {
            writer.apply(machine);
        }
        cache.select(|_| true)
    }

    fn template(name: &str, size: &str, labelled: &str) -> Arc<DeserializeGuard<InfraMachineTemplate>> {
        readable(json!({
            "metadata": {"namespace": "ns", "name": name, "labels": {labels::CLUSTER_NAME: labelled}},
            "spec": {"template": {"spec": {"providerSpec": {"size": size},
            "secretRef": {"name": "account"}}}},
        }))
    }

    fn of_pool(objects: &Objects, retained: &[RetainedClass]) -> Vec<WatchedCluster> {
        let resolve = |named: Option<&str>, _: &str| Some(named.unwrap_or("pool").to_owned());
        let tag_path = "/tags".parse().unwrap();
        let few = watched_by_pool(objects, resolve, &tag_path, retained);
        few.now_or_never().unwrap()
    }

    async fn watched_by_pool(
        objects: &Objects,
        resolve: impl Fn(Option<&str>, &str) -> Option<String>,
        tag_path: &JsonPointer,
        retained: &[RetainedClass],
    ) -> Vec<WatchedCluster> {
        let mut known = MachineClasses::default();
        let classes = known.update(&objects.infra_machines, "pool", tag_path).await;
        watched(objects, "pool", classes, resolve, tag_path, retained)
    }

    fn specs(watched: &[WatchedCluster]) -> Vec<&str> {
        let classes = watched.iter().flat_map(|watched| &watched.classes);
        classes.map(|class| class.spec.as_str()).collect()
    }

    #[test]
    fn machines_of_a_class_share_a_list_and_a_template_of_theirs_adds_none() {
        let ours = || json!({"kubernetes.io/cluster": "moved"});
        let objects = Objects {
            clusters: vec![cluster("c", false)],
            infra_clusters: vec![infra_cluster("c", "moved")],
            infra_machines: cached([machine("a", &ours()), machine("b", &ours())]),
            templates: vec![template("t", "s", "c")],
        };
        let watched = of_pool(&objects, &[]);
        assert_eq!(
            specs(&watched),
            [r#"{"size":"s","tags":{"kubernetes.io/cluster":"moved","kubernetes.io/role":"node"}}"#]
        );
        assert_eq!(watched[0].scope.cluster_id, "moved");
        assert_eq!(
            (watched[0].scope.uid.as_str(), watched[0].is_paused),
            ("u-c", false)
        );
    }

    /// A Cluster that is scaled to zero may have left VMs behind.
    #[test]
    fn templates_and_deleted_machines_keep_an_empty_cluster_watched() {
        let mut objects = Objects {
            clusters: vec![cluster("c", true), cluster("other", false)],
            templates: vec![
                template("t", "s", "c"),
                template("u", "l", "c"),
                template("v", "s", "gone"),
            ],
            ..Objects::default()
        };
        let watched = of_pool(&objects, &[]);
        assert_eq!(specs(&watched).len(), 2, "{watched:?}");
        assert!(watched[0].is_paused && watched[0].scope.cluster_id == "u-c");
        objects.templates.clear();
        let retained = RetainedClass {
            driver: "pool".to_owned(),
            cluster: watched[0].scope.cluster.clone(),
            class: ClassRef {
                secret: None,
                spec: json!({"tags": {"kubernetes.io/cluster": "u-c"}}).to_string(),
            },
        };
        let watched = of_pool(&objects, std::slice::from_ref(&retained));
        assert_eq!(specs(&watched).len(), 1);
        assert_eq!(watched[0].retained, [retained.class.id()].into());
        let of_another_driver = RetainedClass {
            driver: "other".to_owned(),
            ..retained
        };
        assert!(of_pool(&objects, &[of_another_driver]).is_empty());
    }

    /// CTL-LM-00: only classes of Clusters in this management cluster are listed.
    #[test]
    fn a_class_of_another_cluster_is_not_listed() {
        let objects = Objects {
            clusters: vec![cluster("c", false)],
            infra_clusters: vec![infra_cluster("c", "moved")],
            infra_machines: cached([
                machine("a", &json!({"kubernetes.io/cluster": "other"})),
                machine("b", &json!({})),
            ]),
            ..Objects::default()
        };
        assert!(of_pool(&objects, &[]).is_empty());
        let without_its_cluster = Objects {
            infra_machines: cached([machine("a", &json!({"kubernetes.io/cluster": "u-c"}))]),
            ..Objects::default()
        };
        assert!(of_pool(&without_its_cluster, &[]).is_empty());
    }

    /// Classes from an old version of a machine, or from an earlier tag path of the driver, must not be
    /// reused.
    #[test]
    fn the_classes_that_are_known_follow_the_machines_of_the_cache() {
        let (machines, mut writer) = store::<DeserializeGuard<InfraMachine>>();
        let applied = |size: &str, version: &str| {
            let mut machine = (*machine("a", &json!({}))).clone();
            let metadata = &mut machine.0.as_mut().unwrap().metadata;
            metadata.resource_version = Some(version.to_owned());
            let spec = json!({"size": size, "tags": {tags::MACHINE: "a"}});
            let made = json!({"driver": "pool", "secret": "account", "providerSpec": spec});
            let annotations = metadata.annotations.as_mut().unwrap();
            annotations.insert(annotations::VM_RECORD.to_owned(), existing("ns/a/a", &made));
            Arc::new(machine)
        };
        let mut known = MachineClasses::default();
        let mut specs = |driver: &str, tag_path: &str| {
            let cached = machines.select(|_| true);
            let tag_path = tag_path.parse().unwrap();
            let classes = known.update(&cached, driver, &tag_path);
            let classes = classes.now_or_never().unwrap();
            classes
                .iter()
                .map(|class| class.1.spec.clone())
                .collect::<Vec<_>>()
        };
        writer.apply(applied("s", "1"));
        for _ in 0..2 {
            assert_eq!(specs("pool", "/tags"), [r#"{"size":"s","tags":{}}"#]);
        }
        writer.apply(applied("l", "2"));
        assert_eq!(specs("pool", "/tags"), [r#"{"size":"l","tags":{}}"#]);
        let unmoved = r#"{"size":"l","tags":{"capcmi.io/machine":"a"}}"#;
        assert_eq!(
            specs("pool", "/labels"),
            [unmoved],
            "the driver's tags are elsewhere"
        );
        assert_eq!(specs("other", "/tags"), Vec::<String>::new());
        writer.delete(&machine("a", &json!({})));
        assert_eq!(specs("pool", "/tags"), Vec::<String>::new());
    }
}
