//! What each machine code means, out of the table that the controller works by.

use crate::markdown;
use capcmi::retry::{Disposition, Stage, disposition};
use cmi_driver::Code;

/// The calls until a VM is up. With the groups below, every call is in one table, and no
/// table is too wide to be read.
pub(crate) const WAY_UP: &[Stage] = &[
    Stage::LookUp,
    Stage::Create,
    Stage::LookUpAgain,
    Stage::Initialize,
    Stage::FinishInitialization,
];
/// What stands for a look-up, where a driver lists and can't look up.
pub(crate) const LISTS: &[Stage] = &[Stage::List, Stage::ListAgain, Stage::ListAfterDelete];
/// The calls about a VM that is up.
pub(crate) const UP: &[Stage] = &[Stage::Refresh, Stage::Update];
/// The calls of a deletion.
pub(crate) const WAY_DOWN: &[Stage] = &[Stage::ShutDown, Stage::Delete, Stage::ConfirmGone];
/// The calls that need no machine.
pub(crate) const WITHOUT_VM: &[Stage] = &[Stage::ListZones, Stage::DescribeClass];

/// What each class means.
pub(crate) fn classes() -> String {
    let rows = Disposition::ALL.map(|class| {
        let explained = class.explanation();
        [
            format!("`{}`", class.name()),
            explained.meaning.to_owned(),
            explained.wait.to_owned(),
            explained.remedy.to_owned(),
        ]
    });
    markdown(
        &["Class", "What it means", "When it is tried again", "What to do"],
        &rows,
    )
}

/// The class that each code has as an answer to each of these calls.
pub(crate) fn matrix(calls: &[Stage]) -> String {
    let titles = calls.iter().map(|call| call.description().to_owned());
    let rows = Code::ALL.map(|code| -> Vec<_> {
        let classes = calls
            .iter()
            .map(|call| format!("`{}`", disposition(*call, code).name()));
        std::iter::once(format!("`{code}`")).chain(classes).collect()
    });
    let titles: Vec<_> = std::iter::once("Code".to_owned()).chain(titles).collect();
    markdown(&titles, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_says_what_is_to_be_done() {
        for line in classes().lines().skip(2) {
            assert!(!line.contains("|  |"), "{line}");
        }
    }

    #[test]
    fn every_code_of_every_call_can_be_looked_up_once() {
        let tables = [WAY_UP, LISTS, UP, WAY_DOWN, WITHOUT_VM].map(matrix);
        for call in Stage::ALL {
            let found = tables
                .iter()
                .filter_map(|table| table.lines().next())
                .filter(|titles| titles.contains(&format!("| {} |", call.description())))
                .count();
            assert_eq!(found, 1, "{call:?}");
        }
        for (code, table) in Code::ALL
            .iter()
            .flat_map(|code| tables.iter().map(move |table| (code, table)))
        {
            assert_eq!(
                table.matches(&format!("| `{code}` |")).count(),
                1,
                "{code}: {table}"
            );
        }
    }

    /// The reader has to see what the reconciler does, not what it would do without its exceptions.
    #[test]
    fn the_matrix_tells_the_same_code_of_two_calls_apart() {
        let row = |calls, code: Code| {
            let table = matrix(calls);
            let start = format!("| `{code}` |");
            let row = table.lines().find(|line| line.starts_with(&start)).unwrap();
            row.to_owned()
        };
        assert_eq!(
            row(WAY_UP, Code::Unimplemented),
            "| `Unimplemented` | `Fallback` | `AwaitDriver` | `AwaitDriver` | `Fallback` | `AwaitDriver` |"
        );
        assert_eq!(
            row(WAY_DOWN, Code::InvalidArgument),
            "| `InvalidArgument` | `Delete` | `VerifyDeleted` | `NeedsIntervention` |"
        );
    }
}
