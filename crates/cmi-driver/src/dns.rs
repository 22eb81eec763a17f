//! Names as Kubernetes takes them (RFC 1123).

const MAX_LABEL: usize = 63;
const MAX_SUBDOMAIN: usize = 253;

/// Whether a text is a DNS-1123 label: lower case letters, digits and `-`, 1–63 bytes, no `-` at either end.
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= MAX_LABEL && has_label_form(text)
}

/// Whether a text is a DNS-1123 subdomain: labels with dots between them, 1–253 bytes. As in Kubernetes, a
/// label of it may have more than 63 bytes.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= MAX_SUBDOMAIN && text.split('.').all(has_label_form)
}

fn has_label_form(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('-')
        && !text.ends_with('-')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DRV-14
    #[test]
    fn names_are_what_kubernetes_takes() {
        for good in [
            "a",
            "a-1",
            "worker-0.pool.example",
            "ip-10-0-0-1.eu-1.compute.internal",
            &"a".repeat(253),
        ] {
            assert!(is_dns_subdomain(good), "{good}");
        }
        for bad in [
            "",
            "-a",
            "a-",
            "A",
            "a..b",
            ".a",
            "a_b",
            "ä",
            " ",
            &"a".repeat(254),
        ] {
            assert!(!is_dns_subdomain(bad), "{bad}");
        }
        assert!(is_dns_label("zone-a") && !is_dns_label("a.b") && !is_dns_label(&"a".repeat(64)));
    }
}
