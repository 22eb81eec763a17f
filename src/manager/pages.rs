//! The number of objects in a page of a list: many if they are small, as usual, and few if they are large. A
//! page of 500 objects of the maximum size has 750 MiB, and the memory limit of the provider is 256 MiB. A
//! page of ordinary InfraMachines has 4 MiB.
//!
//! The size of a page is unknown in advance. So the answer to a page of many objects is read up to a bound
//! and dropped beyond it, and later lists of this path have smaller pages. A list that fails this way is
//! started again, as after any other failure.

use std::collections::HashMap;

use http::uri::PathAndQuery;
use http::{Request, Uri};
use parking_lot::Mutex;

/// A page of this many objects is accepted however large it is: at 1.5 MiB each they are 24 MiB.
const MIN_PAGE: u32 = 16;
/// The maximum size of a larger page, in bytes. 500 ordinary InfraMachines have 4 MiB.
pub(super) const MAX_BYTES: usize = 8 * 1024 * 1024;
/// The next pages are smaller by this factor.
const STEP: u32 = 8;

/// A page of a list exceeded the maximum size. Later lists of its path have smaller pages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a page of {limit} objects of {path} has more than {MAX_BYTES} bytes: listing in smaller pages")]
pub struct PageTooLarge {
    path: String,
    limit: u32,
}

/// The sizes of pages, by path, where they are smaller than requested.
#[derive(Debug, Default)]
pub(super) struct Pages(Mutex<HashMap<String, u32>>);

/// A requested page with a bounded answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    path: String,
    limit: u32,
}

impl Pages {
    /// Reduces the page of a request to the page size of its path; returns the page if its answer is bounded.
    pub(super) fn bound<B>(&self, request: &mut Request<B>) -> Option<Page> {
        let uri = request.uri();
        let (path, query) = (uri.path().to_owned(), uri.query()?);
        let is_limit = |pair: &&str| pair.starts_with("limit=");
        let requested: u32 = query
            .split('&')
            .find(is_limit)?
            .strip_prefix("limit=")?
            .parse()
            .ok()?;
        let known = self.0.lock().get(&path).copied();
        let limit = known.map_or(requested, |known| known.min(requested));
        if limit < requested {
            let pairs = query.split('&').map(|pair| {
                if is_limit(&pair) {
                    format!("limit={limit}")
                } else {
                    pair.to_owned()
                }
            });
            let query: Vec<_> = pairs.collect();
            *request.uri_mut() = with_query(uri, &format!("{path}?{}", query.join("&")))?;
        }
        (limit > MIN_PAGE).then_some(Page { path, limit })
    }

    /// Makes the pages of the next lists of this path smaller.
    pub(super) fn too_large(&self, page: Page) -> PageTooLarge {
        let Page { path, limit } = page;
        let smaller = (limit / STEP).max(MIN_PAGE);
        let mut known = self.0.lock();
        let next = known.entry(path.clone()).or_insert(smaller);
        *next = smaller.min(*next);
        PageTooLarge { path, limit }
    }
}

/// Returns the same address with another path and query.
pub(super) fn with_query(uri: &Uri, path_and_query: &str) -> Option<Uri> {
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(path_and_query).ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "https://server/apis/g/v1/machines";

    fn asked(pages: &Pages, query: &str) -> (String, Option<u32>) {
        let mut request = Request::new(());
        *request.uri_mut() = format!("{PATH}{query}").parse().unwrap();
        let page = pages.bound(&mut request);
        let sent = request.uri().to_string().replace(PATH, "");
        (sent, page.map(|page| page.limit))
    }

    #[test]
    fn pages_of_a_path_shrink_until_objects_of_any_size_fit() {
        let pages = Pages::default();
        let query = |limit: u32| format!("?limit={limit}&continue=a%3D&labelSelector=x");
        for (sent, bounded) in [(500, Some(500)), (62, Some(62)), (16, None), (16, None)] {
            assert_eq!(asked(&pages, &query(500)), (query(sent), bounded));
            let path = "/apis/g/v1/machines".to_owned();
            if let Some(limit) = bounded {
                pages.too_large(Page { path, limit });
            }
        }
        assert_eq!(asked(&pages, &query(10)), (query(10), None), "it asks for less");
    }

    #[test]
    fn what_is_no_list_in_pages_and_other_paths_stay_as_they_are() {
        let pages = Pages::default();
        let path = "/apis/g/v1/machines/one".to_owned();
        pages.too_large(Page { path, limit: 500 });
        for query in ["", "?limit=x", "?watch=1&resourceVersion=7", "?limit=16"] {
            assert_eq!(asked(&pages, query), (query.to_owned(), None));
        }
        assert_eq!(asked(&pages, "?limit=500"), ("?limit=500".to_owned(), Some(500)));
    }
}
