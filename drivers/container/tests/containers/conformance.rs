//! The conformance suite with every hook.

use std::sync::Arc;

use anyhow::Result;
use cmi_conformance::{
    AnswerMetadata, CaseReport, Compliance, Config, ConnectionWire, Layer, Progress, Selection, Target,
    report, run,
};
use cmi_grpc::client::{Deadlines, GrpcConfig, GrpcDriver};
use testbed::{NO_CREDENTIALS, NO_MACHINE_TAG, UNIQUE_NAMES, skips_only};
use tokio_util::sync::CancellationToken;

use crate::hooks::LabHooks;
use crate::lab::{DEADLINE, Lab};

/// The facts about the driver that the suite needs.
const SETTINGS: &str = "
providerSpec: {vmPool: default, size: small}
noCredentials: true
mandatoryFields: [/vmPool, /size]
invalidSpecs:
- vmPool: moon
- size: [small]
- image: none
- address: here
- colour: blue
outOfRangeSpecs:
- address: 192.168.151.20
- address: 192.168.150.100
quotaBreakingSpec: {size: huge}
fullFailureDomain: host-full
incompatibleChange: {image: other}
# Outside of the DHCP range.
staticAddresses: {first: 192.168.150.10, prefix: 24, gateway: 192.168.150.1}
hotUpdates:
- tags: {purpose: conformance}
- size: large
# A name has one folder.
uniqueNames: true
longestName: 253
# The driver lists its folders without pages.
manyMachines: 12
parallel: 4
callSeconds: 120
shutDownSeconds: 120
";

/// Prints a line for each case.
struct Lines;

impl Progress for Lines {
    fn ended(&self, case: &CaseReport, done: usize, of: usize) {
        println!("{}", report::line(case, done, of));
    }
}

/// The calls that the driver does not offer.
const NOT_OFFERED: [&str; 2] = ["GetVolumeIDs", "GenerateMachineClassForMigration"];

/// No binding rule is broken, and each rule that applies to the driver's calls was tested.
#[tokio::test(flavor = "multi_thread")]
async fn the_driver_keeps_the_rules_of_the_contract() -> Result<()> {
    let lab = Arc::new(Lab::start().await?);
    lab.client().await?;
    let settings = format!("{SETTINGS}logs: [{}]\n", lab.at("driver.log").display());
    let config = GrpcConfig {
        endpoint: Some(lab.endpoint()),
        ..GrpcConfig::default()
    };
    let (metadata, connector) = (Arc::new(AnswerMetadata::default()), Arc::new(config.connector()?));
    let wire = ConnectionWire::new(Box::new(move || {
        let connector = Arc::clone(&connector);
        Box::pin(async move { Ok(connector.connect().await?) })
    }));
    let timeouts = cmi_driver::Operation::ALL.map(|operation| (operation, DEADLINE + DEADLINE));
    let driver = GrpcDriver::new(&config, Deadlines::new(timeouts))?;
    let driver = driver.with_metadata_observer(metadata.clone());
    let target = Target::plugin(lab.endpoint(), Arc::new(driver), Arc::new(wire), metadata);
    let hooks = Arc::new(LabHooks::new(Arc::clone(&lab)));
    let selection = Selection::only(std::env::var("CASES").iter().flat_map(|cases| cases.split(',')));
    let stop = CancellationToken::new();
    let report = run(target, Config::read(&settings)?, hooks, &selection, &Lines, stop).await?;
    println!("{}", report::text(&report));
    assert_eq!(
        lab.left()?,
        Vec::<String>::new(),
        "the driver's log:\n{}",
        lab.log()
    );
    assert_eq!(
        report.compliance(Layer::Provider),
        Compliance::Full,
        "the driver's log:\n{}",
        lab.log()
    );
    skips_only(
        &serde_json::to_value(&report)?,
        &NOT_OFFERED,
        &[NO_CREDENTIALS, NO_MACHINE_TAG, UNIQUE_NAMES],
    )
}
