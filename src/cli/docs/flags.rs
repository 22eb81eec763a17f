//! The flags of `capcmi run`, as its help has them.

use clap::{Arg, CommandFactory as _};

use super::markdown;
use crate::cli::Cli;

pub(super) fn table() -> String {
    let mut cli = Cli::command();
    // Arguments that all commands share are handed down by this.
    cli.build();
    let run = cli.find_subcommand("run").map(|run| {
        let documented =
            |flag: &&Arg| !flag.is_hide_set() && !matches!(flag.get_id().as_str(), "help" | "version");
        run.get_arguments().filter(documented).map(row).collect()
    });
    markdown(["Flag", "Default", "Meaning"], &run.unwrap_or_else(Vec::new))
}

fn row(flag: &Arg) -> [String; 3] {
    let long = flag.get_long().unwrap_or_default();
    let value = flag
        .get_value_names()
        .filter(|_| flag.get_action().takes_values())
        .and_then(|names| names.first());
    let written = value.map_or_else(|| format!("`--{long}`"), |value| format!("`--{long}={value}`"));
    let default: Vec<_> = flag
        .get_default_values()
        .iter()
        .filter(|value| !value.is_empty())
        .map(|value| format!("`{}`", value.to_string_lossy()))
        .collect();
    let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
    let meaning = match flag.get_env() {
        Some(variable) => format!(
            "{help}. Also from the environment: `{}`",
            variable.to_string_lossy()
        ),
        None => help,
    };
    [written, default.join(" "), meaning]
}
