//! The server keeps what controllers rely on.

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Error, ResourceExt as _};
use serde_json::{Value, json};

use crate::{FakeApiServer, Fate, Kind};

fn server() -> (FakeApiServer, Client) {
    let server = FakeApiServer::new([
        Kind::new("v1", "ConfigMap", "configmaps").without_status(),
        Kind::new("v1", "Pod", "pods"),
        Kind::new("v1", "Node", "nodes").cluster_scoped(),
    ]);
    let client = server.client("test");
    (server, client)
}

#[allow(clippy::needless_pass_by_value)] // a literal, which reads better without a reference
fn pod(value: Value) -> Pod {
    let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": []}});
    json_patch::merge(&mut pod, &value);
    serde_json::from_value(pod).unwrap()
}

fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> (u16, String) {
    match result.unwrap_err() {
        Error::Api(status) => (status.code, status.reason.clone()),
        error => panic!("{error}"),
    }
}

async fn patched(pods: &Api<Pod>, patch: Value) -> Result<Pod, Error> {
    pods.patch("p", &PatchParams::default(), &Patch::Merge(patch))
        .await
}

#[tokio::test(start_paused = true)]
async fn writes_raise_versions_and_only_changes_count() {
    let (_server, client) = server();
    let pods = Api::<Pod>::namespaced(client, "ns");
    let created = pods
        .create(
            &PostParams::default(),
            &pod(json!({"status": {"phase": "Running"}})),
        )
        .await;
    let created = created.unwrap();
    assert!(created.status.is_none(), "the status is a subresource");
    assert_eq!(
        code(pods.create(&PostParams::default(), &pod(json!({}))).await),
        (409, "AlreadyExists".into())
    );
    let same = patched(&pods, json!({"spec": {"containers": []}})).await.unwrap();
    assert_eq!(
        same.resource_version(),
        created.resource_version(),
        "nothing has changed"
    );
    let labelled = patched(&pods, json!({"metadata": {"labels": {"a": "b"}}}))
        .await
        .unwrap();
    assert_ne!(labelled.resource_version(), created.resource_version());
    assert_eq!(labelled.metadata.generation, Some(1));
    let changed = patched(
        &pods,
        json!({"spec": {"nodeName": "n"}, "status": {"phase": "Failed"}}),
    )
    .await
    .unwrap();
    assert_eq!(changed.metadata.generation, Some(2));
    assert!(changed.status.is_none());
    let status = Patch::Merge(json!({"status": {"phase": "Running"}, "spec": {"nodeName": "other"}}));
    let status = pods
        .patch_status("p", &PatchParams::default(), &status)
        .await
        .unwrap();
    assert_eq!(status.metadata.generation, Some(2));
    assert_eq!(status.spec.unwrap().node_name.as_deref(), Some("n"));
}

#[tokio::test(start_paused = true)]
async fn a_write_on_an_old_version_or_another_uid_is_a_conflict() {
    let (_server, client) = server();
    let pods = Api::<Pod>::namespaced(client, "ns");
    let created = pods
        .create(&PostParams::default(), &pod(json!({})))
        .await
        .unwrap();
    patched(&pods, json!({"metadata": {"labels": {"a": "b"}}}))
        .await
        .unwrap();
    let old = json!({"metadata": {"resourceVersion": created.resource_version(), "labels": {"a": "c"}}});
    assert_eq!(code(patched(&pods, old).await), (409, "Conflict".into()));
    let other = json!({"metadata": {"uid": "another", "labels": {"a": "c"}}});
    assert_eq!(code(patched(&pods, other).await), (409, "Conflict".into()));
    let test = serde_json::from_value(json!([{"op": "test", "path": "/metadata/labels/a", "value": "c"}]));
    let test = Patch::Json::<()>(test.unwrap());
    assert_eq!(code(pods.patch("p", &PatchParams::default(), &test).await).0, 422);
    assert_eq!(code(pods.get("q").await), (404, "NotFound".into()));
}

#[tokio::test(start_paused = true)]
async fn an_object_with_finalizers_is_deleted_when_the_last_one_goes() {
    let (_server, client) = server();
    let pods = Api::<Pod>::namespaced(client, "ns");
    let held = pod(json!({"metadata": {"finalizers": ["example.com/a"]}}));
    let created = pods.create(&PostParams::default(), &held).await.unwrap();
    pods.delete("p", &DeleteParams::default()).await.unwrap();
    let deleted = pods.get("p").await.unwrap();
    assert!(deleted.metadata.deletion_timestamp.is_some());
    assert_eq!(
        deleted.metadata.generation,
        created.metadata.generation.map(|before| before + 1)
    );
    let more = json!({"metadata": {"finalizers": ["example.com/a", "example.com/b"]}});
    assert_eq!(code(patched(&pods, more).await).0, 422);
    patched(&pods, json!({"metadata": {"finalizers": null}}))
        .await
        .unwrap();
    assert!(pods.get_opt("p").await.unwrap().is_none());
    let again = pods
        .create(&PostParams::default(), &pod(json!({})))
        .await
        .unwrap();
    assert_ne!(again.uid(), created.uid());
    let precondition = DeleteParams::default().preconditions(kube::api::Preconditions {
        uid: created.uid(),
        resource_version: None,
    });
    assert_eq!(code(pods.delete("p", &precondition).await).0, 409);
}

#[tokio::test(start_paused = true)]
async fn objects_go_with_their_last_owner() {
    let (_server, client) = server();
    let pods = Api::<Pod>::namespaced(client.clone(), "ns");
    let maps = Api::<ConfigMap>::namespaced(client, "ns");
    let owner = pods
        .create(&PostParams::default(), &pod(json!({})))
        .await
        .unwrap();
    let reference = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner.uid()});
    let dependent = json!({"metadata": {"name": "m", "ownerReferences": [reference]}});
    maps.create(
        &PostParams::default(),
        &serde_json::from_value(dependent).unwrap(),
    )
    .await
    .unwrap();
    pods.delete("p", &DeleteParams::default()).await.unwrap();
    assert!(maps.get_opt("m").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn an_applied_field_goes_when_its_manager_drops_it() {
    let (_server, client) = server();
    let maps = Api::<ConfigMap>::namespaced(client, "ns");
    let apply = async |data: Value| {
        let object =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data});
        maps.patch("m", &PatchParams::apply("a").force(), &Patch::Apply(object))
            .await
            .unwrap()
    };
    apply(json!({"a": "1", "b": "2"})).await;
    let other = Patch::Merge(json!({"data": {"c": "3"}}));
    maps.patch("m", &PatchParams::default(), &other).await.unwrap();
    let data = apply(json!({"a": "1"})).await.data.unwrap();
    assert_eq!(data.keys().collect::<Vec<_>>(), ["a", "c"]);
}

#[tokio::test(start_paused = true)]
async fn lists_come_in_pages_and_by_label() {
    let (_server, client) = server();
    let nodes = Api::<Node>::all(client);
    for n in 0..5 {
        let node = json!({"metadata": {"name": format!("n{n}"), "labels": {"odd": (n % 2).to_string()}}});
        nodes
            .create(&PostParams::default(), &serde_json::from_value(node).unwrap())
            .await
            .unwrap();
    }
    let first = nodes.list(&ListParams::default().limit(3)).await.unwrap();
    let token = first.metadata.continue_.unwrap();
    let rest = nodes
        .list(&ListParams::default().limit(3).continue_token(&token))
        .await
        .unwrap();
    assert_eq!(
        (first.items.len(), rest.items.len(), rest.metadata.continue_),
        (3, 2, None)
    );
    assert_eq!(
        nodes
            .list(&ListParams::default().labels("odd=1"))
            .await
            .unwrap()
            .items
            .len(),
        2
    );
    let metadata = nodes
        .list_metadata(&ListParams::default().fields("metadata.name=n4"))
        .await
        .unwrap();
    assert_eq!(metadata.items[0].name_any(), "n4");
}

#[tokio::test(start_paused = true)]
async fn a_watch_sees_changes_in_order_and_ends_with_410_when_history_is_gone() {
    let (server, client) = server();
    let pods = Api::<Pod>::namespaced(client, "ns");
    let version = pods
        .list(&ListParams::default())
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap();
    let watch = pods
        .watch(&WatchParams::default().labels("a=b"), &version)
        .await
        .unwrap();
    let mut watch = watch.boxed();
    pods.create(
        &PostParams::default(),
        &pod(json!({"metadata": {"labels": {"a": "b"}}})),
    )
    .await
    .unwrap();
    patched(&pods, json!({"spec": {"nodeName": "n"}})).await.unwrap();
    patched(&pods, json!({"metadata": {"labels": {"a": "c"}}}))
        .await
        .unwrap();
    let seen: Vec<_> = watch.by_ref().take(3).try_collect().await.unwrap();
    assert!(
        matches!(
            &seen[..],
            [
                WatchEvent::Added(_),
                WatchEvent::Modified(_),
                WatchEvent::Deleted(_)
            ]
        ),
        "{seen:?}"
    );
    server.compact();
    assert!(watch.next().await.is_none(), "a cut ends it");
    let mut late = pods
        .watch(&WatchParams::default(), &version)
        .await
        .unwrap()
        .boxed();
    let Some(Ok(WatchEvent::Error(status))) = late.next().await else {
        panic!("no error");
    };
    assert_eq!(status.code, 410);
}

#[tokio::test(start_paused = true)]
async fn a_streamed_list_is_complete_and_goes_on_as_a_watch() {
    let (server, client) = server();
    let nodes = Api::<Node>::all(client);
    let node = |name: &str| serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    nodes.create(&PostParams::default(), &node("a")).await.unwrap();
    let mut events = watcher(nodes.clone(), watcher::Config::default().streaming_lists()).boxed();
    let mut seen = Vec::new();
    loop {
        match events.next().await.unwrap().unwrap() {
            Event::Init => {}
            Event::InitApply(node) => seen.push(node.name_any()),
            Event::InitDone => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, ["a"]);
    server.hold_watches("nodes", true);
    nodes.create(&PostParams::default(), &node("b")).await.unwrap();
    let nothing = tokio::time::timeout(std::time::Duration::from_secs(9), events.next()).await;
    assert!(nothing.is_err(), "a held watch sees nothing: {nothing:?}");
    server.hold_watches("nodes", false);
    assert!(matches!(events.next().await, Some(Ok(Event::Apply(node))) if node.name_any() == "b"));
}

#[tokio::test(start_paused = true)]
async fn a_fate_refuses_loses_or_breaks_requests() {
    let (server, _client) = server();
    let fate = |call: &crate::Call| match call.path.rsplit('/').next() {
        _ if !call.is_write() => Fate::Served,
        Some("refused") => Fate::Refused(403, "Forbidden"),
        Some("lost") => Fate::Lost,
        Some("unanswered") => Fate::Unanswered,
        _ => Fate::Broken,
    };
    let doomed = Client::new(server.service("doomed", fate), "ns");
    let doomed = Api::<ConfigMap>::namespaced(doomed, "ns");
    let apply = async |name: &str| {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        let (params, patch) = (PatchParams::apply("a"), Patch::Apply(object));
        tokio::time::timeout(
            std::time::Duration::from_mins(1),
            doomed.patch(name, &params, &patch),
        )
        .await
    };
    assert_eq!(code(apply("refused").await.unwrap()).0, 403);
    assert!(apply("lost").await.is_err());
    assert!(apply("unanswered").await.is_err());
    assert!(matches!(apply("broken").await, Ok(Err(Error::Service(_)))));
    let all = Api::<ConfigMap>::namespaced(server.client("test"), "ns")
        .list(&ListParams::default())
        .await
        .unwrap();
    let names: Vec<_> = all.items.iter().map(kube::ResourceExt::name_any).collect();
    assert_eq!(names, ["broken", "unanswered"]);
    assert_eq!(server.writes_of("doomed").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_write_ends_a_wait_for_it_and_a_read_does_not() {
    let (server, client) = server();
    let pods = Api::<Pod>::namespaced(client, "ns");
    let mut written = std::pin::pin!(server.written_after(server.version()));
    pods.list(&ListParams::default()).await.unwrap();
    let second = std::time::Duration::from_secs(1);
    assert!(tokio::time::timeout(second, &mut written).await.is_err());
    pods.create(&PostParams::default(), &pod(json!({})))
        .await
        .unwrap();
    written.await;
}
