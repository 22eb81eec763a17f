//! The table of machines, in as many columns as there is room for. Pure.

use crossterm::style::{Color, Stylize as _};

use crate::fleet::Row;

/// Between two columns.
const GAP: usize = 2;

/// A column of the table.
struct Column {
    title: &'static str,
    cell: fn(&Row) -> String,
    /// How narrow it may get before a column is dropped instead.
    narrowest: usize,
}

const COLUMNS: [Column; 8] = [
    Column {
        title: "MACHINE",
        cell: |row| row.machine.clone(),
        narrowest: 12,
    },
    Column {
        title: "INFRAMACHINE",
        cell: |row| row.infra_machine.clone(),
        narrowest: 12,
    },
    Column {
        title: "PROVIDER ID",
        cell: |row| row.provider_id.clone(),
        narrowest: 16,
    },
    Column {
        title: "ADDRESS",
        cell: |row| row.address.clone(),
        narrowest: 10,
    },
    Column {
        title: "NODE",
        cell: |row| row.node.clone(),
        narrowest: 12,
    },
    Column {
        title: PHASE,
        cell: |row| row.phase.clone(),
        narrowest: 7,
    },
    Column {
        title: "CONDITION",
        cell: |row| row.condition.clone(),
        narrowest: 9,
    },
    Column {
        title: "AGE",
        cell: |row| age(row.age),
        narrowest: 3,
    },
];
const PHASE: &str = "PHASE";

/// Which columns get narrower first: those whose text is long and whose end says enough.
const SHRINK: [usize; 8] = [2, 1, 4, 0, 6, 3, 5, 7];
/// Which columns go first: what another column says as well.
const DROP: [usize; 6] = [1, 7, 4, 2, 3, 6];

/// The table, title line first; no line is longer than `width`.
pub fn lines(rows: &[Row], width: usize, colour: bool) -> Vec<String> {
    let cells: Vec<[String; COLUMNS.len()]> = rows
        .iter()
        .map(|row| COLUMNS.each_ref().map(|column| (column.cell)(row)))
        .collect();
    let mut natural = COLUMNS.each_ref().map(|column| column.title.len());
    for row in &cells {
        for (widest, cell) in natural.iter_mut().zip(row) {
            *widest = (*widest).max(cell.chars().count());
        }
    }
    let widths = layout(natural, width);
    let titles = COLUMNS.each_ref().map(|column| column.title.to_owned());
    let title = line(&titles, &widths, width, |_, text| {
        if colour { text.bold().to_string() } else { text }
    });
    let body = cells.iter().map(|row| {
        line(row, &widths, width, |index, text| {
            match phase_colour(&row[index]).filter(|_| colour && COLUMNS[index].title == PHASE) {
                Some(phase) => text.with(phase).to_string(),
                None => text,
            }
        })
    });
    std::iter::once(title).chain(body).collect()
}

/// The width of each column; `None` for dropped columns.
fn layout(natural: [usize; COLUMNS.len()], width: usize) -> [Option<usize>; COLUMNS.len()] {
    let mut widths = natural.map(Some);
    let mut drop = DROP.iter();
    loop {
        let mut tried = widths;
        for index in SHRINK {
            let excess = total(&tried).saturating_sub(width);
            let narrowest = COLUMNS[index].narrowest;
            tried[index] = tried[index].map(|wide| wide.saturating_sub(excess).max(narrowest.min(wide)));
        }
        match drop.next() {
            Some(index) if total(&tried) > width => widths[*index] = None,
            _ => return tried,
        }
    }
}

fn total(widths: &[Option<usize>]) -> usize {
    let shown = widths.iter().flatten();
    (shown.clone().sum::<usize>() + GAP * shown.count()).saturating_sub(GAP)
}

fn line(
    cells: &[String],
    widths: &[Option<usize>],
    mut left: usize,
    style: impl Fn(usize, String) -> String,
) -> String {
    let mut line = String::new();
    for (index, (cell, wide)) in cells.iter().zip(widths).enumerate() {
        let Some(wide) = wide.map(|wide| wide.min(left)) else {
            continue;
        };
        let text = fit(cell, wide);
        let padding = (wide - text.chars().count() + GAP).min(left - text.chars().count());
        left -= text.chars().count() + padding;
        line.push_str(&style(index, text));
        line.extend(std::iter::repeat_n(' ', padding));
    }
    line.truncate(line.trim_end().len());
    line
}

/// The text, without its middle when it is too long: names and ids differ at their ends.
fn fit(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(1);
    let head = kept / 3;
    let mark = if width == 0 { "" } else { "…" };
    let tail = text.chars().skip(length - (kept - head));
    text.chars().take(head).chain(mark.chars()).chain(tail).collect()
}

fn phase_colour(phase: &str) -> Option<Color> {
    match phase {
        "Running" => Some(Color::Green),
        "Provisioned" => Some(Color::Cyan),
        "Provisioning" => Some(Color::Blue),
        "Pending" => Some(Color::Yellow),
        "Deleting" | "Deleted" => Some(Color::Magenta),
        "Failed" => Some(Color::Red),
        _ => None,
    }
}

fn age(seconds: i64) -> String {
    match seconds {
        ..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        _ => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let row = Row {
            machine: "quickstart-x7hm2-8kq4d".to_owned(),
            infra_machine: "quickstart-x7hm2-8kq4d".to_owned(),
            provider_id: "simulated://zone-a/0b0a6b62-52a5-4d0b-9e3c-9a2f0ad6c1fe".to_owned(),
            address: "10.100.0.2".to_owned(),
            node: "quickstart-x7hm2-8kq4d".to_owned(),
            phase: "Provisioning".to_owned(),
            condition: "WaitingForBootstrapData".to_owned(),
            age: 75,
            ..Row::default()
        };
        vec![row, Row::default()]
    }

    #[test]
    fn no_width_breaks_a_line() {
        for width in 0..220 {
            for line in lines(&rows(), width, false) {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
    }

    #[test]
    fn with_room_everything_is_there() {
        let text = lines(&rows(), 220, false).join("\n");
        for part in [
            "0b0a6b62-52a5-4d0b-9e3c-9a2f0ad6c1fe",
            "INFRAMACHINE",
            "1m15s",
            "WaitingForBootstrapData",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.contains('…'), "{text}");
    }

    #[test]
    fn a_narrow_terminal_keeps_the_machine_and_its_phase() {
        let text = lines(&rows(), 30, false).join("\n");
        assert!(text.contains("MACHINE") && text.contains("Prov"), "{text}");
        assert!(!text.contains("ADDRESS"), "{text}");
        assert!(text.contains("kq4d"), "the end of a name says which: {text}");
    }

    #[test]
    fn phases_are_coloured_and_nothing_else_is() {
        let plain = lines(&rows(), 220, false).join("\n");
        assert!(!plain.contains('\u{1b}'), "{plain}");
        let coloured = lines(&rows(), 220, true);
        assert!(
            coloured[1].contains("\u{1b}[38;5;12mProvisioning"),
            "{:?}",
            coloured[1]
        );
    }
}
