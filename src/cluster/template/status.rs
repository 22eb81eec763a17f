//! The status after a driver's answer. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::SchemaGenerator;
use serde_json::json;

use crate::api::conditions::{self, ConditionStatus, Setter, reason};
use crate::api::schema;
use crate::api::v1alpha1::{
    Architecture, InfraMachineTemplate, InfraMachineTemplateStatus, NodeInfo, OperatingSystem,
};
use cmi_driver::{ClassDescription, Code, Operation, Status};

/// The result of asking the driver to describe a machine of the template.
#[derive(Debug)]
pub enum Described {
    /// The driver's answer.
    Known(ClassDescription),
    /// The driver does not offer the call. As far as is known, the spec is valid.
    NotSupported,
    /// The driver was not asked, since the spec is not valid for it: the reason, with the field.
    Refused(String),
    /// The driver was not asked, since the spec lacks a field, which is valid in a template for a
    /// ClusterClass: the field.
    Incomplete(String),
    /// The driver was not asked, since a ClusterClass completes copies of the template.
    OfClass,
    /// The driver's answer can't be published: the reason, with the field.
    Unusable(String),
    /// No driver resolves, for this reason.
    NotConfigured(String),
    /// The credentials can't be read, for this reason.
    NoSecrets(String),
    /// The driver could not answer.
    Failed(Status),
}

impl Described {
    /// Takes the driver's answer if the API server accepts its capacity.
    pub fn of(description: ClassDescription) -> Self {
        match violation(&description.capacity) {
            None => Self::Known(description),
            Some(why) => Self::Unusable(why),
        }
    }
}

/// Returns why the API server would refuse a capacity, by the API server's own schema.
fn violation(capacity: &BTreeMap<String, String>) -> Option<String> {
    let schema = schema::quantities(&mut SchemaGenerator::default());
    let quantities = match jsonschema::validator_for(schema.as_value()) {
        Ok(quantities) => quantities,
        Err(error) => return Some(format!("invalid schema of quantities: {error}")),
    };
    let capacity = json!(capacity);
    let error = quantities.iter_errors(&capacity).next()?;
    let place = error.instance_path().to_string();
    Some(if place.is_empty() {
        format!("the driver's capacity: {error}")
    } else {
        format!("the driver's capacity{place} is not a quantity of at most 64 characters, such as 4 or 16Gi")
    })
}

/// Returns the status of a paused template: only the condition Paused changes, since nothing new is known of
/// the rest.
pub fn paused(template: &InfraMachineTemplate, by: &str, now: Timestamp) -> InfraMachineTemplateStatus {
    let mut status = template.status.clone().unwrap_or_default();
    Setter::new(&mut status.conditions, &template.metadata, now).set(
        conditions::PAUSED,
        ConditionStatus::True,
        reason::PAUSED,
        by,
    );
    status
}

/// Returns the status after an answer; it equals the current status where nothing has changed.
pub fn status(
    template: &InfraMachineTemplate,
    described: &Described,
    now: Timestamp,
) -> InfraMachineTemplateStatus {
    let mut status = template.status.clone().unwrap_or_default();
    let mut shown = Setter::new(&mut status.conditions, &template.metadata, now);
    shown.set(conditions::PAUSED, ConditionStatus::False, reason::NOT_PAUSED, "");
    let failed;
    let (state, reason, message) = match described {
        Described::Known(description) => {
            status.capacity.clone_from(&description.capacity);
            status.node_info = node_info(description);
            (ConditionStatus::True, reason::READY, "")
        }
        Described::NotSupported | Described::Incomplete(_) | Described::OfClass => {
            (ConditionStatus::True, reason::READY, "")
        }
        Described::Refused(why) => (ConditionStatus::False, Code::InvalidArgument.name(), why.as_str()),
        Described::Unusable(why) => (ConditionStatus::False, reason::INVALID_CAPACITY, why.as_str()),
        Described::NotConfigured(why) => (
            ConditionStatus::False,
            reason::DRIVER_NOT_CONFIGURED,
            why.as_str(),
        ),
        Described::NoSecrets(why) => (ConditionStatus::False, reason::INVALID_SECRET, why.as_str()),
        // An outage of the driver proves nothing about a template that the driver has accepted.
        Described::Failed(error) if error.code().is_outage() && is_ready(template) => return status,
        Described::Failed(error) => {
            failed = format!("{}: {}", Operation::DescribeClass, error.message());
            (ConditionStatus::False, error.code().name(), failed.as_str())
        }
    };
    shown.set(conditions::READY, state, reason, message);
    match described {
        Described::Incomplete(why) => {
            let message = format!("{why}; machines need the field, unless a ClusterClass adds it");
            shown.set(
                conditions::COMPLETE,
                ConditionStatus::False,
                reason::INCOMPLETE,
                &message,
            );
        }
        _ => status
            .conditions
            .retain(|shown| shown.type_ != conditions::COMPLETE),
    }
    status.observed_generation = template.metadata.generation;
    status
}

/// Whether the status reports that machines can be made from the template's current generation.
fn is_ready(template: &InfraMachineTemplate) -> bool {
    template.status.as_ref().is_some_and(|status| {
        status.observed_generation == template.metadata.generation
            && conditions::is_true(&status.conditions, conditions::READY)
    })
}

/// Drops architectures and operating systems that Cluster API does not know.
fn node_info(description: &ClassDescription) -> Option<NodeInfo> {
    let architecture = match description.architecture.as_deref() {
        Some("amd64") => Some(Architecture::Amd64),
        Some("arm64") => Some(Architecture::Arm64),
        Some("s390x") => Some(Architecture::S390x),
        Some("ppc64le") => Some(Architecture::Ppc64le),
        _ => None,
    };
    let operating_system = match description.operating_system.as_deref() {
        Some("linux") => Some(OperatingSystem::Linux),
        Some("windows") => Some(OperatingSystem::Windows),
        _ => None,
    };
    let known = architecture.is_some() || operating_system.is_some();
    known.then_some(NodeInfo {
        architecture,
        operating_system,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1alpha1::InfraMachineTemplateSpec;

    fn template() -> InfraMachineTemplate {
        let mut template = InfraMachineTemplate::new("t", InfraMachineTemplateSpec::default());
        template.metadata.generation = Some(2);
        template
    }

    fn description(resource: &str, quantity: &str) -> ClassDescription {
        ClassDescription {
            capacity: [(resource.to_owned(), quantity.to_owned())].into(),
            architecture: Some("amd64".to_owned()),
            operating_system: Some("plan9".to_owned()),
        }
    }

    fn ready(status: &InfraMachineTemplateStatus) -> (&str, &str, &str) {
        let ready = conditions::get(&status.conditions, conditions::READY).unwrap();
        (
            ready.status.as_str(),
            ready.reason.as_str(),
            ready.message.as_str(),
        )
    }

    #[test]
    fn what_the_driver_says_is_shown_as_far_as_cluster_api_knows_it() {
        let described = Described::of(description("cpu", "4"));
        let status = status(&template(), &described, Timestamp::UNIX_EPOCH);
        assert_eq!(status.capacity["cpu"], "4");
        let node_info = status.node_info.clone().unwrap();
        assert_eq!(node_info.architecture, Some(Architecture::Amd64));
        assert_eq!(node_info.operating_system, None);
        assert_eq!(
            (ready(&status), status.observed_generation),
            (("True", "Ready", ""), Some(2))
        );
    }

    #[test]
    fn every_quantity_that_kubernetes_writes_is_taken() {
        for quantity in ["0", "4", "500m", "16Gi", "20G", "1.5", "1e3", "+1", ".5"] {
            assert_eq!(
                violation(&description("memory", quantity).capacity),
                None,
                "{quantity}"
            );
        }
    }

    /// The API server would refuse the whole status, at every attempt.
    #[test]
    fn a_capacity_that_is_no_quantity_is_named_and_not_written() {
        for quantity in ["", "lots", "4 GB", "1Zi", &"1".repeat(65)] {
            let described = Described::of(description("cpu", quantity));
            let status = status(&template(), &described, Timestamp::UNIX_EPOCH);
            let (state, reason, message) = ready(&status);
            assert_eq!((state, reason), ("False", reason::INVALID_CAPACITY), "{quantity}");
            assert!(message.contains("capacity/cpu"), "{message}");
            assert!(status.capacity.is_empty());
        }
        let many = (0..65).map(|n| (format!("r{n}"), "1".to_owned())).collect();
        assert!(violation(&many).is_some_and(|why| why.contains("64")));
    }

    fn known(template: &InfraMachineTemplate) -> InfraMachineTemplateStatus {
        let known = Described::of(description("cpu", "4"));
        status(template, &known, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_driver_that_refuses_leaves_the_capacity_that_it_reported_before() {
        let mut template = template();
        template.status = Some(known(&template));
        let refused = Described::Failed(Status::new(Code::PermissionDenied, "no"));
        let status = status(&template, &refused, Timestamp::UNIX_EPOCH);
        assert_eq!(status.capacity["cpu"], "4");
        assert_eq!(ready(&status), ("False", "PermissionDenied", "DescribeClass: no"));
    }

    /// The driver is asked again now and then. The template is usable once the driver is back.
    #[test]
    fn an_outage_leaves_the_status_of_a_template_unchanged() {
        let mut template = template();
        let outage = Described::Failed(Status::new(Code::Unavailable, "connection refused"));
        let first = status(&template, &outage, Timestamp::UNIX_EPOCH);
        assert_eq!(
            ready(&first),
            ("False", "Unavailable", "DescribeClass: connection refused")
        );
        template.status = Some(known(&template));
        assert_eq!(
            Some(status(&template, &outage, Timestamp::UNIX_EPOCH)),
            template.status
        );
    }

    /// Tools that wait for Ready=True must not wait for a field that a ClusterClass adds to copies.
    #[test]
    fn an_incomplete_template_is_ready_and_names_what_it_lacks() {
        let mut template = template();
        let lacks = Described::Incomplete("providerSpec: \"vmPool\" is a required property".to_owned());
        let incomplete = status(&template, &lacks, Timestamp::UNIX_EPOCH);
        assert_eq!(ready(&incomplete).0, "True");
        let shown = conditions::get(&incomplete.conditions, conditions::COMPLETE).unwrap();
        assert_eq!(
            (shown.status.as_str(), shown.reason.as_str()),
            ("False", reason::INCOMPLETE)
        );
        assert!(shown.message.contains("vmPool"), "{}", shown.message);
        template.status = Some(incomplete);
        let adopted = status(&template, &Described::OfClass, Timestamp::UNIX_EPOCH);
        assert_eq!(ready(&adopted).0, "True");
        assert_eq!(conditions::get(&adopted.conditions, conditions::COMPLETE), None);
    }

    /// An idle fleet makes no writes, however often its drivers are asked.
    #[test]
    fn the_same_answer_changes_nothing_and_another_is_shown() {
        let mut template = template();
        let later = Timestamp::from_second(600).unwrap();
        template.status = Some(status(&template, &Described::NotSupported, Timestamp::UNIX_EPOCH));
        assert_eq!(
            Some(status(&template, &Described::NotSupported, later)),
            template.status
        );
        let after = status(&template, &Described::of(description("cpu", "4")), later);
        assert_eq!(after.capacity["cpu"], "4");
    }

    #[test]
    fn a_pause_is_shown_and_taken_back_and_touches_nothing_else() {
        let mut template = template();
        template.status = Some(known(&template));
        template.metadata.generation = Some(3);
        let pausing = paused(
            &template,
            "Cluster spec.paused is set to true",
            Timestamp::UNIX_EPOCH,
        );
        assert!(conditions::is_true(&pausing.conditions, conditions::PAUSED));
        assert_eq!(
            (pausing.observed_generation, pausing.capacity["cpu"].as_str()),
            (Some(2), "4")
        );
        template.status = Some(pausing);
        let again = known(&template).conditions;
        let shown = conditions::get(&again, conditions::PAUSED).unwrap();
        assert_eq!(
            (shown.status.as_str(), shown.reason.as_str()),
            ("False", reason::NOT_PAUSED)
        );
    }
}
