//! What each error class means, out of the table that the controller works by.

use super::markdown;
use crate::driver::Code;
use crate::driver::retry::{Call, Next, next};

pub(super) fn table() -> String {
    let rows = Next::ALL.map(|class| [answers(class), class.meaning().to_owned()]);
    markdown(["The driver answers", "What it means, and what happens"], &rows)
}

/// The codes that lead to a class, those of the same calls together.
fn answers(class: Next) -> String {
    let mut groups: Vec<(Vec<Call>, Vec<String>)> = Vec::new();
    for code in Code::ALL {
        let calls: Vec<_> = Call::ALL
            .into_iter()
            .filter(|call| next(*call, code) == class)
            .collect();
        if calls.is_empty() {
            continue;
        }
        let code = format!("`{code}`");
        match groups.iter_mut().find(|(of, _)| *of == calls) {
            Some((_, codes)) => codes.push(code),
            None => groups.push((calls, vec![code])),
        }
    }
    let groups: Vec<_> = groups
        .into_iter()
        .map(|(calls, codes)| codes.join(", ") + &to(&calls))
        .collect();
    groups.join("; ")
}

/// Which calls a group of codes is about, in as few words as can be.
fn to(calls: &[Call]) -> String {
    let others: Vec<_> = Call::ALL
        .into_iter()
        .filter(|call| !calls.contains(call))
        .collect();
    let list = |calls: &[Call]| {
        let names: Vec<_> = calls.iter().map(|call| call.description()).collect();
        names.join(", ")
    };
    if others.is_empty() {
        String::new()
    } else if calls.len() <= others.len() {
        format!(" (to {})", list(calls))
    } else {
        format!(" (not to {})", list(&others))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_and_every_code_is_in_the_table() {
        let table = table();
        for code in Code::ALL {
            assert!(table.contains(&format!("`{code}`")), "{code}: {table}");
        }
        for line in table.lines() {
            assert!(!line.starts_with("|  |"), "a class that no code leads to: {line}");
        }
    }

    /// The reader has to see what the reconciler does, not what it would do without its exceptions.
    #[test]
    fn the_table_tells_the_same_code_of_two_calls_apart() {
        let table = table();
        let row = |class: Next| {
            table
                .lines()
                .find(|line| line.ends_with(&format!("| {} |", class.meaning())))
        };
        for (class, answer) in [
            (
                Next::Terminal,
                "`InvalidArgument` (to GetMachineStatus before the first create, CreateMachine)",
            ),
            (Next::LookWhetherGone, "`InvalidArgument` (to DeleteMachine)"),
            (
                Next::Fallback,
                "`Unimplemented` (to GetMachineStatus before the first create,",
            ),
        ] {
            let row = row(class).unwrap();
            assert!(row.contains(answer), "{row}");
        }
    }
}
