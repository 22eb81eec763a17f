//! Tables in columns, as kubectl prints them.

use clap::ValueEnum;

use crate::describe::columns;
use capcmi::manager::cli::terminal::printable;

/// The output format of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// Columns.
    Table,
    /// JSON.
    Json,
}

/// Formats the lines, the titles first, with every column as wide as its widest cell.
pub(super) fn table<const COLUMNS: usize>(lines: &[[String; COLUMNS]]) -> String {
    let shown = lines
        .iter()
        .map(|line| line.each_ref().map(|cell| printable(cell)));
    let lines = columns(&shown.collect::<Vec<_>>(), "   ");
    lines.into_iter().map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_does_not_end_its_line_or_command_the_terminal() {
        let text =
            table(&[["NAME", "WHY"], ["a\nforged   ok", "\u{1b}[31m"]].map(|line| line.map(str::to_owned)));
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}
