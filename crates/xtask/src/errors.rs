//! The meaning of each machine code, from the controller's own table.

use crate::markdown;
use capcmi::api::retry::{Call, Disposition, disposition};
use cmi_driver::Code;

/// The calls until a VM is up. Each call is in one of these groups, and each group has its table.
pub(crate) const WAY_UP: &[Call] = &[
    Call::LookUp,
    Call::Create,
    Call::LookUpAgain,
    Call::Initialize,
    Call::FinishInitialization,
];
/// The calls that replace a look-up for a driver that can only list.
pub(crate) const LISTS: &[Call] = &[Call::List, Call::ListAgain, Call::ListAfterDelete];
/// The calls about a VM that is up.
pub(crate) const UP: &[Call] = &[Call::Refresh, Call::Update, Call::Restart];
/// The calls of a deletion.
pub(crate) const WAY_DOWN: &[Call] = &[Call::ShutDown, Call::Delete, Call::ConfirmGone];
/// The calls that need no machine.
pub(crate) const WITHOUT_VM: &[Call] = &[Call::ListZones, Call::DescribeClass, Call::VolumeIds];

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
    markdown(&["Disposition", "Meaning", "Next attempt", "What to do"], &rows)
}

/// Returns the disposition of each code as an answer to each of these calls. Codes with the same dispositions
/// share a row.
pub(crate) fn matrix(calls: &[Call]) -> String {
    let titles = calls.iter().map(|call| description(*call));
    let mut rows: Vec<Vec<String>> = Vec::new();
    for code in Code::ALL {
        let name = format!("`{code}`");
        let dispositions = calls
            .iter()
            .map(|call| format!("`{:?}`", disposition(*call, code)));
        let row: Vec<_> = std::iter::once(name.clone()).chain(dispositions).collect();
        match rows.iter_mut().find(|known| known[1..] == row[1..]) {
            Some(known) => known[0].extend([", ", name.as_str()]),
            None => rows.push(row),
        }
    }
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

const fn explanation(disposition: Disposition) -> Explanation {
    match disposition {
        Disposition::Retry => Explanation {
            meaning: "The driver or its back end failed temporarily.",
            wait: "after 5 s, doubling up to 5 min with jitter; not before the driver's retry delay",
            remedy: "Nothing. If it persists, check the driver.",
        },
        Disposition::Initialize => Explanation {
            meaning: "The VM exists but is not initialized. The provider calls InitializeMachine.",
            wait: "immediately; after a failed InitializeMachine as `Retry`",
            remedy: "Nothing. If it persists, follow the message.",
        },
        Disposition::AwaitCapacity => Explanation {
            meaning: "A quota or pool is exhausted. After CreateMachine and InitializeMachine, the provider \
                suspends other creates with the same driver, class and credentials. Deletes continue.",
            wait: "after 10 min, or the driver's retry delay; one machine soon after a VM with the same \
                credentials is deleted, an annotation changes or the provider starts; the others after a \
                success",
            remedy: "Raise the quota and change any annotation of one machine, or wait for a delete.",
        },
        Disposition::NeedsIntervention => Explanation {
            meaning: "An operator must act.",
            wait: "after 10 min, or when spec or annotations change",
            remedy: "Follow the message, then change any annotation to retry immediately.",
        },
        Disposition::AwaitDriver => Explanation {
            meaning: "The driver does not offer a required call.",
            wait: "when the driver reconnects as another version, the provider restarts, or spec or \
                annotations change",
            remedy: "Use a driver or version that offers the call.",
        },
        Disposition::Fallback => Explanation {
            meaning: "The driver does not offer this optional call or has no answer. The provider continues \
                without it.",
            wait: "not needed",
            remedy: "Nothing.",
        },
        Disposition::Terminal => Explanation {
            meaning: "The request cannot succeed. The provider sets `failureReason` and `failureMessage`.",
            wait: "once for each change of the spec or an annotation",
            remedy: "Correct the spec, or replace the machine from a new template.",
        },
        Disposition::Create => Explanation {
            meaning: "The VM does not exist. The provider creates it.",
            wait: "immediately; after an earlier create when the driver's consistency window has passed",
            remedy: "Nothing.",
        },
        Disposition::LookUp => Explanation {
            meaning: "The VM is not where the provider expected it. The provider looks it up again.",
            wait: "after 5 s, doubling up to 5 min with jitter",
            remedy: "Nothing.",
        },
        Disposition::Vanished => Explanation {
            meaning: "The VM is gone. `Ready` becomes `False`. The provider does not recreate the VM for \
                this Machine.",
            wait: "not needed; `Ready` changes when the driver's consistency window has passed",
            remedy: "Delete the Machine, unless a MachineHealthCheck does.",
        },
        Disposition::Replace => Explanation {
            meaning: "The VM cannot be restarted. The owner of the Machine replaces it.",
            wait: "not needed",
            remedy: "Nothing.",
        },
        Disposition::Delete => Explanation {
            meaning: "The guest cannot be shut down. The provider deletes its VM.",
            wait: "immediately",
            remedy: "Nothing.",
        },
        Disposition::VerifyDeleted => Explanation {
            meaning: "The driver rejects the spec of a delete. If the look-up returns `NotFound`, the delete \
                is complete. Otherwise an operator must act.",
            wait: "as `NeedsIntervention`",
            remedy: "Follow the message, or delete the VM at the back end.",
        },
        Disposition::StillThere => Explanation {
            meaning: "The VM still exists. The provider deletes it again.",
            wait: "after 5 s, later after a quarter of the time since the delete began, up to 1 min",
            remedy: "Nothing.",
        },
        Disposition::Gone => Explanation {
            meaning: "The VM does not exist. The delete is complete when the look-up confirms it and the \
                driver's consistency window has passed.",
            wait: "not needed",
            remedy: "Nothing.",
        },
    }
}

/// Describes a call.
fn description(call: Call) -> String {
    let operation = call.operation();
    match call {
        Call::LookUp | Call::List => format!("{operation} before the first create"),
        Call::LookUpAgain | Call::ListAgain => format!("{operation} after a create"),
        Call::FinishInitialization => format!("{operation} of a VM that is `Uninitialized`"),
        Call::Refresh => format!("{operation} of a provisioned VM"),
        Call::ConfirmGone | Call::ListAfterDelete => format!("{operation} after a delete"),
        _ => operation.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dispositions_have_no_empty_cell() {
        for line in dispositions().lines().skip(2) {
            assert!(!line.contains("|  |"), "{line}");
        }
    }

    #[test]
    fn every_code_of_every_call_can_be_looked_up_once() {
        let tables = [WAY_UP, LISTS, UP, WAY_DOWN, WITHOUT_VM].map(matrix);
        for call in Call::ALL {
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
            let cells = table.lines().skip(2).filter_map(|line| line.split(" | ").next());
            let found = cells.filter(|cell| cell.contains(&format!("`{code}`"))).count();
            assert_eq!(found, 1, "{code}: {table}");
        }
    }

    /// The matrix includes the exceptions of the reconciler.
    #[test]
    fn the_matrix_tells_the_same_code_of_two_calls_apart() {
        let row = |calls, code: Code| {
            let table = matrix(calls);
            let has_code = |line: &&str| line.split(" | ").next().unwrap().contains(&format!("`{code}`"));
            table.lines().skip(2).find(has_code).unwrap().to_owned()
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
