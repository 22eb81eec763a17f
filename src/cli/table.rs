//! Columns as kubectl has them.

use clap::ValueEnum;

use super::terminal::printable;

/// How a command prints what it has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// Columns.
    Table,
    /// JSON.
    Json,
}

/// The lines, the titles first, with every column as wide as its widest cell.
pub(super) fn table<const COLUMNS: usize>(lines: &[[String; COLUMNS]]) -> String {
    let shown = lines
        .iter()
        .map(|line| line.each_ref().map(|cell| printable(cell)));
    let lines: Vec<_> = shown.collect();
    let width = |column: usize| {
        let cells = lines.iter().map(|line| line[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..COLUMNS).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(&widths);
        let padded: Vec<_> = cells.map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(padded.join("   ").trim_end());
        text.push('\n');
    }
    text
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
