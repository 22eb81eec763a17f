//! Rules for the answers of all calls, in any case.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::secret_scan::Haystack;
use super::wire::RawAnswer;
use cmi_driver::{
    self, ClassDescription, Console, DeclaredCapabilities, DeleteMachineResponse, LastKnownState,
    ListedMachine, Machine, Operation, PluginInfo, Readiness, Secrets, ShutDownMachineResponse, Status,
    USER_DATA, Zone,
};

/// The shortest message that can explain an error.
const MIN_MESSAGE: usize = 8;
/// The rows that a secret in an answer breaks.
pub const SECRET_RULES: &[&str] = &["OPS-11", "CMI-13", "CMI-165", "CMI-186"];

/// The rows that a driver breaks when it does not serve again after it was killed and started.
pub const SERVES_AGAIN_RULES: &[&str] = &["CMI-157", "CMI-182"];

/// A rule that an answer broke.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// The rows that are broken.
    pub rules: &'static [&'static str],
    /// How the answer broke them.
    pub message: String,
}

/// Checks every answer.
#[derive(Debug)]
pub struct AnswerChecker {
    /// The secret text in the bootstrap data: a driver may quote it without the lines around it.
    canary: String,
    /// Keys among the credentials that hold no secret, such as an account's id that is part of the driver's
    /// answers.
    public: BTreeSet<String>,
    found: Mutex<BTreeSet<Violation>>,
}

/// The texts in a response. None of them may contain a secret.
pub trait Texts {
    /// Returns every text; none for a response without texts.
    fn texts(&self) -> Vec<String> {
        Vec::new()
    }
}

impl AnswerChecker {
    /// Creates a checker for the secret text in the bootstrap data. `public` are the keys of the credentials
    /// that hold no secret.
    pub fn new(canary: String, public: BTreeSet<String>) -> Self {
        Self {
            canary,
            public,
            found: Mutex::default(),
        }
    }

    /// Checks an answer.
    pub fn check<T: Texts>(&self, operation: Operation, secrets: &Secrets, result: &cmi_driver::Result<T>) {
        let texts = match result {
            Ok(response) => response.texts(),
            Err(status) => {
                if let Some(problem) = problem(status) {
                    self.record(
                        message_rules(operation),
                        format!("{operation} answered {status}: {problem}"),
                    );
                }
                texts_of_status(status)
            }
        };
        self.check_secrets(operation.name(), secrets, &texts);
    }

    /// Checks an answer as it was on the wire: the client would hide its code, its details and unknown
    /// fields.
    pub fn check_raw(&self, secrets: &Secrets, answer: &RawAnswer) {
        let path = answer.path();
        if !answer.is_canonical() {
            let what = format!("{path} answered code {}, which is not a gRPC code", answer.code);
            self.record(&["CMI-24"], what);
        }
        if answer.has_details() {
            let what = format!(
                "{path} answered code {} with `grpc-status-details-bin`",
                answer.code
            );
            self.record(&["CMI-41"], what);
        }
        // A gRPC server answers calls of an unknown method without the driver.
        let needs_message = !answer.is_code(tonic::Code::Ok) && !answer.is_code(tonic::Code::Unimplemented);
        if needs_message && answer.message().trim().is_empty() {
            let what = format!("{path} answered code {} without a message", answer.code);
            self.record(&["CMI-40"], what);
        }
        // A secret that looks percent-encoded may be in the answer verbatim.
        let mut texts = vec![
            answer.message(),
            answer.message_as_written().to_owned(),
            answer.text(),
        ];
        texts.extend_from_slice(answer.metadata());
        self.check_secrets(path, secrets, &texts);
    }

    /// Checks the headers and trailers of the client's answers. The client itself ignores those that it does
    /// not know.
    pub fn check_metadata(&self, secrets: &Secrets, metadata: Vec<(Operation, String)>) {
        for (operation, text) in metadata {
            self.check_secrets(operation.name(), secrets, &[text]);
        }
    }

    /// Records each secret that is in one of the texts.
    fn check_secrets(&self, call: &str, secrets: &Secrets, texts: &[String]) {
        let canary = (USER_DATA, self.canary.as_bytes());
        let secrets = secrets.iter().filter(|(key, _)| !self.public.contains(*key));
        let secrets = secrets.map(|(key, value)| (key, value.expose()));
        let texts: Vec<_> = texts.iter().map(|text| Haystack::new(text)).collect();
        for (key, secret) in secrets.chain([canary]) {
            if let Some(form) = texts.iter().find_map(|text| text.form_of(secret)) {
                let what = format!(
                    "{call} returned the value of secret key `{key}` ({form}) in the answer, an error \
                        message or metadata"
                );
                self.record(SECRET_RULES, what);
            }
        }
    }

    /// Returns the violations, each once.
    pub fn violations(&self) -> Vec<Violation> {
        let found = self.found.lock();
        found.iter().cloned().collect()
    }

    /// Records a broken rule, whichever case shows it.
    pub fn record(&self, rules: &'static [&'static str], message: String) {
        self.found.lock().insert(Violation { rules, message });
    }
}

/// Returns the fault in the message of an error, if any (DRV-17).
pub fn problem(status: &Status) -> Option<&'static str> {
    let message = status.message();
    if status.has_default_message() || message.trim().is_empty() {
        return Some("the message is empty");
    }
    if message.contains('\0') {
        return Some("the message contains NUL");
    }
    if message.chars().filter(|c| !c.is_control()).count() < MIN_MESSAGE {
        return Some("the message is too short to be useful");
    }
    let folded = |text: &str| text.replace('_', "").to_lowercase();
    if folded(message.trim()) == folded(status.code().name()) {
        return Some("the message only repeats the code");
    }
    None
}

/// Returns the rows about the message of an error, by call.
pub const fn message_rules(operation: Operation) -> &'static [&'static str] {
    match operation {
        Operation::CreateMachine => &["DRV-17", "CMI-40", "CMI-98"],
        Operation::DeleteMachine => &["DRV-25", "CMI-40", "CMI-113"],
        Operation::GetMachineStatus => &["DRV-32", "CMI-40", "CMI-125"],
        Operation::ListMachines => &["DRV-39", "CMI-40", "CMI-145"],
        Operation::ShutDownMachine => &["CMI-40", "CMI-135"],
        Operation::GetVolumeIds => &["DRV-46", "CMI-40", "CMI-152"],
        Operation::GenerateMachineClassForMigration => &["DRV-52"],
        Operation::InitializeMachine
        | Operation::UpdateMachine
        | Operation::RestartMachine
        | Operation::GetConsole
        | Operation::ListZones
        | Operation::DescribeClass
        | Operation::Probe
        | Operation::GetPluginInfo
        | Operation::GetPluginCapabilities => &["CMI-40"],
    }
}

fn texts_of_status(status: &Status) -> Vec<String> {
    let mut texts = vec![status.message().to_owned()];
    texts.extend(status.last_known_state().map(state));
    texts.extend(status.machine().into_iter().flat_map(Texts::texts));
    texts
}

fn state(state: &LastKnownState) -> String {
    String::from_utf8_lossy(state.as_bytes()).into_owned()
}

impl Texts for Machine {
    fn texts(&self) -> Vec<String> {
        let mut texts = vec![self.provider_id.to_string(), self.node_name.clone()];
        texts.extend(self.addresses.iter().map(|address| address.address.clone()));
        texts.extend(self.failure_domain.clone());
        texts.extend(self.last_known_state.as_ref().map(state));
        texts
    }
}

impl Texts for DeleteMachineResponse {
    fn texts(&self) -> Vec<String> {
        self.last_known_state.iter().map(state).collect()
    }
}

impl Texts for ShutDownMachineResponse {
    fn texts(&self) -> Vec<String> {
        self.last_known_state.iter().map(state).collect()
    }
}

impl Texts for Vec<ListedMachine> {
    fn texts(&self) -> Vec<String> {
        self.iter()
            .flat_map(|vm| [vm.provider_id.to_string(), vm.machine_name.clone()])
            .collect()
    }
}

/// The guest writes the console: its text is not the driver's.
impl Texts for Console {}

impl Texts for Vec<String> {
    fn texts(&self) -> Vec<String> {
        self.clone()
    }
}

impl Texts for Map<String, Value> {
    fn texts(&self) -> Vec<String> {
        vec![Value::Object(self.clone()).to_string()]
    }
}

impl Texts for Vec<Zone> {
    fn texts(&self) -> Vec<String> {
        let texts = |zone: &Zone| {
            let attributes = zone.attributes.iter().flat_map(|(key, value)| [key, value]);
            std::iter::once(&zone.name)
                .chain(attributes)
                .cloned()
                .collect::<Vec<_>>()
        };
        self.iter().flat_map(texts).collect()
    }
}

impl Texts for ClassDescription {
    fn texts(&self) -> Vec<String> {
        let capacity = self.capacity.iter().flat_map(|(key, value)| [key, value]);
        let platform = self.architecture.iter().chain(&self.operating_system);
        capacity.chain(platform).cloned().collect()
    }
}

impl Texts for PluginInfo {
    fn texts(&self) -> Vec<String> {
        vec![self.name.clone(), self.version.clone()]
    }
}

impl Texts for DeclaredCapabilities {}

impl Texts for Readiness {}

impl Texts for () {}

#[cfg(test)]
mod tests {
    use super::*;
    use cmi_driver::Code;

    /// DRV-17
    #[test]
    fn a_message_has_to_say_something_that_the_code_does_not() {
        for bad in ["", " ", "no", "Resource_Exhausted", "a\0bcdefghij"] {
            let status = Status::new(Code::ResourceExhausted, "x").with_message(bad);
            assert!(problem(&status).is_some(), "{bad:?}");
        }
        assert!(problem(&Status::new(Code::Internal, "")).is_some());
        assert_eq!(problem(&Status::new(Code::Internal, "the disk is missing")), None);
    }
}
