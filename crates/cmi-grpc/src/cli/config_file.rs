//! Configuration files in YAML.

use std::collections::BTreeMap;

use cmi_driver::is_dns_label;
use garde::Validate;
use serde::de::DeserializeOwned;

/// A configuration file that can't be used: the mistake, with its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidConfig(String);

/// Parses and validates the text of a file. The type refuses unknown fields with serde's attribute
/// `deny_unknown_fields`.
///
/// # Errors
/// The mistake, with its place. No snippet of the file is shown: a secret may stand beside the mistake
/// (OPS-11).
pub fn parse<T>(text: &str) -> Result<T, InvalidConfig>
where
    T: DeserializeOwned + Validate,
    T::Context: Default,
{
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options_valid(text, options).map_err(|error| {
        let message = error.to_string();
        InvalidConfig(match unreadable_place::<T>(text) {
            Some(place) => format!("{place}: {message}"),
            None => as_written(&message, text),
        })
    })
}

/// Checks that names are DNS labels, for garde's `custom`. ProviderIDs and zones may contain such names.
///
/// # Errors
/// A name that is not a DNS label.
pub fn dns_labels<T, C>(named: &BTreeMap<String, T>, _: &C) -> garde::Result {
    match named.keys().find(|name| !is_dns_label(name)) {
        Some(name) => Err(garde::Error::new(format!(
            "`{name}` is not a DNS label: use at most 63 lower case letters, digits and `-`"
        ))),
        None => Ok(()),
    }
}

/// Returns the path of the value that can't be read, such as `drivers[0].burst`. The parser knows the path of
/// a value that it validates, but not of a value that it can't read. So a wrong file is read again, and the
/// path recorded.
fn unreadable_place<T: DeserializeOwned>(text: &str) -> Option<String> {
    let options = serde_saphyr::options! { with_snippet: false };
    let mut place = None;
    // The error is known already; or the file can be read and did not pass the validation, whose error names
    // the path itself.
    let _ = serde_saphyr::with_deserializer_from_str_with_options(text, options, |deserializer| {
        let read = serde_path_to_error::deserialize::<_, T>(deserializer);
        read.map(drop).map_err(|error| {
            // Without the signs for the file as a whole and for a key that has no name.
            place = Some(error.path().to_string().trim_matches(['.', '?']).to_owned());
            error.into_inner()
        })
    });
    place.filter(|place| !place.is_empty())
}

/// Spells the keys in the paths of a validation error as the file does. The parser does so only for the last
/// key of a path, and has Rust's names for the others.
fn as_written(message: &str, file: &str) -> String {
    let words = message.split_inclusive(|c: char| !c.is_alphanumeric() && c != '_');
    words
        .map(|word| {
            let key = camel_case(word);
            if file.contains(key.trim_end_matches(|c: char| !c.is_alphanumeric())) {
                key
            } else {
                word.to_owned()
            }
        })
        .collect()
}

fn camel_case(word: &str) -> String {
    let mut parts = word.split('_');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |camel, part| {
        let mut letters = part.chars();
        let initial = letters.next().map(|letter| letter.to_ascii_uppercase());
        camel + &initial.into_iter().chain(letters).collect::<String>()
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize, Validate)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Config {
        #[garde(custom(dns_labels), dive)]
        vm_pools: BTreeMap<String, Pool>,
    }

    #[derive(Debug, Deserialize, Validate)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Pool {
        #[garde(range(min = 1))]
        max_disk_gb: u64,
    }

    /// OPS-13
    #[test]
    fn a_mistake_has_the_path_as_the_file_spells_it() {
        let config: Config = parse("vmPools: {a: {maxDiskGb: 1}}").unwrap();
        assert_eq!(config.vm_pools["a"].max_disk_gb, 1);
        for (text, path) in [
            ("vmPools: {a: {maxDiskGb: 0}}", "vmPools.a.maxDiskGb"),
            ("vmPools: {a: {maxDiskGb: -1}}", "vmPools.a.maxDiskGb"),
            ("vmPools: {a: {maxDisk: 1}}", "vmPools.a.maxDisk"),
            ("vmPools: {a_b: {maxDiskGb: 1}}", "`a_b` is not a DNS label"),
        ] {
            let message = parse::<Config>(text).unwrap_err().to_string();
            assert!(message.contains(path), "{text}: {message}");
        }
    }

    /// OPS-11
    #[test]
    fn a_message_shows_nothing_of_the_rest_of_the_file() {
        let text = "vmPools: {a: {maxDiskGb: 1}}\npassword: canary";
        let message = parse::<Config>(text).unwrap_err().to_string();
        assert!(
            message.contains("password") && !message.contains("canary"),
            "{message}"
        );
    }
}
