//! The parts of a console that explain why no Node has joined. Pure.

use anstream::adapter::strip_str;
use cmi_driver::{Console, Secrets};

/// The most lines of the console that are shown. They go into a condition, which is no place for a log.
const LINES: usize = 8;
/// The most characters of a line that are shown.
const LINE_CHARS: usize = 240;
/// Replaces a secret that the guest itself has made.
const REDACTED: &str = "[redacted]";

/// How far cloud-init has come since the last boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloudInit {
    /// The console has no line of cloud-init.
    NotSeen,
    /// It has started and not ended.
    Running,
    /// It has ended.
    Ended,
    /// A command or module of it has failed.
    Failed,
}

/// The summary of a console.
#[derive(Debug, PartialEq, Eq)]
pub struct Summary {
    /// How far cloud-init has come.
    pub cloud_init: CloudInit,
    /// The last lines, without secrets.
    pub last_lines: Vec<String>,
}

/// Summarizes a console, without these secrets.
pub fn summarize(console: &Console, secrets: &Secrets) -> Summary {
    let text = strip_str(console.as_str()).to_string();
    // The whole text, since half of a secret is not found.
    let public = secrets.redact(&text);
    Summary {
        cloud_init: cloud_init(&text),
        last_lines: last_lines(&public),
    }
}

/// The last lines since the last boot. If cloud-init has failed, they end with its failure: the kubelet may
/// write many lines after it.
fn last_lines(public: &str) -> Vec<String> {
    let lines = public.lines().map(printable);
    let lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
    let lines = last_boot(&lines);
    let failed = lines.iter().rposition(|line| has_failed(line));
    let end = failed.map_or(lines.len(), |failed| failed + 1);
    lines[end.saturating_sub(LINES)..end]
        .iter()
        .map(|line| bounded(&without_join_secrets(line)))
        .collect()
}

/// The lines since cloud-init has begun the last time.
fn last_boot<T: AsRef<str>>(lines: &[T]) -> &[T] {
    let begins = |line: &T| line.as_ref().contains(" running 'init-local'");
    &lines[lines.iter().rposition(begins).unwrap_or_default()..]
}

/// Reads cloud-init's own messages.
fn cloud_init(text: &str) -> CloudInit {
    let lines: Vec<_> = text.lines().collect();
    let lines = last_boot(&lines);
    let any = |is: fn(&str) -> bool| lines.iter().any(|line| is(line));
    if any(has_failed) {
        CloudInit::Failed
    } else if any(|line| line.contains("Cloud-init v.") && line.contains(" finished at ")) {
        CloudInit::Ended
    } else if any(|line| line.contains("Cloud-init v.")) {
        CloudInit::Running
    } else {
        CloudInit::NotSeen
    }
}

fn has_failed(line: &str) -> bool {
    line.contains("Failed to run module ")
        || line.contains("Failed running /var/lib/cloud/")
        || line.contains("Running module ") && line.trim_end().ends_with(" failed")
}

fn printable(line: &str) -> String {
    let line = line.replace('\t', " ");
    let text: String = line.chars().filter(|letter| !letter.is_control()).collect();
    text.trim().to_owned()
}

fn bounded(line: &str) -> String {
    let mut cut: String = line.chars().take(LINE_CHARS).collect();
    if cut.len() < line.len() {
        cut.push('…');
    }
    cut
}

/// Removes bootstrap tokens and certificate keys: `kubeadm init` makes and prints them, and they are in no
/// Secret.
fn without_join_secrets(line: &str) -> String {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '.';
    let words = line.split(|letter| !is_part(letter));
    let secrets = words.filter(|word| is_bootstrap_token(word) || is_certificate_key(word));
    secrets.fold(line.to_owned(), |line, secret| line.replace(secret, REDACTED))
}

/// Whether a word has the form of a bootstrap token: 6 letters or digits, a dot, and 16 more.
fn is_bootstrap_token(word: &str) -> bool {
    word.split_once('.')
        .is_some_and(|(id, secret)| id.len() == 6 && secret.len() == 16 && !secret.contains('.'))
}

/// Whether a word has the form of an AES-256 key in hexadecimal digits.
fn is_certificate_key(word: &str) -> bool {
    word.len() == 64 && word.chars().all(|letter| letter.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use cmi_driver::USER_DATA;

    use super::*;

    const STARTED: &str = "[    1.2] cloud-init[61]: Cloud-init v. 22.4.2 running 'init-local' at Sun\n";
    const FINISHED: &str = "[   21.5] cloud-init[712]: Cloud-init v. 22.4.2 finished at Sun. Up 21.33 s\n";
    const FAILED: &str = "[   20.1] cloud-init[712]: 2026-11-29 12:00:00,1 - cc_scripts_user.py[WARNING]: \
        Failed to run module scripts-user (scripts in /var/lib/cloud/instance/scripts)\n";

    fn summary(text: &str, user_data: &str) -> Summary {
        let mut secrets = Secrets::default();
        secrets
            .insert(USER_DATA.to_owned(), user_data.as_bytes().to_vec().into())
            .unwrap();
        summarize(&Console::new(text.as_bytes()), &secrets)
    }

    #[test]
    fn cloud_init_is_as_far_as_its_last_boot_shows() {
        for (text, expected) in [
            (String::new(), CloudInit::NotSeen),
            ("Kernel panic - not syncing".to_owned(), CloudInit::NotSeen),
            (STARTED.to_owned(), CloudInit::Running),
            (format!("{STARTED}{FINISHED}"), CloudInit::Ended),
            (format!("{STARTED}{FAILED}{FINISHED}"), CloudInit::Failed),
            (
                format!("{STARTED}{FAILED}{FINISHED}{STARTED}"),
                CloudInit::Running,
            ),
        ] {
            assert_eq!(summary(&text, "").cloud_init, expected, "{text}");
        }
    }

    #[test]
    fn the_end_of_the_console_is_bounded_and_printable() {
        let long = "é".repeat(1000);
        let text = format!(
            "first\n\n\x1b[32m  OK  \x1b[0m\tup\x07\r\n{}{long}\n\n",
            "line\n".repeat(6)
        );
        let shown = summary(&text, "").last_lines;
        assert_eq!(shown.len(), LINES);
        assert_eq!(shown[0], "OK   up");
        assert_eq!(shown[7].chars().count(), LINE_CHARS + 1);
        assert!(shown[7].ends_with('…'));
    }

    #[test]
    fn a_failed_cloud_init_is_shown_and_not_the_lines_after_it() {
        let kubelet = "kubelet[750]: cannot read its configuration\n".repeat(20);
        let shown = summary(&format!("{STARTED}the cause\n{FAILED}{kubelet}"), "").last_lines;
        assert_eq!(shown[1], "the cause");
        assert!(shown[2].contains("Failed to run module"), "{shown:?}");
        assert_eq!(shown.len(), 3);
        let rebooted = summary(&format!("{FAILED}{STARTED}{kubelet}"), "").last_lines;
        assert!(rebooted[0].starts_with("kubelet"), "{rebooted:?}");
    }

    #[test]
    fn secrets_of_the_bootstrap_and_of_kubeadm_are_removed() {
        let user_data = "#cloud-config\nwrite_files:\n- content: |\n    hunter2-is-the-canary\n";
        let key = "0123456789abcdef".repeat(4);
        let text = format!(
            "writing hunter2-is-the-canary\nkubeadm join 10.0.0.1:6443 --token abcdef.0123456789abcdef \\\n\
                --discovery-token-ca-cert-hash sha256:{key} --certificate-key {key}\nkubelet v1.36.3 is up\n"
        );
        let shown = summary(&text, user_data).last_lines.join("\n");
        for secret in ["canary", "0123456789abcdef"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        assert!(
            shown.contains("kubeadm join 10.0.0.1:6443 --token [redacted]"),
            "{shown}"
        );
        assert!(shown.contains("kubelet v1.36.3 is up"), "{shown}");
    }
}
