//! The conformance suite: checks, rule by rule, whether a driver conforms.
//!
//! A [`Case`] makes calls and checks the answers; the table of [`rules`] says which requirement each case
//! proves, or why a requirement is not tested. This crate does not know Kubernetes, or a concrete driver.
//!
//! # Guarantees
//! * Every VM that a case may have made is recorded before the call that makes it. It is deleted afterwards:
//!   on success, failure, panic and interruption. At the end of the run, when the back end has caught up, the
//!   suite deletes it once more and looks for it. Remaining VMs are reported by name, and fail the run.
//! * A case that cannot run is skipped with its reason: the driver does not offer a call, the configuration
//!   lacks a setting, or there is no hook to cause a fault.
//! * A case whose preparation fails is inconclusive: only the case about the broken rule names that rule. A
//!   run with such a case is not compliant.
//! * A driver that stays out of reach ends the run, and is reported.
//! * A run that tested nothing fails.

mod answer;
mod answer_checker;
mod backoff;
mod case;
pub mod cases;
mod cleanup;
mod config;
mod hooks;
mod in_flight;
mod ledger;
pub mod leftover;
mod liveness;
mod machine_request;
mod need;
pub mod report;
pub mod rules;
mod runner;
mod secret_scan;
mod target;
mod test_context;
mod tracker;
mod wire;

pub use answer::{Answer, CaseError, CaseResult};
pub use case::Case;
pub use config::{Config, ConfigError, Migration, OwnVolume, PersistentVolumes, SecretMap, Setting};
pub use hooks::{CommandHooks, Hook, HookCall, Hooks, NoHooks};
pub use in_flight::Waiting;
pub use ledger::Ledger;
pub use leftover::Leftover;
pub use machine_request::MachineRequest;
pub use need::Need;
pub use report::{CaseReport, Compliance, LayerReport, Report, RuleReport, Verdict};
pub use rules::{Layer, Level, Rule};
pub use runner::{Progress, RunError, Selection, run};
pub use target::{AnswerMetadata, Target};
pub use test_context::TestContext;
pub use wire::{Connect, ConnectionWire, RawResponse, Wire};
