//! The management cluster itself, with real programs. All tests share one cluster, except where they end it.

mod cluster;
mod kubelet;
mod lifecycle;
mod machine;
mod proxy;

use anyhow::Result;
use management_cluster::ManagementCluster;

async fn shared() -> Result<&'static ManagementCluster> {
    ManagementCluster::shared(ManagementCluster::builder).await
}
