//! The encodings in which programs write bytes, for the search for a secret in a text.

use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD, Engine as _};
use percent_encoding::percent_decode_str;

/// Base64 encodes three bytes as four characters: a secret within longer data starts at one of three offsets.
const SHIFTS: usize = 3;

/// The text decoded in each way: without percent-encoding, where `+` may be a blank, and without the escapes
/// of literals. Yields nothing for an encoding that the text does not use.
pub fn readings(text: &str) -> impl Iterator<Item = String> {
    READINGS.iter().filter_map(move |read| read(text))
}

/// The readings, each by itself.
pub(crate) const READINGS: [fn(&str) -> Option<String>; 3] = [
    |text| text.contains('%').then(|| percent_decoded(text)),
    |text| {
        text.contains('+')
            .then(|| percent_decoded(&text.replace('+', " ")))
    },
    |text| text.contains('\\').then(|| unescaped(text)),
];

fn percent_decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Removes the escapes that Go, JSON, Python and Rust have in common. `\x` is a byte, as in Python's bytes.
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

/// The encodings of bytes: base64 with and without padding and in two alphabets, also as a part of something
/// longer, and hexadecimal and decimal numbers.
pub fn encodings(secret: &[u8]) -> Vec<String> {
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
pub fn base64s(secret: &[u8]) -> impl Iterator<Item = String> {
    (0..SHIFTS).flat_map(|shift| {
        [
            in_base64(secret, shift, |bytes| BASE64_STANDARD_NO_PAD.encode(bytes)),
            in_base64(secret, shift, |bytes| BASE64_URL_SAFE_NO_PAD.encode(bytes)),
        ]
    })
}

/// The base64 characters that depend on the secret alone where `shift` bytes come before it: a character
/// encodes six bits, so the first and the last one may also depend on the bytes around the secret.
fn in_base64(secret: &[u8], shift: usize, encode: impl Fn(&[u8]) -> String) -> String {
    let mut bytes = vec![0; shift];
    bytes.extend_from_slice(secret);
    let encoded = encode(&bytes);
    let first = (shift * 8).div_ceil(6);
    let end = bytes.len() * 8 / 6;
    encoded.get(first..end).unwrap_or_default().to_owned()
}
