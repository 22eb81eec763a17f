//! The encodings that programs use for bytes, for the search for a secret in a text.

use std::fmt::{self, Write as _};
use std::ops::Range;

use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD, Engine as _};
use percent_encoding::percent_decode_str;

/// Base64 encodes three bytes as four characters: a secret within longer data starts at one of three offsets.
const SHIFTS: usize = 3;

/// The text decoded in each way: without percent-encoding, where `+` may be a blank, and without the escapes
/// of literals. Yields nothing for an encoding that the text does not use.
pub fn readings(text: &str) -> impl Iterator<Item = String> {
    READINGS.iter().filter_map(move |read| read(text))
}

/// The readings, one per encoding.
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

/// Writes a byte as a number.
type WriteByte = fn(&mut String, u8) -> fmt::Result;

/// The ways to write bytes as numbers: the text between two numbers, the fewest digits of a number, and how
/// one is written.
const NUMBERS: [(&str, usize, WriteByte); 17] = [
    (" ", 1, |text, byte| write!(text, "{byte}")),
    (", ", 1, |text, byte| write!(text, "{byte}")),
    (",", 1, |text, byte| write!(text, "{byte}")),
    ("", 2, |text, byte| write!(text, "{byte:02x}")),
    ("", 2, |text, byte| write!(text, "{byte:02X}")),
    (" ", 2, |text, byte| write!(text, "{byte:02x}")),
    (" ", 2, |text, byte| write!(text, "{byte:02X}")),
    (":", 2, |text, byte| write!(text, "{byte:02x}")),
    (":", 2, |text, byte| write!(text, "{byte:02X}")),
    (", ", 2, |text, byte| write!(text, "{byte:02x}")),
    (", ", 2, |text, byte| write!(text, "{byte:02X}")),
    (" ", 1, |text, byte| write!(text, "{byte:x}")),
    (", ", 1, |text, byte| write!(text, "{byte:x}")),
    (" ", 3, |text, byte| write!(text, "0x{byte:x}")),
    (", ", 3, |text, byte| write!(text, "0x{byte:x}")),
    (" ", 4, |text, byte| write!(text, "0x{byte:02x}")),
    (", ", 4, |text, byte| write!(text, "0x{byte:02x}")),
];

/// The encodings of bytes: base64 with and without padding and in two alphabets, also as a part of something
/// longer, and hexadecimal and decimal numbers. Yields none that can't be in a text of `longest` bytes.
pub fn encodings(secret: &[u8], longest: usize) -> impl Iterator<Item = String> {
    let fitting = NUMBERS.iter().filter(move |(between, digits, _)| {
        let gaps = secret.len().saturating_sub(1);
        secret.len() * digits + gaps * between.len() <= longest
    });
    let numbers = fitting.filter_map(|(between, _, write)| in_numbers(secret, between, *write).ok());
    numbers.chain(base64s(secret, longest))
}

fn in_numbers(secret: &[u8], between: &str, write: WriteByte) -> Result<String, fmt::Error> {
    let mut text = String::new();
    for (index, byte) in secret.iter().enumerate() {
        if index > 0 {
            text.push_str(between);
        }
        write(&mut text, *byte)?;
    }
    Ok(text)
}

/// A secret in base64, alone or within longer base64. Yields none that can't be in a text of
/// `longest` bytes.
pub fn base64s(secret: &[u8], longest: usize) -> impl Iterator<Item = String> {
    let shifts = (0..SHIFTS).filter(move |shift| certain_letters(secret, *shift).len() <= longest);
    shifts.flat_map(|shift| {
        [
            in_base64(secret, shift, |bytes| BASE64_STANDARD_NO_PAD.encode(bytes)),
            in_base64(secret, shift, |bytes| BASE64_URL_SAFE_NO_PAD.encode(bytes)),
        ]
    })
}

/// The base64 characters that depend on the secret alone, with `shift` bytes before it. A character encodes
/// six bits, so the outermost ones may also depend on the bytes around the secret.
fn certain_letters(secret: &[u8], shift: usize) -> Range<usize> {
    (shift * 8).div_ceil(6)..(shift + secret.len()) * 8 / 6
}

fn in_base64(secret: &[u8], shift: usize, encode: impl Fn(&[u8]) -> String) -> String {
    let mut bytes = vec![0; shift];
    bytes.extend_from_slice(secret);
    let encoded = encode(&bytes);
    let certain = encoded.get(certain_letters(secret, shift));
    certain.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OPS-11
    #[test]
    fn only_encodings_that_are_too_long_are_left_out() {
        for secret in [&b"\0\x01\x02"[..], b"canary-0815", &[255; 40]] {
            let all: Vec<_> = encodings(secret, usize::MAX).collect();
            assert_eq!(all.len(), NUMBERS.len() + 2 * SHIFTS);
            for longest in 0..6 * secret.len() {
                let fitting: Vec<_> = encodings(secret, longest).collect();
                let lost = |text: &&String| text.len() <= longest && !fitting.contains(text);
                assert_eq!(all.iter().find(lost), None, "{longest}");
            }
        }
    }
}
