//! Makes lists that a watch streams as recent as paged lists.

use http::Request;

use super::query;

/// The version that kube requests: a list from the API server's memory, however old.
const ANY_VERSION: &str = "resourceVersion=0";

/// Requests a streamed list that is as recent as the storage. One of several API servers may be behind: its
/// list may be older than the last writes of this process's predecessor.
pub(super) fn request_most_recent<B>(request: &mut Request<B>) {
    if query::pairs(request).any(|pair| pair == "sendInitialEvents=true") {
        let others: Vec<_> = query::pairs(request)
            .filter(|pair| *pair != ANY_VERSION)
            .collect();
        let others = others.join("&");
        query::set(request, &others);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_streamed_list_is_most_recent_and_a_watch_keeps_its_version() {
        for (asked, sent) in [
            (
                "?&watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0",
                "?&watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
            ),
            ("?watch=true&resourceVersion=0", "?watch=true&resourceVersion=0"),
            ("?watch=true&resourceVersion=7", "?watch=true&resourceVersion=7"),
            ("", ""),
        ] {
            let mut request = Request::new(());
            *request.uri_mut() = format!("https://server/apis/g/v1/machines{asked}")
                .parse()
                .unwrap();
            request_most_recent(&mut request);
            assert_eq!(
                request.uri().to_string(),
                format!("https://server/apis/g/v1/machines{sent}")
            );
        }
    }
}
