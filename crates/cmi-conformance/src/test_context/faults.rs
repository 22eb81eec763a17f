//! The fault that a case has caused, and whether the driver noticed it.

use super::TestContext;
use crate::answer::CaseError;
use crate::hooks::Hook;
use cmi_driver::Code;

/// A fault that a case has caused.
#[derive(Clone, Debug)]
pub struct Fault {
    hook: Hook,
    /// Whether the fault is still in force.
    is_on: bool,
    /// A call that answered OK in spite of the fault.
    unaffected: Option<String>,
    /// The code of the first call that failed due to the fault.
    code: Option<Code>,
    /// The hook that undid the fault.
    undone_by: Option<Hook>,
    /// A sign of the fault after that hook.
    remains: Option<String>,
}

impl TestContext {
    /// Records a hook that was run.
    pub(super) fn hook_ran(&self, hook: Hook) {
        let mut fault = self.fault.lock();
        match hook {
            Hook::Restore | Hook::Unlock => {
                // The end of a case undoes everything once more, when the fault may be off already.
                if let Some(fault) = fault.as_mut().filter(|fault| fault.is_on) {
                    fault.is_on = false;
                    fault.undone_by = Some(hook);
                }
            }
            Hook::Mutations | Hook::UserData | Hook::VmSpec => {}
            Hook::Unavailable
            | Hook::Unknown
            | Hook::Internal
            | Hook::Slow
            | Hook::LoseResponse
            | Hook::FailInitialize
            | Hook::Unhealthy
            | Hook::Starting
            | Hook::Exhaust
            | Hook::Plant
            | Hook::Lock
            | Hook::Vanish
            | Hook::Restart
            | Hook::Uninitialize => {
                *fault = Some(Fault {
                    hook,
                    is_on: true,
                    unaffected: None,
                    code: None,
                    undone_by: None,
                    remains: None,
                });
            }
        }
    }

    /// Records a call that answered OK. After a restart, every call must.
    pub(crate) fn answered_ok(&self, call: &str) {
        let mut fault = self.fault.lock();
        let meant_to_fail = |fault: &&mut Fault| fault.is_on && fault.hook != Hook::Restart;
        if let Some(fault) = fault.as_mut().filter(meant_to_fail) {
            fault.unaffected.get_or_insert_with(|| call.to_owned());
        }
    }

    /// Records a refused call. If a call is refused in the same way after the fault was undone, the fault may
    /// last.
    pub(crate) fn was_refused(&self, call: &str, code: Code) {
        let mut fault = self.fault.lock();
        let Some(fault) = fault.as_mut() else { return };
        if fault.is_on {
            fault.code.get_or_insert(code);
        } else if fault.code == Some(code) {
            fault
                .remains
                .get_or_insert_with(|| format!("{call} answered {code}"));
        }
    }

    /// Records something else that is, after a fault was undone, still as it was before.
    pub(crate) fn remains(&self, seen: &str) {
        let mut fault = self.fault.lock();
        if let Some(fault) = fault.as_mut().filter(|fault| fault.undone_by.is_some()) {
            fault.remains.get_or_insert_with(|| seen.to_owned());
        }
    }

    /// Returns the advice for a case that does not pass after its fault was undone, when the fault still
    /// shows.
    pub fn still_there(&self) -> Option<String> {
        let fault = self.fault.lock();
        let fault = fault.as_ref()?;
        let (hook, seen) = (fault.undone_by?, fault.remains.as_ref()?);
        Some(format!(
            "{seen} after the hook `{hook}`, as it did before: the driver does not recover from `{}`, or {}",
            fault.hook,
            self.may_have_done_nothing(hook)
        ))
    }

    /// Records that the effect of a hook has ended without `restore`.
    pub(crate) fn is_over(&self, hook: Hook) {
        let mut fault = self.fault.lock();
        if let Some(fault) = fault.as_mut().filter(|fault| fault.hook == hook) {
            fault.is_on = false;
        }
    }

    /// Returns the hook of the fault that may be the reason why the driver is out of reach, or answers as if
    /// it were.
    pub(super) fn disturbance(&self) -> Option<Hook> {
        let fault = self.fault.lock();
        let hook = fault.as_ref().filter(|fault| fault.is_on)?.hook;
        hook.reaches_the_driver().then_some(hook)
    }

    /// Returns the advice for a case that fails after a fault that the driver did not notice.
    pub fn without_effect(&self) -> Option<String> {
        let fault = self.fault.lock().clone()?;
        let (hook, call) = (fault.hook, fault.unaffected?);
        Some(format!(
            "{call} answered OK after the hook `{hook}`: the driver hides that fault, or {}",
            self.may_have_done_nothing(hook)
        ))
    }

    /// Returns the error of a case that shows nothing, since all is as it was before the hook.
    pub fn changed_nothing(&self, hook: Hook, seen: &str) -> CaseError {
        CaseError::Inconclusive(format!(
            "the hook `{hook}` seems to have done nothing: {seen}; {}",
            self.by_hand(hook)
        ))
    }

    /// Warns that a case would pass as well if the hook had done nothing.
    pub fn warn_of_no_effect(&self, hook: Hook, seen: &str) {
        self.warn(format!(
            "the hook `{hook}` may have done nothing, and then nothing was shown here: {seen}; {}",
            self.by_hand(hook)
        ));
    }

    /// Returns the doubt that is left where a driver may be blamed for the fault of a hook.
    pub fn may_have_done_nothing(&self, hook: Hook) -> String {
        format!("the hook `{hook}` may have done nothing: {}", self.by_hand(hook))
    }

    fn by_hand(&self, hook: Hook) -> String {
        let place = match hook {
            Hook::Restart => "the driver's process",
            _ => "the back end",
        };
        match self.config().hooks.get(&hook) {
            Some(command) => format!("run `{}` by hand, and look at {place}", command.join(" ")),
            None => format!("look at {place} after it"),
        }
    }
}
