//! The fault that a case has caused, and whether the driver took notice of it.

use super::TestContext;
use crate::answer::CaseError;
use crate::hooks::Hook;
use cmi_driver::Code;

/// A fault that a case has caused.
#[derive(Clone, Debug)]
pub struct Fault {
    hook: Hook,
    /// Whether it was not undone yet.
    is_on: bool,
    /// A call that answered OK in spite of it.
    unaffected: Option<String>,
    /// What the first call answered that it kept from being done.
    code: Option<Code>,
    /// The hook that undid it.
    undone_by: Option<Hook>,
    /// What was seen of it after that.
    remains: Option<String>,
}

impl TestContext {
    /// Notes a hook that was run.
    pub(super) fn hook_ran(&self, hook: Hook) {
        let mut fault = self.fault.lock();
        match hook {
            Hook::Restore | Hook::Unlock => {
                // What ends a case undoes everything once more.
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

    /// Notes a call that answered OK. After a restart every call has to.
    pub(crate) fn answered_ok(&self, call: &str) {
        let mut fault = self.fault.lock();
        let meant_to_fail = |fault: &&mut Fault| fault.is_on && fault.hook != Hook::Restart;
        if let Some(fault) = fault.as_mut().filter(meant_to_fail) {
            fault.unaffected.get_or_insert_with(|| call.to_owned());
        }
    }

    /// Notes a call that was refused. One that is refused in the same way after the fault was undone shows
    /// that it may not have been.
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

    /// Notes something else that is as it was before a fault was undone.
    pub(crate) fn remains(&self, seen: &str) {
        let mut fault = self.fault.lock();
        if let Some(fault) = fault.as_mut().filter(|fault| fault.undone_by.is_some()) {
            fault.remains.get_or_insert_with(|| seen.to_owned());
        }
    }

    /// What to look at when a case does not pass after a fault that was undone, and is still to be seen.
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

    /// Notes that what a hook did has passed by itself.
    pub(crate) fn is_over(&self, hook: Hook) {
        let mut fault = self.fault.lock();
        if let Some(fault) = fault.as_mut().filter(|fault| fault.hook == hook) {
            fault.is_on = false;
        }
    }

    /// The fault that the driver may have for a reason to be out of reach, or to answer as if it were.
    pub(super) fn disturbance(&self) -> Option<Hook> {
        let fault = self.fault.lock();
        let hook = fault.as_ref().filter(|fault| fault.is_on)?.hook;
        hook.reaches_the_driver().then_some(hook)
    }

    /// What to look at when a case fails after a fault that the driver took no notice of.
    pub fn without_effect(&self) -> Option<String> {
        let fault = self.fault.lock().clone()?;
        let (hook, call) = (fault.hook, fault.unaffected?);
        Some(format!(
            "{call} answered OK after the hook `{hook}`: the driver hides that fault, or {}",
            self.may_have_done_nothing(hook)
        ))
    }

    /// A case that shows nothing, since all is as it was before the hook.
    pub fn changed_nothing(&self, hook: Hook, seen: &str) -> CaseError {
        CaseError::Inconclusive(format!(
            "the hook `{hook}` seems to have done nothing: {seen}; {}",
            self.by_hand(hook)
        ))
    }

    /// Warns of a case that passes and would do so as well if the hook had done nothing.
    pub fn warn_of_no_effect(&self, hook: Hook, seen: &str) {
        self.warn(format!(
            "the hook `{hook}` may have done nothing, and then nothing was shown here: {seen}; {}",
            self.by_hand(hook)
        ));
    }

    /// The doubt that is left where a driver may be blamed for a hook.
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
