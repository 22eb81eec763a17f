//! The flags of a command, as in its help.

use clap::{Arg, Command};

/// Returns a list of the flags of a program without commands.
pub(crate) fn list(mut cli: Command) -> String {
    cli.build();
    let documented = |flag: &&Arg| {
        let is_flag = !flag.is_positional() && !flag.is_hide_set();
        is_flag && !matches!(flag.get_id().as_str(), "help" | "version")
    };
    cli.get_arguments().filter(documented).map(item).collect()
}

fn item(flag: &Arg) -> String {
    let long = flag.get_long().unwrap_or_default();
    let value = flag
        .get_value_names()
        .filter(|_| flag.get_action().takes_values())
        .and_then(|names| names.first());
    let mut written = value.map_or_else(|| format!("`--{long}`"), |value| format!("`--{long}={value}`"));
    for default in flag.get_default_values().iter().filter(|value| !value.is_empty()) {
        written.extend([" (`", default.to_string_lossy().as_ref(), "`)"]);
    }
    let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
    let meaning = match flag.get_env() {
        Some(variable) => format!("{help}. Variable: `{}`", variable.to_string_lossy()),
        None => help,
    };
    format!("* {written}: {meaning}\n")
}
