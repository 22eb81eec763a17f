//! Hooks: changes to the back end that do not come from the driver, so that a case can cause faults.

use std::collections::BTreeMap;
use std::fmt;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

/// How long a command may take.
pub(crate) const MAX_COMMAND: Duration = Duration::from_mins(1);

/// Something that can be done to a back end behind the driver's back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Hook {
    /// Every call to the back end fails as if it could not be reached. Lasts.
    Unavailable,
    /// Every call fails with an error that the driver has no special answer for. Lasts.
    Unknown,
    /// Every call finds an invariant of the back end broken. Lasts.
    Internal,
    /// Every call takes `{amount}` milliseconds longer. Lasts.
    Slow,
    /// The next create, and the next delete, are done, and their answers are lost. Lasts.
    LoseResponse,
    /// The next `{amount}` initializations fail. Lasts.
    FailInitialize,
    /// The plugin's own check of its health fails. Lasts.
    Unhealthy,
    /// The plugin is healthy and has not finished starting. Lasts.
    Starting,
    /// No further VM can be had. Lasts.
    Exhaust,
    /// Undoes everything that lasts.
    Restore,
    /// The driver's process ends without warning, and is started again at the same endpoint.
    Restart,
    /// Makes a VM with the name `{machine}`, the cluster tag `{cluster}` and the tag
    /// `capcmi.io/machine` `{identity}`.
    Plant,
    /// Puts the VM `{machine}` into a state that forbids every operation on it.
    Lock,
    /// Undoes that.
    Unlock,
    /// The VM `{machine}` is gone, without the driver.
    Vanish,
    /// Takes back what InitializeMachine did to the VM `{machine}`.
    Uninitialize,
    /// Prints how many changes the back end has seen, as a number.
    Mutations,
    /// Prints the user data that the VM `{machine}` was given, byte for byte.
    UserData,
    /// Prints what the VM `{machine}` has of what UpdateMachine can change, as a JSON object with the places
    /// of the provider spec.
    VmSpec,
}

impl Hook {
    /// Whether it has to be undone by [`Hook::Restore`].
    pub const fn lasts(self) -> bool {
        match self {
            Self::Unavailable
            | Self::Unknown
            | Self::Internal
            | Self::Slow
            | Self::LoseResponse
            | Self::FailInitialize
            | Self::Unhealthy
            | Self::Starting
            | Self::Exhaust => true,
            Self::Restore
            | Self::Restart
            | Self::Plant
            | Self::Lock
            | Self::Unlock
            | Self::Vanish
            | Self::Uninitialize
            | Self::Mutations
            | Self::UserData
            | Self::VmSpec => false,
        }
    }

    /// Whether the driver itself may be out of reach after it, or answer as if it were. What is done to a
    /// single VM, or to the room for them, is no reason for that.
    pub const fn reaches_the_driver(self) -> bool {
        match self {
            Self::Unavailable
            | Self::Unknown
            | Self::Internal
            | Self::Slow
            | Self::LoseResponse
            | Self::Unhealthy
            | Self::Starting
            | Self::Restart => true,
            Self::FailInitialize
            | Self::Exhaust
            | Self::Restore
            | Self::Plant
            | Self::Lock
            | Self::Unlock
            | Self::Vanish
            | Self::Uninitialize
            | Self::Mutations
            | Self::UserData
            | Self::VmSpec => false,
        }
    }
}

/// As in the configuration.
impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A call of a hook, with what it is about.
#[derive(Clone, Debug)]
pub struct HookCall {
    /// What is to happen.
    pub hook: Hook,
    /// The name of the machine that it happens to; empty when it is about none.
    pub machine: String,
    /// The machine's cluster.
    pub cluster: String,
    /// The value of the machine's tag `capcmi.io/machine`.
    pub identity: String,
    /// Milliseconds, or how many times.
    pub amount: u64,
}

impl HookCall {
    /// A hook that is about nothing.
    pub fn new(hook: Hook) -> Self {
        Self {
            hook,
            machine: String::new(),
            cluster: String::new(),
            identity: String::new(),
            amount: 0,
        }
    }

    /// With an amount.
    #[must_use]
    pub fn amount(mut self, amount: u64) -> Self {
        self.amount = amount;
        self
    }
}

/// Where faults come from.
#[async_trait]
pub trait Hooks: Send + Sync + 'static {
    /// Whether there is this hook.
    fn supports(&self, hook: Hook) -> bool;

    /// Runs it; answers what it prints.
    async fn run(&self, call: &HookCall) -> Result<Vec<u8>>;
}

/// No hooks: every case that needs one is skipped.
#[derive(Clone, Copy, Debug)]
pub struct NoHooks;

#[async_trait]
impl Hooks for NoHooks {
    fn supports(&self, _hook: Hook) -> bool {
        false
    }

    async fn run(&self, call: &HookCall) -> Result<Vec<u8>> {
        anyhow::bail!("there is no hook `{}`", call.hook)
    }
}

/// Hooks that are commands of the driver's author.
#[derive(Clone, Debug)]
pub struct CommandHooks {
    commands: BTreeMap<Hook, Vec<String>>,
}

impl CommandHooks {
    /// Hooks by the commands of a configuration.
    pub fn new(commands: BTreeMap<Hook, Vec<String>>) -> Self {
        Self { commands }
    }
}

#[async_trait]
impl Hooks for CommandHooks {
    fn supports(&self, hook: Hook) -> bool {
        self.commands.contains_key(&hook)
    }

    async fn run(&self, call: &HookCall) -> Result<Vec<u8>> {
        let (program, arguments) = self
            .commands
            .get(&call.hook)
            .and_then(|command| command.split_first())
            .with_context(|| format!("there is no command for the hook `{}`", call.hook))?;
        let run = Command::new(program)
            .args(arguments.iter().map(|argument| fill(argument, call)))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(MAX_COMMAND, run)
            .await
            .with_context(|| {
                format!(
                    "the hook `{}` did not end within {} s",
                    call.hook,
                    MAX_COMMAND.as_secs()
                )
            })?
            .with_context(|| format!("starting `{program}` for the hook `{}`", call.hook))?;
        ensure!(
            output.status.success(),
            "the hook `{}` failed with {}: {}",
            call.hook,
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(output.stdout)
    }
}

fn fill(argument: &str, call: &HookCall) -> String {
    argument
        .replace("{machine}", &call.machine)
        .replace("{cluster}", &call.cluster)
        .replace("{identity}", &call.identity)
        .replace("{amount}", &call.amount.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hooks(hook: Hook, command: &[&str]) -> CommandHooks {
        let command = command.iter().map(|&word| word.to_owned()).collect();
        CommandHooks::new([(hook, command)].into())
    }

    #[tokio::test]
    async fn a_command_is_told_what_it_is_about_and_its_output_is_the_answer() {
        let hooks = hooks(Hook::Slow, &["echo", "{machine}/{cluster}/{identity}/{amount}"]);
        let mut call = HookCall::new(Hook::Slow).amount(7);
        (call.machine, call.cluster, call.identity) = ("a".into(), "b".into(), "c".into());
        assert_eq!(hooks.run(&call).await.unwrap(), b"a/b/c/7\n");
        assert!(hooks.supports(Hook::Slow) && !hooks.supports(Hook::Lock));
    }

    #[tokio::test]
    async fn a_command_that_fails_says_what_it_wrote() {
        let hooks = hooks(Hook::Lock, &["sh", "-c", "echo no such VM >&2; exit 3"]);
        let error = hooks
            .run(&HookCall::new(Hook::Lock))
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("lock") && error.contains("no such VM"), "{error}");
    }

    #[test]
    fn a_hook_is_called_in_messages_as_in_the_configuration() {
        assert_eq!(Hook::LoseResponse.to_string(), "loseResponse");
    }
}
