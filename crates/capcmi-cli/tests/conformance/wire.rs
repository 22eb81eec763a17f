//! Rules that only the wire shows: this project's plugin keeps them too, and the suite detects violations on
//! the wire.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use base64::prelude::{BASE64_STANDARD_NO_PAD, Engine as _};
use capcmi_cli::commands::conformance::simulated::Simulated;
use cmi_conformance::{
    AnswerMetadata, Case, ConnectionWire, RawResponse, Report, Selection, Target, Verdict, Wire, cases, run,
};
use cmi_driver::{Driver, Operation};
use cmi_grpc::client::MetadataObserver as _;
use cmi_grpc::proto::capcmi::v1::{ListMachinesPagedRequest, ListMachinesPagedResponse};
use cmi_grpc::proto::cmi::v1::{
    CreateMachineRequest, CreateMachineResponse, DeleteMachineResponse, GetMachineStatusResponse,
    GetPluginInfoResponse, GetVolumeIDsResponse, ListMachinesResponse,
};
use cmi_simulated::SimulatedDriver;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use prost::Message as _;
use tokio_util::sync::CancellationToken;

use crate::for_each;
use crate::served::{RestartingHooks, Server};
use crate::tested_patiently;
use crate::variants::Variant;

/// A plugin on the simulated cloud, and the connection to it.
struct Served {
    simulated: Simulated,
    wire: Arc<ConnectionWire>,
    server: Arc<Server>,
}

impl Served {
    /// Serves on a real socket.
    async fn start() -> Self {
        let simulated = Simulated::new().unwrap();
        let server = Server::start(simulated.driver.clone()).await;
        Self::by(simulated, server)
    }

    /// Serves within the process.
    fn in_memory() -> Self {
        Self::serving(|simulated| simulated.driver.clone())
    }

    fn serving(driver: impl FnOnce(&Simulated) -> Arc<dyn Driver>) -> Self {
        let simulated = Simulated::new().unwrap();
        let server = Server::in_memory(driver(&simulated));
        Self::by(simulated, server)
    }

    fn by(simulated: Simulated, server: Arc<Server>) -> Self {
        Self {
            wire: Arc::new(server.wire()),
            simulated,
            server,
        }
    }

    /// Tests only the rules that need the wire: other tests cover the rest.
    async fn tested(&self, wire: Arc<dyn Wire>, only: &[&str]) -> Report {
        self.run(self.simulated.driver.clone(), wire, Arc::default(), only)
            .await
    }

    /// All that a user sees: by the client that the provider calls plugins with.
    async fn tested_from_outside(&self, only: &[&str]) -> Report {
        let metadata = Arc::new(AnswerMetadata::default());
        let client = self.server.client().with_metadata_observer(metadata.clone());
        self.run(Arc::new(client), self.wire.clone(), metadata, only)
            .await
    }

    async fn run(
        &self,
        driver: Arc<dyn Driver>,
        wire: Arc<dyn Wire>,
        metadata: Arc<AnswerMetadata>,
        only: &[&str],
    ) -> Report {
        let target = Target::plugin("the plugin", driver, wire, metadata);
        let mut config = self.simulated.config.clone();
        let passphrase = ("passphrase".to_owned(), PASSPHRASE.into());
        config.secrets.extend([passphrase]);
        let hooks = Arc::new(RestartingHooks {
            cloud: Arc::clone(&self.simulated.hooks),
            server: Arc::clone(&self.server),
        });
        let selection = Selection::only(only.iter().copied());
        run(target, config, hooks, &selection, &(), CancellationToken::new())
            .await
            .unwrap()
    }
}

/// A credential with characters that a gRPC message can't have.
const PASSPHRASE: &str = "open sesame, 100% schön";

/// A flaw on the wire.
#[derive(Clone, Copy, Debug)]
enum Flaw {
    /// Answers the second code instead of the first.
    Says(&'static str, &'static str),
    /// A code that does not exist in gRPC.
    Code17,
    /// Answers end without a status.
    NoStatus,
    Breaks,
    /// Errors have details.
    Details,
    /// Errors of this code have details.
    DetailsOf(&'static str),
    /// A word of the bootstrap data is in the message of every error.
    SaysCanary,
    /// A credential is in the message of every error, as gRPC writes a message.
    SaysPassphrase,
    /// The size of a page does not matter.
    PagesAsLongAsItLikes,
    /// The list ends after its first page.
    FirstPageAlone,
    /// Page tokens are ignored.
    AnyPageToken,
    /// The published list ends after a page.
    ListOnePage,
    /// A field that is not known is refused.
    RefusesUnknownFields,
    /// A field that is not known is ABORTED.
    AbortsUnknownFields,
    /// An invalid volume is INVALID_ARGUMENT. That breaks no rule.
    RefusesEmptyVolumes,
    /// A list without a volume is INVALID_ARGUMENT. That breaks no rule.
    RefusesNoVolumes,
    /// A message of more than 4 MiB is refused, as by default in gRPC libraries.
    TakesFourMebibytes,
    /// Only GetVolumeIDs refuses it.
    VolumesTakeFourMebibytes,
    /// A message of more than 8 MiB is refused.
    TakesEightMebibytes,
    /// Only UpdateMachine refuses it.
    UpdateTakesFourMebibytes,
    /// A message of more than 2 MiB is refused.
    TakesTwoMebibytes,
    /// The names of fields are read in any case, and the last field counts.
    ReadsKeysInAnyCase,
    /// A VM has an id of 513 bytes.
    LongProviderId,
    /// A Node has a name of 254 bytes.
    LongNodeName,
    /// A state of more than 4 KiB is given back.
    LongState,
    /// Only DeleteMachine returns it.
    LongStateOfDelete,
    /// A machine of 254 bytes is listed.
    LongListedName,
    /// A volume has an id of 513 bytes.
    LongVolumeId,
    /// A trailer has a word of the bootstrap data.
    TrailerHoldsCanary,
    /// A binary trailer has a word of the bootstrap data.
    BinaryTrailerHoldsCanary,
    /// After a restart nothing listens at the endpoint.
    GoneAfterRestart,
    /// The manifest is beyond every limit.
    HugeManifest,
    /// Every second response declares only create and delete.
    CapabilitiesChange,
    NoMessage,
    DeclaresNothing,
    /// These bytes are the answer of this call.
    Answers(&'static str, &'static [u8]),
    /// This call answers OK, and nothing, where it should refuse a request as invalid.
    NeedsNot(&'static str),
    /// This call is not served.
    NotServed(&'static str),
    /// It ends after this many calls.
    EndsAfter(usize),
    /// Bytes that are no text are a broken invariant.
    ChokesOnBytes,
    AlwaysHealthy,
    /// Deadlines are ignored.
    NoDeadlines,
}

struct Mutant {
    inner: Arc<ConnectionWire>,
    driver: Arc<SimulatedDriver>,
    flaw: Flaw,
    calls: AtomicUsize,
}

impl Mutant {
    /// The code of a request that is refused before the driver has seen it.
    fn refusal(&self, path: &str, message: &[u8]) -> Option<&'static str> {
        let is_unknown = message.ends_with(b"unknown");
        let is_empty_volume = path.ends_with("GetVolumeIDs") && message.ends_with(b"[{}]");
        match self.flaw {
            Flaw::TakesFourMebibytes if message.len() > 4 << 20 => Some("8"),
            Flaw::UpdateTakesFourMebibytes if path.ends_with("/UpdateMachine") && message.len() > 4 << 20 => {
                Some("8")
            }
            Flaw::VolumesTakeFourMebibytes if path.ends_with("/GetVolumeIDs") && message.len() > 4 << 20 => {
                Some("8")
            }
            Flaw::TakesEightMebibytes if message.len() > 8 << 20 => Some("8"),
            Flaw::RefusesNoVolumes if path.ends_with("/GetVolumeIDs") && !message.contains(&b'{') => {
                Some("3")
            }
            Flaw::TakesTwoMebibytes if message.len() > 2 << 20 => Some("8"),
            Flaw::RefusesUnknownFields if is_unknown => Some("3"),
            Flaw::AbortsUnknownFields if is_unknown => Some("10"),
            Flaw::RefusesEmptyVolumes if is_empty_volume => Some("3"),
            _ => None,
        }
    }
}

fn response(code: &str, body: &'static [u8]) -> RawResponse {
    RawResponse {
        code: Some(code.to_owned()),
        message: "because I say so".to_owned(),
        has_details: false,
        metadata: Vec::new(),
        body: body.into(),
    }
}

/// A word of the bootstrap data in a request.
fn canary(message: &[u8]) -> String {
    let text = String::from_utf8_lossy(message).into_owned();
    let word = text.split([' ', '}']).find(|word| word.starts_with("canary-"));
    word.unwrap_or_default().to_owned()
}

/// Returns the request as read by a JSON library that treats `TAGS` as `tags`.
fn in_any_case(message: &[u8]) -> Vec<u8> {
    let mut request = CreateMachineRequest::decode(message).unwrap();
    let spec: serde_json::Result<serde_json::Map<_, _>> = serde_json::from_slice(&request.provider_spec);
    if let Ok(mut spec) = spec {
        if let Some(tags) = spec.remove("TAGS") {
            spec.insert("tags".to_owned(), tags);
        }
        request.provider_spec = serde_json::to_vec(&spec).unwrap();
    }
    request.encode_to_vec()
}

/// Returns the answer with a field that is one byte too long.
fn lengthened(flaw: Flaw, path: &str, mut answer: RawResponse) -> RawResponse {
    match flaw {
        Flaw::LongProviderId if path.ends_with("Machine/ListMachines") => {
            let mut listed = ListMachinesResponse::decode(answer.body).unwrap();
            listed.machine_list.insert("i".repeat(513), "a".to_owned());
            answer.body = listed.encode_to_vec().into();
        }
        Flaw::LongNodeName if path.ends_with("/GetMachineStatus") => {
            let mut read = GetMachineStatusResponse::decode(answer.body).unwrap();
            read.node_name = "n".repeat(254);
            answer.body = read.encode_to_vec().into();
        }
        Flaw::LongState if path.ends_with("/CreateMachine") => {
            let mut created = CreateMachineResponse::decode(answer.body).unwrap();
            created.last_known_state = vec![b's'; 4097];
            answer.body = created.encode_to_vec().into();
        }
        Flaw::LongStateOfDelete if path.ends_with("/DeleteMachine") => {
            let mut deleted = DeleteMachineResponse::decode(answer.body).unwrap();
            deleted.last_known_state = vec![b's'; 4097];
            answer.body = deleted.encode_to_vec().into();
        }
        Flaw::LongListedName if path.ends_with("Machine/ListMachines") => {
            let mut listed = ListMachinesResponse::decode(answer.body).unwrap();
            listed.machine_list.insert("i".to_owned(), "n".repeat(254));
            answer.body = listed.encode_to_vec().into();
        }
        Flaw::LongVolumeId if path.ends_with("/GetVolumeIDs") => {
            let mut found = GetVolumeIDsResponse::decode(answer.body).unwrap();
            found.volume_i_ds.push("v".repeat(513));
            answer.body = found.encode_to_vec().into();
        }
        _ => {}
    }
    answer
}

#[async_trait]
impl Wire for Mutant {
    async fn call(
        &self,
        path: &str,
        message: &[u8],
        deadline: Option<Duration>,
    ) -> anyhow::Result<RawResponse> {
        let deadline = deadline.filter(|_| !matches!(self.flaw, Flaw::NoDeadlines));
        let calls = self.calls.fetch_add(1, Ordering::SeqCst);
        let mut message = message.to_vec();
        if path.ends_with("ListMachinesPaged") {
            let mut request = ListMachinesPagedRequest::decode(message.as_slice()).unwrap();
            match self.flaw {
                Flaw::PagesAsLongAsItLikes => request.page_size = 0,
                Flaw::AnyPageToken if request.page_token.starts_with("conformance") => {
                    request.page_token.clear();
                }
                _ => {}
            }
            message = request.encode_to_vec();
        }
        if matches!(self.flaw, Flaw::ReadsKeysInAnyCase) && path.ends_with("/CreateMachine") {
            message = in_any_case(&message);
        }
        let message = message.as_slice();
        if let Some(code) = self.refusal(path, message) {
            return Ok(response(code, b""));
        }
        let mut answer = self.inner.call(path, message, deadline).await?;
        let failed = answer.code.as_deref() != Some("0");
        if !failed {
            answer = lengthened(self.flaw, path, answer);
        }
        match self.flaw {
            Flaw::Says(wrong, said) if answer.code.as_deref() == Some(wrong) => {
                answer.code = Some(said.to_owned());
            }
            Flaw::NeedsNot(call) if path.ends_with(call) && answer.code.as_deref() == Some("3") => {
                return Ok(response("0", b""));
            }
            Flaw::Code17 if failed => answer.code = Some("17".to_owned()),
            Flaw::NoStatus if failed => answer.code = None,
            Flaw::Breaks if failed => anyhow::bail!("the stream was reset"),
            Flaw::Details if failed => answer.has_details = true,
            Flaw::DetailsOf(code) if answer.code.as_deref() == Some(code) => answer.has_details = true,
            Flaw::SaysCanary if failed => answer.message = format!("this is why: {}", canary(message)),
            Flaw::TrailerHoldsCanary => answer.metadata.push(canary(message)),
            Flaw::BinaryTrailerHoldsCanary => {
                let told = format!("of {}", canary(message));
                answer.metadata.push(BASE64_STANDARD_NO_PAD.encode(told));
            }
            Flaw::ListOnePage if path.ends_with("Machine/ListMachines") && !failed => {
                let mut listed = ListMachinesResponse::decode(answer.body).unwrap();
                listed.machine_list = listed.machine_list.into_iter().take(20).collect();
                answer.body = listed.encode_to_vec().into();
            }
            Flaw::GoneAfterRestart if self.driver.restarts() > 0 => anyhow::bail!("no plugin is there"),
            Flaw::SaysPassphrase if failed => {
                let said = format!("this is why: {PASSPHRASE}");
                answer.message = utf8_percent_encode(&said, NON_ALPHANUMERIC).to_string();
            }
            Flaw::FirstPageAlone if path.ends_with("ListMachinesPaged") && !failed => {
                let mut page = ListMachinesPagedResponse::decode(answer.body).unwrap();
                page.next_page_token.clear();
                answer.body = page.encode_to_vec().into();
            }
            Flaw::HugeManifest if path.ends_with("GetPluginInfo") => {
                let mut info = GetPluginInfoResponse::decode(answer.body).unwrap();
                info.manifest.insert("a".to_owned(), "b".repeat(5000));
                answer.body = info.encode_to_vec().into();
            }
            Flaw::CapabilitiesChange if path.ends_with("GetPluginCapabilities") && calls % 4 < 2 => {
                return Ok(response("0", BOTH));
            }
            Flaw::NoMessage => answer.message.clear(),
            Flaw::DeclaresNothing if path.ends_with("GetPluginCapabilities") => {
                return Ok(response("0", &[]));
            }
            Flaw::Answers(call, body) if path.ends_with(call) => return Ok(response("0", body)),
            Flaw::NotServed(call) if path.ends_with(call) => return Ok(response("12", &[])),
            Flaw::EndsAfter(most) if calls > most => anyhow::bail!("no plugin is there"),
            Flaw::ChokesOnBytes if message.contains(&0) => return Ok(response("13", &[])),
            Flaw::AlwaysHealthy if path.ends_with("Probe") => return Ok(response("0", &[])),
            _ => {}
        }
        Ok(answer)
    }

    async fn hold(&self) -> anyhow::Result<BoxFuture<'static, ()>> {
        self.inner.hold().await
    }
}

/// One capability on the wire: `capabilities { rpc { type } }`.
const CREATE_ALONE: &[u8] = &[10, 4, 10, 2, 8, 1];
const DELETE_ALONE: &[u8] = &[10, 4, 10, 2, 8, 2];
const BOTH: &[u8] = &[10, 4, 10, 2, 8, 1, 10, 4, 10, 2, 8, 2];
/// Name and version.
const BAD_NAME: &[u8] = b"\x0a\x09-bad_name\x12\x050.1.0";
const EMPTY_LABEL: &[u8] = b"\x0a\x08foo..bar\x12\x050.1.0";
/// A number where a text belongs.
const NUMBER: &[u8] = b"\x08\x07";
/// An id and no node name.
const NO_NODE_NAME: &[u8] = b"\x0a\x0fanother-machine";
/// The place of the tags: no JSON pointer.
const BAD_TAG_PATH: &[u8] = b"\x22\x01a";
/// Provider id and node name of another VM.
const ANOTHER_MACHINES: &[u8] = b"\x0a\x0fanother-machine\x12\x01x";

const MUTANTS: &[(Flaw, &str)] = &[
    (Flaw::Code17, "CMI-24"),
    (Flaw::NoStatus, "CMI-23"),
    (Flaw::Breaks, "CMI-23"),
    (Flaw::Details, "CMI-41"),
    (Flaw::DetailsOf("5"), "CMI-41"),
    (Flaw::DetailsOf("6"), "CMI-41"),
    (Flaw::NoMessage, "CMI-40"),
    (Flaw::Answers("GetPluginInfo", BAD_NAME), "CMI-53"),
    (Flaw::HugeManifest, "CMI-56"),
    (Flaw::CapabilitiesChange, "CMI-59"),
    (
        Flaw::Answers("Machine/GetMachineStatus", ANOTHER_MACHINES),
        "CMI-115",
    ),
    (
        Flaw::Answers("Machine/GetMachineStatus", ANOTHER_MACHINES),
        "CMI-116",
    ),
    (Flaw::Says("5", "14"), "PLG-GS-05"),
    (Flaw::Answers("Machine/ListMachines", b""), "CMI-137"),
    (Flaw::NotServed("InitializeMachine"), "INI-11"),
    (Flaw::NotServed("UpdateMachine"), "UPD-02"),
    (Flaw::NotServed("ListZones"), "CAP-05"),
    (Flaw::NotServed("DescribeClass"), "CAP-05"),
    (Flaw::NotServed("RestartMachine"), "CAP-05"),
    (Flaw::NotServed("GetConsole"), "CAP-05"),
    (Flaw::NotServed("GetMachine"), "CAP-05"),
    (Flaw::Answers("/InitializeMachine", b""), "CAP-22"),
    (Flaw::Answers("/InitializeMachine", NUMBER), "CAP-22"),
    (Flaw::Answers("/InitializeMachine", NO_NODE_NAME), "CAP-22"),
    (Flaw::Answers("/InitializeMachine", ANOTHER_MACHINES), "CAP-22"),
    (Flaw::Answers("/GetMachine", b""), "CAP-22"),
    (Flaw::Answers("/GetMachine", NUMBER), "CAP-22"),
    (Flaw::Answers("/GetMachine", ANOTHER_MACHINES), "CAP-22"),
    (Flaw::Answers("/UpdateMachine", b"\xff"), "CAP-22"),
    (Flaw::Answers("/RestartMachine", b"\xff"), "CAP-22"),
    (Flaw::Answers("/GetConsole", b"\xff"), "CAP-22"),
    (Flaw::NeedsNot("/InitializeMachine"), "CAP-21"),
    (Flaw::NeedsNot("/UpdateMachine"), "CAP-21"),
    (Flaw::NeedsNot("/RestartMachine"), "CAP-21"),
    (Flaw::NeedsNot("/GetConsole"), "CAP-21"),
    (Flaw::NeedsNot("/GetMachine"), "CAP-21"),
    (Flaw::Says("3", "13"), "CAP-21"),
    (Flaw::NotServed("ListMachinesPaged"), "CAP-05"),
    (Flaw::Answers("GetExtensionCapabilities", b""), "DRV-48"),
    (Flaw::Answers("GetExtensionCapabilities", b""), "CAP-05"),
    (Flaw::ListOnePage, "CMI-137"),
    (Flaw::RefusesUnknownFields, "CMI-154"),
    (Flaw::AbortsUnknownFields, "CMI-154"),
    (Flaw::TakesFourMebibytes, "CMI-14"),
    (Flaw::UpdateTakesFourMebibytes, "CMI-14"),
    (Flaw::VolumesTakeFourMebibytes, "CMI-14"),
    (Flaw::TakesEightMebibytes, "CMI-14"),
    (Flaw::TakesTwoMebibytes, "CMI-14"),
    (Flaw::ReadsKeysInAnyCase, "CMI-49"),
    (Flaw::LongProviderId, "CMI-14"),
    (Flaw::LongNodeName, "CMI-14"),
    (Flaw::LongState, "CMI-14"),
    (Flaw::LongStateOfDelete, "CMI-14"),
    (Flaw::LongListedName, "CMI-14"),
    (Flaw::LongVolumeId, "CMI-14"),
    (Flaw::GoneAfterRestart, "CMI-157"),
    (Flaw::PagesAsLongAsItLikes, "CAP-06"),
    (Flaw::FirstPageAlone, "CAP-06"),
    (Flaw::AnyPageToken, "CAP-06"),
    (Flaw::Answers("GetPluginInfo", EMPTY_LABEL), "CMI-51"),
    (Flaw::DeclaresNothing, "CMI-06"),
    (Flaw::Answers("GetPluginCapabilities", DELETE_ALONE), "CMI-61"),
    (Flaw::Answers("GetPluginCapabilities", CREATE_ALONE), "CMI-62"),
    (Flaw::Answers("GetPluginCapabilities", CREATE_ALONE), "CMI-07"),
    (Flaw::Answers("GetPluginCapabilities", b"\xff"), "CMI-60"),
    (Flaw::Answers("GetPluginInfo", b""), "CMI-155"),
    (Flaw::Answers("CreateMachine", b""), "CMI-92"),
    (Flaw::Answers("CreateMachine", b"\x0a\x01a"), "CMI-93"),
    (Flaw::NotServed("Probe"), "CMI-08"),
    (Flaw::NotServed("GetPluginInfo"), "CMI-155"),
    (Flaw::NotServed("GetPluginCapabilities"), "CMI-58"),
    (Flaw::NotServed("CreateMachine"), "CMI-03"),
    (Flaw::NotServed("GetMachineStatus"), "CMI-114"),
    (Flaw::NotServed("ListMachines"), "CMI-136"),
    (Flaw::NotServed("ShutDownMachine"), "CMI-126"),
    (Flaw::NotServed("GetVolumeIDs"), "CMI-146"),
    (Flaw::Says("3", "13"), "CMI-28"),
    (Flaw::Says("3", "0"), "CMI-106"),
    (Flaw::Says("3", "2"), "CMI-88"),
    (Flaw::Says("3", "5"), "CMI-150"),
    (Flaw::Says("9", "13"), "CMI-75"),
    (Flaw::EndsAfter(500), "CMI-182"),
    (Flaw::ChokesOnBytes, "CMI-44"),
    (Flaw::AlwaysHealthy, "CMI-68"),
    (Flaw::NoDeadlines, "PLG-CR-04"),
    (Flaw::NoDeadlines, "PLG-DE-04"),
    (Flaw::Says("4", "1"), "PLG-GS-04"),
    (Flaw::Says("4", "14"), "PLG-LM-04"),
    (Flaw::NoDeadlines, "PLG-SD-04"),
    (Flaw::Answers("GetPluginInfo", b""), "CMI-54"),
    (Flaw::Answers("GetPluginCapabilities", DELETE_ALONE), "CMI-81"),
    (Flaw::Answers("GetPluginCapabilities", CREATE_ALONE), "CMI-99"),
];

async fn tested_mutant(flaw: Flaw, only: &[&str]) -> Report {
    let mut served = Served::in_memory();
    match flaw {
        Flaw::AbortsUnknownFields => served.simulated.config.call_seconds = 3.0,
        // Its own volumes would be taken.
        Flaw::RefusesEmptyVolumes | Flaw::RefusesNoVolumes => {
            served.simulated.config.persistent_volumes.own.clear();
        }
        _ => {}
    }
    let wire = Arc::new(Mutant {
        inner: served.wire.clone(),
        driver: served.simulated.driver.clone(),
        flaw,
        calls: AtomicUsize::new(0),
    });
    served.tested(wire, only).await
}

async fn survives(flaw: Flaw, rule: &'static str) -> Option<String> {
    let report = tested_mutant(flaw, &[rule]).await;
    let found = report.rule(rule).unwrap();
    (!found.verdict.is_failure()).then(|| format!("{flaw:?}: {rule} {}", found.verdict))
}

#[test]
fn the_rule_that_is_broken_on_the_wire_is_named() {
    let ended = for_each(MUTANTS, |(flaw, rule)| survives(*flaw, rule));
    let survivors: Vec<_> = ended.into_iter().flatten().collect();
    assert!(
        survivors.is_empty(),
        "{} survived:\n{}",
        survivors.len(),
        survivors.join("\n")
    );
}

/// OPS-11: on the wire as well as in the answers of the client, in every case.
#[tokio::test(start_paused = true)]
async fn a_secret_in_an_answer_to_a_bare_call_is_found() {
    for flaw in [
        Flaw::SaysCanary,
        Flaw::SaysPassphrase,
        Flaw::TrailerHoldsCanary,
        Flaw::BinaryTrailerHoldsCanary,
    ] {
        let served = Served::in_memory();
        let wire = Arc::new(Mutant {
            inner: served.wire.clone(),
            driver: served.simulated.driver.clone(),
            flaw,
            calls: AtomicUsize::new(0),
        });
        let report = served.tested(wire, &["OPS-11", "wire-status"]).await;
        let verdict = &report.rule("OPS-11").unwrap().verdict;
        assert!(verdict.is_failure(), "{flaw:?}: {verdict:?}");
    }
}

/// CAP-05: the client refuses a plugin with an unreadable declaration.
#[tokio::test(start_paused = true)]
async fn an_extension_that_can_not_be_read_is_found() {
    let case = "wire-extension-capabilities";
    for flaw in [
        Flaw::Answers("GetExtensionCapabilities", BAD_TAG_PATH),
        Flaw::Answers("GetExtensionCapabilities", b"\xff"),
    ] {
        let report = tested_mutant(flaw, &[case]).await;
        assert!(report.cases[0].verdict.is_failure(), "{:?}", report.cases[0]);
    }
}

/// CMI-154: a request that is also refused without the unknown field shows nothing.
#[tokio::test(start_paused = true)]
async fn a_request_refused_for_another_reason_passes_the_unknown_fields_case() {
    let case = "wire-unknown-fields";
    let report = tested_mutant(Flaw::RefusesEmptyVolumes, &[case]).await;
    assert_eq!(report.cases[0].verdict, Verdict::Passed);
}

/// CMI-14, CMI-150: a long list without a volume has the length that counts.
#[tokio::test(start_paused = true)]
async fn a_long_list_of_no_volumes_may_be_refused_as_a_short_one_may() {
    let report = tested_mutant(Flaw::RefusesNoVolumes, &["wire-large-requests"]).await;
    assert_eq!(report.cases[0].verdict, Verdict::Passed);
}

#[tokio::test(start_paused = true)]
async fn the_simulated_driver_as_a_plugin_keeps_the_rules_of_the_wire() {
    let served = Served::in_memory();
    let rules: std::collections::BTreeSet<_> = MUTANTS.iter().map(|(_, rule)| *rule).collect();
    let report = served
        .tested(served.wire.clone(), &Vec::from_iter(rules.clone()))
        .await;
    for rule in rules {
        assert_eq!(report.rule(rule).unwrap().verdict, Verdict::Passed, "{rule}");
    }
    assert!(report.passed, "{:?}", report.leftovers);
}

/// DRV-CR-10, PLG-DE-04: a call that was abandoned at its deadline may continue in the plugin and block
/// others.
#[tokio::test(start_paused = true)]
async fn a_plugin_whose_calls_run_on_keeps_the_rules_about_deadlines() {
    let served = Served::serving(|simulated| Arc::new(Variant::runs_on(simulated.driver.clone())));
    let rules = ["PLG-CR-04", "PLG-DE-04", "PLG-GS-04", "PLG-LM-04", "PLG-SD-04"];
    let report = served.tested_from_outside(&rules).await;
    for rule in rules {
        assert_eq!(report.rule(rule).unwrap().verdict, Verdict::Passed, "{rule}");
    }
    assert!(report.passed, "{:?}", report.leftovers);
    assert_eq!(served.simulated.driver.console().vms().unwrap(), []);
}

/// INI-18: a create may answer code 17 with the VM. Over gRPC, only the answers of these calls differ.
#[tokio::test(start_paused = true)]
async fn a_plugin_may_answer_a_create_with_uninitialized() {
    let simulated = Simulated::new().unwrap();
    let driver = Arc::new(Variant::unfinished(simulated.driver.clone()));
    let report = tested_patiently(&simulated, driver, &[]).await;
    assert!(
        report.passed && report.broken().next().is_none(),
        "{:?}",
        report.leftovers
    );
    assert_eq!(simulated.driver.console().vms().unwrap(), []);

    let served = Served::serving(|simulated| Arc::new(Variant::unfinished(simulated.driver.clone())));
    let is_about_creates = |case: &&Case| case.name.starts_with("create-") || case.name.starts_with("init");
    let cases: Vec<_> = cases::all()
        .filter(is_about_creates)
        .map(|case| case.name)
        .collect();
    let report = served.tested_from_outside(&cases).await;
    let broken: Vec<_> = report.broken().collect();
    assert!(
        report.passed && broken.is_empty(),
        "{broken:#?} {:?}",
        report.leftovers
    );
    assert_eq!(served.simulated.driver.console().vms().unwrap(), []);
}

/// Everything there is: every case, over gRPC, by the client that the provider calls plugins with.
#[tokio::test(flavor = "multi_thread")]
async fn the_simulated_driver_keeps_every_rule_as_a_plugin_and_none_is_skipped() {
    let served = Served::start().await;
    let report = served.tested_from_outside(&[]).await;
    let broken: Vec<_> = report.broken().collect();
    assert!(report.passed && broken.is_empty(), "{broken:#?}");
    let skipped: Vec<_> = report
        .cases
        .iter()
        .filter(|case| case.verdict != Verdict::Passed)
        .collect();
    assert!(skipped.is_empty(), "{skipped:#?}");
    assert_eq!(served.simulated.driver.console().vms().unwrap(), []);
}

/// CMI-186: a driver may write a secret into a trailer only when its back end fails. The suite makes that
/// call through the client, which ignores such a trailer.
#[tokio::test(start_paused = true)]
async fn a_secret_in_a_trailer_that_only_the_client_sees_is_found() {
    for (value, broken) in [(PASSPHRASE, true), ("x-request-1", false)] {
        let served = Served::in_memory();
        let metadata = Arc::new(AnswerMetadata::default());
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        let trailers = HeaderMap::from_iter([(HeaderName::from_static("x-debug"), value)]);
        metadata.observe(Operation::CreateMachine, &trailers);
        let driver = served.simulated.driver.clone();
        let report = served
            .run(driver, served.wire.clone(), metadata, &["CMI-186"])
            .await;
        let found = report.rule("CMI-186").unwrap();
        assert_eq!(found.verdict.is_failure(), broken, "{}", found.verdict);
    }
}

/// After Ctrl-C, or when its terminal is closed, the command deletes its VMs before it ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_the_command_after_it_has_deleted_what_it_made() {
    for signal in ["-INT", "-HUP"] {
        ends_tidily(signal).await;
    }
}

async fn ends_tidily(signal: &str) {
    let served = Served::start().await;
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("suite.yaml");
    let yaml = include_str!("../../src/commands/conformance/simulated.yaml");
    std::fs::write(&config, yaml).unwrap();
    let command = tokio::process::Command::new(env!("CARGO_BIN_EXE_capcmi"))
        .args(["conformance", "--endpoint", served.server.endpoint(), "--config"])
        .arg(&config)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let driver = &served.simulated.driver;
    let begun = async {
        while driver.calls().count(Operation::CreateMachine) < 20 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), begun).await.unwrap();
    let interrupted = std::process::Command::new("kill")
        .args([signal, &command.id().unwrap().to_string()])
        .status();
    assert!(interrupted.unwrap().success());
    let ended = tokio::time::timeout(Duration::from_mins(1), command.wait_with_output()).await;
    let output = ended.unwrap().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("the run was ended early"), "{text}");
    assert_eq!(driver.console().vms().unwrap(), []);
}
