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
    markdown(&["Disposition", "Meaning", "Next try", "Remedy"], &rows)
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
            meaning: "The driver or its back end failed this time.",
            wait: "after 5 s, doubling up to 5 min, with jitter; not before the time that the driver \
                requests",
            remedy: "Nothing. If this lasts, check the logs of the driver.",
        },
        Disposition::Initialize => Explanation {
            meaning: "The VM exists but is not initialized: InitializeMachine is called.",
            wait: "immediately; after a failed InitializeMachine as `Retry`",
            remedy: "Nothing. If this lasts, follow the message.",
        },
        Disposition::AwaitCapacity => Explanation {
            meaning: "A quota or pool is exhausted. After CreateMachine and InitializeMachine, creates for \
                the same driver, class and credentials are suspended until one succeeds. Deletions continue.",
            wait: "after 10 min, or when the driver requests; one machine soon after a VM of the same \
                credentials is deleted, an annotation changes or the provider starts; the others when one \
                succeeds",
            remedy: "Raise the quota and change any annotation of one machine, or wait until VMs are \
                deleted.",
        },
        Disposition::NeedsIntervention => Explanation {
            meaning: "An operator must act.",
            wait: "after 10 min, or when spec or annotations change",
            remedy: "Follow the message, then change any annotation to retry immediately.",
        },
        Disposition::AwaitDriver => Explanation {
            meaning: "The driver does not implement a required call.",
            wait: "when the driver reconnects with another identity, the provider restarts, or spec or \
                annotations change",
            remedy: "Use a driver, or a version of it, that implements the call.",
        },
        Disposition::Fallback => Explanation {
            meaning: "The driver does not implement this optional call, or has no answer: the controller \
                continues without it.",
            wait: "not needed",
            remedy: "Nothing.",
        },
        Disposition::Terminal => Explanation {
            meaning: "The request cannot succeed: `failureReason` and `failureMessage` are set.",
            wait: "when the spec changes",
            remedy: "Correct the spec, or create a new template and replace the machine.",
        },
        Disposition::Create => Explanation {
            meaning: "The VM does not exist: it is created.",
            wait: "immediately; after an earlier create, when the driver's consistency window has passed",
            remedy: "Nothing.",
        },
        Disposition::LookUp => Explanation {
            meaning: "The VM was not found where expected: it is looked up again.",
            wait: "after 5 s, doubling up to 5 min, with jitter",
            remedy: "Nothing.",
        },
        Disposition::Vanished => Explanation {
            meaning: "The VM no longer exists: `Ready` turns `False`. The VM is not created again for this \
                Machine.",
            wait: "`Ready` changes when the driver's consistency window has passed",
            remedy: "Delete the Machine, unless a MachineHealthCheck does.",
        },
        Disposition::Replace => Explanation {
            meaning: "The VM cannot be restarted: the owner of the Machine replaces it.",
            wait: "not needed",
            remedy: "Nothing.",
        },
        Disposition::Delete => Explanation {
            meaning: "The guest cannot be shut down: its VM is deleted.",
            wait: "immediately",
            remedy: "Nothing.",
        },
        Disposition::VerifyDeleted => Explanation {
            meaning: "The driver rejects the spec of a deletion. If the look-up answers `NotFound`, nothing \
                is left to delete. Otherwise an operator must act.",
            wait: "as `NeedsIntervention`",
            remedy: "Follow the message, or delete the VM at the back end.",
        },
        Disposition::StillThere => Explanation {
            meaning: "The VM still exists: it is deleted again.",
            wait: "after 5 s, later after a quarter of the duration of the deletion, up to 1 min",
            remedy: "Nothing.",
        },
        Disposition::Gone => Explanation {
            meaning: "The VM does not exist: the deletion is done when the look-up confirms it and the \
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
