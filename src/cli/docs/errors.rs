//! What each error class means, out of the table that the controller works by.

use super::markdown;
use crate::driver::retry::{Next, next};
use crate::driver::{Code, Operation};

/// The calls about one machine, under the names that the specifications give them.
const CALLS: [Operation; 6] = [
    Operation::CreateMachine,
    Operation::InitializeMachine,
    Operation::GetMachineStatus,
    Operation::UpdateMachine,
    Operation::ShutDownMachine,
    Operation::DeleteMachine,
];

pub(super) fn table() -> String {
    let rows = Next::ALL.map(|class| {
        let codes: Vec<_> = Code::ALL
            .into_iter()
            .filter_map(|code| answered_by(class, code))
            .collect();
        [codes.join(", "), class.meaning().to_owned()]
    });
    markdown(["The driver answers", "What it means, and what happens"], &rows)
}

/// The code, and for which calls it is in the class if not for all; `None` when for none.
fn answered_by(class: Next, code: Code) -> Option<String> {
    let (inside, outside): (Vec<_>, Vec<_>) = CALLS
        .into_iter()
        .partition(|operation| next(*operation, code) == class);
    let list = |calls: &[Operation]| {
        let names: Vec<_> = calls.iter().map(|operation| operation.name()).collect();
        names.join(", ")
    };
    let code = format!("`{code}`");
    match (inside.is_empty(), outside.len()) {
        (true, _) => None,
        (false, 0) => Some(code),
        (false, _) if inside.len() <= outside.len() => Some(format!("{code} (to {})", list(&inside))),
        (false, _) => Some(format!("{code} (not to {})", list(&outside))),
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
}
