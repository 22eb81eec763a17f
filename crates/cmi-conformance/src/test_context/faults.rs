//! The fault that a case has caused, and whether the driver took notice of it.

use std::sync::PoisonError;

use super::TestContext;
use crate::hooks::Hook;

/// A fault that a case has caused.
#[derive(Clone, Debug)]
pub struct Fault {
    hook: Hook,
    /// Whether it was not undone yet.
    is_on: bool,
    /// A call that answered OK in spite of it.
    unimpressed: Option<String>,
}

impl TestContext {
    /// Notes a hook that was pulled.
    pub(super) fn pulled(&self, hook: Hook) {
        let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        match hook {
            Hook::Restore | Hook::Unlock => {
                if let Some(fault) = &mut *fault {
                    fault.is_on = false;
                }
            }
            Hook::Mutations | Hook::UserData => {}
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
                    unimpressed: None,
                });
            }
        }
    }

    /// Notes a call that answered OK. After a restart every call has to.
    pub(crate) fn answered_ok(&self, call: &str) {
        let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        let meant_to_fail = |fault: &&mut Fault| fault.is_on && fault.hook != Hook::Restart;
        if let Some(fault) = fault.as_mut().filter(meant_to_fail) {
            fault.unimpressed.get_or_insert_with(|| call.to_owned());
        }
    }

    /// Whether the driver may have a reason of its own to be out of reach.
    pub(super) fn is_disturbed(&self) -> bool {
        let fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        fault.as_ref().is_some_and(|fault| fault.is_on)
    }

    /// What to look at when a case fails after a fault that the driver took no notice of.
    pub fn unimpressed(&self) -> Option<String> {
        let fault = self
            .fault
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()?;
        let (hook, call) = (fault.hook, fault.unimpressed?);
        let by_hand = match self.config().hooks.get(&hook) {
            Some(command) => format!("run `{}` by hand, and look at the back end", command.join(" ")),
            None => "look at the back end after it".to_owned(),
        };
        Some(format!(
            "{call} answered OK after the hook `{hook}`: the driver hides that fault, or the hook may have done \
             nothing: {by_hand}"
        ))
    }
}
