//! Runs a management cluster until Ctrl-C, for trying things out by hand:
//! `cargo run -p management-cluster --example management-cluster`.

use anyhow::Result;
use management_cluster::ManagementCluster;

#[tokio::main]
async fn main() -> Result<()> {
    let cluster = ManagementCluster::builder().start().await?;
    println!("export KUBECONFIG={}", cluster.admin_kubeconfig().display());
    println!("logs: {}", cluster.folder().path().display());
    println!("Ctrl-C ends it");
    tokio::signal::ctrl_c().await?;
    Ok(())
}
