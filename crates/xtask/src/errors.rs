//! The meaning of each machine code, from the table that the controller works by.

use crate::markdown;
use capcmi::retry::{Disposition, Stage, disposition};
use cmi_driver::Code;

/// The calls until a VM is up. Together with the groups below, every call is in one table, and no table is
/// too wide to be read.
pub(crate) const WAY_UP: &[Stage] = &[
    Stage::LookUp,
    Stage::Create,
    Stage::LookUpAgain,
    Stage::Initialize,
    Stage::FinishInitialization,
];
/// The calls in place of a look-up, where a driver lists and can't look up.
pub(crate) const LISTS: &[Stage] = &[Stage::List, Stage::ListAgain, Stage::ListAfterDelete];
/// The calls about a VM that is up.
pub(crate) const UP: &[Stage] = &[Stage::Refresh, Stage::Update, Stage::Restart];
/// The calls of a deletion.
pub(crate) const WAY_DOWN: &[Stage] = &[Stage::ShutDown, Stage::Delete, Stage::ConfirmGone];
/// The calls that need no machine.
pub(crate) const WITHOUT_VM: &[Stage] = &[Stage::ListZones, Stage::DescribeClass, Stage::VolumeIds];

/// Returns the table of the dispositions and their meaning.
pub(crate) fn dispositions() -> String {
    let rows = Disposition::ALL.map(|disposition| {
        let explained = explanation(disposition);
        [
            format!("`{disposition:?}`"),
            explained.meaning.to_owned(),
            explained.wait.to_owned(),
            explained.remedy.to_owned(),
        ]
    });
    markdown(
        &[
            "Disposition",
            "What it means",
            "When it is tried again",
            "What to do",
        ],
        &rows,
    )
}

/// Returns the disposition of each code as an answer to each of these calls.
pub(crate) fn matrix(calls: &[Stage]) -> String {
    let titles = calls.iter().map(|call| description(*call));
    let rows = Code::ALL.map(|code| -> Vec<_> {
        let dispositions = calls
            .iter()
            .map(|call| format!("`{:?}`", disposition(*call, code)));
        std::iter::once(format!("`{code}`")).chain(dispositions).collect()
    });
    let titles: Vec<_> = std::iter::once("Code".to_owned()).chain(titles).collect();
    markdown(&titles, &rows)
}

/// The facts about a disposition that an operator needs, in half sentences and sentences.
struct Explanation {
    /// The meaning of the disposition, and the consequence.
    meaning: &'static str,
    /// The time of the next try.
    wait: &'static str,
    /// The action of the operator.
    remedy: &'static str,
}

/// Returns what an operator has to know of a disposition.
const fn explanation(disposition: Disposition) -> Explanation {
    match disposition {
        Disposition::Retry => Explanation {
            meaning: "The driver or its back end could not do it this time.",
            wait: "after 5 s, doubling up to 5 min, with jitter; not before the time that the driver asks \
                for",
            remedy: "Nothing. If it goes on, look at the driver.",
        },
        Disposition::Initialize => Explanation {
            meaning: "The VM exists but is not initialized: InitializeMachine is called.",
            wait: "at once; after a failed InitializeMachine as `Retry`",
            remedy: "Nothing. If it goes on, do what the message says.",
        },
        Disposition::AwaitCapacity => Explanation {
            meaning: "A quota or pool is used up. After CreateMachine and InitializeMachine no other machine \
                of the same driver, class and credentials is created until one of them has found room; \
                deletions go on.",
            wait: "after 10 min, or as long as the driver asks; one machine soon when a VM of the same \
                credentials is gone, an annotation changes or the provider starts; the others when one \
                succeeds",
            remedy: "Raise the quota and set any annotation on one machine, or wait until something is \
                deleted.",
        },
        Disposition::NeedsIntervention => Explanation {
            meaning: "An operator has to act.",
            wait: "after 10 min, or when spec or annotations change",
            remedy: "Do what the message says, then set any annotation to have it tried at once.",
        },
        Disposition::AwaitDriver => Explanation {
            meaning: "The driver does not offer a call that is needed here.",
            wait: "when the driver has reconnected as another one, the provider starts again, or spec or \
                annotations change",
            remedy: "Use a driver, or a version of it, that offers the call.",
        },
        Disposition::Fallback => Explanation {
            meaning: "The driver does not offer this optional call, or has no answer to give: the controller \
                goes on without it.",
            wait: "not needed",
            remedy: "Nothing.",
        },
        Disposition::Terminal => Explanation {
            meaning: "The request can't succeed as it is: `failureReason` and `failureMessage` are set.",
            wait: "when the spec changes",
            remedy: "Correct the spec, or make a new template and replace the machine.",
        },
        Disposition::Create => Explanation {
            meaning: "There is no such VM: it is created.",
            wait: "at once; after an earlier create once the driver's consistency window has passed",
            remedy: "Nothing.",
        },
        Disposition::LookUp => Explanation {
            meaning: "The VM is not where it was thought to be: it is looked up again.",
            wait: "after 5 s, doubling up to 5 min, with jitter",
            remedy: "Nothing.",
        },
        Disposition::Vanished => Explanation {
            meaning: "The VM is gone: `Ready` turns `False`. The VM is not recreated for this Machine.",
            wait: "`Ready` changes once the driver's consistency window has passed",
            remedy: "Delete the Machine, unless a MachineHealthCheck does.",
        },
        Disposition::Replace => Explanation {
            meaning: "The VM can't be restarted: the Machine is left to its owner, which replaces it.",
            wait: "not needed",
            remedy: "Nothing.",
        },
        Disposition::Delete => Explanation {
            meaning: "The guest can't be asked to stop: its VM is deleted.",
            wait: "at once",
            remedy: "Nothing.",
        },
        Disposition::VerifyDeleted => Explanation {
            meaning: "The driver refuses the spec of a deletion. Where its look-up says `NotFound`, nothing \
                is left to be deleted; otherwise an operator has to act.",
            wait: "as `NeedsIntervention`",
            remedy: "Do what the message says, or delete the VM at the back end.",
        },
        Disposition::StillThere => Explanation {
            meaning: "The VM is still there: it is deleted again.",
            wait: "after 5 s, later after a quarter of the time that the deletion has taken, up to 1 min",
            remedy: "Nothing.",
        },
        Disposition::Gone => Explanation {
            meaning: "There is no such VM: the deletion is done once the look-up confirms it and the \
                driver's consistency window has passed.",
            wait: "not needed",
            remedy: "Nothing.",
        },
    }
}

/// Returns the call of a stage, in words that tell it from the same call of another stage.
fn description(stage: Stage) -> String {
    let call = stage.operation();
    match stage {
        Stage::LookUp | Stage::List => format!("{call} before the first create"),
        Stage::LookUpAgain | Stage::ListAgain => format!("{call} after a create"),
        Stage::FinishInitialization => format!("{call} of a VM that is `Uninitialized`"),
        Stage::Refresh => format!("{call} of a provisioned VM"),
        Stage::ConfirmGone | Stage::ListAfterDelete => format!("{call} after a delete"),
        _ => call.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_disposition_says_what_is_to_be_done() {
        for line in dispositions().lines().skip(2) {
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
                .filter(|titles| titles.contains(&format!("| {} |", description(call))))
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
