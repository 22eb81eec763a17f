//! How a page is laid out: sections of rows, and times as an operator reads them.

use jiff::Timestamp;

/// The column where a section's values start.
const COLUMN: usize = 16;

/// A page under construction.
#[derive(Debug, Default)]
pub(super) struct Page(String);

impl Page {
    /// Begins a section.
    pub(super) fn section(&mut self, title: &str) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.0.push_str(title);
        self.0.push('\n');
    }

    /// A name and its value.
    pub(super) fn row(&mut self, name: &str, value: &str) {
        let text = format!("  {name:<width$} {}", one_line(value), width = COLUMN - 1);
        self.0.push_str(text.trim_end());
        self.0.push('\n');
    }

    /// A line of a section.
    pub(super) fn line(&mut self, text: &str) {
        self.0.push_str("  ");
        self.0.push_str(&one_line(text));
        self.0.push('\n');
    }

    /// Lines in columns.
    pub(super) fn table<const COLUMNS: usize>(&mut self, lines: &[[String; COLUMNS]]) {
        for line in columns(lines, "  ") {
            self.line(&line);
        }
    }

    pub(super) fn text(self) -> String {
        self.0
    }
}

/// The lines, with every column as wide as its widest cell.
pub fn columns<T: AsRef<str>, const COLUMNS: usize>(lines: &[[T; COLUMNS]], gap: &str) -> Vec<String> {
    let width = |column: usize| {
        let cells = lines.iter().map(|line| line[column].as_ref().chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..COLUMNS).map(width).collect();
    let padded = |line: &[T; COLUMNS]| {
        let cells = line.iter().zip(&widths);
        let cells: Vec<_> = cells
            .map(|(cell, width)| format!("{:<width$}", cell.as_ref()))
            .collect();
        cells.join(gap).trim_end().to_owned()
    };
    lines.iter().map(padded).collect()
}

/// Removes line ends from text that others have written.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r', '\t'], " ")
}

/// How long ago a moment was, in the largest unit that fits.
pub(super) fn ago(then: Timestamp, now: Timestamp) -> String {
    format!("{} ago", span(now.duration_since(then).as_secs()))
}

/// A time span, in the largest unit that fits.
pub fn span(seconds: i64) -> String {
    match seconds.max(0) {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7_200 => format!("{}m", seconds / 60),
        seconds @ 7_200..172_800 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// Returns the text, or `none` if it is empty.
pub(super) fn or_none(text: &str) -> &str {
    if text.is_empty() { "none" } else { text }
}
