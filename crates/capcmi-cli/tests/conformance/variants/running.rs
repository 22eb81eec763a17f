//! Calls that run on when their callers have given them up.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cmi_driver::{Code, Result, Status};

use super::Key;

/// How long a call takes that takes its time.
pub const MOMENT: Duration = Duration::from_millis(20);

/// The running calls.
pub struct Running {
    machines: Arc<Mutex<Vec<Key>>>,
    /// How long a create takes before it does anything.
    creation: Duration,
    /// Whether a running call excludes all others on its machine.
    is_alone: bool,
}

impl Running {
    pub fn new(creation: Duration, is_alone: bool) -> Self {
        Self {
            machines: Arc::default(),
            creation,
            is_alone,
        }
    }

    pub fn count(&self) -> usize {
        self.machines.lock().unwrap().len()
    }

    pub async fn create<T: Send + 'static>(
        &self,
        key: Key,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.after(self.creation, key, call).await
    }

    pub async fn run<T: Send + 'static>(
        &self,
        key: Key,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.after(MOMENT, key, call).await
    }

    async fn after<T: Send + 'static>(
        &self,
        latency: Duration,
        key: Key,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        {
            let mut machines = self.machines.lock().unwrap();
            if self.is_alone && machines.contains(&key) {
                let name = key.name;
                let message = format!("another call on machine `{name}` is under way");
                return Err(Status::new(Code::Aborted, message));
            }
            machines.push(key.clone());
        }
        let machines = Arc::clone(&self.machines);
        let task = tokio::spawn(async move {
            tokio::time::sleep(latency).await;
            let answer = call.await;
            let mut machines = machines.lock().unwrap();
            let ended = machines.iter().position(|other| *other == key);
            machines.swap_remove(ended.unwrap());
            answer
        });
        task.await.unwrap()
    }
}
