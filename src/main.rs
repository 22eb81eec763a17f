//! `capcmi`: see `capcmi --help`.

use std::process::ExitCode;

/// A fifth of the provider's time went into the system's allocator: objects come and go as trees of small strings.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    capcmi::cli::main()
}
