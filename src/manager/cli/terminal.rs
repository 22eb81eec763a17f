//! Output of a command for its user. A command runs to its end even after its terminal or pipe is closed, as
//! with `| head`.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write as _};

/// Writes a line, or more, to standard output.
pub fn print_line(text: &str) {
    let _gone = writeln!(io::stdout(), "{}", harmless(text));
}

/// Writes a line to standard error, with the program's name before it.
pub fn print_error(program: &str, text: &str) {
    let _gone = writeln!(io::stderr(), "{program}: {}", harmless(text));
}

/// Returns a text of foreign origin as one line: characters that would end the line or command the terminal
/// are escaped.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, is_command)
}

/// Escapes as [`printable`] does, but keeps line ends and tabs: in these texts, they are this program's own.
fn harmless(text: &str) -> Cow<'_, str> {
    escaped(text, |letter| {
        is_command(letter) && letter != '\n' && letter != '\t'
    })
}

/// Whether a character is a control character, or changes the direction of the text after it.
fn is_command(letter: char) -> bool {
    let changes_direction = matches!(
        letter,
        '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    letter.is_control() || changes_direction
}

/// Escapes characters in the notation of JSON, so that JSON stays the same JSON.
fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut all = String::new();
    for letter in text.chars() {
        if is_escaped(letter) {
            let _infallible = write!(all, "\\u{:04x}", u32::from(letter));
        } else {
            all.push(letter);
        }
    }
    Cow::Owned(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_others_neither_commands_the_terminal_nor_ends_the_line() {
        assert_eq!(
            printable("id\u{1b}[2J\r\nok \u{202e}ü"),
            "id\\u001b[2J\\u000d\\u000aok \\u202eü"
        );
        assert!(matches!(printable("plain, ünd ok"), Cow::Borrowed(_)));
        assert_eq!(harmless("a\n\tb\u{9b}c"), "a\n\tb\\u009bc");
        let json = serde_json::json!({"a": "\u{9b}"});
        let printed: serde_json::Value = serde_json::from_str(&harmless(&json.to_string())).unwrap();
        assert_eq!(printed, json);
    }
}
