//! The log of calls: in memory for tests in the process, as JSON lines for tests in another process.
//!
//! A call writes one line when it starts and another when it ends, each with a single write. A test may wait
//! for a line and kill the process at that point. No line holds a secret.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::clock::{Clock, Instant};
use cmi_driver::{Code, LastKnownState, Operation, Result};

/// How many lines are kept in memory; older ones are forgotten.
pub const KEPT_LINES: usize = 10_000;
const OK: &str = "OK";

/// A line of the call log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallLine {
    /// Number of the call in its process, from 1; start and end share it.
    pub call: u64,
    /// The process.
    pub pid: u32,
    /// When.
    pub at: Instant,
    /// Whether the call starts or ends.
    pub phase: Phase,
    /// The operation of the call.
    pub operation: Operation,
    /// The machine's name; empty when the call is about none.
    pub machine: String,
    /// The cluster of the class's tags; empty without a cluster.
    pub cluster: String,
    /// How it ended: `OK`, or the name of the code; `Canceled` also when the caller dropped the
    /// call. None at the start.
    pub code: Option<String>,
    /// The LastKnownState that came with the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_known_state: Option<String>,
}

/// Whether a call starts or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// Nothing is done yet.
    Started,
    /// The answer is known, or its caller no longer waits.
    Ended,
}

/// The subject of a call.
#[derive(Clone, Debug, Default)]
pub struct Subject {
    /// The machine's name; empty when the call is about none.
    pub machine: String,
    /// The cluster of the class's tags; empty without a cluster.
    pub cluster: String,
    /// The LastKnownState that came with the request.
    pub last_known_state: Option<LastKnownState>,
}

/// The calls of a driver. Clones share it.
#[derive(Clone)]
pub struct CallLog {
    shared: Arc<Mutex<Lines>>,
    file: Option<Arc<File>>,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct Lines {
    calls: u64,
    kept: VecDeque<CallLine>,
    ended: BTreeMap<(Operation, Option<Code>), u64>,
}

/// A call that runs; ends as `Canceled` when it is dropped.
pub struct OpenCall {
    log: CallLog,
    line: CallLine,
    ended: bool,
}

impl CallLog {
    /// Creates a log, which is also appended to a file if one is given.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn new(path: Option<&Path>, clock: Arc<dyn Clock>) -> std::io::Result<Self> {
        let open = |path| {
            OpenOptions::new()
                .append(true)
                .create(true)
                .mode(0o600)
                .open(path)
        };
        let file = path.map(open).transpose()?.map(Arc::new);
        Ok(Self {
            shared: Arc::default(),
            file,
            clock,
        })
    }

    /// The newest lines, oldest first.
    pub fn lines(&self) -> Vec<CallLine> {
        self.with(|lines| lines.kept.iter().cloned().collect())
    }

    /// How many calls ended, by operation and code; no code is OK.
    pub fn counts(&self) -> BTreeMap<(Operation, Option<Code>), u64> {
        self.with(|lines| lines.ended.clone())
    }

    /// How many calls of an operation ended, however they did.
    pub fn count(&self, operation: Operation) -> u64 {
        self.with(|lines| {
            lines
                .ended
                .iter()
                .filter(|((of, _), _)| *of == operation)
                .map(|(_, calls)| calls)
                .sum()
        })
    }

    /// Logs that a call starts.
    pub fn start(&self, operation: Operation, subject: Subject) -> OpenCall {
        let call = self.with(|lines| {
            lines.calls += 1;
            lines.calls
        });
        let line = CallLine {
            call,
            pid: std::process::id(),
            at: self.clock.now(),
            phase: Phase::Started,
            operation,
            machine: subject.machine,
            cluster: subject.cluster,
            code: None,
            last_known_state: subject
                .last_known_state
                .map(|state| String::from_utf8_lossy(state.as_bytes()).into_owned()),
        };
        self.write(line.clone());
        OpenCall {
            log: self.clone(),
            line,
            ended: false,
        }
    }

    fn write(&self, line: CallLine) {
        if let Some(file) = &self.file
            && let Err(error) = append(file, &line)
        {
            tracing::error!(%error, "the call log of the simulated driver could not be written");
        }
        self.with(|lines| {
            if lines.kept.len() == KEPT_LINES {
                lines.kept.pop_front();
            }
            lines.kept.push_back(line);
        });
    }

    fn with<T>(&self, work: impl FnOnce(&mut Lines) -> T) -> T {
        work(&mut self.shared.lock())
    }
}

impl OpenCall {
    /// Logs how the call ends.
    pub fn end<T>(mut self, result: &Result<T>) {
        self.end_with(result.as_ref().err().map(cmi_driver::Status::code));
    }

    fn end_with(&mut self, code: Option<Code>) {
        self.ended = true;
        let mut line = self.line.clone();
        line.phase = Phase::Ended;
        line.at = self.log.clock.now();
        line.code = Some(code.map_or(OK, Code::name).to_owned());
        self.log
            .with(|lines| *lines.ended.entry((line.operation, code)).or_default() += 1);
        self.log.write(line);
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        if !self.ended {
            self.end_with(Some(Code::Canceled));
        }
    }
}

fn append(mut file: &File, line: &CallLine) -> std::io::Result<()> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    file.write_all(&bytes)
}

#[cfg(test)]
mod tests {
    use super::super::clock::WallClock;
    use super::*;

    #[test]
    fn a_call_has_a_line_when_it_starts_and_one_when_it_ends_or_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("calls");
        let log = CallLog::new(Some(&path), Arc::new(WallClock)).unwrap();
        let start = || log.start(Operation::CreateMachine, Subject::default());
        start().end(&Ok(()));
        drop(start());
        let written: Vec<CallLine> = std::fs::read_to_string(&path)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(written, log.lines());
        let codes: Vec<_> = written
            .iter()
            .map(|line| (line.call, line.code.as_deref()))
            .collect();
        assert_eq!(
            codes,
            [(1, None), (1, Some("OK")), (2, None), (2, Some("Canceled"))]
        );
        assert_eq!(log.counts()[&(Operation::CreateMachine, None)], 1);
        assert_eq!(log.count(Operation::CreateMachine), 2);
    }
}
