//! The visible signs of a failure, without parts that differ in each run. They are compared with the records
//! in the repository.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use capcmi::api::annotations;
use capcmi::api::conditions;
use capcmi::api::identity::VmRecord;
use jiff::Timestamp;
use management_cluster::eventually;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::support::provider::Replica;
use crate::support::shown::{column, describe};
use crate::support::{DEADLINE, World};

/// If this variable is set, the signs are recorded instead of compared.
const RECORD: &str = "CAPCMI_RECORD_FAILURES";

/// A failure and its visible signs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Seen {
    /// The failure in an operator's words.
    pub failure: String,
    /// The part of a machine's life, or the kind of object.
    pub when: String,
    /// The columns of `kubectl get -o wide`.
    pub kubectl: Shown,
    /// Abnormal conditions other than `Ready`, as in `kubectl describe`.
    pub conditions: Vec<String>,
    /// Warning events about the object.
    pub events: Vec<String>,
    /// Lines of the log at its default level.
    pub log: Vec<String>,
    /// Samples of /metrics.
    pub metrics: Vec<String>,
    /// The next steps from `capcmi describe machine`. Other objects have no page.
    pub next: Vec<String>,
}

/// A row of kubectl.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Shown {
    /// The object has a row.
    #[serde(rename_all = "camelCase")]
    Row {
        ready: String,
        reason: String,
        message: String,
        reachable: String,
        paused: String,
        /// Whether the column for the next try has a time.
        next_try: bool,
    },
    /// The object is gone.
    Gone,
    /// The API server does not answer kubectl either.
    Unanswered,
}

/// A failure that a case has caused.
#[derive(Clone, Copy)]
pub struct Failure<'a> {
    /// Name of the record.
    pub name: &'a str,
    /// The failing object.
    pub subject: Subject<'a>,
}

/// The failing object, or the API server.
#[derive(Clone, Copy)]
pub enum Subject<'a> {
    /// An object with this name.
    Object(Kind, &'a str),
    /// The API server. No object can be read.
    ApiServer,
}

/// The provider's kinds with a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Machine,
    Cluster,
    MachineTemplate,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Machine => "InfraMachine",
            Self::Cluster => "InfraCluster",
            Self::MachineTemplate => "InfraMachineTemplate",
        }
    }

    /// Whether the kind has this optional kubectl column.
    fn has(self, column: &str) -> bool {
        match self {
            Self::Machine => true,
            Self::Cluster => column != NEXT_TRY,
            Self::MachineTemplate => ![REACHABLE, PAUSED, NEXT_TRY].contains(&column),
        }
    }

    /// The log fields that name an object.
    const fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Machine => &["machine"],
            Self::Cluster => &["infra_cluster", "cluster"],
            Self::MachineTemplate => &[],
        }
    }
}

const REACHABLE: &str = "REACHABLE";
const PAUSED: &str = "PAUSED";
const NEXT_TRY: &str = "NEXT TRY";

/// The folder of the records.
pub fn records() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/failures/records")
}

/// Waits until the signs of each failure match its record, or records them.
///
/// Signs appear one after the other, and later on a busy computer. Each attempt reads all signs of all
/// pending failures.
pub async fn hold_against_records(world: &World, provider: &Replica, failures: &[Failure<'_>]) -> Result<()> {
    if std::env::var_os(RECORD).is_some() {
        let mut before = look(world, provider, failures).await?;
        let settled = eventually(DEADLINE, "twice the same to be seen", async || {
            tokio::time::sleep(std::time::Duration::from_secs(3)).await;
            let now = look(world, provider, failures).await?;
            let same = std::mem::replace(&mut before, now.clone()) == now;
            ensure!(same, "it changes");
            Ok(now)
        })
        .await?;
        for (failure, seen) in failures.iter().zip(settled) {
            let text = serde_json::to_string_pretty(&seen)? + "\n";
            let path = failure.path();
            fs::write(&path, text).with_context(|| path.display().to_string())?;
        }
        return Ok(());
    }
    let mut pending: Vec<(Failure<'_>, Seen)> = failures
        .iter()
        .map(|failure| Ok((*failure, failure.recorded()?)))
        .collect::<Result<_>>()?;
    let what = "what is recorded to be seen; if it has changed on purpose, `make record-failures`";
    eventually(DEADLINE, what, async || {
        let left: Vec<_> = pending.iter().map(|(failure, _)| *failure).collect();
        let seen = look(world, provider, &left).await?;
        let mut all = seen.iter();
        pending.retain(|(_, recorded)| all.next() != Some(recorded));
        let Some((failure, recorded)) = pending.first() else {
            return Ok(());
        };
        let place = left.iter().position(|other| other.name == failure.name);
        let seen = place.and_then(|place| seen.get(place));
        bail!("{}: {seen:#?}\nand not\n{recorded:#?}", failure.path().display())
    })
    .await
}

impl Failure<'_> {
    fn path(&self) -> PathBuf {
        records().join(format!("{}.json", self.name))
    }

    fn recorded(&self) -> Result<Seen> {
        let path = self.path();
        let text = fs::read_to_string(&path)
            .with_context(|| format!("{} is missing: `make record-failures` writes it", path.display()))?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }
}

/// The current signs of failures.
async fn look(world: &World, provider: &Replica, failures: &[Failure<'_>]) -> Result<Vec<Seen>> {
    let kinds: BTreeSet<_> = failures
        .iter()
        .filter_map(|failure| match failure.subject {
            Subject::Object(kind, _) => Some(kind),
            Subject::ApiServer => None,
        })
        .collect();
    let shown = Shows::of(world, provider, &kinds).await?;
    let look = |failure: &Failure<'_>| {
        let (title, when) = super::FAILURES
            .iter()
            .find_map(|(name, title, when)| (*name == failure.name).then_some((*title, *when)))
            .with_context(|| format!("{} is not in the list of failures", failure.name))?;
        let mut seen = match failure.subject {
            Subject::Object(kind, name) => shown.object(world, kind, name)?,
            Subject::ApiServer => shown.outage(),
        };
        title.clone_into(&mut seen.failure);
        when.clone_into(&mut seen.when);
        Ok(seen)
    };
    failures.iter().map(look).collect()
}

/// The output of kubectl, log and metrics at one time. kubectl runs once for each kind.
struct Shows {
    /// The rows, and the objects.
    kinds: BTreeMap<Kind, (String, Value)>,
    events: Value,
    log: String,
    metrics: String,
}

impl Shows {
    async fn of(world: &World, provider: &Replica, kinds: &BTreeSet<Kind>) -> Result<Self> {
        let get = |arguments: &[&str]| world.kubectl(&[&["get"], arguments].concat());
        let json = |arguments: &[&str]| anyhow::Ok(serde_json::from_str::<Value>(&get(arguments)?)?);
        let mut shown = BTreeMap::new();
        for kind in kinds {
            let rows = get(&[kind.name(), "-o", "wide"])?;
            shown.insert(*kind, (rows, json(&[kind.name(), "-o", "json"])?));
        }
        let events = if kinds.is_empty() {
            Value::Null
        } else {
            json(&["events", "--field-selector=type=Warning", "-o", "json"])?
        };
        Ok(Self {
            kinds: shown,
            events,
            log: provider.log()?,
            metrics: provider.metrics().await?,
        })
    }

    fn outage(&self) -> Seen {
        Seen {
            failure: String::new(),
            when: String::new(),
            kubectl: Shown::Unanswered,
            conditions: Vec::new(),
            events: Vec::new(),
            log: outage_lines(&self.log).into_iter().collect(),
            metrics: Vec::new(),
            next: Vec::new(),
        }
    }

    fn object(&self, world: &World, kind: Kind, name: &str) -> Result<Seen> {
        let in_common = |text: &str| in_common(text, world);
        let (rows, objects) = self.kinds.get(&kind).context("the kind was not asked for")?;
        let mut items = objects["items"].as_array().into_iter().flatten();
        let object = items.find(|object| object["metadata"]["name"] == name);
        let (kubectl, conditions, next, labels) = match object {
            Some(object) => {
                let text = row_of(rows, name)?;
                let cell = |title| {
                    if kind.has(title) {
                        column(&text, title)
                    } else {
                        Ok(String::new())
                    }
                };
                let row = Shown::Row {
                    ready: cell("READY")?,
                    reason: cell("REASON")?,
                    message: in_common(&cell("MESSAGE")?),
                    reachable: cell(REACHABLE)?,
                    paused: cell(PAUSED)?,
                    next_try: !cell(NEXT_TRY)?.is_empty(),
                };
                let next = match kind {
                    Kind::Machine => next_steps(&describe(world, &["machine", name])?),
                    Kind::Cluster | Kind::MachineTemplate => Vec::new(),
                };
                let next = next.iter().map(|step| in_common(step)).collect();
                let labels = Some(Labels::of(kind, object));
                (row, abnormal(object, &in_common), next, labels)
            }
            None => (Shown::Gone, Vec::new(), Vec::new(), None),
        };
        let events = warnings(&self.events, kind, name)?;
        let log = lines_of(&self.log, kind, &format!("{}/{name}", world.namespace));
        let mut reasons: BTreeSet<String> = events.iter().map(|(reason, _)| reason.clone()).collect();
        if let Shown::Row { reason, paused, .. } = &kubectl {
            reasons.insert(reason.clone());
            if paused == "True" {
                reasons.insert(conditions::reason::PAUSED.to_owned());
            }
        }
        Ok(Seen {
            failure: String::new(),
            when: String::new(),
            kubectl,
            conditions,
            events: events
                .into_iter()
                .map(|(reason, message)| format!("{reason}: {}", in_common(&message)))
                .collect(),
            log: log.iter().map(|line| in_common(line)).collect(),
            metrics: match &labels {
                Some(labels) => samples(&self.metrics, &world.namespace, labels, &reasons),
                None => Vec::new(),
            },
            next,
        })
    }
}

/// The title row and the row of one object.
fn row_of(rows: &str, name: &str) -> Result<String> {
    let titles = rows.lines().next().context("kubectl printed nothing")?;
    let mut rows = rows.lines().skip(1);
    let row = rows.find(|row| row.split_whitespace().next() == Some(name));
    let row = row.with_context(|| format!("kubectl printed no row of {name}"))?;
    Ok(format!("{titles}\n{row}"))
}

/// Abnormal conditions, without those that repeat the message of `Ready`.
fn abnormal(object: &Value, in_common: &impl Fn(&str) -> String) -> Vec<String> {
    let conditions = object["status"]["conditions"].as_array();
    let text = |condition: &Value, key: &str| condition[key].as_str().unwrap_or_default().to_owned();
    let all = conditions.into_iter().flatten();
    let shown = all
        .filter(|condition| {
            let (type_, status) = (text(condition, "type"), text(condition, "status"));
            let bad = if ["Paused", "Deleting"].contains(&type_.as_str()) {
                "True"
            } else {
                "False"
            };
            type_ != "Ready" && status == bad
        })
        .map(|condition| {
            format!(
                "{}={} {}: {}",
                text(condition, "type"),
                text(condition, "status"),
                text(condition, "reason"),
                in_common(&text(condition, "message"))
            )
        });
    let mut shown: Vec<_> = shown.collect();
    shown.sort();
    shown
}

/// Reason and message of the warning events about an object.
fn warnings(list: &Value, kind: Kind, name: &str) -> Result<BTreeSet<(String, String)>> {
    let text = |event: &Value, key: &str| event[key].as_str().unwrap_or_default().to_owned();
    let items = list["items"].as_array().context("a list of events")?;
    Ok(items
        .iter()
        .filter(|event| {
            let object = &event["involvedObject"];
            object["kind"] == kind.name() && object["name"] == name
        })
        .map(|event| (text(event, "reason"), text(event, "message")))
        .collect())
}

/// Returns the warnings of the log about an object, with their code.
fn lines_of(log: &str, kind: Kind, name: &str) -> BTreeSet<String> {
    let about = |line: &str| {
        let mut marks = kind.fields().iter().map(|field| format!(" {field}=\"{name}\""));
        marks.find_map(|mark| line.find(&mark))
    };
    log.lines()
        .filter(|line| is_warning(line))
        .filter_map(|line| {
            let (before, fields) = line.split_at(about(line)?);
            let (_, said) = before.split_once(" capcmi::")?.1.split_once(": ")?;
            let field = |name: &str| {
                let (_, rest) = fields.split_once(&format!(" {name}=\""))?;
                Some(format!(" {name}={}", rest.split_once('"')?.0))
            };
            Some(
                [Some(said.to_owned()), field("code")]
                    .into_iter()
                    .flatten()
                    .collect(),
            )
        })
        .collect()
}

/// The log's message about an API server that does not answer, at the default level and without the cause.
fn outage_lines(log: &str) -> BTreeSet<String> {
    const SAID: &str = "the API server does not answer";
    let told = log.lines().filter(|line| is_warning(line) && line.contains(SAID));
    told.map(|_| SAID.to_owned()).collect()
}

fn is_warning(line: &str) -> bool {
    line.contains(" WARN ") || line.contains(" ERROR ")
}

/// The labels in the samples of an object. They exclude the samples of other objects in the case.
struct Labels {
    phases: &'static [&'static str],
    /// `None` for any driver: machines of several drivers share an InfraCluster.
    drivers: Option<Vec<String>>,
    /// Whether the object shows that a driver was called.
    was_called: bool,
}

impl Labels {
    fn of(kind: Kind, object: &Value) -> Self {
        let record = object["metadata"]["annotations"][annotations::VM_RECORD].as_str();
        let record = record.and_then(|text| VmRecord::parse(text).ok());
        let noted = record.and_then(|record| Some(record.made_from?.driver));
        let driver = |spec: &Value| noted.clone().or(spec["driver"].as_str().map(str::to_owned));
        let drivers = |driver: Option<String>| match driver {
            Some(driver) => vec![driver, "unknown".to_owned()],
            None => vec![String::new()],
        };
        match kind {
            Kind::Machine => Self {
                phases: phases(object),
                drivers: Some(drivers(driver(&object["spec"]))),
                was_called: object["status"]["lastOperation"]["operation"].is_string(),
            },
            Kind::Cluster => Self {
                phases: &[],
                drivers: driver(&object["spec"]).map(|driver| drivers(Some(driver))),
                was_called: true,
            },
            Kind::MachineTemplate => Self {
                phases: &[],
                drivers: Some(drivers(driver(&object["spec"]["template"]["spec"]))),
                was_called: true,
            },
        }
    }
}

/// The phases in the metrics that may include a machine.
fn phases(machine: &Value) -> &'static [&'static str] {
    if machine["metadata"]["deletionTimestamp"].is_string() {
        &["Deleting"]
    } else if machine["status"]["initialization"]["provisioned"] == true {
        &["Provisioned", "NotReady"]
    } else {
        &["Pending", "Failed"]
    }
}

/// The samples that show an object's failure with one of these reasons, or a failure of its driver.
fn samples(text: &str, namespace: &str, labels: &Labels, reasons: &BTreeSet<String>) -> Vec<String> {
    let shows = |name: &str, value: f64| {
        let has = |label: &str, text: &str| name.contains(&format!("{label}=\"{text}\""));
        let has_reason = |label| reasons.iter().any(|reason| has(label, reason));
        let mut drivers = labels.drivers.iter().flatten();
        if labels.drivers.is_some() && !drivers.any(|driver| has("driver", driver)) {
            return false;
        }
        match name.split('{').next().unwrap_or_default() {
            "capcmi_machines" => {
                value > 0.0 && has_reason("reason") && labels.phases.iter().any(|phase| has("phase", phase))
            }
            "capcmi_driver_calls_total" => value > 0.0 && labels.was_called && has_reason("code"),
            "capcmi_orphans" => value > 0.0 && labels.phases.is_empty(),
            "capcmi_driver_reachable" => value < 1.0,
            "capcmi_driver_breakers" | "capcmi_driver_capacity_queue" => value > 0.0,
            // Other machines may wait as well for a moment.
            "capcmi_driver_queue" => value > 0.0 && reasons.contains("WaitingForDriver"),
            _ => false,
        }
    };
    let all = text.lines().filter_map(|line| line.rsplit_once(' '));
    let parsed = all.filter_map(|(name, value)| Some((name, value.parse::<f64>().ok()?)));
    let mut found: Vec<_> = parsed
        .filter(|(name, value)| shows(name, *value))
        .map(|(name, value)| {
            let name = name.replace(&format!(",namespace=\"{namespace}\""), "");
            // The exact number depends on the case.
            if value > 0.0 { name } else { format!("{name} 0") }
        })
        .collect();
    found.sort();
    found
}

/// The next steps on a page.
fn next_steps(page: &str) -> Vec<String> {
    page.lines()
        .skip_while(|line| !line.starts_with("What to do next"))
        .skip(1)
        .take_while(|line| line.is_empty() || line.starts_with(' '))
        .map(|line| line.trim().to_owned())
        .filter(|line| !line.is_empty())
        .collect()
}

/// A text without parts that differ in each run: names of the case, paths, ids, times and durations.
fn in_common(text: &str, world: &World) -> String {
    let folder = world.folder.display().to_string();
    let text = text
        .replace(&folder, "/run/capcmi")
        .replace(&world.namespace, "team-a");
    let is_end = |c: char| c.is_whitespace() || "`,;()\"'<>=".contains(c);
    let mut common = String::new();
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let length = rest.find(is_end).unwrap_or(rest.len());
        let (token, after) = rest.split_at(length);
        common += &token_in_common(token, after);
        let next = after.chars().next().map_or(0, char::len_utf8);
        common += &after[..next];
        rest = &after[next..];
    }
    common
}

fn token_in_common(token: &str, after: &str) -> String {
    let bare = token.trim_end_matches(['.', ':']);
    let end = &token[bare.len()..];
    let is_uuid = |text: &str| text.len() == 36 && text.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    let common = if is_uuid(bare) {
        "UID"
    } else if bare.parse::<Timestamp>().is_ok() {
        "TIME"
    } else if bare.starts_with("simulated://") {
        "simulated://zone-a/ID"
    } else if let Some(port) = bare.strip_prefix("127.0.0.1:")
        && port.parse::<u16>().is_ok()
    {
        "127.0.0.1:PORT"
    } else if bare.parse::<f64>().is_ok() && [" s", " min"].iter().any(|unit| after.starts_with(unit)) {
        "N"
    } else {
        bare
    };
    format!("{common}{end}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_and_names_that_mean_something_stay() {
        for (token, after, common) in [
            ("3", " VMs", "3"),
            ("1.5", " s", "N"),
            ("2026-11-23T12:00:00Z.", "", "TIME."),
            ("0b0f8a3e-5f0c-4a53-9d0a-7a2f1c6f4b1d", "", "UID"),
            ("simulated://zone-b/x", "`", "simulated://zone-a/ID"),
            ("spec.driver", "`", "spec.driver"),
        ] {
            assert_eq!(token_in_common(token, after), common);
        }
    }

    #[test]
    fn only_samples_of_the_failure_are_kept() {
        let text = "capcmi_machines{phase=\"Pending\",driver=\"d\",namespace=\"ns\",reason=\"Internal\"} 2\n\
            capcmi_machines{phase=\"Pending\",driver=\"d\",namespace=\"ns\",reason=\"Ready\"} 2\n\
            capcmi_machines{phase=\"Deleting\",driver=\"d\",namespace=\"ns\",reason=\"Internal\"} 1\n\
            capcmi_machines{phase=\"Pending\",driver=\"e\",namespace=\"ns\",reason=\"Internal\"} 1\n\
            capcmi_driver_reachable{driver=\"e\"} 0\n\
            capcmi_driver_reachable{driver=\"d\"} 0\n";
        let labels = Labels::of(Kind::Machine, &json!({"spec": {"driver": "d"}}));
        let kept = samples(text, "ns", &labels, &["Internal".to_owned()].into());
        assert_eq!(
            kept,
            [
                "capcmi_driver_reachable{driver=\"d\"} 0",
                "capcmi_machines{phase=\"Pending\",driver=\"d\",reason=\"Internal\"}"
            ]
        );
    }
}
