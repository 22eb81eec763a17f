//! Prints the path of a program of the management cluster, which it builds when need be:
//! `cargo run -q -p management-cluster --example program -- kubectl`.

use anyhow::{Context, Result, bail};
use management_cluster::Programs;

#[tokio::main]
async fn main() -> Result<()> {
    let name = std::env::args()
        .nth(1)
        .context("name a program: kubectl or clusterctl")?;
    let programs = Programs::find().await?;
    let path = match name.as_str() {
        "kubectl" => programs.kubectl,
        "clusterctl" => programs.clusterctl,
        _ => bail!("{name} is none of kubectl and clusterctl"),
    };
    println!("{}", path.display());
    Ok(())
}
