//! Every VM that a case may have made, so that nothing stays behind.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::order::Order;
use crate::driver::{Code, DeleteMachineRequest, Driver};

const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The machines of one case, in the order in which they were asked for.
#[derive(Debug, Default)]
pub struct Tracker(Mutex<Vec<Order>>);

impl Tracker {
    /// Notes a machine; has to be done before the call that may make it.
    pub fn note(&self, order: &Order) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(order.clone());
    }

    /// Whether nothing was noted.
    pub fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Deletes what was noted, the last first. Answers what could not be deleted, with the reason.
    ///
    /// # Errors
    /// A sentence for each VM that may be left.
    pub async fn clear(&self, driver: &dyn Driver, limit: Duration) -> Result<(), Vec<String>> {
        let mut orders = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        orders.dedup_by(|a, b| (&a.name, &a.class.provider_spec) == (&b.name, &b.class.provider_spec));
        let mut left = Vec::new();
        while let Some(order) = orders.pop() {
            if let Err(reason) = remove(driver, &order, limit).await {
                left.push(format!(
                    "machine `{}` of cluster `{}`: {reason}",
                    order.name,
                    order.cluster()
                ));
            }
        }
        if left.is_empty() { Ok(()) } else { Err(left) }
    }
}

/// Tries until `limit` is over: ABORTED and an outage pass.
async fn remove(driver: &dyn Driver, order: &Order, limit: Duration) -> Result<(), String> {
    let until = tokio::time::Instant::now() + limit;
    let mut wait = FIRST_WAIT;
    loop {
        let request = DeleteMachineRequest {
            machine_name: order.name.clone(),
            provider_id: None,
            class: order.class.clone(),
            last_known_state: None,
        };
        let reason = match tokio::time::timeout_at(until, driver.delete_machine(request)).await {
            Ok(Ok(_)) => return Ok(()),
            // What is refused as invalid was refused by create as well, and was never made.
            Ok(Err(status)) if matches!(status.code(), Code::NotFound | Code::InvalidArgument) => {
                return Ok(());
            }
            Ok(Err(status)) if status.code() == Code::Unimplemented => return Err(status.to_string()),
            Ok(Err(status)) => status.to_string(),
            Err(_) => return Err(format!("DeleteMachine did not end within {limit:?}")),
        };
        if tokio::time::Instant::now() + wait >= until {
            return Err(reason);
        }
        tokio::time::sleep(wait).await;
        wait = wait.saturating_mul(2).min(LONGEST_WAIT);
    }
}
