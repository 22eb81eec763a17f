//! What a command writes for its user. A terminal or a pipe that is gone, as with `| head`, ends no command:
//! what it has begun, it finishes.

use std::io::{self, Write as _};

/// Writes a line, or more, to standard output.
pub(super) fn say(text: &str) {
    let _gone = writeln!(io::stdout(), "{text}");
}

/// Writes a line to standard error.
pub(super) fn complain(text: &str) {
    let _gone = writeln!(io::stderr(), "capcmi: {text}");
}
