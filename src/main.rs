//! `capcmi-manager`: see `capcmi-manager --help`.

use std::process::ExitCode;

use tikv_jemallocator::Jemalloc;

/// A fleet is many small objects that come and go: with the allocator of the C library a fifth of the
/// provider's CPU went there.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    capcmi::manager::cli::main()
}
