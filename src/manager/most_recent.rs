//! Makes lists that a watch streams as recent as paged lists.

use http::Request;

use super::pages::with_query;

/// The version that kube requests: a list from the API server's memory, however old.
const ANY_VERSION: &str = "resourceVersion=0";

/// Requests a streamed list that is as recent as the store. One of several API servers may be behind: its
/// list may be older than the last writes of this process's predecessor.
pub(super) fn request_most_recent<B>(request: &mut Request<B>) {
    let uri = request.uri();
    let Some(query) = uri.query() else { return };
    let pairs = || query.split('&');
    if !pairs().any(|pair| pair == "sendInitialEvents=true") {
        return;
    }
    let others: Vec<_> = pairs().filter(|pair| *pair != ANY_VERSION).collect();
    let path_and_query = format!("{}?{}", uri.path(), others.join("&"));
    if let Some(most_recent) = with_query(uri, &path_and_query) {
        *request.uri_mut() = most_recent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_streamed_list_requests_the_most_recent_version() {
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
