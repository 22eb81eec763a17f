//! The times of a run.

use std::time::Instant;

/// Prints each step when it is done, with its time.
#[derive(Debug)]
pub struct Steps {
    start: Instant,
    last: Instant,
}

impl Steps {
    /// Starts the first step.
    pub fn start() -> Self {
        let now = Instant::now();
        Self {
            start: now,
            last: now,
        }
    }

    /// Ends a step and starts the next one.
    pub fn done(&mut self, step: &str) {
        let now = Instant::now();
        let (own, all) = (now - self.last, now - self.start);
        println!(
            "{:>6.1} s {:>6.1} s  {step}",
            own.as_secs_f64(),
            all.as_secs_f64()
        );
        self.last = now;
    }
}
