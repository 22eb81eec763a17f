//! The search for secrets in a text, in every encoding that programs use for bytes.

use std::borrow::Cow;
use std::cell::OnceCell;

use cmi_driver::secret_forms::{base64s, encodings, readings};

/// The length of the shortest value that counts as a secret, whether it is valid or refused. Any text may
/// contain a shorter value: `expired` is in every message about credentials.
pub const MIN_SECRET: usize = 12;
/// The shortest line of a longer secret that also counts as a secret.
const MIN_LINE: usize = 20;
/// The format of bootstrap data, which is next to them in the secrets.
const NO_SECRET: &[u8] = b"cloud-config";

/// Whether a secret is distinct from other text.
pub fn is_long_enough(secret: &[u8]) -> bool {
    secret.trim_ascii().len() >= MIN_SECRET
}

/// A text that is searched for secrets.
pub struct Haystack<'a> {
    text: &'a str,
    /// The original text, and its decoded forms.
    readings: Vec<Cow<'a, str>>,
    /// The readings without white space. The original text is included only if it has white space.
    joined: OnceCell<Vec<String>>,
}

impl<'a> Haystack<'a> {
    /// Returns the text, prepared for the search.
    pub fn new(text: &'a str) -> Self {
        let as_it_is = std::iter::once(Cow::Borrowed(text));
        Self {
            text,
            readings: as_it_is.chain(readings(text).map(Cow::Owned)).collect(),
            joined: OnceCell::new(),
        }
    }

    /// Whether the text holds a secret.
    pub fn holds(&self, secret: &[u8]) -> bool {
        self.form_of(secret).is_some()
    }

    /// Returns how the text holds a secret, if it does.
    ///
    /// The search covers the secret as it is and line by line, percent-encoded, with the escapes of literals,
    /// in hexadecimal or decimal numbers, and in base64, also within longer base64.
    pub fn form_of(&self, secret: &[u8]) -> Option<&'static str> {
        let text = self.text;
        if secret == NO_SECRET || secret.len() < MIN_SECRET || text.len() < MIN_SECRET {
            return None;
        }
        let plain = String::from_utf8_lossy(secret);
        let lines = plain.lines().map(str::trim).filter(|line| is_telling(line));
        let lines = lines.chain([plain.trim()]);
        let lines = lines.filter(|needle| needle.len() >= MIN_SECRET && needle.as_bytes() != NO_SECRET);
        for needle in lines {
            if text.contains(needle) {
                return Some("as it is");
            }
            if self.readings.iter().any(|reading| reading.contains(needle)) {
                return Some("percent-encoded, or with escapes");
            }
        }
        if encodings(secret, text.len()).any(|encoded| text.contains(encoded.as_str())) {
            return Some("in base64, or as hexadecimal or decimal numbers");
        }
        let mut base64 = base64s(secret, text.len());
        let is_in_lines = base64.any(|encoded| self.joined().iter().any(|text| text.contains(&encoded)));
        is_in_lines.then_some("in base64, in lines")
    }

    fn joined(&self) -> &[String] {
        self.joined.get_or_init(|| {
            let (text, decoded) = self.readings.split_at(1);
            let text = text.iter().filter(|text| text.contains(char::is_whitespace));
            let join = |reading: &Cow<'_, str>| reading.split_whitespace().collect();
            text.chain(decoded).map(join).collect()
        })
    }
}

/// Whether a line of a longer secret also counts as a secret. Lines such as `kind: Config` do not, and
/// neither does `-----BEGIN CERTIFICATE-----`: many texts have them.
fn is_telling(line: &str) -> bool {
    line.len() >= MIN_LINE && !line.starts_with("-----")
}

#[cfg(test)]
mod tests {
    use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE, BASE64_URL_SAFE_NO_PAD, Engine as _};
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

    use super::*;

    fn echoes(text: &str, secret: &[u8]) -> bool {
        Haystack::new(text).holds(secret)
    }

    const SECRET: &str = "first \"canary\", 100% schön\nsecond and last canary?>";

    /// OPS-11
    #[test]
    fn a_secret_is_found_however_a_program_writes_it() {
        let bytes = SECRET.as_bytes();
        let hexadecimal = |upper: bool| -> String {
            let byte = |byte: &u8| {
                if upper {
                    format!("{byte:02X}")
                } else {
                    format!("{byte:02x}")
                }
            };
            bytes.iter().map(byte).collect()
        };
        let go = bytes.iter().map(u8::to_string).collect::<Vec<_>>().join(" ");
        for text in [
            format!("x {SECRET} y"),
            "second and last canary?>".to_owned(),
            BASE64_STANDARD.encode(SECRET),
            BASE64_URL_SAFE.encode(SECRET),
            BASE64_URL_SAFE_NO_PAD.encode(SECRET),
            BASE64_STANDARD.encode(format!("a{SECRET}")),
            BASE64_STANDARD.encode(format!("ab{SECRET}cde")),
            hexadecimal(false),
            hexadecimal(true),
            format!("[{go}]"),
            format!("{bytes:?}"),
            format!("{bytes:x?}"),
            utf8_percent_encode(SECRET, NON_ALPHANUMERIC).to_string(),
            utf8_percent_encode(SECRET, NON_ALPHANUMERIC)
                .to_string()
                .replace("%20", "+"),
            format!("{SECRET:?}"),
            serde_json::to_string(SECRET).unwrap_or_default(),
            // Python's bytes, and JSON in ASCII alone.
            "b'first \"canary\", 100% sch\\xc3\\xb6n\\nsecond and last canary?>'".to_owned(),
            "\"first \\\"canary\\\", 100% sch\\u00f6n\\nsecond and last canary?>\"".to_owned(),
        ] {
            assert!(echoes(&format!("<{text}>"), bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_secret_is_not_found() {
        for text in [
            "nothing",
            "Zmlyc3Q=",
            "[102 105 114]",
            "a\\",
            "%",
            "\\x4",
            "\\u00f",
            "",
        ] {
            assert!(!echoes(text, SECRET.as_bytes()), "{text}");
        }
        assert!(!echoes("abc", b"abc"), "too short to mean anything");
        assert!(
            !echoes("the token has expired", b"expired"),
            "a word of plain text"
        );
        assert!(!echoes("#cloud-config", b"cloud-config"));
    }
}
