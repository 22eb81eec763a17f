//! Files that people write.

use garde::Validate;
use serde::de::DeserializeOwned;

/// Reads and checks a file.
///
/// # Errors
/// What is wrong, and where. A snippet of the file is not shown: a secret may stand beside the mistake (OPS-11).
pub(super) fn parse<T>(text: &str) -> Result<T, String>
where
    T: DeserializeOwned + Validate,
    T::Context: Default,
{
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options_valid(text, options).map_err(|error| error.to_string())
}
