//! The journal: the events of the cloud in order, in memory or in a file that several processes share.
//!
//! The file holds one JSON object per line. A change is: lock the file, read the lines appended by others,
//! decide, append with a single write, unlock. A process that is killed at any moment leaves at most a last
//! line without its line break. Readers ignore such a line, and the next writer cuts it off. Readers take no
//! lock. The file holds user data and has mode 0600.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::clock::{Clock, Instant};
use super::cloud::{Cloud, Entry, Event};
use cmi_driver::{Code, Status};
use parking_lot::Mutex;

/// Why the journal could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file can't be used right now.
    #[error("the state file of the simulated cloud can't be used: {0}")]
    Io(#[from] io::Error),
    /// A whole line is no entry: another program wrote to the file.
    #[error("the state file of the simulated cloud is damaged at byte {at}: {error}")]
    Damaged {
        /// Where the line begins.
        at: u64,
        /// The error in the line.
        error: serde_json::Error,
    },
}

impl From<JournalError> for Status {
    fn from(error: JournalError) -> Self {
        let code = match error {
            JournalError::Io(_) => Code::Unavailable,
            JournalError::Damaged { .. } => Code::Internal,
        };
        Self::new(code, error.to_string()).with_source(error)
    }
}

/// The events and the answer of a decision.
#[derive(Debug)]
pub struct Decision<T> {
    /// The changes of the cloud; empty for no change.
    pub events: Vec<Event>,
    /// The caller's answer once the events are written.
    pub answer: T,
}

impl<T> Decision<T> {
    /// Changes nothing.
    pub fn unchanged(answer: T) -> Self {
        Self {
            events: Vec::new(),
            answer,
        }
    }
}

/// The journal of a cloud. Clones share it.
#[derive(Clone)]
pub struct Journal {
    shared: Arc<Mutex<Shared>>,
    clock: Arc<dyn Clock>,
}

struct Shared {
    cloud: Cloud,
    file: Option<StateFile>,
}

struct StateFile {
    file: Arc<File>,
    /// Up to where the file is known: the end of a whole line.
    known: u64,
}

/// The advisory lock on the file. Only one process holds it at a time.
struct FileLock(Arc<File>);

impl Drop for FileLock {
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::error!(%error, "the lock of the simulated cloud's state file could not be let go of");
        }
    }
}

impl Journal {
    /// A cloud that ends with the process.
    pub fn in_memory(clock: Arc<dyn Clock>) -> Self {
        Self {
            shared: Arc::new(Mutex::new(Shared {
                cloud: Cloud::default(),
                file: None,
            })),
            clock,
        }
    }

    /// Opens the cloud of a file, and creates the file if missing.
    ///
    /// # Errors
    /// The file cannot be opened, or holds something else.
    pub fn open(path: &Path, clock: Arc<dyn Clock>) -> Result<Self, JournalError> {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        let journal = Self::in_memory(clock);
        {
            let mut shared = journal.shared.lock();
            shared.file = Some(StateFile::new(file));
            shared.catch_up()?;
        }
        Ok(journal)
    }

    /// Passes the current cloud to `question`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read<T>(&self, question: impl FnOnce(&Cloud, Instant) -> T) -> Result<T, JournalError> {
        let mut shared = self.shared.lock();
        shared.catch_up()?;
        let now = self.clock.now();
        shared.cloud.advance(now);
        Ok(question(&shared.cloud, now))
    }

    /// Passes the current cloud to `decide`, with no other change in between, and writes the decision.
    ///
    /// # Errors
    /// The error of `decide`, and UNAVAILABLE or INTERNAL when the file cannot be used. Nothing has changed
    /// then.
    pub fn change<T>(
        &self,
        decide: impl FnOnce(&Cloud, Instant) -> cmi_driver::Result<Decision<T>>,
    ) -> cmi_driver::Result<T> {
        let mut shared = self.shared.lock();
        let _held = shared.file.as_ref().map(StateFile::lock).transpose()?;
        shared.change(&*self.clock, decide)
    }
}

impl Shared {
    fn change<T>(
        &mut self,
        clock: &dyn Clock,
        decide: impl FnOnce(&Cloud, Instant) -> cmi_driver::Result<Decision<T>>,
    ) -> cmi_driver::Result<T> {
        self.catch_up()?;
        let now = clock.now();
        self.cloud.advance(now);
        let Decision { events, answer } = decide(&self.cloud, now)?;
        let entries: Vec<_> = events.into_iter().map(|event| Entry { at: now, event }).collect();
        if let Some(state) = &mut self.file {
            state.append(&entries)?;
        }
        for entry in entries {
            self.cloud.apply(entry);
        }
        self.cloud.advance(now);
        Ok(answer)
    }

    fn catch_up(&mut self) -> Result<(), JournalError> {
        let Some(state) = &mut self.file else {
            return Ok(());
        };
        state.catch_up(&mut self.cloud)
    }
}

impl StateFile {
    fn new(file: File) -> Self {
        Self {
            file: Arc::new(file),
            known: 0,
        }
    }

    /// Blocks for as long as another process decides: microseconds.
    fn lock(&self) -> Result<FileLock, JournalError> {
        self.file.lock()?;
        Ok(FileLock(Arc::clone(&self.file)))
    }

    /// Reads the whole lines that were appended since the last time.
    fn catch_up(&mut self, cloud: &mut Cloud) -> Result<(), JournalError> {
        let length = self.file.metadata()?.len();
        if length < self.known {
            // Only whole lines are known, and those are never cut off: the file was replaced by a new one.
            *cloud = Cloud::default();
            self.known = 0;
        }
        if length == self.known {
            return Ok(());
        }
        (&*self.file).seek(SeekFrom::Start(self.known))?;
        // No further than the length of before: a writer may be about to replace a torn line.
        let unread = (&*self.file).take(length - self.known);
        let mut reader = BufReader::with_capacity(64 * 1024, unread);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = reader.read_until(b'\n', &mut line)?;
            if line.last() != Some(&b'\n') {
                return Ok(());
            }
            let entry = serde_json::from_slice(&line).map_err(|error| JournalError::Damaged {
                at: self.known,
                error,
            })?;
            cloud.apply(entry);
            self.known += read as u64;
        }
    }

    /// Appends with a single write. The file must be locked and read up to its last whole line.
    fn append(&mut self, entries: &[Entry]) -> Result<(), JournalError> {
        if entries.is_empty() {
            return Ok(());
        }
        let mut lines = Vec::with_capacity(1024);
        for entry in entries {
            serde_json::to_writer(&mut lines, entry).map_err(io::Error::from)?;
            lines.push(b'\n');
        }
        if self.file.metadata()?.len() != self.known {
            self.file.set_len(self.known)?;
        }
        if let Err(error) = (&*self.file).write_all(&lines) {
            // Half of the lines may be there, and whole ones among them would count.
            self.file.set_len(self.known)?;
            return Err(error.into());
        }
        self.known += lines.len() as u64;
        Ok(())
    }
}

/// Reads the cloud of a state file from outside, without ever writing: for a kubelet or a
/// test in another process.
pub struct CloudView {
    path: PathBuf,
    state: Option<StateFile>,
    cloud: Cloud,
    clock: Arc<dyn Clock>,
}

impl CloudView {
    /// Opens a view of a file's cloud. The file need not exist: then the cloud is empty.
    pub fn open(path: impl Into<PathBuf>, clock: Arc<dyn Clock>) -> Self {
        Self {
            path: path.into(),
            state: None,
            cloud: Cloud::default(),
            clock,
        }
    }

    /// Returns the current cloud. Reads only the new lines.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn now(&mut self) -> Result<(&Cloud, Instant), JournalError> {
        if self.state.is_none() {
            self.state = match File::open(&self.path) {
                Ok(file) => Some(StateFile::new(file)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error.into()),
            };
        }
        if let Some(state) = &mut self.state {
            state.catch_up(&mut self.cloud)?;
        }
        let now = self.clock.now();
        self.cloud.advance(now);
        Ok((&self.cloud, now))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::clock::WallClock;
    use super::super::vm::tests::vm;
    use super::*;

    fn open(path: &Path) -> Journal {
        Journal::open(path, Arc::new(WallClock)).unwrap()
    }

    fn order(journal: &Journal, name: &str) {
        let event = Event::Ordered(Box::new(vm(name)));
        journal
            .change(|_, _| {
                Ok(Decision {
                    events: vec![event],
                    answer: (),
                })
            })
            .unwrap();
    }

    fn names(journal: &Journal) -> Vec<String> {
        let mut names: Vec<_> = journal
            .read(|cloud, _| cloud.vms().map(|vm| vm.name.clone()).collect())
            .unwrap();
        names.sort();
        names
    }

    #[test]
    fn two_that_opened_the_same_file_see_one_cloud() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cloud");
        let (one, two) = (open(&path), open(&path));
        let mut view = CloudView::open(&path, Arc::new(WallClock));
        order(&one, "a");
        order(&two, "b");
        order(&one, "c");
        assert_eq!(names(&one), ["a", "b", "c"]);
        assert_eq!(names(&two), names(&one));
        assert_eq!(view.now().unwrap().0.total(), 3);
        assert_eq!(names(&open(&path)), names(&one));
    }

    #[test]
    fn changes_from_many_threads_are_all_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cloud");
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let path = &path;
                scope.spawn(move || {
                    let journal = open(path);
                    (0..50).for_each(|n| order(&journal, &format!("{thread}-{n}")));
                });
            }
        });
        assert_eq!(names(&open(&path)).len(), 200);
    }

    #[test]
    fn a_torn_last_line_is_not_seen_and_is_cut_off_by_the_next_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cloud");
        order(&open(&path), "a");
        let whole = std::fs::read(&path).unwrap();
        for torn in 0..whole.len() - 1 {
            let bytes = [&whole[..], &whole[..torn]].concat();
            std::fs::write(&path, &bytes).unwrap();
            let journal = open(&path);
            assert_eq!(names(&journal), ["a"]);
            order(&journal, "b");
            assert_eq!(names(&open(&path)), ["a", "b"]);
        }
    }

    #[test]
    fn a_line_that_is_no_entry_is_named_by_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cloud");
        std::fs::write(&path, "hello\n").unwrap();
        let error = Journal::open(&path, Arc::new(WallClock)).err().unwrap();
        assert!(error.to_string().contains("byte 0"), "{error}");
    }

    #[test]
    fn only_its_owner_may_read_the_state_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cloud");
        order(&open(&path), "a");
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }
}
