//! The InfraMachineTemplate and the Secrets that a machine class becomes.

use serde_json::{Map, Value, json};

use super::objects::{labels_of, metadata};
use super::secrets::{USER_DATA, bootstrap, keys, secret, secrets};
use super::{Converted, Destination, Object};
use crate::migration::source::{McmClassKey, Source, text};
use capcmi::api;
use cmi_driver::{Capabilities, MachineClass, ProviderSpec, SecretValue, tags};

/// Converts a class: its Secrets and template, the class that machine-controller-manager handed to the
/// driver, and the values that its machines need.
pub fn class(
    source: &Source,
    target: &Destination,
    capabilities: &Capabilities,
    key: &McmClassKey,
) -> Result<(Vec<Object>, MachineClass, Converted), String> {
    let class = source
        .classes
        .get(key)
        .ok_or("the class does not exist: add it to the input")?;
    let class = Value::Object(class.clone());
    let mut spec = match class.get("providerSpec") {
        Some(Value::Object(spec)) => ProviderSpec(spec.clone()),
        Some(_) | None => return Err("providerSpec is not an object".to_owned()),
    };
    let given = spec.clone();
    let carried = carried(&mut spec, capabilities)?;
    let failure_domain = failure_domain(&mut spec, capabilities)?;
    capabilities.check_spec(&spec).map_err(|status| {
        format!(
            "driver {} rejects providerSpec: {}",
            target.driver,
            status.message()
        )
    })?;
    let metadata_of = |field: &str| text(&class, &format!("/metadata/{field}"));
    let from = target.marker(
        &key.kind,
        &metadata_of("namespace"),
        &key.name,
        &metadata_of("uid"),
    );
    let (mut secrets, places) = secrets(source, target, &class)?;
    let user_data = secrets.0.remove(USER_DATA);
    let mcm_class = MachineClass {
        provider_spec: given,
        secrets: secrets
            .0
            .iter()
            .map(|(key, value)| (key.clone(), SecretValue::from(value.clone())))
            .collect(),
    };
    let mut objects = Vec::new();
    let credentials = (!secrets.0.is_empty()).then(|| format!("{}-credentials", key.name));
    if let Some(credentials) = &credentials {
        let body = secret(target, credentials, &from, "Opaque", &secrets);
        objects.push(Object::new(
            "Secret",
            credentials.clone(),
            format!("credentials {} of {places}", keys(&secrets)),
            body,
        ));
    }
    let bootstrap = match (&target.bootstrap_secret, user_data) {
        (Some(given), _) => given.clone(),
        (None, Some(user_data)) => {
            let own = format!("{}-bootstrap", key.name);
            let mut made = bootstrap(target, &own, &from, &user_data)?;
            made.note = format!("bootstrap data {USER_DATA} of {places}");
            objects.push(made);
            own
        }
        (None, None) => {
            return Err(format!(
                "its Secret has no {USER_DATA}, so new machines would not boot: set --bootstrap-secret"
            ));
        }
    };
    let mut template = json!({"driver": target.driver, "providerSpec": spec.0});
    if let Some(credentials) = &credentials {
        template["secretRef"] = json!({"name": credentials});
    }
    let body = json!({
        "apiVersion": format!("{}/{}", api::GROUP, api::VERSION), "kind": "InfraMachineTemplate",
        "metadata": metadata(target, &key.name, &from, &labels_of(target)),
        "spec": {"template": {"spec": template}},
    });
    objects.push(Object::new(
        "InfraMachineTemplate",
        key.name.clone(),
        String::new(),
        body,
    ));
    Ok((
        objects,
        mcm_class,
        Converted {
            spec: spec.0,
            carried,
            failure_domain,
            credentials,
            bootstrap,
        },
    ))
}

/// Removes the failure domain if the driver has zones: it belongs to the Machine, and not to the template.
fn failure_domain(spec: &mut ProviderSpec, capabilities: &Capabilities) -> Result<Option<String>, String> {
    if !capabilities.zones {
        return Ok(None);
    }
    match spec.0.remove(tags::FAILURE_DOMAIN) {
        None => Ok(None),
        Some(Value::String(zone)) => Ok(Some(zone)),
        Some(_) => Err(format!(
            "providerSpec.{}: the failure domain must be a string",
            tags::FAILURE_DOMAIN
        )),
    }
}

/// Removes and returns the tags that the provider sets. A user's spec must not have them.
fn carried(spec: &mut ProviderSpec, capabilities: &Capabilities) -> Result<Map<String, Value>, String> {
    let mut with_tags = spec.clone();
    let all = with_tags.object_at(&capabilities.tag_path).map_err(|place| {
        format!("providerSpec{place} must be an object, because it holds the tags of the VM")
    })?;
    let mut carried = Map::new();
    for tag in tags::RESERVED {
        match all.get(tag) {
            None => {}
            Some(Value::String(value)) if !value.trim().is_empty() => {
                carried.insert(tag.to_owned(), json!(value));
            }
            Some(_) => {
                return Err(format!(
                    "providerSpec{}: tag {tag} must be a string",
                    capabilities.tag_path
                ));
            }
        }
    }
    spec.remove_tags(&capabilities.tag_path, &tags::RESERVED);
    Ok(carried)
}
