//! `capcmi`.
use clap::Parser;
#[derive(Parser)]
enum Cli {
    Manifests(capcmi::manifests::Manifests),
}
fn main() -> anyhow::Result<()> {
    let Cli::Manifests(m) = Cli::parse();
    m.run(&mut std::io::stdout())
}
