//! Prints a forecast for an operator.

use serde_json::Value;

use super::forecast::Forecast;
use crate::commands::table::table;

/// The most characters of a value that are printed.
const MAX_VALUE: usize = 40;

/// Formats a forecast as a table of the fields, a table of the machines, and notes.
pub(super) fn text(forecast: &Forecast) -> String {
    let mut fields = vec![["FIELD", "OF", "FROM", "TO", "ACTION", "WHY"].map(str::to_owned)];
    fields.extend(forecast.fields.iter().map(|field| {
        [
            field.place.clone(),
            field.template.clone(),
            value(field.old.as_ref()),
            value(field.new.as_ref()),
            field.action.text().to_owned(),
            field.why.clone(),
        ]
    }));
    let mut machines = vec![["MACHINE", "TEMPLATE", "ACTION", "WHY"].map(str::to_owned)];
    machines.extend(forecast.machines.iter().map(|row| {
        [
            row.machine.clone(),
            row.template.clone(),
            row.action.text().to_owned(),
            row.why.clone(),
        ]
    }));
    let mut text = String::new();
    if let Some(why) = &forecast.refused {
        text = format!("The driver rejects the new template: {why}\n\n");
    }
    text.push_str(&if forecast.fields.is_empty() {
        "No field differs.\n".to_owned()
    } else {
        table(&fields)
    });
    text.push('\n');
    text.push_str(&if forecast.machines.is_empty() {
        "The MachineDeployment has no machines.\n".to_owned()
    } else {
        table(&machines)
    });
    let notes = forecast.notes.iter().map(|note| format!("\nNote: {note}.\n"));
    text.extend(notes);
    text
}

fn value(value: Option<&Value>) -> String {
    let Some(value) = value else {
        return "<none>".to_owned();
    };
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if text.chars().count() <= MAX_VALUE {
        return text;
    }
    let cut: String = text.chars().take(MAX_VALUE - 1).collect();
    format!("{cut}…")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_long_value_is_cut_and_one_that_is_not_there_is_said_to_be_none() {
        assert_eq!(value(None), "<none>");
        assert_eq!(value(Some(&json!({"a": 1}))), r#"{"a":1}"#);
        assert_eq!(value(Some(&json!("x".repeat(80)))).chars().count(), MAX_VALUE);
    }
}
