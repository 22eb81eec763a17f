//! Live reads of the API server: quorum reads in pages, never from a cache. Only a few fields of each object
//! are kept.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use kube::api::ListParams;
use kube::{Client, Resource};
use kube_fleet::{pages, store};
use serde::de::DeserializeOwned;

use super::owner::{CommonTexts, Live, LiveMachine};
use super::scope::Objects;
use crate::api::DeserializeGuard;
use crate::api::bounded::Bounded;
use crate::api::cluster_api::Cluster;
use crate::api::v1alpha1::{InfraCluster, InfraMachine, InfraMachineTemplate};
use crate::apiserver::Error;

/// Reads the objects that decide who owns the VMs, after the VMs were listed. The InfraMachines of all
/// namespaces and labels come first, then InfraClusters and Clusters, so that a move of the machines is seen.
///
/// A provider with access to only one namespace reads only that namespace. Then nothing is deleted.
///
/// # Errors
/// Any failure that leaves the answer incomplete.
pub async fn read(client: &Client, namespace: Option<&str>) -> Result<Live, Error> {
    let reader = Reader { client, namespace };
    let mut common = CommonTexts::default();
    let machines = reader.all(
        "listing InfraMachines",
        |machine: DeserializeGuard<InfraMachine>| LiveMachine::of(&machine, &mut common),
    );
    let (machines, every_machine) = machines.await?;
    let (infra_clusters, _) = reader
        .all(
            "listing InfraClusters",
            Arc::<DeserializeGuard<InfraCluster>>::new,
        )
        .await?;
    let (clusters, every_cluster) = reader.all("listing Clusters", Arc::<Cluster>::new).await?;
    let whole = every_machine && every_cluster;
    Ok(Live::new(machines, &infra_clusters, &clusters, whole))
}

/// Reads the objects that determine which lists show VMs: the machines and templates of one or all
/// namespaces, optionally with a label, and the Clusters.
///
/// # Errors
/// The API server refused or could not be reached.
pub async fn objects(
    client: &Client,
    namespace: Option<&str>,
    selector: Option<&str>,
) -> Result<Objects, Error> {
    let ours = selector.unwrap_or_default();
    let (infra_machines, mut writer) = store();
    let list = ListParams::default().labels(ours);
    let read = all(
        client,
        namespace,
        list,
        |machine: DeserializeGuard<InfraMachine>| {
            writer.apply(Arc::new(machine));
        },
    );
    read.await
        .map_err(|error| Error::api("listing InfraMachines", error))?;
    Ok(Objects {
        infra_machines: infra_machines.select(|_| true),
        templates: of_namespace::<DeserializeGuard<InfraMachineTemplate>>(
            client,
            namespace,
            ours,
            "listing InfraMachineTemplates",
        )
        .await?,
        // InfraClusters of every provider are read, because they hold the ids of Clusters.
        infra_clusters: of_namespace(client, namespace, "", "listing InfraClusters").await?,
        clusters: of_namespace(client, namespace, "", "listing Clusters").await?,
    })
}

async fn of_namespace<K>(
    client: &Client,
    namespace: Option<&str>,
    selector: &str,
    action: &'static str,
) -> Result<Vec<Arc<K>>, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let all = all(
        client,
        namespace,
        ListParams::default().labels(selector),
        Arc::<K>::new,
    );
    let all = all.await;
    all.map_err(|error| Error::api(action, error))
}

struct Reader<'a> {
    client: &'a Client,
    namespace: Option<&'a str>,
}

impl Reader<'_> {
    /// All objects of a kind, and whether they cover all namespaces.
    async fn all<K, T>(
        &self,
        action: &'static str,
        mut slim: impl FnMut(K) -> T,
    ) -> Result<(Vec<T>, bool), Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        let everywhere = all(self.client, None, ListParams::default(), &mut slim).await;
        let (read, is_whole) = match (everywhere, self.namespace) {
            (Err(kube::Error::Api(status)), Some(namespace)) if status.code == 403 => {
                let there = all(self.client, Some(namespace), ListParams::default(), &mut slim);
                (there.await, false)
            }
            (read, _) => (read, true),
        };
        let read = read.map_err(|error| Error::api(action, error))?;
        Ok((read, is_whole))
    }
}

/// All objects of a kind, in one or all namespaces, each reduced to the needed fields.
async fn all<K, T>(
    client: &Client,
    namespace: Option<&str>,
    list: ListParams,
    mut slim: impl FnMut(K) -> T,
) -> Result<Vec<T>, kube::Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let (path, mut all) = (K::url_path(&(), namespace), Vec::new());
    let read = pages::each(client, &path, list, |Bounded(object)| {
        all.push(slim(object));
        ControlFlow::Continue(())
    });
    read.await?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;

    use http::{Request, Response, StatusCode};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// A client whose API server has two pages of InfraMachines, and the requests that it receives. The
    /// server refuses lists of all namespaces if `forbidden`, and every second page if `flaky`.
    fn api_server(forbidden: bool, flaky: bool) -> (Client, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<Body>| {
            let uri = request.uri().to_string();
            let is_second = uri.contains("continue=");
            let refused = if forbidden && !uri.contains("/namespaces/") {
                Some((StatusCode::FORBIDDEN, "Forbidden"))
            } else if flaky && is_second {
                Some((StatusCode::GONE, "Expired"))
            } else {
                None
            };
            let more = if uri.contains("inframachines") && !is_second {
                "more"
            } else {
                ""
            };
            let item = json!({"metadata": {"name": if is_second {"b"} else {"a"}, "namespace": "ns",
                "uid": "u"}, "spec": {}});
            log.lock().unwrap().push(uri);
            let (status, body) = match refused {
                Some((status, reason)) => (
                    status,
                    json!({"kind": "Status", "status": "Failure", "reason": reason, "code": status.as_u16(),
                        "message": "no"}),
                ),
                None => (
                    StatusCode::OK,
                    json!({"apiVersion": "v1", "kind": "List", "metadata": {"continue": more},
                        "items": [item]}),
                ),
            };
            let mut response = Response::new(Body::from(body.to_string().into_bytes()));
            *response.status_mut() = status;
            async move { Ok::<_, Infallible>(response) }
        });
        (Client::new(service, "default"), asked)
    }

    fn kinds(asked: &Mutex<Vec<String>>) -> Vec<String> {
        let kind = |uri: &String| {
            uri.split('?')
                .next()
                .unwrap_or_default()
                .rsplit('/')
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        asked.lock().unwrap().iter().map(kind).collect()
    }

    /// A move deletes the machines before the Cluster. In the reverse order of reads, they would look
    /// deleted.
    #[tokio::test]
    async fn machines_are_read_first_and_clusters_last_and_never_out_of_a_cache() {
        let (client, asked) = api_server(false, false);
        read(&client, Some("ns")).await.unwrap();
        assert_eq!(
            kinds(&asked),
            ["inframachines", "inframachines", "infraclusters", "clusters"]
        );
        for uri in asked.lock().unwrap().iter() {
            assert!(!uri.contains("resourceVersion"), "{uri}");
            let limit = format!("limit={}", pages::PAGE);
            let is_limited = uri.split(['?', '&']).any(|part| part == limit);
            assert!(is_limited, "a tenant's objects fill the memory: {uri}");
            assert!(
                !uri.contains("/namespaces/") && !uri.contains("labelSelector"),
                "{uri}"
            );
        }
    }

    #[tokio::test]
    async fn a_list_that_ends_half_way_is_none() {
        let (client, _) = api_server(false, true);
        assert!(read(&client, Some("ns")).await.is_err());
    }

    #[tokio::test]
    async fn with_rights_in_one_namespace_the_view_is_not_whole() {
        let (client, asked) = api_server(true, false);
        let live = read(&client, Some("ns")).await.unwrap();
        assert!(!live.is_whole());
        assert!(
            asked
                .lock()
                .unwrap()
                .last()
                .unwrap()
                .contains("/namespaces/ns/clusters")
        );
        let (client, _) = api_server(true, false);
        assert!(read(&client, None).await.is_err());
        let (client, _) = api_server(false, false);
        assert!(read(&client, None).await.unwrap().is_whole());
    }
}
