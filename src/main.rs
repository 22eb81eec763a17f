//! `capcmi-manager`: see `capcmi-manager --help`.

use std::process::ExitCode;

use capcmi::manager::cli::{self, Manager};
use clap::Parser as _;
use tikv_jemallocator::Jemalloc;

/// A fleet has many small objects that live briefly: the C library's allocator took a fifth of the provider's
/// CPU.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    let Manager { run, log } = Manager::parse();
    cli::finish(cli::PROGRAM, cli::block_on(&log, run.run()))
}
