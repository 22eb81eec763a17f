//! The fault that a case has caused, and whether the driver took notice of it.

use std::sync::PoisonError;

use super::TestContext;
use crate::answer::CaseError;
use crate::hooks::Hook;

/// A fault that a case has caused.
#[derive(Clone, Debug)]
pub struct Fault {
    hook: Hook,
    /// Whether it was not undone yet.
    is_on: bool,
    /// A call that answered OK in spite of it.
    unaffected: Option<String>,
}

impl TestContext {
    /// Notes a hook that was run.
    pub(super) fn hook_ran(&self, hook: Hook) {
        let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        match hook {
            Hook::Restore | Hook::Unlock => {
                if let Some(fault) = &mut *fault {
                    fault.is_on = false;
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
                });
            }
        }
    }

    /// Notes a call that answered OK. After a restart every call has to.
    pub(crate) fn answered_ok(&self, call: &str) {
        let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        let meant_to_fail = |fault: &&mut Fault| fault.is_on && fault.hook != Hook::Restart;
        if let Some(fault) = fault.as_mut().filter(meant_to_fail) {
            fault.unaffected.get_or_insert_with(|| call.to_owned());
        }
    }

    /// Notes that what a hook did has passed by itself.
    pub(crate) fn is_over(&self, hook: Hook) {
        let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fault) = fault.as_mut().filter(|fault| fault.hook == hook) {
            fault.is_on = false;
        }
    }

    /// The fault that the driver may have for a reason to be out of reach, or to answer as if it were.
    pub(super) fn disturbance(&self) -> Option<Hook> {
        let fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        let hook = fault.as_ref().filter(|fault| fault.is_on)?.hook;
        hook.reaches_the_driver().then_some(hook)
    }

    /// What to look at when a case fails after a fault that the driver took no notice of.
    pub fn without_effect(&self) -> Option<String> {
        let fault = self
            .fault
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()?;
        let (hook, call) = (fault.hook, fault.unaffected?);
        Some(format!(
            "{call} answered OK after the hook `{hook}`: the driver hides that fault, or the hook may have \
                done nothing: {}",
            self.by_hand(hook)
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
