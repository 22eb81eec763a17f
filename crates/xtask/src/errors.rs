//! The meaning of each machine code, from the controller's own table.

use std::collections::BTreeMap;

use crate::markdown;
use capcmi::api::retry::{Call, Disposition, disposition};
use cmi_driver::Code;

/// The codes whose disposition depends on the call. Each has a column in the table of the calls.
const BY_CALL: [Code; 3] = [Code::NotFound, Code::Unimplemented, Code::Uninitialized];

/// Returns the table of the dispositions and their meaning.
pub(crate) fn dispositions() -> String {
    let rows = Disposition::ALL.map(|disposition| {
        let explained = explanation(disposition);
        let wait = explained.wait.unwrap_or("none");
        [
            format!("`{disposition:?}`"),
            explained.meaning.to_owned(),
            wait.to_owned(),
        ]
    });
    markdown(&["Disposition", "Meaning and remedy", "Next attempt"], &rows)
}

/// Returns the disposition that most calls have for each code outside [`BY_CALL`]. Codes with the same one
/// share a row.
pub(crate) fn usual() -> String {
    let mut rows: Vec<[String; 2]> = Vec::new();
    for code in common_codes() {
        let disposition = format!("`{:?}`", usual_disposition(code));
        match rows.iter_mut().find(|known| known[1] == disposition) {
            Some(known) => known[0].extend([", `", code.name(), "`"]),
            None => rows.push([format!("`{code}`"), disposition]),
        }
    }
    markdown(&["Code", "Disposition"], &rows)
}

/// Returns a row for each call, with the dispositions of the codes in [`BY_CALL`] and the unusual ones.
pub(crate) fn calls() -> String {
    let rows = IN_ORDER.map(|call| {
        let mut row = vec![description(call)];
        row.extend(BY_CALL.map(|code| format!("`{:?}`", disposition(call, code))));
        row.push(exceptions(call));
        row
    });
    let titles = BY_CALL.map(|code| format!("`{code}`"));
    let titles: Vec<_> = std::iter::once("Call".to_owned())
        .chain(titles)
        .chain(["Exceptions".to_owned()])
        .collect();
    markdown(&titles, &rows)
}

/// The calls, in the order of a machine's life. Calls without a machine are last.
const IN_ORDER: [Call; Call::ALL.len()] = [
    Call::LookUp,
    Call::List,
    Call::Create,
    Call::LookUpAgain,
    Call::ListAgain,
    Call::Initialize,
    Call::FinishInitialization,
    Call::Refresh,
    Call::Update,
    Call::Restart,
    Call::ShutDown,
    Call::Delete,
    Call::ConfirmGone,
    Call::ListAfterDelete,
    Call::ListZones,
    Call::DescribeClass,
    Call::VolumeIds,
];

fn common_codes() -> impl Iterator<Item = Code> {
    Code::ALL.into_iter().filter(|code| !BY_CALL.contains(code))
}

/// Returns the most frequent disposition of a code.
fn usual_disposition(code: Code) -> Disposition {
    let mut counts = BTreeMap::new();
    for call in Call::ALL {
        *counts.entry(disposition(call, code)).or_insert(0) += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    most.map_or_else(|| disposition(Call::ALL[0], code), |(disposition, _)| disposition)
}

/// Returns the codes of a call whose disposition is not the usual one, with that disposition.
fn exceptions(call: Call) -> String {
    let mut codes: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for code in common_codes() {
        let of_call = disposition(call, code);
        if of_call != usual_disposition(code) {
            codes.entry(of_call).or_default().push(format!("`{code}`"));
        }
    }
    let exceptions: Vec<_> = codes
        .into_iter()
        .map(|(disposition, codes)| format!("`{disposition:?}` for {}", codes.join(", ")))
        .collect();
    exceptions.join("; ")
}

/// The facts about a disposition that an operator needs.
struct Explanation {
    /// The meaning of the disposition, and the action of the operator if one is needed.
    meaning: &'static str,
    /// The time of the next try.
    wait: Option<&'static str>,
}

const fn explanation(disposition: Disposition) -> Explanation {
    match disposition {
        Disposition::Retry => Explanation {
            meaning: "The failure is temporary. If it persists, check the driver.",
            wait: Some("after 5 s, doubling up to 5 min with jitter; not before the driver's retry delay"),
        },
        Disposition::Initialize => Explanation {
            meaning: "The VM is not initialized; InitializeMachine follows. If it persists, follow the \
                message.",
            wait: Some("immediately; as `Retry` after a failed InitializeMachine"),
        },
        Disposition::AwaitCapacity => Explanation {
            meaning: "A quota or pool is exhausted. After CreateMachine, the class \
                [waits for capacity](../how-to/replacing-and-scaling.md#wait-for-capacity-or-free-it): raise \
                the quota and change any annotation of one machine, or wait for a delete.",
            wait: Some("after 10 min, or the driver's retry delay, or when there may be capacity"),
        },
        Disposition::NeedsIntervention => Explanation {
            meaning: "Follow the message, then change any annotation to retry immediately.",
            wait: Some("after 10 min, or when spec or annotations change"),
        },
        Disposition::AwaitDriver => Explanation {
            meaning: "The driver does not offer a required call. Use a driver or version that does.",
            wait: Some(
                "when the driver reconnects as another version, the provider restarts, or spec or \
                    annotations change",
            ),
        },
        Disposition::Fallback => Explanation {
            meaning: "The driver does not offer the call or has no answer. The provider continues without \
                it.",
            wait: None,
        },
        Disposition::Terminal => Explanation {
            meaning: "The request cannot succeed; `failureReason` and `failureMessage` are set. Correct the \
                cause and change the spec or an annotation, or replace the machine from a new template.",
            wait: Some("once for each change of the spec or an annotation"),
        },
        Disposition::Create => Explanation {
            meaning: "The VM does not exist and is created.",
            wait: Some(
                "immediately; after an earlier create when the driver's consistency window has passed",
            ),
        },
        Disposition::LookUp => Explanation {
            meaning: "The VM is not where it was; it is looked up again.",
            wait: Some("as `Retry`"),
        },
        Disposition::Vanished => Explanation {
            meaning: "The VM is gone, and is not created again for this Machine. `Ready` becomes `False` \
                when the driver's consistency window has passed. Delete the Machine, unless a \
                MachineHealthCheck does.",
            wait: None,
        },
        Disposition::Replace => Explanation {
            meaning: "The VM cannot be restarted. The owner of the Machine replaces it.",
            wait: None,
        },
        Disposition::Delete => Explanation {
            meaning: "The guest cannot be shut down. Its VM is deleted.",
            wait: Some("immediately"),
        },
        Disposition::VerifyDeleted => Explanation {
            meaning: "The driver rejects the spec of a delete, which is complete if the look-up returns \
                `NotFound`. Otherwise follow the message, or delete the VM at the back end.",
            wait: Some("as `NeedsIntervention`"),
        },
        Disposition::StillThere => Explanation {
            meaning: "The VM still exists and is deleted again.",
            wait: Some("after 5 s, later after a quarter of the time since the delete began, up to 1 min"),
        },
        Disposition::Gone => Explanation {
            meaning: "The VM does not exist. The delete is complete when the look-up confirms it and the \
                driver's consistency window has passed.",
            wait: None,
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

    fn cells(line: &str) -> Vec<String> {
        let line = line.trim_start_matches("| ").trim_end_matches('|');
        line.split(" | ").map(|cell| cell.trim().to_owned()).collect()
    }

    /// Looks a code of a call up as a reader does: in its column, the exceptions, and the usual dispositions.
    fn looked_up(call: Call, code: Code) -> String {
        let code = format!("`{code}`");
        let calls = calls();
        let titles = cells(calls.lines().next().unwrap());
        let rows = calls.lines().skip(2).map(cells);
        let rows: Vec<_> = rows.filter(|row| row[0] == description(call)).collect();
        let [row] = rows.as_slice() else {
            panic!("{call:?} has {} rows", rows.len());
        };
        if let Some(column) = titles.iter().position(|title| *title == code) {
            return row[column].clone();
        }
        let exception = row.last().unwrap().split("; ").find_map(|exception| {
            let (disposition, codes) = exception.split_once(" for ")?;
            codes
                .split(", ")
                .any(|known| known == code)
                .then(|| disposition.to_owned())
        });
        exception.unwrap_or_else(|| {
            let usual = usual();
            let rows: Vec<_> = usual.lines().skip(2).map(cells).collect();
            let row = rows
                .iter()
                .find(|row| row[0].split(", ").any(|known| known == code));
            row.unwrap()[1].clone()
        })
    }

    #[test]
    fn every_code_of_every_call_can_be_looked_up() {
        for call in Call::ALL {
            for code in Code::ALL {
                let expected = format!("`{:?}`", disposition(call, code));
                assert_eq!(looked_up(call, code), expected, "{call:?} {code}");
            }
        }
    }

    /// The table includes the exceptions of the reconciler.
    #[test]
    fn the_table_tells_the_same_code_of_two_calls_apart() {
        let calls = calls();
        for row in [
            "| DeleteMachine | `Gone` | `AwaitDriver` | `Retry` | `VerifyDeleted` for `InvalidArgument` |",
            "| UpdateMachine | `LookUp` | `AwaitDriver` | `Retry` |  |",
        ] {
            assert!(calls.contains(row), "{row}: {calls}");
        }
    }
}
