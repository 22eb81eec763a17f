//! The cluster template that is shipped, with the configuration that the documentation shows.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use capcmi_driver_libvirt::{Config, LibvirtDriver};
use cmi_driver::{DescribeClassRequest, Driver as _, MachineClass, ProviderSpec, Secrets};
use serde_json::Value;

/// DRV-CR-08
#[tokio::test]
async fn the_shipped_template_asks_for_what_the_documented_configuration_has() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/back-ends/libvirt.md"))?;
    let (_, config) = page
        .split_once("## Configuration\n\n```yaml\n")
        .context("no configuration")?;
    let (config, _) = config.split_once("```").context("it does not end")?;
    let driver = LibvirtDriver::new(Config::parse(config)?);

    let text = fs::read_to_string(root.join("templates/cluster-template-libvirt.yaml"))?;
    let given = BTreeMap::from([("CAPCMI_IMAGE", "debian-12")]);
    let objects: Vec<Value> = serde_saphyr::from_multiple(&filled_in(&text, &given)?)?;
    let templates = objects
        .iter()
        .filter(|object| object["kind"] == "InfraMachineTemplate");
    let mut seen = 0;
    for template in templates {
        let spec = template["spec"]["template"]["spec"]["providerSpec"].as_object();
        let class = MachineClass {
            provider_spec: ProviderSpec(spec.context("no provider spec")?.clone()),
            secrets: Secrets::default(),
        };
        driver.describe_class(DescribeClassRequest { class }).await?;
        seen += 1;
    }
    ensure!(seen == 2, "{seen} templates");
    Ok(())
}

/// The text with the given values, else the defaults of its variables, else 1.
fn filled_in(text: &str, given: &BTreeMap<&str, &str>) -> Result<String> {
    let mut parts = text.split("${");
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (variable, rest) = part.split_once('}').context("a variable does not end")?;
        let (name, default) = variable.split_once(":=").unwrap_or((variable, "1"));
        filled.push_str(given.get(name).copied().unwrap_or(default));
        filled.push_str(rest);
    }
    Ok(filled)
}
