//! Limits on the cost of a schema. The schema comes from the driver, and the provider evaluates it. A schema
//! that refers to itself, or multiplies by its references, would exhaust the stack or the CPU time. Its
//! patterns would exhaust the memory.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// The most objects of a schema. An object counts once per reference.
const MAX_SUBSCHEMAS: usize = 1024;
/// The deepest nesting of a schema, references included.
const MAX_DEPTH: usize = 64;
/// The most keywords that depend on their siblings' results: nested in each other, each doubles the work.
const MAX_UNEVALUATED: usize = 4;
/// The limit on patterns. Each pattern counts once, plus once for each of its pieces. A pattern with
/// look-around or back-references is compiled in pieces, and each piece may get as large as a whole pattern.
const MAX_PATTERNS: usize = 64;
/// The bytes of a piece: for a plain pattern, and for a pattern with look-around or back-references.
const PIECE: usize = 512;
const HARD_PIECE: usize = 8;
/// The longest pattern, in bytes.
const MAX_PATTERN: usize = 4096;
/// The versions of JSON Schema that resolve `#/…` against the root, even beside an `id`.
const DIALECTS: [&str; 4] = [
    "json-schema.org/draft-06/schema",
    "json-schema.org/draft-07/schema",
    "json-schema.org/draft/2019-09/schema",
    "json-schema.org/draft/2020-12/schema",
];

/// Measures a schema.
///
/// # Errors
/// The limit that the schema exceeds.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    if let Some(dialect) = schema.get("$schema").and_then(Value::as_str) {
        let name = dialect.trim_end_matches('#');
        if !DIALECTS.iter().any(|known| name.ends_with(known)) {
            return Err(format!(
                "`$schema` is `{dialect}`; supported are draft-06 and later"
            ));
        }
    }
    let mut measure = Measure {
        root: schema,
        subschemas: 0,
        unevaluated: 0,
        seen: BTreeSet::new(),
        patterns: 0,
    };
    measure.add(schema, 0)
}

struct Measure<'a> {
    root: &'a Value,
    subschemas: usize,
    unevaluated: usize,
    seen: BTreeSet<&'a str>,
    patterns: usize,
}

impl<'a> Measure<'a> {
    fn add(&mut self, value: &'a Value, depth: usize) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(format!(
                "it is nested more than {MAX_DEPTH} levels deep, or refers to itself"
            ));
        }
        match value {
            Value::Object(object) => self.add_object(object, depth),
            Value::Array(values) => values.iter().try_for_each(|value| self.add(value, depth + 1)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }

    fn add_object(&mut self, object: &'a Map<String, Value>, depth: usize) -> Result<(), String> {
        self.subschemas += 1;
        if self.subschemas > MAX_SUBSCHEMAS {
            return Err(format!(
                "it has more than {MAX_SUBSCHEMAS} objects, counting every reference"
            ));
        }
        for (keyword, value) in object {
            match (keyword.as_str(), value) {
                ("$ref", Value::String(target)) => {
                    let found = target.strip_prefix('#').and_then(|path| self.root.pointer(path));
                    let found =
                        found.ok_or_else(|| format!("`$ref`: `{target}` does not exist in the schema"))?;
                    self.add(found, depth + 1)?;
                }
                ("$dynamicRef" | "$recursiveRef", Value::String(_)) => {
                    return Err(format!("`{keyword}` is not supported"));
                }
                ("pattern", Value::String(pattern)) => self.add_pattern(pattern)?,
                ("patternProperties", Value::Object(properties)) => {
                    properties
                        .keys()
                        .try_for_each(|pattern| self.add_pattern(pattern))?;
                    self.add(value, depth + 1)?;
                }
                // It would give `#/…` another meaning.
                ("$id", Value::String(_)) if depth > 0 => {
                    return Err("a subschema has its own `$id`".to_owned());
                }
                ("unevaluatedProperties" | "unevaluatedItems", _) => {
                    self.unevaluated += 1;
                    if self.unevaluated > MAX_UNEVALUATED {
                        return Err(format!(
                            "it has more than {MAX_UNEVALUATED} keywords `unevaluated…`"
                        ));
                    }
                    self.add(value, depth + 1)?;
                }
                _ => self.add(value, depth + 1)?,
            }
        }
        Ok(())
    }

    fn add_pattern(&mut self, pattern: &'a str) -> Result<(), String> {
        if pattern.len() > MAX_PATTERN {
            return Err(format!("it has a pattern of more than {MAX_PATTERN} bytes"));
        }
        if self.seen.insert(pattern) {
            let piece = if is_plain(pattern) { PIECE } else { HARD_PIECE };
            self.patterns += 1 + pattern.len() / piece;
        }
        if self.patterns > MAX_PATTERNS {
            return Err(format!(
                "it has more than {MAX_PATTERNS} patterns, where a pattern counts once more for every \
                    {PIECE} bytes, and for every {HARD_PIECE} where it looks around or goes back"
            ));
        }
        Ok(())
    }
}

/// Whether a pattern is compiled in one piece. `false` is always safe.
fn is_plain(pattern: &str) -> bool {
    let cuts = |pair: &[u8]| match pair {
        [b'\\', escape] => escape.is_ascii_alphanumeric() && !b"bBdDfnpPrsStuvwWx".contains(escape),
        [quantifier, b'+'] => b"*+?}".contains(quantifier),
        _ => false,
    };
    !pattern.replace("(?:", "(").contains("(?") && !pattern.as_bytes().windows(2).any(cuts)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A chain of references, each to the next.
    fn chain(length: usize) -> Value {
        let link = |number: usize| {
            (
                number.to_string(),
                json!({"$ref": format!("#/$defs/{}", number + 1)}),
            )
        };
        let mut links: Map<String, Value> = (0..length).map(link).collect();
        links.insert(length.to_string(), json!({"type": "string"}));
        json!({"$ref": "#/$defs/0", "$defs": links})
    }

    /// Each level refers to the next level twice.
    fn doubling(levels: usize) -> Value {
        let level = |number: usize| {
            let next = json!({"$ref": format!("#/$defs/{}", number + 1)});
            (number.to_string(), json!({"allOf": [next, next]}))
        };
        let mut all: Map<String, Value> = (0..levels).map(level).collect();
        all.insert(levels.to_string(), json!(true));
        json!({"$ref": "#/$defs/0", "$defs": all})
    }

    #[test]
    fn a_schema_that_would_take_all_stack_or_time_is_refused() {
        let nested = (0..8).fold(
            json!({}),
            |inner, _| json!({"allOf": [inner], "unevaluatedProperties": false}),
        );
        for (schema, why) in [
            (chain(30_000), "nested"),
            (doubling(40), "nested"),
            (doubling(12), "counting every reference"),
            (json!({"properties": {"a": {"$ref": "#"}}}), "refers to itself"),
            (nested, "unevaluated"),
            (json!({"$ref": "#/$defs/none"}), "`#/$defs/none` does not exist"),
            (json!({"$ref": "http://a/b"}), "`http://a/b` does not exist"),
            (json!({"$dynamicRef": "#a"}), "$dynamicRef"),
            (json!({"$defs": {"a": {"$id": "http://a"}}}), "`$id`"),
            (
                json!({"$schema": "http://json-schema.org/draft-04/schema#"}),
                "draft-06",
            ),
        ] {
            let error = check(&schema).unwrap_err();
            assert!(error.contains(why), "no `{why}` in: {error}");
        }
    }

    /// `patternProperties` with this many patterns, and values that are not objects.
    fn patterns(patterns: usize, of: &str) -> Value {
        let properties = (0..patterns).map(|number| (format!("{of}{number}"), json!(true)));
        json!({"patternProperties": properties.collect::<Map<_, _>>()})
    }

    #[test]
    fn a_schema_whose_patterns_would_take_all_memory_is_refused() {
        let strings: Vec<_> = (0..300).map(|n| json!({"pattern": n.to_string()})).collect();
        for schema in [
            patterns(50_000, "a"),
            json!({"allOf": strings}),
            patterns(1, &r"(?=\pL{4})".repeat(300)),
            patterns(1, &r"\pL{4}++".repeat(300)),
            patterns(1, &r"(a)\1|\pL{4}".repeat(300)),
            patterns(1, &r"\pL".repeat(2000)),
        ] {
            let error = check(&schema).unwrap_err();
            assert!(error.contains("pattern"), "{error}");
        }
    }

    #[test]
    fn patterns_as_people_write_them_are_taken() {
        let name = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
        assert_eq!(check(&patterns(MAX_PATTERNS, name)), Ok(()));
        assert_eq!(check(&patterns(12, r"^(?!.*--)(?:[\w.+-]+|\$\{\w+\})$")), Ok(()));
        let same: Vec<_> = (0..1000).map(|_| json!({"pattern": name})).collect();
        assert_eq!(check(&json!({"allOf": same})), Ok(()));
    }

    #[test]
    fn a_schema_as_people_write_it_is_taken() {
        let sizes: Vec<_> = (0..2000).map(|number| format!("m{number}")).collect();
        let schema = json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$id": "https://example.com/spec",
            "properties": {
                "id": {"type": "string"}, "size": {"enum": sizes},
                "disks": {"items": {"$ref": "#/definitions/disk"}},
                "root": {"$ref": "#/definitions/disk"},
            },
            "unevaluatedProperties": false,
            "definitions": {"disk": {"properties": {"gb": {"type": "integer"}}}},
        });
        assert_eq!(check(&schema), Ok(()));
        assert_eq!(check(&chain(20)), Ok(()));
    }
}
