//! The waits between the repeats of a call.

use std::time::Duration;

/// A wait that doubles with each repeat. The provider has another `Backoff` for its objects, which this crate
/// does not know.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
    max: Duration,
}

impl Backoff {
    /// Begins with the first wait. No later wait is longer than `max`.
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { next: first, max }
    }

    /// Returns how long to wait before the next repeat.
    pub fn next_wait(&mut self) -> Duration {
        let wait = self.next;
        self.next = wait.saturating_mul(2).min(self.max);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_doubles_until_it_is_the_longest() {
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(50));
        let waits = [20, 40, 50, 50].map(Duration::from_millis);
        assert_eq!(waits.map(|_| backoff.next_wait()), waits);
    }
}
