//! Guests that join the workload cluster.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, channel::mpsc};
use k8s_openapi::api::core::v1::{Namespace, Node, Secret};
use kube::{
    Api, Error,
    api::{DeleteParams, ListParams},
};
use management_cluster::{
    client, eventually,
    hollow_kubelet::{Guest, GuestEvent, HollowKubelet},
};

use crate::shared;

const DEADLINE: Duration = Duration::from_secs(30);

fn guest(name: &str, user_data: String) -> Guest {
    Guest {
        provider_id: format!("cmi://{name}"),
        node_name: name.to_owned(),
        user_data: user_data.into_bytes(),
        addresses: vec![("InternalIP".to_owned(), "10.0.0.1".to_owned())],
    }
}

#[tokio::test]
async fn a_booted_guest_becomes_a_healthy_node_and_a_gone_one_stays() -> Result<()> {
    let workload = shared().await?.workload().await?;
    let nodes: Api<Node> = Api::all(workload.admin_client().await?);
    let (mut guests, events) = mpsc::unbounded();
    let _kubelet = HollowKubelet::start(events);
    guests.start_send(GuestEvent::Booted(guest("joins", workload.bootstrap_data()?)))?;
    let node = eventually(DEADLINE, "the Node", async || {
        let node = nodes.get("joins").await?;
        let status = node.status.clone().context("no status")?;
        let is = |kind: &str, value: &str| {
            status
                .conditions
                .iter()
                .flatten()
                .any(|condition| condition.type_ == kind && condition.status == value)
        };
        ensure!(is("Ready", "True") && is("DiskPressure", "False"), "{status:?}");
        Ok(node)
    })
    .await?;
    assert_eq!(
        node.spec.and_then(|spec| spec.provider_id).as_deref(),
        Some("cmi://joins")
    );
    let addresses = node
        .status
        .and_then(|status| status.addresses)
        .unwrap_or_default();
    assert_eq!(
        addresses.first().map(|address| address.address.as_str()),
        Some("10.0.0.1")
    );
    guests.start_send(GuestEvent::Gone {
        provider_id: "cmi://joins".to_owned(),
    })?;
    // The next guest's Node shows that the event has been handled.
    guests.start_send(GuestEvent::Booted(guest(
        "joins-next",
        workload.bootstrap_data()?,
    )))?;
    eventually(DEADLINE, "the next Node", async || {
        Ok(nodes.get("joins-next").await?)
    })
    .await?;
    nodes.get("joins").await?;
    nodes.delete("joins", &DeleteParams::default()).await?;
    Ok(())
}

#[tokio::test]
async fn a_guest_with_a_wrong_token_does_not_join() -> Result<()> {
    let workload = shared().await?.workload().await?;
    let nodes: Api<Node> = Api::all(workload.admin_client().await?);
    let good = workload.bootstrap_data()?;
    let bad = good.replace("token: ", "token: x");
    assert_ne!(good, bad);
    let events = futures::stream::iter([
        GuestEvent::Booted(guest("impostor", bad)),
        GuestEvent::Booted(guest("honest", good)),
    ]);
    let _kubelet = HollowKubelet::start(events.chain(futures::stream::pending()));
    eventually(DEADLINE, "the honest guest", async || {
        Ok(nodes.get("honest").await?)
    })
    .await?;
    assert!(nodes.get_opt("impostor").await?.is_none());
    Ok(())
}

#[tokio::test]
async fn the_bootstrap_data_is_good_for_nodes_only() -> Result<()> {
    let workload = shared().await?.workload().await?;
    let data = workload.bootstrap_data()?;
    let config: serde_json::Value = serde_saphyr::from_str(&data)?;
    let kubeconfig = config["write_files"][0]["content"]
        .as_str()
        .context("no kubeconfig")?;
    let bearer = client(kubeconfig).await?;
    assert!(
        Api::<Node>::all(bearer.clone())
            .get_opt("missing")
            .await?
            .is_none()
    );
    let secrets = Api::<Secret>::all(bearer.clone())
        .list(&ListParams::default())
        .await;
    assert!(
        matches!(&secrets, Err(Error::Api(status)) if status.code == 403),
        "{secrets:?}"
    );
    let namespace = Api::<Namespace>::all(bearer)
        .delete("default", &DeleteParams::default())
        .await;
    assert!(
        matches!(&namespace, Err(Error::Api(status)) if status.code == 403),
        "{namespace:?}"
    );
    Ok(())
}
