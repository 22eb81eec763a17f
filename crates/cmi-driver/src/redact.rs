//! Removes secrets from a text that is about to be shown: a driver may have echoed one.

mod windows;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::error::Error;
use std::iter;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::prelude::BASE64_STANDARD;

use self::windows::Windows;
use super::secret_forms::{READINGS, encodings, readings};
use super::{Secrets, Status};

/// The replacement for a secret.
const REDACTED: &str = "[redacted]";
/// The shortest text that counts as a secret: removing shorter texts would garble the message.
const MIN_SECRET: usize = 6;
/// The shortest word that counts as a secret where no `:` or `=` marks it as a value.
const MIN_WORD: usize = 8;
/// The shortest run of letters and digits that may be base64 of more than one secret: few words are as long.
const MIN_BASE64: usize = 16;
/// Base64 that may have been cut off anywhere.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
/// Words in most bootstrap data, and in their format. They reveal no secret.
const PUBLIC: [&str; 8] = [
    "#cloud-config",
    "cloud-config",
    "ignition",
    "base64",
    "gzip+base64",
    "root:root",
    "#!/bin/sh",
    "#!/bin/bash",
];

impl Secrets {
    /// Removes every secret value from a text that is about to be shown.
    ///
    /// The search covers each value as a whole and line by line, and its encodings: base64, also within a
    /// longer base64 text, and its bytes as numbers. A driver may quote a part of a line, so the search also
    /// covers words: from 8 bytes, and from 6 after `:` or `=`, where values are. Lines and words are
    /// searched for in the original text, and in the text without its percent-encoding, escapes and base64.
    /// Names of keys and flags, and words of letters alone, stay in the text unless they are a value; such a
    /// value stays within longer words. Otherwise the message would no longer explain the failure.
    pub fn redact(&self, text: &str) -> String {
        if self.iter().next().is_none() {
            return text.to_owned();
        }
        let mut all: Vec<_> = readings(text).collect();
        all.extend(runs(text).flat_map(decoded));
        all.push(text.to_owned());
        let all = all.join("\n");
        let mut found = Found {
            text: &all,
            windows: Windows::of(&all),
            needles: BTreeSet::new(),
            tried: HashSet::new(),
        };
        for (_, value) in self.iter() {
            let bytes = value.expose();
            found.look_for(Needle::anywhere(BASE64_STANDARD.encode(bytes)));
            let bare = Some(bytes.trim_ascii()).filter(|bare| bare.len() < bytes.len());
            // Every encoding of a value takes more bytes than the value.
            let fits = |value: &&[u8]| (MIN_SECRET..text.len()).contains(&value.len());
            let longest = text.len();
            let written = iter::once(bytes).chain(bare).filter(fits);
            for encoded in written.flat_map(|value| encodings(value, longest)) {
                found.look_for(Needle::anywhere(encoded));
            }
            if let Ok(plain) = std::str::from_utf8(bytes) {
                found.look_for(Needle::anywhere(plain.trim()));
                for line in plain.lines().map(str::trim) {
                    if !is_key(line.trim_start_matches("- ")) {
                        found.look_for(Needle::anywhere(line));
                    }
                    words(line, &mut found);
                }
            }
        }
        let mut needles: Vec<_> = found.needles.into_iter().collect();
        // A part of a secret may be another secret.
        needles.sort_by_key(|needle| std::cmp::Reverse(needle.text.len()));
        without(&needles, text)
    }
}

/// Returns the text without the secrets. If a secret is percent-encoded or escaped, returns the decoded text.
fn without(needles: &[Needle<'_>], text: &str) -> String {
    let remove = |text: &str| {
        let windows = Windows::of(text);
        needles
            .iter()
            .filter(|needle| windows.may_hold(&needle.text))
            .fold(text.to_owned(), |text, needle| needle.remove_from(&text))
    };
    let holds_any = |text: &String| remove(text) != *text;
    if needles.is_empty() {
        return text.to_owned();
    }
    let shown = remove(text);
    let secret_runs = runs(&shown).filter(|run| decoded(run).any(|text| holds_any(&text)));
    let shown = secret_runs.fold(shown.clone(), |shown, run| shown.replace(run, REDACTED));
    READINGS.iter().fold(shown, |shown, read| {
        let read = read(&shown).filter(holds_any);
        read.map_or(shown, |read| remove(&read))
    })
}

/// The runs of a text that may be base64.
fn runs(text: &str) -> impl Iterator<Item = &str> {
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || "+/-_".contains(c);
    text.split(move |c| !is_base64(c))
        .filter(|run| run.len() >= MIN_BASE64)
}

/// The base64 readings of a run from every offset: the letters of a path may precede it.
fn decoded(run: &str) -> impl Iterator<Item = String> {
    let standard = run.replace('-', "+").replace('_', "/");
    (0..4).filter_map(move |skipped| {
        let letters = standard.get(skipped..)?;
        // A single letter does not encode a byte.
        let whole = letters.len() - usize::from(letters.len() % 4 == 1);
        let bytes = LENIENT.decode(letters.get(..whole)?).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    })
}

/// The sources of an error as one text, without the secrets.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct ScrubbedSource(String);

impl Status {
    /// Removes the secrets of the request from the error: from its message and from the logged sources. Must
    /// run before anything is cut off: the search does not find half of a secret.
    #[must_use]
    pub fn redacted(self, secrets: &Secrets) -> Self {
        let sources: Vec<String> = std::iter::successors(self.source(), |&source| source.source())
            .map(ToString::to_string)
            .collect();
        let message = secrets.redact(self.message());
        let status = self.with_message(message);
        if sources.is_empty() {
            return status;
        }
        status.with_source(ScrubbedSource(secrets.redact(&sources.join(": "))))
    }
}

/// A text to search for.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Needle<'a> {
    text: Cow<'a, str>,
    /// Whether the text is removed only where it is a whole word.
    alone: bool,
}

/// The search texts that occur in a text. Secrets of a mebibyte have a hundred thousand words, and a text
/// holds few of them: only those are kept.
struct Found<'a> {
    text: &'a str,
    windows: Windows,
    needles: BTreeSet<Needle<'a>>,
    /// Bootstrap data have most of their words more than once.
    tried: HashSet<&'a str>,
}

impl<'a> Found<'a> {
    fn look_for(&mut self, needle: Needle<'a>) {
        if let Cow::Borrowed(word) = needle.text
            && !self.tried.insert(word)
            && !self.needles.iter().any(|found| found.text == word)
        {
            return;
        }
        let text = &*needle.text;
        if text.len() >= MIN_SECRET
            && self.windows.may_hold(text)
            && !PUBLIC.contains(&text)
            && self.text.contains(text)
        {
            self.needles.insert(needle);
        }
    }
}

impl<'a> Needle<'a> {
    fn anywhere(text: impl Into<Cow<'a, str>>) -> Self {
        Self {
            text: text.into(),
            alone: false,
        }
    }

    fn remove_from(&self, text: &str) -> String {
        let (mut done, mut rest) = (String::new(), text);
        while let Some((before, after)) = rest.split_once(&*self.text) {
            let is_within = goes_on(before.chars().rev()) || goes_on(after.chars());
            let shown = if self.alone && is_within {
                &*self.text
            } else {
                REDACTED
            };
            done.push_str(before);
            done.push_str(shown);
            rest = after;
        }
        done.push_str(rest);
        done
    }
}

/// Whether a word continues with these characters: `-22.04` after `ubuntu`, but not the full stop at the end
/// of a sentence.
fn goes_on(mut chars: impl Iterator<Item = char>) -> bool {
    match chars.next() {
        Some('-' | '_' | '.') => chars.next().is_some_and(char::is_alphanumeric),
        Some(c) => c.is_alphanumeric(),
        None => false,
    }
}

/// The words of a line that may be secret. The line is split twice: at few separators, since a secret may
/// hold punctuation, and at many, since punctuation may surround a secret.
fn words<'a>(line: &'a str, found: &mut Found<'a>) {
    let coarse = line.split(|c: char| c.is_whitespace() || "\"'`,;".contains(c));
    coarse
        .filter(|word| !is_key(word))
        .filter_map(|word| needle(word, false))
        .for_each(|needle| found.look_for(needle));
    let mut is_value = false;
    for word in line.split_inclusive(|c: char| c.is_whitespace() || "\"'`,;:={}[]()<>@".contains(c)) {
        let bare = word.trim_end_matches(|c: char| c.is_whitespace() || "\"'`,;:={}[]()<>@".contains(c));
        let is_named = word.ends_with(':') && is_key(word);
        if !is_named && let Some(needle) = needle(bare, is_value) {
            found.look_for(needle);
        }
        // A sign or a space between the two changes nothing.
        is_value = word.ends_with([':', '=']) || (is_value && bare.is_empty());
    }
}

fn needle(word: &str, is_value: bool) -> Option<Needle<'_>> {
    let is_ordinary = word
        .strip_prefix(|c: char| c.is_ascii_uppercase())
        .unwrap_or(word)
        .bytes()
        .all(|byte| byte.is_ascii_lowercase());
    let is_flag = word.starts_with("--") && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
    let is_wanted = if is_value {
        word.len() >= MIN_SECRET
    } else {
        word.len() >= MIN_WORD && !is_ordinary && !is_flag
    };
    is_wanted.then_some(Needle {
        text: Cow::Borrowed(word),
        alone: is_ordinary,
    })
}

/// Whether it is the name of a key of YAML, with its colon: `write_files:`.
fn is_key(word: &str) -> bool {
    word.strip_suffix(':').is_some_and(|name| {
        name.bytes()
            .all(|byte| byte.is_ascii_alphabetic() || byte == b'_' || byte == b'-')
    })
}

#[cfg(test)]
mod tests {
    use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE, BASE64_URL_SAFE_NO_PAD};
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

    use super::*;
    use crate::SecretValue;

    /// Bootstrap data as they are, with secrets of every kind of place.
    const CLOUD_CONFIG: &str = "#cloud-config
users:
- {name: ubuntu, passwd: magpie, shell: /bin/bash}
chpasswd:
  list: |
    root:Hunter2-pw
write_files:
- path: /run/kubeadm/kubeadm.yaml
  encoding: base64
  content: |
    kind: JoinConfiguration
    discovery: {bootstrapToken: {token:abcdefghij0123456789}}
    registry: https://puller:wood:pecker@registry.example.com
runcmd:
- kubeadm join --token=abcdef.0123456789abcdef --discovery-file=x
- login --quietly correct-horse
- 'mysql -pblackbird7'
";

    fn secrets(value: &str) -> Secrets {
        [("token".to_owned(), SecretValue::from(value.as_bytes().to_vec()))]
            .into_iter()
            .collect()
    }

    #[test]
    fn a_secret_that_a_driver_echoes_is_removed_plain_by_line_and_in_base64() {
        let secrets = secrets("first-line-1\nsecond-line-2");
        let echoed = format!(
            "a second-line-2 b {}",
            BASE64_STANDARD.encode("first-line-1\nsecond-line-2")
        );
        assert_eq!(secrets.redact(&echoed), "a [redacted] b [redacted]");
        assert_eq!(secrets.redact("nothing here"), "nothing here");
    }

    /// OPS-11
    #[test]
    fn a_secret_is_removed_however_a_program_writes_it() {
        let value = "pa\"ss, wö+rd/100%?>";
        let secrets = secrets(value);
        let hexadecimal = |byte: &u8| format!("{byte:02x}");
        let hexadecimal: String = value.bytes().map(|byte| hexadecimal(&byte)).collect();
        let percent = utf8_percent_encode(value, NON_ALPHANUMERIC).to_string();
        for written in [
            BASE64_STANDARD.encode(format!("user:{value}")),
            BASE64_STANDARD.encode(format!("user1:{value}!")),
            BASE64_STANDARD.encode(format!("user12:{value}!!")),
            BASE64_URL_SAFE.encode(value),
            BASE64_URL_SAFE_NO_PAD.encode(value),
            BASE64_STANDARD_NO_PAD.encode(value),
            hexadecimal.to_uppercase(),
            hexadecimal,
            percent.to_lowercase().replace("%c3%b6", "%C3%B6"),
            percent.replace("%20", "+"),
            percent,
            serde_json::to_string(value).unwrap(),
            r#"pa\"ss, w\u00f6+rd/100%?>"#.to_owned(),
        ] {
            let shown = secrets.redact(&format!("no machine: {written} is refused"));
            assert!(
                shown.starts_with("no machine: ") && shown.ends_with(" is refused"),
                "{shown}"
            );
            assert!(shown.contains(REDACTED) && shown.len() < 50, "{written}: {shown}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_removed_however_a_program_writes_them() {
        let bytes = [0xff, 1, 2, 3, 0xfe, 4, 5, 6, 7];
        let value = SecretValue::from(bytes.to_vec());
        let secrets: Secrets = [("key".to_owned(), value)].into_iter().collect();
        for written in [
            "ff010203fe04050607",
            "FF:01:02:03:FE:04:05:06:07",
            "_wECA_4EBQYH",
            "/wECA/4EBQYH",
        ] {
            assert_eq!(
                secrets.redact(&format!("the key {written}")),
                "the key [redacted]"
            );
        }
    }

    /// As `echo` writes it into the file of a Secret.
    #[test]
    fn a_secret_with_a_line_end_is_removed_from_what_is_written_without_it() {
        let secrets = secrets("magpie7\n");
        for written in ["6d616770696537", "109, 97, 103, 112, 105, 101, 55"] {
            let shown = secrets.redact(&format!("the key {written} is wrong"));
            assert_eq!(shown, "the key [redacted] is wrong");
        }
    }

    /// The value is longer than the message, but its text without line ends is not.
    #[test]
    fn a_secret_with_many_line_ends_is_redacted_in_every_encoding() {
        let bare = "magpie77";
        let secrets = secrets(&(bare.to_owned() + &"\n".repeat(40)));
        let hexadecimal = "6d61677069653737".to_owned();
        for written in encodings(bare.as_bytes(), usize::MAX).chain([hexadecimal]) {
            let shown = secrets.redact(&format!("the key {written} is wrong"));
            assert_eq!(shown, "the key [redacted] is wrong");
        }
    }

    /// User data that a back end refuses, as its message quotes them.
    #[test]
    fn a_piece_of_bootstrap_data_in_base64_is_removed() {
        let secrets = secrets(CLOUD_CONFIG);
        let encoded = BASE64_STANDARD.encode(CLOUD_CONFIG);
        for piece in [&encoded[..200], &encoded[41..141]] {
            let shown = secrets.redact(&format!("user data /{piece}... are too long"));
            assert_eq!(shown, "user data [redacted]... are too long");
        }
    }

    #[test]
    fn a_short_value_is_not_looked_for_in_numbers() {
        let message = "2 of 49, 50 machines at 10.0.0.12 with 3132 MiB";
        assert_eq!(secrets("12").redact(message), message);
    }

    /// OPS-11
    #[test]
    fn secret_parts_of_bootstrap_data_lines_are_redacted_everywhere() {
        let secrets = secrets(CLOUD_CONFIG);
        for secret in [
            "magpie",
            "Hunter2-pw",
            "abcdefghij0123456789",
            "abcdef.0123456789abcdef",
            "correct-horse",
            "pecker",
            "-pblackbird7",
        ] {
            for (before, after) in [("said ", ""), ("\"", "\""), ("a:", ";"), ("(", ")"), (" ", ".")] {
                let shown = secrets.redact(&format!("{before}{secret}{after}"));
                assert!(!shown.contains(secret), "{shown}");
            }
        }
        let escaped = secrets
            .redact(r"the data \n    root:Hunter2-pw\n- login --quietly correct-horse\n can't be used");
        assert!(
            !escaped.contains("Hunter2") && !escaped.contains("horse"),
            "{escaped}"
        );
    }

    #[test]
    fn what_a_driver_says_of_bootstrap_data_and_of_the_world_stays_legible() {
        let secrets = secrets(CLOUD_CONFIG);
        for message in [
            "kubeadm could not join: the token of the discovery is expired",
            "#cloud-config: write_files: encoding base64 is not supported, nor is runcmd: or users:",
            "no image ubuntu-22.04 in the registry, and no path to it",
            "the flag --discovery-file or --quietly of kubeadm is unknown",
            "the quota of the project is exhausted: 3 of 3 machines",
        ] {
            assert_eq!(secrets.redact(message), message);
        }
    }

    #[test]
    fn the_format_of_bootstrap_data_is_no_secret() {
        let secrets = secrets("cloud-config");
        let message = "cloud-config is not supported by the image";
        assert_eq!(secrets.redact(message), message);
    }
}
