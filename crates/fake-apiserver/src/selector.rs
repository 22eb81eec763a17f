//! Label and field selectors.

use serde_json::Value;

/// The objects that a list or a watch is about.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    /// Fields, as JSON pointers, with the values that they must have.
    fields: Vec<(String, String)>,
}

#[derive(Clone, Debug)]
enum Requirement {
    Exists(String),
    Absent(String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
}

impl Selector {
    /// Parses the selectors of a query. Fields are compared for equality only, and every field is supported.
    pub(crate) fn parse(labels: Option<&str>, fields: Option<&str>) -> Result<Self, String> {
        let labels = split(labels.unwrap_or_default());
        let labels = labels.into_iter().map(requirement).collect();
        let fields = split(fields.unwrap_or_default());
        let fields = fields.into_iter().map(field).collect::<Result<_, _>>()?;
        Ok(Self { labels, fields })
    }

    /// Whether an object is selected.
    pub(crate) fn matches(&self, object: &Value) -> bool {
        let label = |key: &str| object["metadata"]["labels"][key].as_str();
        let has = |(pointer, value): &(String, String)| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
                == value
        };
        self.fields.iter().all(has)
            && self.labels.iter().all(|requirement| match requirement {
                Requirement::Exists(key) => label(key).is_some(),
                Requirement::Absent(key) => label(key).is_none(),
                Requirement::In(key, values) => label(key).is_some_and(|is| values.iter().any(|v| v == is)),
                Requirement::NotIn(key, values) => label(key).is_none_or(|is| values.iter().all(|v| v != is)),
            })
    }
}

fn field(requirement: &str) -> Result<(String, String), String> {
    let (path, value) = requirement
        .split_once('=')
        .filter(|(path, _)| !path.ends_with('!'))
        .ok_or_else(|| format!("the field selector `{requirement}` is not supported"))?;
    let pointer = format!("/{}", path.replace('.', "/"));
    Ok((pointer, value.trim_start_matches('=').to_owned()))
}

/// Splits at commas that are not between parentheses.
fn split(selector: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (place, letter) in selector.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&selector[start..place]);
                start = place + 1;
            }
            _ => {}
        }
    }
    parts.push(&selector[start..]);
    parts
        .into_iter()
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect()
}

fn requirement(text: &str) -> Requirement {
    let values = |list: &str| {
        let list = list.trim().trim_start_matches('(').trim_end_matches(')');
        list.split(',').map(|value| value.trim().to_owned()).collect()
    };
    if let Some((key, list)) = text.split_once(" notin ") {
        Requirement::NotIn(key.trim().to_owned(), values(list))
    } else if let Some((key, list)) = text.split_once(" in ") {
        Requirement::In(key.trim().to_owned(), values(list))
    } else if let Some((key, value)) = text.split_once("!=") {
        Requirement::NotIn(key.trim().to_owned(), vec![value.trim().to_owned()])
    } else if let Some((key, value)) = text.split_once('=') {
        let value = value.trim_start_matches('=').trim().to_owned();
        Requirement::In(key.trim().to_owned(), vec![value])
    } else if let Some(key) = text.strip_prefix('!') {
        Requirement::Absent(key.trim().to_owned())
    } else {
        Requirement::Exists(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_match_labels_and_fields() {
        let object = json!({
            "metadata": {"name": "m", "labels": {"a": "1", "b": "2"}}, "spec": {"nodeName": "n"},
        });
        for (labels, fields, matches) in [
            ("", "", true),
            ("a=1,b==2", "", true),
            ("a in (0, 1),b", "metadata.name=m", true),
            ("a!=2,!c", "", true),
            ("a notin (1,2)", "", false),
            ("!a", "", false),
            ("c", "", false),
            ("", "metadata.name=n", false),
            ("", "metadata.name=m,spec.nodeName==n", true),
            ("", "spec.nodeName=m", false),
            ("", "status.phase=", true),
        ] {
            let selector = Selector::parse(Some(labels), Some(fields)).unwrap();
            assert_eq!(selector.matches(&object), matches, "{labels} {fields}");
        }
        assert!(Selector::parse(None, Some("spec.nodeName!=n")).is_err());
    }
}
