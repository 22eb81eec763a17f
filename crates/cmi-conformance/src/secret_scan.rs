//! Whether a text holds a secret, in any of the ways in which programs write bytes.

use cmi_driver::secret_forms::{base64s, encodings, readings};

/// The length of the shortest value that counts as a secret, whether it works or is refused. A shorter one
/// may be found in any text: `expired` is in every message about credentials.
pub const MIN_SECRET: usize = 12;
/// The shortest line of a longer secret that counts as one by itself.
const MIN_LINE: usize = 20;
/// The format of bootstrap data, which stands beside it.
const NO_SECRET: &[u8] = b"cloud-config";

/// Whether a secret is distinct from other text.
pub fn is_long_enough(secret: &[u8]) -> bool {
    secret.trim_ascii().len() >= MIN_SECRET
}

/// Whether a text holds a secret.
pub fn echoes(text: &str, secret: &[u8]) -> bool {
    form_of_echo(text, secret).is_some()
}

/// Returns the form in which a text holds a secret, if it does: as it is, line by line, in base64 by itself
/// or as a part of something longer, in hexadecimal or decimal numbers, percent-encoded, or with escapes as
/// in a literal.
pub fn form_of_echo(text: &str, secret: &[u8]) -> Option<&'static str> {
    if secret == NO_SECRET || secret.len() < MIN_SECRET {
        return None;
    }
    let plain = String::from_utf8_lossy(secret);
    let readings: Vec<_> = std::iter::once(text.to_owned()).chain(readings(text)).collect();
    let lines = plain.lines().map(str::trim).filter(|line| is_telling(line));
    let lines = lines.chain([plain.trim()]);
    let lines = lines.filter(|needle| needle.len() >= MIN_SECRET && needle.as_bytes() != NO_SECRET);
    for needle in lines {
        if text.contains(needle) {
            return Some("as it is");
        }
        if readings.iter().any(|reading| reading.contains(needle)) {
            return Some("percent-encoded, or with escapes");
        }
    }
    if encodings(secret)
        .iter()
        .any(|encoded| text.contains(encoded.as_str()))
    {
        return Some("in base64, or as hexadecimal or decimal numbers");
    }
    let is_in_lines = readings.iter().any(|reading| {
        let joined: String = reading.split(char::is_whitespace).collect();
        base64s(secret).any(|encoded| joined.contains(&encoded))
    });
    is_in_lines.then_some("in base64, in lines")
}

/// Whether a line of a longer secret counts as one by itself. Lines such as `kind: Config` do not, and
/// neither does `-----BEGIN CERTIFICATE-----`: many texts have them.
fn is_telling(line: &str) -> bool {
    line.len() >= MIN_LINE && !line.starts_with("-----")
}

#[cfg(test)]
mod tests {
    use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE, BASE64_URL_SAFE_NO_PAD, Engine as _};
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

    use super::*;

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
            // Python's bytes, and JSON of what has ASCII alone.
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
