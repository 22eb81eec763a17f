//! Wakes a requester whose wait is over.

use std::fmt;

/// Makes a waiting requester ask again. Must not block.
pub struct Waker(Box<dyn FnOnce() + Send>);

impl Waker {
    /// A waker that runs `wake` once.
    pub fn new(wake: impl FnOnce() + Send + 'static) -> Self {
        Self(Box::new(wake))
    }

    /// Wakes the requester.
    pub fn wake(self) {
        (self.0)();
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}
