//! A case of the suite.

use std::fmt;

use futures::future::BoxFuture;

use super::answer::CaseResult;
use super::config::Setting;
use super::need::Need;
use super::test_context::TestContext;

/// A case. Its name identifies it, and never changes.
pub struct Case {
    /// The name begins with the call: `create-again`.
    pub name: &'static str,
    /// The claim that holds when the case passes.
    pub title: &'static str,
    /// The rows of the requirements that the case proves.
    pub proves: &'static [&'static str],
    /// The needs of the case: it can't run without them.
    pub needs: &'static [Need],
    /// Makes the calls and checks the answers.
    pub run: fn(TestContext) -> BoxFuture<'static, CaseResult>,
}

impl Case {
    /// Whether the case disturbs other cases, or they disturb it. Nothing else may run at the same time.
    pub fn disturbs(&self) -> bool {
        let mut needs = self.needs.iter();
        needs.any(|need| matches!(need, Need::Hook(hook) if !hook.is_about_one_vm()))
    }

    /// Whether the case checks the driver's logs of the whole run: it runs after all others.
    pub fn looks_back(&self) -> bool {
        self.needs.contains(&Need::Setting(Setting::Logs))
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::cases;

    #[test]
    fn cases_with_hooks_on_one_vm_run_beside_others() {
        let disturbs = |name: &str| {
            let case = cases::all().find(|case| case.name == name);
            case.unwrap_or_else(|| panic!("there is no case {name}"))
                .disturbs()
        };
        for name in [
            "create-ids",
            "delete-locked",
            "delete-vanished-vm",
            "delete-planted-vm",
        ] {
            assert!(!disturbs(name), "{name}");
        }
        for name in ["delete-unavailable", "create-exhausted", "status-changes-nothing"] {
            assert!(disturbs(name), "{name}");
        }
    }
}
