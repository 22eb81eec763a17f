//! Whether a text holds a secret, in any of the ways in which programs write bytes.

use std::borrow::Cow;

use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD, Engine as _};
use percent_encoding::percent_decode_str;

/// The shortest value that counts as a secret, one that works as well as one that is refused; to find a
/// shorter one in a text means nothing: `expired` stands in any message about credentials.
pub const MIN_SECRET: usize = 12;
/// The shortest line of a longer secret that counts as one by itself.
const MIN_LINE: usize = 20;
/// The format of bootstrap data, which stands beside it.
const NO_SECRET: &[u8] = b"cloud-config";
/// How many ways there are to begin in the middle of what base64 takes together.
const SHIFTS: usize = 3;

/// Whether a secret is distinct from other text.
pub fn is_long_enough(secret: &[u8]) -> bool {
    secret.trim_ascii().len() >= MIN_SECRET
}

/// Whether a text holds a secret.
pub fn echoes(text: &str, secret: &[u8]) -> bool {
    form_of_echo(text, secret).is_some()
}

/// In which form a text holds a secret, if it does: as it is, line by line, in base64 by itself or as a
/// part of something longer, in hexadecimal or decimal numbers, percent-encoded, or with escapes as in a
/// literal.
pub fn form_of_echo(text: &str, secret: &[u8]) -> Option<&'static str> {
    if secret == NO_SECRET || secret.len() < MIN_SECRET {
        return None;
    }
    let plain = String::from_utf8_lossy(secret);
    let readings = readings(text);
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

/// Whether a line of a longer secret is one by itself: `kind: Config` and `-----BEGIN CERTIFICATE-----` stand
/// in many.
fn is_telling(line: &str) -> bool {
    line.len() >= MIN_LINE && !line.starts_with("-----")
}

/// The text as it stands, without percent-encoding, and without the escapes of literals.
fn readings(text: &str) -> Vec<Cow<'_, str>> {
    let mut readings = vec![Cow::Borrowed(text)];
    if text.contains('%') {
        readings.push(percent_decode_str(text).decode_utf8_lossy());
        let with_spaces = text.replace('+', " ");
        readings.push(Cow::Owned(
            percent_decode_str(&with_spaces).decode_utf8_lossy().into_owned(),
        ));
    }
    if text.contains('\\') {
        readings.push(Cow::Owned(unescaped(text)));
    }
    readings
}

/// Without the escapes that Go, JSON, Python and Rust have in common. `\x` is a byte, as in Python's bytes.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        rest = &rest[at + 1..];
        let Some(escape) = rest.chars().next() else {
            bytes.push(b'\\');
            break;
        };
        rest = &rest[escape.len_utf8()..];
        let hexadecimal = |digits: usize| u32::from_str_radix(rest.get(..digits)?, 16).ok();
        let (written, digits) = match escape {
            'n' => ("\n".into(), 0),
            'r' => ("\r".into(), 0),
            't' => ("\t".into(), 0),
            'x' => match hexadecimal(2).and_then(|byte| u8::try_from(byte).ok()) {
                Some(byte) => (vec![byte], 2),
                None => ("\\x".into(), 0),
            },
            'u' => match hexadecimal(4).and_then(char::from_u32) {
                Some(letter) => (letter.to_string().into_bytes(), 4),
                None => ("\\u".into(), 0),
            },
            other => (other.to_string().into_bytes(), 0),
        };
        bytes.extend(written);
        rest = &rest[digits..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What programs make of bytes.
fn encodings(secret: &[u8]) -> Vec<String> {
    let joined = |between: &str, write: fn(&u8) -> String| {
        let bytes: Vec<_> = secret.iter().map(write).collect();
        bytes.join(between)
    };
    let mut all = vec![
        joined(" ", u8::to_string),
        joined(", ", u8::to_string),
        joined(",", u8::to_string),
    ];
    for between in ["", " ", ":", ", "] {
        all.push(joined(between, |byte| format!("{byte:02x}")));
        all.push(joined(between, |byte| format!("{byte:02X}")));
    }
    for between in [" ", ", "] {
        all.push(joined(between, |byte| format!("{byte:x}")));
        all.push(joined(between, |byte| format!("0x{byte:x}")));
        all.push(joined(between, |byte| format!("0x{byte:02x}")));
    }
    all.extend(base64s(secret));
    all
}

/// A secret in base64, by itself or as a part of something longer.
fn base64s(secret: &[u8]) -> impl Iterator<Item = String> {
    (0..SHIFTS).flat_map(|shift| {
        [
            in_base64(secret, shift, |bytes| BASE64_STANDARD_NO_PAD.encode(bytes)),
            in_base64(secret, shift, |bytes| BASE64_URL_SAFE_NO_PAD.encode(bytes)),
        ]
    })
}

/// The letters that only the secret decides, where it comes after so many bytes of something longer: a letter
/// is six bits.
fn in_base64(secret: &[u8], shift: usize, encode: impl Fn(&[u8]) -> String) -> String {
    let mut bytes = vec![0; shift];
    bytes.extend_from_slice(secret);
    let encoded = encode(&bytes);
    let first = (shift * 8).div_ceil(6);
    let end = bytes.len() * 8 / 6;
    encoded.get(first..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE};
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
