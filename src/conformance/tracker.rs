//! Every VM that a case may have made, so that nothing stays behind.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::order::Order;
use super::reach::Reach;
use crate::driver::{Code, DeleteMachineRequest, Driver};

const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The machines of one case, in the order in which they were asked for.
#[derive(Debug, Default)]
pub struct Tracker(Mutex<Vec<Noted>>);

/// A machine that was asked for.
#[derive(Clone, Debug)]
struct Noted {
    order: Order,
    /// A create answered OK: there was a VM for sure.
    was_made: bool,
}

impl Noted {
    fn is(&self, order: &Order) -> bool {
        (&self.order.name, &self.order.class.provider_spec) == (&order.name, &order.class.provider_spec)
    }
}

impl Tracker {
    /// Notes a machine; has to be done before the call that may make it.
    pub fn note(&self, order: &Order) {
        let mut noted = self.noted();
        // The last comes first to be deleted, with whether it was made of before.
        let before = noted.iter().position(|noted| noted.is(order));
        let was_made = before.is_some_and(|at| noted.remove(at).was_made);
        noted.push(Noted {
            order: order.clone(),
            was_made,
        });
    }

    /// Notes that a create of a machine answered OK.
    pub fn made(&self, order: &Order) {
        for noted in self.noted().iter_mut().filter(|noted| noted.is(order)) {
            noted.was_made = true;
        }
    }

    /// Whether nothing was noted.
    pub fn is_empty(&self) -> bool {
        self.noted().is_empty()
    }

    /// Deletes what was noted, the last first, until the driver is given up. Answers what could not be deleted, with the
    /// reason.
    ///
    /// # Errors
    /// A sentence for each VM that may be left.
    pub async fn clear(
        &self,
        driver: &dyn Driver,
        limit: Duration,
        reach: &Reach,
    ) -> Result<(), Vec<String>> {
        let mut all = std::mem::take(&mut *self.noted());
        let mut left = Vec::new();
        while let Some(noted) = all.pop() {
            if let Err(reason) = remove(driver, &noted, limit, reach).await {
                let order = noted.order;
                left.push(format!(
                    "machine `{}` of cluster `{}`: {reason}",
                    order.name,
                    order.cluster()
                ));
            }
        }
        if left.is_empty() { Ok(()) } else { Err(left) }
    }

    fn noted(&self) -> MutexGuard<'_, Vec<Noted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tries until `limit` is over, or the driver is given up: ABORTED and an outage pass.
async fn remove(driver: &dyn Driver, noted: &Noted, limit: Duration, reach: &Reach) -> Result<(), String> {
    if reach.is_lost() {
        return Err("the driver can't be reached any more".to_owned());
    }
    let until = tokio::time::Instant::now() + limit;
    let mut wait = FIRST_WAIT;
    loop {
        let request = DeleteMachineRequest {
            machine_name: noted.order.name.clone(),
            provider_id: None,
            class: noted.order.class.clone(),
            last_known_state: None,
        };
        let answer = tokio::time::timeout_at(until, driver.delete_machine(request)).await;
        match &answer {
            Ok(answer) => reach.heard(answer),
            Err(_) => reach.silence(),
        }
        let reason = match answer {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(status)) => match status.code() {
                Code::NotFound => return Ok(()),
                // What is refused as invalid was refused by create as well, and was never made; unless create took it.
                Code::InvalidArgument if !noted.was_made => return Ok(()),
                Code::InvalidArgument | Code::Unimplemented => return Err(status.to_string()),
                _ => status.to_string(),
            },
            Err(_) => return Err(format!("DeleteMachine did not end within {limit:?}")),
        };
        if reach.is_lost() || tokio::time::Instant::now() + wait >= until {
            return Err(reason);
        }
        tokio::time::sleep(wait).await;
        wait = wait.saturating_mul(2).min(LONGEST_WAIT);
    }
}
