//! The cases, by call.

mod cancelled_create;
mod class;
mod concurrency;
mod console;
mod create;
mod credentials;
mod delete;
mod extension;
mod faults;
mod field_types;
mod identity;
mod initialize;
mod list;
mod list_state;
mod machine_tag;
mod migrate;
mod names;
mod published;
mod requests;
mod restart;
mod restart_machine;
mod secrets;
mod shut_down;
mod sizes;
mod static_addresses;
mod status;
mod texts;
mod update;
mod validation;
mod volumes;
mod wire;

use super::case::Case;

/// Every case, in the order of the report.
pub fn all() -> impl Iterator<Item = &'static Case> {
    [
        identity::CASES,
        create::CASES,
        names::CASES,
        delete::CASES,
        status::CASES,
        list::CASES,
        list_state::CASES,
        static_addresses::CASES,
        shut_down::CASES,
        initialize::CASES,
        update::CASES,
        machine_tag::CASES,
        restart_machine::CASES,
        console::CASES,
        class::CASES,
        volumes::CASES,
        migrate::CASES,
        validation::BLANK_NAME,
        validation::TOO_LONG_NAME,
        validation::EMPTY_SPEC,
        validation::NO_CLUSTER,
        validation::MANDATORY_FIELDS,
        validation::MISSING_FIELDS,
        validation::INVALID_SPECS,
        validation::MESSAGES,
        field_types::MACHINE_CALLS,
        field_types::CASES,
        texts::CASES,
        credentials::BAD,
        credentials::RESTRICTED,
        concurrency::CASES,
        concurrency::CANCELLED,
        cancelled_create::CASES,
        secrets::CASES,
        wire::CASES,
        published::CASES,
        extension::CASES,
        sizes::CASES,
        faults::UNAVAILABLE,
        faults::UNKNOWN,
        faults::INTERNAL,
        faults::LOCKED,
        faults::DEADLINE,
        faults::CASES,
        restart::CASES,
    ]
    .into_iter()
    .flatten()
}

/// A table of cases. Each row has the name, the claim that holds when the case passes, the rows of the
/// requirements that it proves, its needs, and the function that runs it.
macro_rules! cases {
    ($($name:literal: $title:tt $proves:expr, $needs:expr => $run:expr;)+) => {
        &[$(
            $crate::Case {
                name: $name,
                title: $title,
                proves: &$proves,
                needs: &$needs,
                run: |test_context| Box::pin(($run)(test_context)),
            }
        ),+]
    };
}
use cases;

/// Cases that run the same test with several calls. The head of the table has the end of their names, the
/// claim that holds when they pass, their needs in addition to the call, and the function that runs them.
/// Each row has the beginning of the name, the call, and the rows of the requirements that the case proves.
macro_rules! family {
    ($end:literal: $title:tt $needs:tt => $run:expr; $($begin:literal $call:ident $proves:expr;)+) => {
        &[$(
            $crate::Case {
                name: concat!($begin, $end),
                title: $title,
                proves: &$proves,
                needs: family!(@needs $call $needs),
                run: |test_context| Box::pin(($run)(test_context, cmi_driver::Operation::$call)),
            }
        ),+]
    };
    // Every driver has these two calls.
    (@needs CreateMachine $needs:tt) => { &$needs };
    (@needs DeleteMachine $needs:tt) => { &$needs };
    (@needs $call:ident [$($need:expr),*]) => {
        &[$crate::Need::Call(cmi_driver::Operation::$call) $(, $need)*]
    };
}
use family;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{Hook, Need, rules};

    /// CMI-59: after another restart, the case would compare the answers after one restart and after two.
    #[test]
    fn what_is_said_is_compared_over_the_first_restart_of_a_run() {
        let restarts = |case: &&Case| case.needs.contains(&Need::Hook(Hook::Restart));
        let first = all().find(restarts).map(|case| case.name);
        assert_eq!(first, Some("restart-changes-nothing-said"));
    }

    #[test]
    fn every_case_has_a_name_of_its_own_and_proves_rows_that_exist() {
        let mut names = BTreeSet::new();
        for case in all() {
            assert!(names.insert(case.name), "{} is there twice", case.name);
            assert!(!case.proves.is_empty(), "{} proves nothing", case.name);
            for id in case.proves {
                let rule = rules::find(id);
                assert!(rule.is_some(), "{} proves {id}, which is no row", case.name);
                let is_tested = rule.is_some_and(|rule| rule.proof.is_by_cases());
                assert!(
                    is_tested,
                    "{} proves {id}, which says that it is not tested",
                    case.name
                );
            }
        }
    }
}
