//! Tasks that should run as long as the process.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::timeout;

/// A task before it runs. If it ends or panics before the process stops, the process ends.
pub struct Task {
    /// The name that is reported when the task ends unexpectedly: `the InfraMachine controller`.
    pub name: &'static str,
    /// The work.
    pub run: BoxFuture<'static, ()>,
}

impl Task {
    pub(super) fn new(name: &'static str, run: impl Future<Output = ()> + Send + 'static) -> Self {
        Self {
            name,
            run: run.boxed(),
        }
    }
}

/// A group of named tasks.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    running: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

impl Tasks {
    pub(super) fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let id = self.running.spawn(task).id();
        self.names.insert(id, name);
    }

    pub(super) fn spawn_all(&mut self, tasks: impl IntoIterator<Item = Task>) {
        for task in tasks {
            self.spawn(task.name, task.run);
        }
    }

    /// Waits until a task has ended in any way; forever without a task.
    pub(super) async fn first_ended(&mut self) -> &'static str {
        match self.running.join_next_with_id().await {
            Some(ended) => self.name_of(ended),
            None => std::future::pending().await,
        }
    }

    /// Waits until all tasks have ended, or `grace` has passed.
    pub(super) async fn drain(&mut self, grace: Duration) {
        let all = async {
            while let Some(ended) = self.running.join_next_with_id().await {
                self.name_of(ended);
            }
        };
        if timeout(grace, all).await.is_err() {
            tracing::warn!(
                tasks = self.running.len(),
                "tasks did not end within the grace period"
            );
        }
    }

    /// Drops the tasks that run, and waits until they are gone.
    pub(super) async fn abort(&mut self) {
        self.running.shutdown().await;
    }

    fn name_of(&self, ended: Result<(Id, ()), JoinError>) -> &'static str {
        let id = match ended {
            Ok((id, ())) => id,
            Err(error) => {
                tracing::error!(%error, "task failed");
                error.id()
            }
        };
        self.names.get(&id).copied().unwrap_or("a task")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_is_known_by_its_name() {
        let mut tasks = Tasks::default();
        tasks.spawn("the patient one", std::future::pending());
        tasks.spawn("the weak one", async { panic!("ouch") });
        assert_eq!(tasks.first_ended().await, "the weak one");
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_are_waited_for_no_longer_than_the_grace_period() {
        let mut tasks = Tasks::default();
        tasks.spawn("for ever", std::future::pending());
        let start = tokio::time::Instant::now();
        tasks.drain(Duration::from_secs(30)).await;
        assert_eq!(start.elapsed(), Duration::from_secs(30));
        tasks.abort().await;
        assert!(tasks.running.is_empty());
    }
}
