//! How long a driver may be wrong about a VM that it does not see.

use std::time::{Duration, Instant};

use super::Context;

/// How much longer the driver may be behind, whose consistency window is `window` and which does not see the VM now;
/// `None` when its word is the truth.
pub fn behind_for(ctx: &Context, uid: &str, window: Duration) -> Option<Duration> {
    const SHORTEST: Duration = Duration::from_millis(10);
    let absent_for = ctx.memory.absent_for(uid, Instant::now());
    window
        .checked_sub(absent_for)
        .filter(|left| !left.is_zero())
        .map(|left| left.max(SHORTEST))
}
