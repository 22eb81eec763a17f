//! Errors in one line, for messages and logs.

use std::error::Error;
use std::fmt;

/// Shows an error and its sources in one line. Text that a source only repeats is left out.
#[derive(Debug)]
pub struct ErrorChain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = String::new();
        for error in std::iter::successors(Some(self.0), |&error| error.source()) {
            let message = error.to_string();
            if said.contains(&message) {
                continue;
            }
            if !said.is_empty() {
                said.push_str(": ");
            }
            said.push_str(&message);
        }
        f.write_str(&said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error with a message and a source.
    #[derive(Debug, thiserror::Error)]
    #[error("{said}")]
    struct Failed<E: Error + 'static> {
        said: &'static str,
        source: E,
    }

    #[test]
    fn an_error_is_shown_with_what_led_to_it_and_nothing_is_said_twice() {
        let middle = Failed {
            said: "connecting failed: no route",
            source: std::io::Error::other("no route"),
        };
        let error = Failed {
            said: "reading the lease failed",
            source: middle,
        };
        assert_eq!(
            ErrorChain(&error).to_string(),
            "reading the lease failed: connecting failed: no route"
        );
    }
}
