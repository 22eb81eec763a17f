//! The JSON Schema that a driver publishes for its provider spec.

mod bounds;

use std::fmt;
use std::sync::Arc;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, Retrieve, Uri, ValidationError, Validator};
use serde_json::Value;

use super::{Code, ProviderSpec, Status};

/// The most violations that one message lists.
const MAX_LISTED: usize = 5;
/// The limit on backtracking of a pattern with look-around or back-references.
const MAX_BACKTRACKS: usize = 20_000;
/// The most bytes of a compiled pattern. `bounds` limits the number of patterns.
const MAX_PATTERN_SIZE: usize = 1024 * 1024;
/// The most values of an enumeration that one message names.
const MAX_VALUES: usize = 64;

/// The JSON Schema of a provider spec. An unusable schema is kept as it was published, and refuses nothing:
/// the driver checks for itself.
#[derive(Clone)]
pub struct SpecSchema {
    published: Value,
    compiled: Result<Arc<Validator>, InvalidSpecSchema>,
}

/// An unusable schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unsupported JSON schema: {0}")]
pub struct InvalidSpecSchema(String);

/// Schemas that a driver refers to are not fetched: a driver must not choose where this process connects to.
struct NothingIsFetched;

impl Retrieve for NothingIsFetched {
    fn retrieve(&self, uri: &Uri<String>) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
        Err(format!("`{uri}` is outside the schema").into())
    }
}

impl SpecSchema {
    /// A schema, compiled.
    pub fn new(published: Value) -> Self {
        let compiled = compile(&published).map(Arc::new).map_err(InvalidSpecSchema);
        Self { published, compiled }
    }

    /// As the driver published it.
    pub fn as_json(&self) -> &Value {
        &self.published
    }

    /// Checks whether the schema is usable.
    ///
    /// # Errors
    /// The fault of the schema, or that it refers to something outside of itself.
    pub fn validate(&self) -> Result<(), &InvalidSpecSchema> {
        self.compiled.as_ref().map(|_| ())
    }

    /// Checks a provider spec as its user wrote it, before tags and failure domain are added.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the path of each field that violates the schema.
    pub fn check(&self, spec: &ProviderSpec) -> Result<(), Status> {
        self.check_for(spec, |_| true)
    }

    /// Checks an incomplete provider spec: the fields that it has, not the fields that it lacks.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the path of each field that no further field makes valid.
    pub fn check_given(&self, spec: &ProviderSpec) -> Result<(), Status> {
        self.check_for(spec, is_final)
    }

    fn check_for(
        &self,
        spec: &ProviderSpec,
        counts: impl Fn(&ValidationError<'_>) -> bool,
    ) -> Result<(), Status> {
        let Ok(validator) = &self.compiled else {
            return Ok(());
        };
        let instance = Value::Object(spec.0.clone());
        if validator.is_valid(&instance) {
            return Ok(());
        }
        let mut violations: Vec<String> = validator
            .iter_errors(&instance)
            .filter(counts)
            .take(MAX_LISTED + 1)
            .map(|error| format!("providerSpec{}: {}", error.instance_path(), why(&error)))
            .collect();
        if violations.is_empty() {
            return Ok(());
        }
        if violations.len() > MAX_LISTED {
            violations.truncate(MAX_LISTED);
            violations.push("and more".to_owned());
        }
        Err(Status::new(Code::InvalidArgument, violations.join("; ")))
    }
}

fn compile(schema: &Value) -> Result<Validator, String> {
    bounds::check(schema)?;
    jsonschema::options()
        .with_retriever(NothingIsFetched)
        // The pattern comes from the driver, and the text from the user.
        .with_pattern_options(
            PatternOptions::fancy_regex()
                .backtrack_limit(MAX_BACKTRACKS)
                .size_limit(MAX_PATTERN_SIZE),
        )
        .build(schema)
        .map_err(|error| error.to_string())
}

/// Whether a violation stays when fields or items are added to the spec.
fn is_final(error: &ValidationError<'_>) -> bool {
    match error.kind() {
        ValidationErrorKind::Required { .. }
        | ValidationErrorKind::MinProperties { .. }
        | ValidationErrorKind::MinItems { .. }
        | ValidationErrorKind::Contains
        | ValidationErrorKind::OneOfMultipleValid { .. } => false,
        ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } => {
            context.iter().all(|branch| branch.iter().any(is_final))
        }
        _ => true,
    }
}

/// Returns the message of a violation. For an enumeration, it lists all values: the library hides the third
/// and later values.
fn why(error: &ValidationError<'_>) -> String {
    let ValidationErrorKind::Enum { options } = error.kind() else {
        return error.to_string();
    };
    let values = options.as_array().map_or(&[][..], Vec::as_slice);
    let named: Vec<_> = values.iter().take(MAX_VALUES).map(Value::to_string).collect();
    let more = values.len().saturating_sub(MAX_VALUES);
    let rest = if more > 0 {
        format!(", and {more} more")
    } else {
        String::new()
    };
    format!("{} is not one of {}{rest}", error.instance(), named.join(", "))
}

impl PartialEq for SpecSchema {
    fn eq(&self, other: &Self) -> bool {
        self.published == other.published
    }
}

impl fmt::Debug for SpecSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.published.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(value: &Value) -> ProviderSpec {
        ProviderSpec(value.as_object().unwrap().clone())
    }

    #[test]
    fn a_violation_is_invalid_argument_with_the_path_of_the_field() {
        let schema = SpecSchema::new(json!({
            "type": "object",
            "required": ["vmPool"],
            "properties": {"disk": {"properties": {"size": {"type": "integer"}}}}
        }));
        let status = schema.check(&spec(&json!({"disk": {"size": "x"}}))).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(
            status.message().contains("providerSpec/disk/size: "),
            "{}",
            status.message()
        );
        assert!(status.message().contains("vmPool"), "{}", status.message());
        assert!(
            schema
                .check(&spec(&json!({"vmPool": "a", "disk": {"size": 1}})))
                .is_ok()
        );
    }

    #[test]
    fn an_incomplete_spec_is_checked_for_the_fields_that_it_has() {
        let schema = SpecSchema::new(json!({
            "type": "object",
            "required": ["vmPool", "disk"],
            "additionalProperties": false,
            "properties": {
                "vmPool": {"type": "string"},
                "disk": {"type": "object", "required": ["size"], "properties": {"size": {"type": "integer"}}},
                "network": {"anyOf": [
                    {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
                    {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}},
                ]},
            },
        }));
        for (given, fault) in [
            (json!({}), None),
            (json!({"disk": {}, "network": {}}), None),
            (json!({"disk": {"size": "x"}}), Some("disk/size")),
            (json!({"size": 1}), Some("size")),
            (json!({"network": {"name": 1}}), None),
            (json!({"network": {"name": 1, "id": 1}}), Some("network")),
            (json!({"network": "default"}), Some("network")),
        ] {
            let checked = schema.check_given(&spec(&given));
            let message = checked.err().map(|status| status.message().to_owned());
            assert_eq!(message.is_some(), fault.is_some(), "{given}: {message:?}");
            assert!(
                message.unwrap_or_default().contains(fault.unwrap_or_default()),
                "{given}"
            );
            assert!(schema.check(&spec(&given)).is_err(), "{given}");
        }
    }

    #[test]
    fn a_value_that_is_not_of_an_enumeration_is_told_all_that_are() {
        let sizes: Vec<_> = (1..=7).map(|n| format!("m{n}")).collect();
        let schema = SpecSchema::new(json!({"properties": {"size": {"enum": sizes}}}));
        let status = schema.check(&spec(&json!({"size": "huge"}))).unwrap_err();
        assert_eq!(
            status.message(),
            r#"providerSpec/size: "huge" is not one of "m1", "m2", "m3", "m4", "m5", "m6", "m7""#
        );
        let many: Vec<_> = (0..MAX_VALUES + 2).collect();
        let schema = SpecSchema::new(json!({"properties": {"size": {"enum": many}}}));
        let status = schema.check(&spec(&json!({"size": -1}))).unwrap_err();
        assert!(
            status.message().ends_with("63, and 2 more"),
            "{}",
            status.message()
        );
    }

    #[test]
    fn a_schema_that_refers_to_the_network_is_none_and_refuses_nothing() {
        let schema = SpecSchema::new(json!({"$ref": "http://127.0.0.1:1/schema.json"}));
        assert!(schema.validate().is_err());
        assert!(schema.check(&spec(&json!({}))).is_ok());
    }

    #[test]
    fn a_schema_with_a_huge_pattern_is_invalid() {
        for (pattern, is_valid) in [
            (r"\pL{250}", false),
            (r"^(?!-)[\w-]{1,63}(?<!-)$", true),
            (r"^(?=.{1,253}$)\w+(\.\w+)*$", true),
            (r"^.{1,255}$", true),
            (r"^[\pL\pN -]+$", true),
        ] {
            let schema = SpecSchema::new(json!({"properties": {"a": {"pattern": pattern}}}));
            assert_eq!(
                schema.validate().is_ok(),
                is_valid,
                "{pattern}: {:?}",
                schema.validate()
            );
        }
    }

    /// A text of 40 letters would take it 2^40 steps.
    #[test]
    fn a_pattern_with_too_many_steps_fails_the_check() {
        let pattern = r"^(?:(a+)+\1)$";
        let schema = SpecSchema::new(json!({"properties": {"a": {"pattern": pattern}}}));
        assert!(schema.check(&spec(&json!({"a": "aa"}))).is_ok());
        let status = schema
            .check(&spec(&json!({"a": "a".repeat(40) + "!"})))
            .unwrap_err();
        assert!(
            status.message().starts_with("providerSpec/a: "),
            "{}",
            status.message()
        );
    }
}
