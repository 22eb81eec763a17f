//! Faults, and when they occur.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use garde::Validate;
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer, de::Error as _};

use cmi_driver::{Code, LastKnownState, Operation, Status};

/// A fault. If several match a call, the first that is not used up occurs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(custom(does_something))]
pub struct Fault {
    /// The call it happens to. Default: every call but Probe, GetPluginInfo and GetPluginCapabilities.
    #[garde(skip)]
    pub operation: Option<Operation>,
    /// The names of the affected machines; `*` stands for any text. Calls without a machine have the empty
    /// name. Default: every machine.
    #[garde(skip)]
    pub machine: Option<String>,
    /// How many calls that fit go well before it happens. Default: 0.
    #[serde(default)]
    #[garde(skip)]
    pub after: u32,
    /// How many times it happens. Default: for ever.
    #[garde(skip)]
    pub count: Option<u32>,
    /// How much longer the call takes, milliseconds. Default: 0.
    #[serde(default)]
    #[garde(range(max = 86_400_000))]
    pub latency_ms: u64,
    /// The call never ends, or not before the fault is taken back. Default: it ends.
    #[garde(skip)]
    pub hang: Option<Hang>,
    /// The code that is answered, without any work done: `Unavailable`. Default: none.
    #[serde(default, deserialize_with = "code")]
    #[garde(skip)]
    pub code: Option<Code>,
    /// The code that is answered after the work was done: the response is lost. Default: none.
    #[serde(default, deserialize_with = "code")]
    #[garde(skip)]
    pub lose_response: Option<Code>,
    /// The code of a half update: of the changed labels, only the first by name has its new value. Requires
    /// `operation: UpdateMachine`. Default: none.
    #[serde(default, deserialize_with = "code")]
    #[garde(skip)]
    pub half: Option<Code>,
    /// Milliseconds until the back end creates the VM, even if the call or the process has ended by then.
    /// Requires `operation: CreateMachine`. Default: 0.
    #[garde(range(max = 86_400_000))]
    pub carry_out_after_ms: Option<u64>,
    /// The machine's VM vanishes after the call, and the call answers as if nothing were wrong. If `machine`
    /// is set, the fault also matches a ListMachines, which then no longer shows the VM: so a VM can vanish
    /// without another call about it. Default: false.
    #[serde(default)]
    #[garde(skip)]
    pub vanish: bool,
    /// Probe answers that the driver has not finished starting. Requires `operation: Probe`. Default: false.
    #[serde(default)]
    #[garde(skip)]
    pub not_ready: bool,
    /// The message of the error. Default: a message that names the fault.
    #[garde(skip)]
    pub message: Option<String>,
    /// How long the driver asks to be left alone, milliseconds. Default: it does not ask.
    #[garde(skip)]
    pub retry_after_ms: Option<u64>,
    /// The LastKnownState of the error. Default: none.
    #[garde(skip)]
    pub last_known_state: Option<String>,
}

/// When a call that never ends stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Hang {
    /// Before its work is done.
    Before,
    /// When its work is done.
    After,
    /// Before its work is done, until the fault is removed from the faults file; then it continues.
    Held,
}

/// The faults of a driver, and how often each has fit.
pub struct Faults {
    configured: Set,
    file: Option<FaultsFile>,
}

struct FaultsFile {
    path: PathBuf,
    state: Mutex<FileState>,
}

#[derive(Default)]
struct FileState {
    seen: Option<FileVersion>,
    set: Set,
}

/// The attributes that reveal a changed file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileVersion {
    modified: SystemTime,
    length: u64,
    inode: u64,
}

/// Faults with the number of calls that have fit each.
#[derive(Default)]
struct Set(Mutex<Vec<(Fault, u32)>>);

impl Fault {
    /// Returns the error of this fault, with one of its codes.
    pub fn status(&self, code: Code) -> Status {
        let message = self.message.clone().unwrap_or_else(|| {
            let done = if self.lose_response == Some(code) {
                ", after the work was done"
            } else if self.half == Some(code) {
                ", after a part of the work was done"
            } else {
                ""
            };
            format!("a fault was asked for in the simulated cloud: {code}{done}")
        });
        let mut status = Status::new(code, message);
        if let Some(wait) = self.retry_after_ms {
            status = status.with_retry_after(Duration::from_millis(wait));
        }
        match self
            .last_known_state
            .clone()
            .and_then(|state| LastKnownState::new(state.into_bytes()))
        {
            Some(state) => status.with_last_known_state(state),
            None => status,
        }
    }

    fn fits(&self, operation: Operation, machine: &str) -> bool {
        self.operation
            .map_or(!is_identity(operation), |asked| asked == operation)
            && self
                .machine
                .as_ref()
                .is_none_or(|pattern| matches(pattern, machine))
    }
}

impl Faults {
    /// The faults of the configuration, and of a file that does not have to exist.
    ///
    /// # Errors
    /// The file exists and is invalid.
    pub fn new(configured: Vec<Fault>, file: Option<PathBuf>) -> anyhow::Result<Self> {
        let file = file.map(FaultsFile::open).transpose()?;
        Ok(Self {
            configured: Set::new(configured),
            file,
        })
    }

    /// The fault of this call, if any. Counts the call.
    pub fn next(&self, operation: Operation, machine: &str) -> Option<Fault> {
        let from_file = self.file.as_ref().and_then(|file| file.next(operation, machine));
        from_file.or_else(|| self.configured.next(operation, machine))
    }

    /// Whether the VM of this machine vanishes before it is listed. Counts the list as a call that fits.
    pub fn vanishes_unasked(&self, machine: &str) -> bool {
        let wanted = |fault: &Fault| {
            fault.vanish && fault.machine.is_some() && fault.fits(Operation::ListMachines, machine)
        };
        let file = self.file.as_ref();
        let from_file = file.and_then(|file| file.with_state(|set| set.next_of(wanted)));
        from_file.or_else(|| self.configured.next_of(wanted)).is_some()
    }

    /// Whether Probe must answer that the driver has not finished starting. Counts nothing.
    pub fn not_ready(&self) -> bool {
        let from_file = self.file.as_ref().is_some_and(FaultsFile::not_ready);
        from_file || self.configured.not_ready()
    }

    /// Whether the fault is still configured. Counts nothing.
    pub fn has(&self, fault: &Fault) -> bool {
        let in_file = self.file.as_ref().is_some_and(|file| file.has(fault));
        in_file || self.configured.has(fault)
    }

    /// Resets the counts of calls, as the end of a process does.
    pub fn forget(&self) {
        self.configured.forget();
        if let Some(file) = &self.file {
            file.state.lock().set.forget();
        }
    }
}

impl FaultsFile {
    fn open(path: PathBuf) -> anyhow::Result<Self> {
        let mut state = FileState::default();
        state.refresh(&path)?;
        Ok(Self {
            path,
            state: Mutex::new(state),
        })
    }

    fn next(&self, operation: Operation, machine: &str) -> Option<Fault> {
        self.with_state(|set| set.next(operation, machine))
    }

    fn has(&self, fault: &Fault) -> bool {
        self.with_state(|set| set.has(fault))
    }

    /// Asks the faults that the file has now.
    fn with_state<T>(&self, ask: impl FnOnce(&Set) -> T) -> T {
        let mut state = self.state.lock();
        if let Err(error) = state.refresh(&self.path) {
            tracing::error!(path = %self.path.display(), error = format!("{error:#}"),
                "the faults file is not valid; the faults of before stay");
        }
        ask(&state.set)
    }

    fn not_ready(&self) -> bool {
        self.state.lock().set.not_ready()
    }
}

impl FileState {
    /// Reads the file when it has changed since the last time, and resets the counts. An invalid file is read
    /// once.
    fn refresh(&mut self, path: &std::path::Path) -> anyhow::Result<()> {
        let version = FileVersion::of(path)
            .with_context(|| format!("`faultsFile` {} can't be looked at", path.display()))?;
        if version == self.seen {
            return Ok(());
        }
        self.seen = version;
        let faults = if version.is_some() {
            read(path)?
        } else {
            Vec::new()
        };
        self.set = Set::new(faults);
        Ok(())
    }
}

impl FileVersion {
    fn of(path: &std::path::Path) -> std::io::Result<Option<Self>> {
        use std::os::unix::fs::MetadataExt as _;
        match std::fs::metadata(path) {
            Ok(data) => Ok(Some(Self {
                modified: data.modified()?,
                length: data.len(),
                inode: data.ino(),
            })),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Set {
    fn new(faults: Vec<Fault>) -> Self {
        Self(Mutex::new(faults.into_iter().map(|fault| (fault, 0)).collect()))
    }

    fn forget(&self) {
        let mut faults = self.0.lock();
        faults.iter_mut().for_each(|(_, calls)| *calls = 0);
    }

    fn has(&self, fault: &Fault) -> bool {
        let faults = self.0.lock();
        faults.iter().any(|(one, _)| one == fault)
    }

    fn not_ready(&self) -> bool {
        let faults = self.0.lock();
        faults.iter().any(|(fault, _)| fault.not_ready)
    }

    fn next(&self, operation: Operation, machine: &str) -> Option<Fault> {
        // Vanish faults of a list are looked up by the machine's name instead.
        let is_list = operation == Operation::ListMachines;
        self.next_of(|fault| fault.fits(operation, machine) && !(is_list && fault.vanish))
    }

    /// The first of these that happens; counts the call for each that fits and is not used up before it.
    fn next_of(&self, wanted: impl Fn(&Fault) -> bool) -> Option<Fault> {
        let mut faults = self.0.lock();
        faults
            .iter_mut()
            .filter(|(fault, _)| wanted(fault))
            .find_map(|(fault, calls)| {
                let used_up = fault
                    .count
                    .is_some_and(|count| *calls >= fault.after.saturating_add(count));
                if used_up {
                    return None;
                }
                *calls = calls.saturating_add(1);
                (*calls > fault.after).then(|| fault.clone())
            })
    }
}

/// Reads the faults of a file: a list as YAML, which includes JSON.
fn read(path: &std::path::Path) -> anyhow::Result<Vec<Fault>> {
    let named = || format!("`faultsFile` {}", path.display());
    let text = std::fs::read_to_string(path).with_context(|| format!("{} can't be read", named()))?;
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let faults: Vec<Fault> = serde_saphyr::from_str(&text).with_context(|| {
        format!(
            "{} is no list of faults, such as `[{{code: Unavailable}}]`",
            named()
        )
    })?;
    for (place, fault) in faults.iter().enumerate() {
        fault
            .validate()
            .with_context(|| format!("{}: fault [{place}] is not valid", named()))?;
    }
    Ok(faults)
}

fn code<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Code>, D::Error> {
    let name = Option::<String>::deserialize(deserializer)?;
    name.map(|name| name.parse().map_err(D::Error::custom))
        .transpose()
}

fn does_something<C>(fault: &Fault, _: &C) -> garde::Result {
    let is_late = fault.carry_out_after_ms.is_some();
    let is_half = fault.half.is_some();
    if fault.code.is_some() && (fault.lose_response.is_some() || fault.vanish || is_late || is_half) {
        return Err(garde::Error::new(
            "`code` does no work, so there is nothing to lose, to halve, to vanish or to carry out later",
        ));
    }
    if is_late && fault.operation != Some(Operation::CreateMachine) {
        return Err(garde::Error::new("`carryOutAfterMs` is of CreateMachine alone"));
    }
    if is_half && (fault.operation != Some(Operation::UpdateMachine) || fault.lose_response.is_some()) {
        return Err(garde::Error::new(
            "`half` is of UpdateMachine alone, and has a code of its own",
        ));
    }
    let nothing = fault.code.is_none() && fault.lose_response.is_none() && fault.hang.is_none() && !is_half;
    if fault.not_ready && fault.operation != Some(Operation::Probe) {
        return Err(garde::Error::new("`notReady` is an answer of Probe alone"));
    }
    if nothing && fault.latency_ms == 0 && !is_late && !fault.vanish && !fault.not_ready {
        return Err(garde::Error::new(
            "names none of code, loseResponse, half, hang, latencyMs, carryOutAfterMs, vanish and notReady",
        ));
    }
    Ok(())
}

const fn is_identity(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::Probe | Operation::GetPluginInfo | Operation::GetPluginCapabilities
    )
}

/// Whether a text matches a pattern; `*` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(rest) = text.strip_prefix(head) else {
        return false;
    };
    (0..=rest.len())
        .filter(|at| rest.is_char_boundary(*at))
        .any(|at| matches(tail, &rest[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Faults {
        Faults::new(serde_saphyr::from_str(text).unwrap(), None).unwrap()
    }

    #[test]
    fn a_fault_happens_after_so_many_calls_and_so_many_times() {
        let faults =
            faults("[{operation: CreateMachine, machine: 'a-*', after: 1, count: 2, code: UNAVAILABLE}]");
        let happens = |name: &str| faults.next(Operation::CreateMachine, name).is_some();
        assert_eq!(
            [happens("b"), happens("a-1"), happens("a-2"), happens("a-1")],
            [false, false, true, true]
        );
        assert!(!happens("a-1"));
        assert!(faults.next(Operation::DeleteMachine, "a-1").is_none());
    }

    #[test]
    fn when_the_first_is_used_up_the_next_that_fits_happens() {
        let faults = faults("[{count: 1, code: Aborted}, {code: Internal}]");
        let next = || faults.next(Operation::ListMachines, "").unwrap().code.unwrap();
        assert_eq!([next(), next()], [Code::Aborted, Code::Internal]);
    }

    #[test]
    fn a_file_is_read_again_when_it_changes_and_a_broken_one_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("faults");
        let faults = Faults::new(Vec::new(), Some(path.clone())).unwrap();
        let code = || {
            faults
                .next(Operation::CreateMachine, "a")
                .and_then(|fault| fault.code)
        };
        assert_eq!(code(), None);
        std::fs::write(&path, r#"[{"code": "Unavailable"}]"#).unwrap();
        assert_eq!(code(), Some(Code::Unavailable));
        std::fs::write(&path, "[{codes: broken}]").unwrap();
        assert_eq!(code(), Some(Code::Unavailable));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(code(), None);
    }

    #[test]
    fn a_file_that_is_no_list_of_faults_is_named_with_what_is_wrong_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("faults.yaml");
        for (text, wrong) in [
            ("faults: []", "is no list of faults"),
            ("[{codes: Unavailable}]", "codes"),
            ("[{code: Aborted}, {machine: a}]", "fault [1]"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = Faults::new(Vec::new(), Some(path.clone())).err().unwrap();
            let error = format!("{error:#}");
            assert!(
                error.contains(&path.display().to_string()) && error.contains(wrong),
                "{error}"
            );
        }
    }

    #[test]
    fn only_probe_can_be_not_ready() {
        assert!(faults("[{operation: Probe, notReady: true}]").not_ready());
        let misplaced: Fault = serde_saphyr::from_str("{notReady: true}").unwrap();
        assert!(misplaced.validate().is_err());
    }

    #[test]
    fn stars_stand_for_any_text() {
        for (pattern, text, fits) in [
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "ab", false),
            ("a", "ab", false),
            ("*b*", "abc", true),
        ] {
            assert_eq!(matches(pattern, text), fits, "{pattern} {text}");
        }
    }
}
