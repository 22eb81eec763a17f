//! Parses files that operators write.

use garde::Validate;
use serde::de::DeserializeOwned;

/// Parses and validates the text of a file.
///
/// # Errors
/// The mistake, with its place. No snippet of the file is shown: a secret may stand beside the mistake
/// (OPS-11).
pub fn parse<T>(text: &str) -> Result<T, String>
where
    T: DeserializeOwned + Validate,
    T::Context: Default,
{
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options_valid(text, options).map_err(|error| {
        let message = error.to_string();
        match unreadable_place::<T>(text) {
            Some(place) => format!("{place}: {message}"),
            None => message,
        }
    })
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
            place = Some(path(error.path()));
            error.into_inner()
        })
    });
    place.filter(|place| !place.is_empty())
}

/// Formats a path without the signs for the file as a whole and for a key that has no name.
fn path(path: &serde_path_to_error::Path) -> String {
    path.to_string().trim_matches(['.', '?']).to_owned()
}
