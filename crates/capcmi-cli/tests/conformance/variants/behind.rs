//! A view of the cloud that is behind it.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Mutex;
use std::time::Duration;

use cmi_driver::{Code, DeleteMachineResponse, ListedMachine, Machine, ProviderId, Result, Status};
use tokio::time::Instant;

use super::Key;

/// A view that lags behind the cloud.
pub struct Behind {
    pub window: Duration,
    made: Mutex<HashMap<Key, (ProviderId, Instant)>>,
    deleted: Mutex<HashMap<Key, (Machine, Instant)>>,
}

impl Behind {
    pub fn new(window: Duration) -> Self {
        Self {
            window,
            made: Mutex::default(),
            deleted: Mutex::default(),
        }
    }

    fn is_recent(&self, at: Instant) -> bool {
        at.elapsed() < self.window
    }

    pub async fn create(&self, key: Key, call: impl Future<Output = Result<Machine>>) -> Result<Machine> {
        let made = call.await?;
        let fresh = (made.provider_id.clone(), Instant::now());
        let mut all = self.made.lock().unwrap();
        let known = all.entry(key).or_insert_with(|| fresh.clone());
        if known.0 != fresh.0 {
            *known = fresh;
        }
        Ok(made)
    }

    /// Does not delete a VM that is not visible yet.
    pub async fn delete(
        &self,
        key: Key,
        look: impl Future<Output = Result<Machine>>,
        call: impl Future<Output = Result<DeleteMachineResponse>>,
    ) -> Result<DeleteMachineResponse> {
        if self.is_hidden(&key) {
            return Ok(DeleteMachineResponse::default());
        }
        let before = look.await.ok();
        let answer = call.await?;
        if let Some(machine) = before {
            self.deleted
                .lock()
                .unwrap()
                .insert(key, (machine, Instant::now()));
        }
        Ok(answer)
    }

    pub async fn status(
        &self,
        key: &Key,
        id: Option<&ProviderId>,
        call: impl Future<Output = Result<Machine>>,
    ) -> Result<Machine> {
        let answer = call.await;
        if answer.is_ok() && self.is_hidden(key) {
            return Err(Status::new(Code::NotFound, "the index has no such VM"));
        }
        match answer {
            Err(status) if status.code() == Code::NotFound => self.still_seen(key, id).ok_or(status),
            answer => answer,
        }
    }

    pub fn list(&self, cluster: &str, mut listed: Vec<ListedMachine>) -> Vec<ListedMachine> {
        let hidden: Vec<_> = {
            let made = self.made.lock().unwrap();
            let recent = made.values().filter(|(_, at)| self.is_recent(*at));
            recent.map(|(id, _)| id.clone()).collect()
        };
        listed.retain(|vm| !hidden.contains(&vm.provider_id));
        let deleted = self.deleted.lock().unwrap();
        let late = deleted
            .iter()
            .filter(|(key, (_, at))| key.cluster == cluster && self.is_recent(*at));
        listed.extend(
            late.map(|(key, (machine, _))| ListedMachine::new(machine.provider_id.clone(), &key.name)),
        );
        listed
    }

    fn is_hidden(&self, key: &Key) -> bool {
        let made = self.made.lock().unwrap();
        made.get(key).is_some_and(|(_, at)| self.is_recent(*at))
    }

    fn still_seen(&self, key: &Key, id: Option<&ProviderId>) -> Option<Machine> {
        let deleted = self.deleted.lock().unwrap();
        let (machine, at) = deleted.get(key)?;
        let is_meant = id.is_none_or(|id| *id == machine.provider_id);
        (is_meant && self.is_recent(*at)).then(|| machine.clone())
    }
}
