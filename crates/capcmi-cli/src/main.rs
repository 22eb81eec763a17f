//! `capcmi`: see `capcmi --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    capcmi_cli::commands::main()
}
