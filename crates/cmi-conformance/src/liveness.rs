//! Whether the driver can still be reached: a run against one that is gone has to end.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use cmi_driver::Code;

/// The longest time for which a driver may be away and come back.
const LONGEST_OUTAGE: Duration = Duration::from_secs(30);

/// Whether the driver can still be reached. Shared by all cases: what one sees counts for all.
#[derive(Debug)]
pub struct Liveness {
    patience: Duration,
    contact: Mutex<Contact>,
    end: CancellationToken,
}

/// What the last answers said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contact {
    /// It answers.
    There,
    /// It has not answered since.
    Away(Instant),
    /// It was away for too long.
    Lost,
}

impl Liveness {
    /// For a run that ends by `end`. A driver is given up when all that was heard of it for half a minute, or
    /// for as long as a call may take if that is less, is that it can't be reached.
    pub fn new(call_limit: Duration, end: CancellationToken) -> Self {
        Self {
            patience: call_limit.min(LONGEST_OUTAGE),
            contact: Mutex::new(Contact::There),
            end,
        }
    }

    /// A call was answered, by the driver or for it.
    pub fn heard<T>(&self, answer: &cmi_driver::Result<T>) {
        match answer {
            Err(status) if status.code() == Code::Unavailable => self.silence(),
            Ok(_) | Err(_) => {
                let mut contact = self.contact.lock().unwrap_or_else(PoisonError::into_inner);
                if *contact != Contact::Lost {
                    *contact = Contact::There;
                }
            }
        }
    }

    /// A call was not answered. An outage is as long as from the first to the last of them,
    /// so that a pause is none.
    pub fn silence(&self) {
        let mut contact = self.contact.lock().unwrap_or_else(PoisonError::into_inner);
        *contact = match *contact {
            Contact::There => Contact::Away(Instant::now()),
            Contact::Away(since) if since.elapsed() >= self.patience => {
                self.end.cancel();
                Contact::Lost
            }
            Contact::Away(_) | Contact::Lost => *contact,
        };
    }

    /// Whether the driver was given up.
    pub fn is_lost(&self) -> bool {
        *self.contact.lock().unwrap_or_else(PoisonError::into_inner) == Contact::Lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cmi_driver::Status;

    fn gone() -> cmi_driver::Result<()> {
        Err(Status::new(Code::Unavailable, "no server listens there"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_driver_is_lost_when_nothing_but_outages_is_heard_and_a_pause_is_no_outage() {
        let end = CancellationToken::new();
        let liveness = Liveness::new(Duration::from_mins(5), end.clone());
        liveness.heard(&gone());
        tokio::time::advance(Duration::from_mins(2)).await;
        assert!(!liveness.is_lost());
        liveness.heard(&Ok(()));
        liveness.heard(&gone());
        tokio::time::advance(Duration::from_secs(29)).await;
        liveness.heard(&gone());
        assert!(!liveness.is_lost() && !end.is_cancelled());
        tokio::time::advance(Duration::from_secs(1)).await;
        liveness.heard(&gone());
        assert!(liveness.is_lost() && end.is_cancelled());
        liveness.heard(&Ok(()));
        assert!(liveness.is_lost(), "what was given up stays given up");
    }
}
