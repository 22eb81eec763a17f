//! Hooks: a case causes faults with these changes to the back end from outside the driver.

use std::collections::BTreeMap;
use std::fmt;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

/// The longest time that a command may take.
pub(crate) const MAX_COMMAND: Duration = Duration::from_mins(1);

/// A change to a back end behind the driver's back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Hook {
    /// Every call to the back end fails as if it could not be reached. Lasts.
    Unavailable,
    /// Every call fails with an error that the driver does not handle specially. Lasts.
    Unknown,
    /// Every call finds a broken invariant in the back end. Lasts.
    Internal,
    /// Every call takes `{amount}` milliseconds longer. Lasts.
    Slow,
    /// The next create and the next delete succeed, but their answers are lost. Lasts.
    LoseResponse,
    /// The next `{amount}` initializations fail. Lasts.
    FailInitialize,
    /// The plugin's own check of its health fails. Lasts.
    Unhealthy,
    /// The plugin is healthy but has not finished starting. Lasts.
    Starting,
    /// The back end has no room for further VMs. Lasts.
    Exhaust,
    /// Undoes everything that lasts.
    Restore,
    /// The driver's process ends without warning, and starts again at the same endpoint.
    Restart,
    /// Creates a VM with the name `{machine}`, the cluster tag `{cluster}` and the tag `capcmi.io/machine`
    /// `{identity}`.
    Plant,
    /// Puts the VM `{machine}` into a state that forbids every operation on it.
    Lock,
    /// Undoes [`Hook::Lock`] of the VM `{machine}`.
    Unlock,
    /// The VM `{machine}` disappears without the driver.
    Vanish,
    /// Undoes InitializeMachine on the VM `{machine}`.
    Uninitialize,
    /// Prints the number of changes in the back end so far.
    Mutations,
    /// Prints the user data of the VM `{machine}`, byte for byte.
    UserData,
    /// Prints the values of the VM `{machine}` that UpdateMachine can change, as a JSON object with the
    /// places of the provider spec.
    VmSpec,
}

impl Hook {
    /// Whether [`Hook::Restore`] has to undo the hook.
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

    /// Whether the hook changes or reads one VM alone, so that other cases may run at the same time.
    pub const fn is_about_one_vm(self) -> bool {
        match self {
            Self::Plant
            | Self::Lock
            | Self::Unlock
            | Self::Vanish
            | Self::Uninitialize
            | Self::UserData
            | Self::VmSpec => true,
            // `mutations` counts the changes of all cases.
            Self::Unavailable
            | Self::Unknown
            | Self::Internal
            | Self::Slow
            | Self::LoseResponse
            | Self::FailInitialize
            | Self::Unhealthy
            | Self::Starting
            | Self::Exhaust
            | Self::Restore
            | Self::Restart
            | Self::Mutations => false,
        }
    }

    /// Whether the hook may make the driver itself unreachable, or let it answer as if it were. Hooks on a
    /// single VM, or on the room for VMs, cannot.
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

/// Writes the name of the hook in the configuration.
impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A call of a hook, with its arguments.
#[derive(Clone, Debug)]
pub struct HookCall {
    /// The hook.
    pub hook: Hook,
    /// The name of the machine that the hook is about, or empty.
    pub machine: String,
    /// The machine's cluster.
    pub cluster: String,
    /// The value of the machine's tag `capcmi.io/machine`.
    pub identity: String,
    /// Milliseconds, or how many times.
    pub amount: u64,
}

impl HookCall {
    /// Returns a call of a hook that is about no machine.
    pub fn new(hook: Hook) -> Self {
        Self {
            hook,
            machine: String::new(),
            cluster: String::new(),
            identity: String::new(),
            amount: 0,
        }
    }

    /// Sets the amount.
    #[must_use]
    pub fn amount(mut self, amount: u64) -> Self {
        self.amount = amount;
        self
    }
}

/// The source of faults.
#[async_trait]
pub trait Hooks: Send + Sync + 'static {
    /// Whether the hook exists.
    fn supports(&self, hook: Hook) -> bool;

    /// Runs the hook. Returns its output.
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
        anyhow::bail!("hook `{}` does not exist", call.hook)
    }
}

/// Hooks that are commands of the driver's author.
#[derive(Clone, Debug)]
pub struct CommandHooks {
    commands: BTreeMap<Hook, Vec<String>>,
}

impl CommandHooks {
    /// Returns the hooks of the commands in a configuration.
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
            .with_context(|| format!("hook `{}` has no command", call.hook))?;
        let run = Command::new(program)
            .args(arguments.iter().map(|argument| fill(argument, call)))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(MAX_COMMAND, run)
            .await
            .with_context(|| {
                format!(
                    "hook `{}` did not end within {} s",
                    call.hook,
                    MAX_COMMAND.as_secs()
                )
            })?
            .with_context(|| format!("cannot start `{program}` for hook `{}`", call.hook))?;
        ensure!(
            output.status.success(),
            "hook `{}` failed with {}: {}",
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
