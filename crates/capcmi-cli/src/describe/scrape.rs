//! The metrics of a running provider, read from a scrape of `/metrics`.

use std::collections::BTreeMap;

/// A scrape of `/metrics`.
#[derive(Clone, Debug, PartialEq)]
pub struct Scrape(Vec<Sample>);

/// A line of a scrape.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// The text is not a metrics scrape of this provider.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidScrape {
    /// A line is not a sample.
    #[error("line {0} is not a metric sample")]
    Line(usize),
    /// The samples are of another program.
    #[error("no metric of this provider found, whose names start with `capcmi_`")]
    Foreign,
}

impl Scrape {
    /// Reads the text form of Prometheus or OpenMetrics.
    ///
    /// # Errors
    /// [`InvalidScrape`], which names the line.
    pub fn read(text: &str) -> Result<Self, InvalidScrape> {
        let mut samples = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            samples.push(sample(line).ok_or(InvalidScrape::Line(number + 1))?);
        }
        if samples.iter().any(|sample| sample.name.starts_with("capcmi_")) {
            Ok(Self(samples))
        } else {
            Err(InvalidScrape::Foreign)
        }
    }

    /// The samples of a metric about a driver.
    pub(super) fn of<'a>(&'a self, name: &'a str, driver: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.0.iter().filter(move |sample| {
            sample.name == name && sample.labels.get("driver").is_some_and(|it| it == driver)
        })
    }

    /// Returns the value of a metric of the process.
    pub(super) fn of_process(&self, name: &str) -> Option<f64> {
        self.0
            .iter()
            .find(|sample| sample.name == name)
            .map(|sample| sample.value)
    }
}

impl Sample {
    pub(super) fn label(&self, name: &str) -> &str {
        self.labels.get(name).map(String::as_str).unwrap_or_default()
    }
}

fn sample(line: &str) -> Option<Sample> {
    let end = line.find(|c: char| c == '{' || c.is_whitespace())?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => labels(inside)?,
        None => (BTreeMap::new(), rest),
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample {
        name: name.to_owned(),
        labels,
        value,
    })
}

/// Parses the labels, and returns them with the text after the closing brace.
fn labels(mut inside: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        inside = inside.trim_start_matches(',');
        if let Some(rest) = inside.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, rest) = inside.split_once("=\"")?;
        let (value, rest) = quoted(rest)?;
        labels.insert(name.to_owned(), value);
        inside = rest;
    }
}

/// Parses a value up to its closing quote, and returns the text after it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut letters) = (String::new(), text.char_indices());
    loop {
        match letters.next()? {
            (at, '"') => return Some((value, text.get(at + 1..)?)),
            (_, '\\') => value.push(match letters.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            (_, letter) => value.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use capcmi::telemetry::metrics::Metrics;
    use cmi_driver::{Code, Operation};

    #[test]
    fn what_this_program_shows_is_read() {
        let metrics = Metrics::new();
        let took = Duration::from_secs(1);
        metrics.driver_called("a \"b\"\\", Operation::CreateMachine, Some(Code::Aborted), took);
        metrics.leads(true);
        let scrape = Scrape::read(&metrics.encode()).unwrap();
        let calls: Vec<_> = scrape.of("capcmi_driver_calls_total", "a \"b\"\\").collect();
        assert_eq!(calls.len(), 1);
        assert_eq!(calls[0].label("code"), "Aborted");
        assert!((calls[0].value - 1.0).abs() < f64::EPSILON);
        assert_eq!(scrape.of_process("capcmi_leader"), Some(1.0));
    }

    #[test]
    fn what_is_no_scrape_is_refused_with_its_line() {
        assert_eq!(
            Scrape::read("# HELP x\n\nnot allowed to get this path"),
            Err(InvalidScrape::Line(3))
        );
        assert_eq!(Scrape::read("a{b=\"c} 1"), Err(InvalidScrape::Line(1)));
        assert_eq!(Scrape::read("up 1\n"), Err(InvalidScrape::Foreign));
    }
}
