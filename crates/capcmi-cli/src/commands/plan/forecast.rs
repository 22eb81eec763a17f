//! The forecast of the effects of a new template. Pure.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde::Serialize;
use serde_json::{Map, Value};

use super::core_gate::CoreGate;
use capcmi::api::v1alpha1::InfraMachineTemplate;
use capcmi::api::{annotations, labels};
use capcmi::cluster::template;
use capcmi::in_place::runtime_extension::spec_changes::{SpecChange, SpecChanges, UpdateStrategy};
use cmi_driver::Capabilities;

/// Annotation of an InfraMachine: the template that the InfraMachine was cloned from.
const CLONED_FROM: &str = "cluster.x-k8s.io/cloned-from-name";

/// The inputs of a forecast.
pub(super) struct Gathered {
    pub(super) deployment: DynamicObject,
    /// The templates by name, including the new template.
    pub(super) templates: BTreeMap<String, DynamicObject>,
    /// The Machines, each with its InfraMachine if that belongs to this provider.
    pub(super) machines: Vec<(DynamicObject, Option<DynamicObject>)>,
    /// How many extensions handle CanUpdateMachineSet; `None` where they can't be read.
    pub(super) extensions: Option<usize>,
    /// Whether core's feature gates let it update anything in place.
    pub(super) core_gate: CoreGate,
}

/// Everything that the command prints.
#[derive(Debug, Serialize)]
pub(super) struct Forecast {
    /// Why the new template cannot be used for a machine, with the field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) refused: Option<String>,
    pub(super) fields: Vec<Field>,
    pub(super) machines: Vec<Row>,
    /// Obstacles to an update of all machines in place, apart from their fields; unknown facts about it; and
    /// templates without the watch-filter label of machines.
    pub(super) notes: Vec<String>,
}

/// A field that differs between the new template and a template of the machines.
#[derive(Debug, Serialize)]
pub(super) struct Field {
    pub(super) template: String,
    #[serde(rename = "field")]
    pub(super) place: String,
    pub(super) old: Option<Value>,
    pub(super) new: Option<Value>,
    pub(super) action: Action,
    pub(super) why: String,
}

/// The forecast for a machine.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) machine: String,
    pub(super) template: String,
    pub(super) action: Action,
    pub(super) why: String,
}

/// The action for a machine or a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Action {
    /// The machine stays unchanged.
    Kept,
    /// The machine and its VM are updated in place.
    InPlace,
    /// A new machine replaces the machine.
    Replaced,
    /// No machine can have the new value.
    Refused,
}

impl Action {
    /// The text of the action in a table.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::InPlace => "in place",
            Self::Replaced => "replaced",
            Self::Refused => "refused",
        }
    }
}

/// How a MachineDeployment rolls out a change that the running VMs support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rollout {
    /// Machines are updated in place.
    InPlace,
    /// Machines are replaced.
    Replacing,
    /// Machines are replaced, since this feature gate of core is off.
    GateOff(&'static str),
    /// Nothing is rolled out.
    Stuck,
}

pub(super) fn template_of(infra: &DynamicObject) -> Option<&str> {
    infra.annotations().get(CLONED_FROM).map(String::as_str)
}

pub(super) fn spec_of(template: &DynamicObject) -> Option<&Map<String, Value>> {
    template.data["spec"]["template"]["spec"].as_object()
}

/// Forecasts the effect on the machines when their MachineDeployment is pointed at the template `new`.
pub(super) fn forecast(gathered: &Gathered, new: &str, capabilities: &Capabilities) -> Forecast {
    let empty = Map::new();
    let desired = gathered.templates.get(new).and_then(spec_of).unwrap_or(&empty);
    let changes: BTreeMap<_, _> = gathered
        .templates
        .iter()
        .filter(|(name, _)| *name != new)
        .map(|(name, template)| {
            let current = spec_of(template).unwrap_or(&empty);
            (
                name.as_str(),
                SpecChanges::between(current, desired, capabilities),
            )
        })
        .collect();
    let mut notes = notes(gathered);
    let rollout = match (&gathered.core_gate, gathered.extensions) {
        (CoreGate::Off(gate), _) => Rollout::GateOff(gate),
        (CoreGate::On | CoreGate::Unknown(_), Some(count)) if count > 1 => Rollout::Stuck,
        (CoreGate::On | CoreGate::Unknown(_), _) if notes.is_empty() => Rollout::InPlace,
        (CoreGate::On | CoreGate::Unknown(_), _) => Rollout::Replacing,
    };
    if let (CoreGate::Unknown(why), Rollout::InPlace) = (&gathered.core_gate, rollout) {
        notes.push(format!(
            "cannot tell whether core's feature gates RuntimeSDK and InPlaceUpdates are on; this plan \
                assumes that they are: {why}"
        ));
    }
    notes.extend(of_another_shard(gathered, new));
    let fields = changes
        .iter()
        .flat_map(|(name, changes)| changes.iter().map(|change| field(name, change)));
    let machines = gathered
        .machines
        .iter()
        .map(|(machine, infra)| row(machine, infra.as_ref(), new, &changes, rollout));
    Forecast {
        refused: refusal(gathered, new, capabilities),
        fields: fields.collect(),
        machines: machines.collect(),
        notes,
    }
}

/// Returns why the new template cannot be used for a machine, regardless of the existing machines' templates.
/// `None` if it can be used.
fn refusal(gathered: &Gathered, new: &str, capabilities: &Capabilities) -> Option<String> {
    match gathered
        .templates
        .get(new)?
        .clone()
        .try_parse::<InfraMachineTemplate>()
    {
        Ok(template) => template::violation(&template, capabilities),
        Err(error) => Some(format!(
            "the template does not match the schema of its CRD: {error}"
        )),
    }
}

/// Returns the reasons why no machine of the MachineDeployment is updated in place, whichever fields change.
fn notes(gathered: &Gathered) -> Vec<String> {
    let mut notes = Vec::new();
    if gathered.deployment.data["spec"]["rollout"]["strategy"]["type"] == "OnDelete" {
        notes.push(
            "strategy OnDelete: machines are replaced when they are deleted, and never updated in place"
                .to_owned(),
        );
    }
    if gathered.deployment.data["spec"]["template"]["spec"]["bootstrap"]["configRef"]["name"].is_null() {
        notes.push(
            "no bootstrap.configRef is set, which Cluster API requires to update machines in place"
                .to_owned(),
        );
    }
    if let CoreGate::Off(gate) = gathered.core_gate {
        notes.push(format!(
            "core's feature gate {gate} is off: Cluster API replaces every machine without asking an \
                extension"
        ));
        return notes;
    }
    if let Some(several) = gathered.extensions.filter(|count| *count > 1) {
        notes.push(format!(
            "{several} extensions are registered for CanUpdateMachineSet, and Cluster API accepts only one \
                for a namespace: exclude the namespace from the others with their namespaceSelector, \
                otherwise nothing is rolled out"
        ));
    }
    if gathered.extensions == Some(0) {
        notes.push(
            "no extension is registered for CanUpdateMachineSet in this namespace: Cluster API replaces \
                every machine"
                .to_owned(),
        );
    }
    notes
}

/// Returns a note on each template, including the new one, that lacks the watch-filter label of its machines.
/// A provider with that `--watch-filter` ignores such a template, now or at the next change. This command
/// does not know the provider's flags.
fn of_another_shard(gathered: &Gathered, new: &str) -> impl Iterator<Item = String> {
    let filter_of = |object: &DynamicObject| object.labels().get(labels::WATCH_FILTER).cloned();
    let infra = gathered.machines.iter().filter_map(|(_, infra)| infra.as_ref());
    let unlike: BTreeSet<_> = infra
        .filter_map(|infra| Some((filter_of(infra)?, [template_of(infra), Some(new)])))
        .flat_map(|(filter, names)| {
            names
                .into_iter()
                .flatten()
                .map(move |name| (name, filter.clone()))
        })
        .filter(|(name, filter)| {
            let template = gathered.templates.get(*name);
            template.is_some_and(|template| filter_of(template).as_ref() != Some(filter))
        })
        .map(|(name, filter)| (name.to_owned(), filter))
        .collect();
    unlike.into_iter().map(|(name, filter)| {
        format!(
            "InfraMachineTemplate {name} lacks label {}: {filter}, which its machines have: a provider with \
                --watch-filter={filter} ignores it, and Cluster API waits for an answer; label the template",
            labels::WATCH_FILTER
        )
    })
}

fn field(template: &str, change: &SpecChange) -> Field {
    let (action, why) = match &change.strategy {
        UpdateStrategy::InPlace => (Action::InPlace, String::new()),
        UpdateStrategy::Replace(why) => (Action::Replaced, why.clone()),
        UpdateStrategy::Refused(why) => (Action::Refused, why.clone()),
    };
    Field {
        template: template.to_owned(),
        place: change.place.to_string(),
        old: change.old.clone(),
        new: change.new.clone(),
        action,
        why,
    }
}

fn row(
    machine: &DynamicObject,
    infra: Option<&DynamicObject>,
    new: &str,
    changes: &BTreeMap<&str, SpecChanges>,
    rollout: Rollout,
) -> Row {
    let template = infra.and_then(template_of);
    let (action, why) = match template {
        _ if machine.metadata.deletion_timestamp.is_some() => {
            (Action::Replaced, "the machine is being deleted".to_owned())
        }
        None => (Action::Replaced, "its InfraMachine names no template".to_owned()),
        Some(template) if template == new => (Action::Kept, "already from this template".to_owned()),
        Some(template) => match changes.get(template) {
            None => (Action::Replaced, format!("template {template} does not exist")),
            Some(changes) => outcome(machine, changes, rollout),
        },
    };
    Row {
        machine: machine.name_any(),
        template: template.unwrap_or_default().to_owned(),
        action,
        why,
    }
}

/// Forecasts the effect on a machine whose template differs from the new one by these changes.
fn outcome(machine: &DynamicObject, changes: &SpecChanges, rollout: Rollout) -> (Action, String) {
    let places = |wanted: fn(&UpdateStrategy) -> bool| {
        let found = changes.iter().filter(|change| wanted(&change.strategy));
        let places: Vec<_> = found.map(|change| change.place.to_string()).collect();
        places.join(", ")
    };
    let refused = places(|strategy| matches!(strategy, UpdateStrategy::Refused(_)));
    let replaced = places(|strategy| matches!(strategy, UpdateStrategy::Replace(_)));
    if !refused.is_empty() {
        return (Action::Refused, format!("the driver rejects {refused}"));
    }
    if !replaced.is_empty() {
        return (
            Action::Replaced,
            format!("{replaced} cannot change on a running VM"),
        );
    }
    match rollout {
        Rollout::InPlace => {}
        Rollout::Replacing => return (Action::Replaced, "see the notes".to_owned()),
        Rollout::GateOff(gate) => {
            return (Action::Replaced, format!("core's feature gate {gate} is off"));
        }
        Rollout::Stuck => return (Action::Kept, "nothing is rolled out: see the notes".to_owned()),
    }
    if machine
        .annotations()
        .contains_key(annotations::UPDATE_IN_PROGRESS)
    {
        return (Action::InPlace, "after the current update".to_owned());
    }
    if machine.data["status"]["nodeRef"]["name"].is_null() {
        return (Action::InPlace, "when it has a Node".to_owned());
    }
    (Action::InPlace, String::new())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use cmi_driver::{JsonPointer, Operation};

    fn object(name: &str, value: Value) -> DynamicObject {
        let mut object = json!({"metadata": {"name": name}});
        if let (Some(into), Value::Object(more)) = (object.as_object_mut(), value) {
            into.extend(more);
        }
        object["metadata"]["name"] = json!(name);
        serde_json::from_value(object).unwrap()
    }

    fn template(name: &str, provider_spec: &Value) -> (String, DynamicObject) {
        let spec = json!({"spec": {"template": {"spec": {"providerSpec": provider_spec}}}});
        (name.to_owned(), object(name, spec))
    }

    fn machine(name: &str, template: &str, node: Option<&str>) -> (DynamicObject, Option<DynamicObject>) {
        let cloned = json!({"metadata": {"annotations": {CLONED_FROM: template}}});
        let machine = json!({"status": {"nodeRef": {"name": node}}});
        (object(name, machine), Some(object(name, cloned)))
    }

    fn gathered(strategy: &str, extensions: Option<usize>) -> Gathered {
        Gathered {
            deployment: object(
                "md",
                json!({"spec": {
                    "rollout": {"strategy": {"type": strategy}},
                    "template": {"spec": {"bootstrap": {"configRef": {"name": "boot"}}}},
                }}),
            ),
            templates: [
                template("old", &json!({"labels": {"tier": "silver"}})),
                template("older", &json!({"labels": {"tier": "silver"}, "size": "small"})),
                template("new", &json!({"labels": {"tier": "gold"}})),
            ]
            .into(),
            machines: vec![
                machine("a", "old", Some("a")),
                machine("b", "older", Some("b")),
                machine("c", "new", Some("c")),
                machine("d", "old", None),
                machine("e", "lost", Some("e")),
            ],
            extensions,
            core_gate: CoreGate::On,
        }
    }

    fn actions(gathered: &Gathered) -> Vec<(String, &'static str)> {
        let capabilities = Capabilities {
            operations: [Operation::UpdateMachine].into(),
            hot_updatable: vec![JsonPointer::field("labels")],
            ..Capabilities::minimal()
        };
        let rows = forecast(gathered, "new", &capabilities).machines;
        rows.iter()
            .map(|row| (row.machine.clone(), row.action.text()))
            .collect()
    }

    #[test]
    fn each_machine_is_forecast_by_the_template_that_it_is_of() {
        let expected = [
            ("a", "in place"),
            ("b", "replaced"),
            ("c", "kept"),
            ("d", "in place"),
            ("e", "replaced"),
        ]
        .map(|(machine, action)| (machine.to_owned(), action));
        assert_eq!(actions(&gathered("RollingUpdate", Some(1))), expected);
        assert_eq!(
            actions(&gathered("RollingUpdate", None)),
            expected,
            "what can't be read is no reason"
        );
    }

    #[test]
    fn in_place_updates_need_one_extension_and_a_rolling_update() {
        for gathered in [
            gathered("RollingUpdate", Some(0)),
            gathered("RollingUpdate", Some(2)),
            gathered("OnDelete", Some(1)),
        ] {
            let actions = actions(&gathered);
            assert!(
                actions.iter().all(|(_, action)| *action != "in place"),
                "{actions:?}"
            );
            assert_eq!(notes(&gathered).len(), 1);
        }
    }

    /// The provider's `--watch-filter` is not known here.
    #[test]
    fn a_template_without_the_watch_filter_label_of_its_machines_is_named() {
        let label = |object: &mut DynamicObject| {
            let filter = (labels::WATCH_FILTER.to_owned(), "blue".to_owned());
            object.metadata.labels.get_or_insert_default().extend([filter]);
        };
        let notes = |gathered: &Gathered| forecast(gathered, "new", &Capabilities::minimal()).notes;
        let mut gathered = gathered("RollingUpdate", Some(1));
        for infra in gathered
            .machines
            .iter_mut()
            .filter_map(|(_, infra)| infra.as_mut())
        {
            label(infra);
        }
        label(gathered.templates.get_mut("older").unwrap());
        let said = notes(&gathered);
        let named: Vec<_> = said.iter().map(|note| note.split(' ').nth(1).unwrap()).collect();
        assert_eq!(named, ["new", "old"], "{said:?}");
        assert_eq!(actions(&gathered)[0].1, "in place");
        gathered.templates.values_mut().for_each(label);
        assert_eq!(notes(&gathered), Vec::<String>::new());
    }

    #[test]
    fn a_disabled_core_gate_replaces_all_and_an_unknown_one_counts_as_on() {
        let mut off = gathered("RollingUpdate", Some(2));
        off.core_gate = CoreGate::Off("InPlaceUpdates");
        let acted = actions(&off);
        assert_eq!(acted[0].1, "replaced");
        assert!(acted.iter().all(|(_, action)| *action != "in place"), "{acted:?}");
        assert_eq!(notes(&off).len(), 1);

        let mut unknown = gathered("RollingUpdate", Some(1));
        unknown.core_gate = CoreGate::Unknown("forbidden".to_owned());
        assert_eq!(actions(&unknown)[0].1, "in place");
        let said = forecast(&unknown, "new", &Capabilities::minimal()).notes;
        assert!(
            said.len() == 1 && said[0].contains("assumes") && said[0].contains("forbidden"),
            "{said:?}"
        );
    }
}
