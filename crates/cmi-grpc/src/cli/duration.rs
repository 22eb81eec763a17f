//! Times as operators write them: `15s`, `1m30s`, `2h`.

use std::time::Duration;

use jiff::SignedDuration;
use serde::Deserialize;

/// The longest time that any setting takes.
const MAX_DURATION: Duration = Duration::from_hours(24 * 7);

/// A time in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct WrittenDuration(pub Duration);

impl TryFrom<String> for WrittenDuration {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        parse(&text).map(Self)
    }
}

/// Parses a time that is greater than zero and at most a week.
///
/// # Errors
/// The mistake in the text, for its author.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a duration such as `15s`, `1m30s` or `2h`");
    if !is_as_go_writes_it(text) {
        return Err(wrong());
    }
    let signed: SignedDuration = text.parse().map_err(|_| wrong())?;
    let duration = Duration::try_from(signed).map_err(|_| wrong())?;
    if duration.is_zero() || duration > MAX_DURATION {
        return Err(format!("`{text}` must be greater than zero and at most one week"));
    }
    Ok(duration)
}

/// Whether the text is in the format of Go's `time.ParseDuration`, which Kubernetes and its tools accept:
/// numbers, each with its unit, and nothing between.
fn is_as_go_writes_it(text: &str) -> bool {
    let mut rest = text;
    while !rest.is_empty() {
        let unit = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let is_number = unit.len() < rest.len();
        // Longer units first.
        let after = ["ms", "us", "ns", "µs", "h", "m", "s"]
            .iter()
            .find_map(|name| unit.strip_prefix(name));
        match after {
            Some(after) if is_number => rest = after,
            Some(_) | None => return false,
        }
    }
    !text.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_go_programs_read_them() {
        for (text, millis) in [
            ("15s", 15_000),
            ("1m30s", 90_000),
            ("2h", 7_200_000),
            ("500ms", 500),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn nothing_negative_endless_or_without_a_unit_is_a_time() {
        for text in ["0s", "-1s", "15", "", "8d", "soon"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_that_go_cannot_parse_are_refused() {
        for text in [
            "15 minutes",
            "15min",
            "PT15M",
            "1h 30m",
            "00:15:00",
            "15 m",
            "1h, 2m",
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(text) && error.contains("`1m30s`"), "{error}");
        }
    }
}
