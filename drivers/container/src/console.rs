//! Reads the console of a machine from the log of conmon.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Result as IoResult, Seek as _, SeekFrom};
use std::path::Path;

use cmi_driver::{Console, Result};

use crate::errors::status;

/// The bytes that are read: conmon writes about 40 bytes before each line.
const MOST: u64 = 4 * Console::MAX_BYTES as u64;

/// Returns the end of the console's output. A machine that never started has none.
///
/// # Errors
/// When the log cannot be read.
pub fn read(log: &Path) -> Result<Console> {
    let end = end_of(log).map_err(|error| status("reading the console log", error))?;
    Ok(Console::new(&output(&end)))
}

fn end_of(log: &Path) -> IoResult<Vec<u8>> {
    let mut file = match File::open(log) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened?,
    };
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MOST)))?;
    let mut end = Vec::new();
    // The machine may write faster than this reads.
    file.take(MOST).read_to_end(&mut end)?;
    Ok(end)
}

/// Returns the output in a log of lines `TIME STREAM TAG TEXT`. A line with the tag `P` continues in the next
/// one. Leaves out a first line that was cut.
fn output(log: &[u8]) -> Vec<u8> {
    let mut output = Vec::new();
    for line in log.split(|byte| *byte == b'\n') {
        let mut parts = line.splitn(4, |byte| *byte == b' ').skip(2);
        match (parts.next(), parts.next()) {
            (Some(b"F"), Some(text)) => {
                output.extend_from_slice(text);
                output.push(b'\n');
            }
            (Some(b"P"), Some(text)) => output.extend_from_slice(text),
            _ => {}
        }
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_has_no_times_and_whole_lines() {
        let log = b"3Z stdout F cut\n2026-01-02T03:04:05Z stdout F Welcome to Debian\n\
            2026-01-02T03:04:05Z stdout P log\n2026-01-02T03:04:06Z stdout F in: \n";
        assert_eq!(output(&log[12..]), b"Welcome to Debian\nlogin: \n");
    }

    #[test]
    fn a_machine_that_never_started_has_an_empty_console() {
        assert_eq!(
            read(Path::new("/nowhere/console.log")).unwrap(),
            Console::default()
        );
    }
}
