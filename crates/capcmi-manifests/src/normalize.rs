//! Makes the derived definitions acceptable to the API server and to Cluster API.

use serde_json::{Map, Value};

/// Normalizes a schema, or any object that contains schemas.
///
/// * `nullable` is removed. The provider never writes null, and Cluster API panics on a null in a condition.
/// * Bounds become whole numbers.
/// * Descriptions become one line. The reader's terminal wraps it.
/// * Formats of unsigned integers are removed. The API server does not know them, and warns about each.
pub fn schema(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            object(fields);
            fields.values_mut().for_each(schema);
        }
        Value::Array(items) => items.iter_mut().for_each(schema),
        _ => {}
    }
}

/// Only keywords are removed: a property that happens to have such a name holds an object,
/// not a boolean or a string.
fn object(fields: &mut Map<String, Value>) {
    if fields.get("nullable").is_some_and(Value::is_boolean) {
        fields.remove("nullable");
    }
    let unsigned = |format: &Value| format.as_str().is_some_and(|format| format.starts_with("uint"));
    if fields.get("format").is_some_and(unsigned) {
        fields.remove("format");
    }
    for bound in ["minimum", "maximum"] {
        if let Some(whole) = fields.get(bound).and_then(whole_number) {
            fields.insert(bound.to_owned(), whole);
        }
    }
    if let Some(Value::String(text)) = fields.get_mut("description") {
        *text = text.replace('\n', " ");
    }
}

/// The API types keep bounds as floating-point numbers, which would be written as `1.0`.
fn whole_number(bound: &Value) -> Option<Value> {
    let text = bound.as_f64()?.to_string();
    text.parse::<i64>().ok().map(Value::from)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keywords_go_and_properties_of_the_same_name_stay() {
        let mut given = json!({
            "type": "object",
            "nullable": true,
            "properties": {
                "nullable": {"type": "boolean", "nullable": true},
                "format": {"type": "integer", "format": "uint32", "minimum": 0.0, "maximum": 1.5},
                "description": {"type": "boolean", "description": "one\ntwo"},
                "time": {"type": "string", "format": "date-time"},
            },
        });
        schema(&mut given);
        let expected = json!({
            "type": "object",
            "properties": {
                "nullable": {"type": "boolean"},
                "format": {"type": "integer", "minimum": 0, "maximum": 1.5},
                "description": {"type": "boolean", "description": "one two"},
                "time": {"type": "string", "format": "date-time"},
            },
        });
        assert_eq!(given, expected);
    }
}
