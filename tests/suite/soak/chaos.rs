//! The random actions of the soak.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::dice::Dice;
use super::fleet::{Wanted, delete_machine, update_machine};
use super::observer::Observer;
use super::parts::Parts;
use crate::support::{Cloud, World};

/// The most machines of a Cluster.
const MAX_MACHINES: u32 = 6;
/// The longest pause between two actions, and the longest downtime of a killed process, in milliseconds.
const PAUSE: u32 = 2_000;
const DOWN: u32 = 6_000;
/// How often killed processes are checked.
const STEP: Duration = Duration::from_millis(100);
/// How long a request to the API server may take.
const TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    KillReplica,
    KillPlugin,
    KillApiServer,
    Scale,
    RollOut,
    DeleteMachine,
    /// Deletes a machine that is coming up: its create may be in progress, or its answer lost.
    DeleteYoung,
    UpdateMachine,
    Fail,
    Heal,
}

/// The weights of the actions.
const ACTIONS: [(u32, Action); 10] = [
    (6, Action::KillReplica),
    (5, Action::KillPlugin),
    (3, Action::KillApiServer),
    (10, Action::Scale),
    (4, Action::RollOut),
    (8, Action::DeleteMachine),
    (14, Action::DeleteYoung),
    (8, Action::UpdateMachine),
    (6, Action::Fail),
    (2, Action::Heal),
];

/// A world with random actions.
pub struct Chaos<'a> {
    pub world: &'a World,
    pub cloud: &'a Cloud,
    pub observer: &'a Observer,
    pub wanted: Vec<Wanted<'a>>,
    pub parts: Parts,
    pub dice: Dice,
    /// The actions so far, and their counts.
    pub done: BTreeMap<String, usize>,
    pub started: Instant,
}

impl Chaos<'_> {
    /// Acts at random until the time is over or an invariant is broken.
    pub async fn rage(&mut self, long: Duration) -> Result<()> {
        let end = Instant::now() + long;
        while Instant::now() < end {
            if let Some(action) = self.dice.pick(&ACTIONS) {
                self.act(*action).await;
            }
            let pause = Instant::now() + self.dice.millis(200, PAUSE);
            while Instant::now() < pause {
                self.tend().await?;
                sleep(STEP).await;
            }
        }
        Ok(())
    }

    /// Restarts processes, and fails if an invariant is broken.
    pub async fn tend(&mut self) -> Result<()> {
        self.parts.keep().await?;
        let broken = self
            .observer
            .observations(|observations| observations.broken.clone());
        if !broken.is_empty() {
            bail!("{}", broken.join("\n"));
        }
        Ok(())
    }

    /// Waits until `holds` succeeds. Returns its value and the time that it took.
    pub async fn until<T>(
        &mut self,
        deadline: Duration,
        what: &str,
        holds: impl AsyncFn(&Self) -> Result<T>,
    ) -> Result<(T, Duration)> {
        let start = Instant::now();
        loop {
            self.tend().await?;
            let answer = timeout(TIMEOUT, holds(self)).await;
            let error = match answer {
                Ok(Ok(answer)) => return Ok((answer, start.elapsed())),
                Ok(Err(error)) => error,
                Err(late) => late.into(),
            };
            if start.elapsed() > deadline {
                return Err(error.context(format!("{what} was awaited for {deadline:?}")));
            }
            sleep(STEP).await;
        }
    }

    /// Ends all failures of the cloud.
    pub fn heal(&self) -> Result<()> {
        self.cloud.fail(json!([]))
    }

    /// Prints the text with the numbers of machines and VMs.
    pub fn say(&self, what: &str) {
        let seconds = self.started.elapsed().as_secs();
        let counts = self.observer.observations(|observations| {
            let ready = observations
                .machines
                .iter()
                .filter(|machine| machine.ready)
                .count();
            let leaving = observations
                .machines
                .iter()
                .filter(|machine| machine.in_deletion.is_some())
                .count();
            format!(
                "{} machines, {ready} ready, {leaving} leaving; {} VMs made, {} deleted",
                observations.machines.len(),
                observations.ledger.creates,
                observations.ledger.deletes
            )
        });
        println!("{:02}:{:02}  {what:<58}  {counts}", seconds / 60, seconds % 60);
    }

    async fn act(&mut self, action: Action) {
        let outcome = timeout(TIMEOUT, self.perform(action)).await;
        let text = match outcome {
            Ok(Ok(Some(text))) => {
                *self.done.entry(name(&text)).or_default() += 1;
                text
            }
            Ok(Ok(None)) => return,
            // The API server is down, or refuses temporarily. The request is repeated at the end.
            Ok(Err(error)) => format!("{action:?} in vain: {}", error.root_cause()),
            Err(_) => format!("{action:?} in vain: no answer"),
        };
        self.say(&text);
    }

    /// Performs an action. Returns its description, or `None` if it was not possible. It always takes the
    /// same number of random values, so that a seed repeats the actions.
    async fn perform(&mut self, action: Action) -> Result<Option<String>> {
        let (one, two) = (self.dice.below(1 << 16), self.dice.below(1 << 16));
        let down = self.dice.millis(0, DOWN);
        let which = usize::try_from(one)? % self.wanted.len();
        Ok(match action {
            Action::KillReplica => {
                let led = self.parts.kill_replica(usize::try_from(one % 2)?, down).await;
                led.map(|led| {
                    format!(
                        "killed {}, for {down:?}",
                        if led { "the leader" } else { "a follower" }
                    )
                })
            }
            Action::KillPlugin => self
                .parts
                .kill_plugin(down)
                .then(|| format!("killed the plugin, for {down:?}")),
            Action::KillApiServer => {
                let killed = self.parts.kill_api_server(down).await;
                killed.then(|| format!("killed the API server, for {down:?}"))
            }
            Action::Scale => {
                let fleet = &mut self.wanted[which];
                fleet.scale(two % (MAX_MACHINES + 1)).await?;
                Some(format!("scaled, {} to {}", fleet.name(), fleet.replicas))
            }
            Action::RollOut => {
                let fleet = &mut self.wanted[which];
                fleet.roll_out().await?;
                Some(format!("rolled out, {}", fleet.template()))
            }
            Action::DeleteMachine | Action::DeleteYoung => {
                let choose = |count: u32| one % count.max(1);
                let young = action == Action::DeleteYoung;
                let deleted = delete_machine(self.world, young, choose).await?;
                let kind = if young {
                    "a Machine on its way up"
                } else {
                    "a Machine"
                };
                deleted.map(|name| format!("deleted {kind}, {name}"))
            }
            Action::UpdateMachine => {
                let updated = update_machine(self.world, two, |count| one % count.max(1)).await?;
                updated.map(|name| format!("changed an InfraMachine, {name}"))
            }
            Action::Fail => {
                let faults = faults();
                let (what, faults) = &faults[usize::try_from(one)? % faults.len()];
                self.cloud.fail(faults.clone())?;
                Some(format!("faults, {what}"))
            }
            Action::Heal => {
                self.heal()?;
                Some("faults, none any more".to_owned())
            }
        })
    }
}

/// The first part of a description, which does not vary.
fn name(text: &str) -> String {
    text.split(',').next().unwrap_or_default().to_owned()
}

/// Failures of the cloud. Each occurs only a few times, so that some calls succeed.
fn faults() -> Vec<(&'static str, Value)> {
    let every = |operations: &[&str], fault: Value| -> Value {
        operations
            .iter()
            .map(|operation| {
                let mut fault = fault.clone();
                fault["operation"] = json!(operation);
                fault
            })
            .collect()
    };
    let changes = [
        "CreateMachine",
        "InitializeMachine",
        "DeleteMachine",
        "UpdateMachine",
    ];
    vec![
        (
            "slow creates",
            every(&["CreateMachine"], json!({"latencyMs": 2500})),
        ),
        (
            "slow deletes",
            every(&["DeleteMachine"], json!({"latencyMs": 2500})),
        ),
        (
            "lost answers of changes",
            every(&changes, json!({"loseResponse": "Unavailable", "count": 3})),
        ),
        (
            "changes that hang when they are done",
            every(&changes, json!({"hang": "after", "count": 4})),
        ),
        (
            "changes that hang before they begin",
            every(&changes, json!({"hang": "before", "count": 2})),
        ),
        (
            "creates that time out",
            every(
                &["CreateMachine"],
                json!({"loseResponse": "DeadlineExceeded", "count": 6}),
            ),
        ),
        (
            "look-ups that fail",
            every(
                &["GetMachineStatus", "ListMachines"],
                json!({"code": "Unavailable", "count": 6}),
            ),
        ),
        (
            "calls that are refused for now",
            json!([{"code": "Unavailable", "count": 10, "retryAfterMs": 1000}]),
        ),
    ]
}
