//! `capcmi-manager`: see `capcmi-manager --help`.

use std::process::ExitCode;

use tikv_jemallocator::Jemalloc;

/// A fleet has many small objects that live briefly: the C library's allocator took a fifth of the provider's
/// CPU.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    capcmi::manager::cli::main()
}
