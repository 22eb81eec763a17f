//! The number of objects in a page: as many as requested if they are small, and few if they are large.

use std::collections::HashMap;

use http::Request;
use parking_lot::Mutex;

use super::query;

/// A page of this many objects is accepted however large it is: at 1.5 MiB each they are 24 MiB.
pub(super) const MIN_PAGE: u32 = 16;
/// The maximum size of a larger page, in bytes. 500 ordinary objects have 4 MiB.
pub const MAX_BYTES: usize = 8 * 1024 * 1024;
/// The next pages are smaller by this factor.
const STEP: u32 = 8;

/// A page of a list exceeded [`MAX_BYTES`]. Later lists of its path have smaller pages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a page of {limit} objects of {path} has more than {MAX_BYTES} bytes: listing in smaller pages")]
pub struct PageTooLarge {
    path: String,
    limit: u32,
}

/// The sizes of pages, by path, where they are smaller than requested.
#[derive(Debug, Default)]
pub(super) struct PageSizes(Mutex<HashMap<String, u32>>);

/// A requested page with a bounded answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    path: String,
    limit: u32,
}

impl PageSizes {
    /// Reduces the page of a request to the page size of its path; returns the page if its answer is bounded.
    pub(super) fn bound<B>(&self, request: &mut Request<B>) -> Option<Page> {
        if query::is_watch(request) {
            return None;
        }
        let requested: u32 = query::pairs(request).find_map(limit)?.parse().ok()?;
        let path = request.uri().path().to_owned();
        let known = self.0.lock().get(&path).copied();
        let limit = known.map_or(requested, |known| known.min(requested));
        if limit < requested {
            set_limit(request, limit);
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

/// The number in the pair that limits a list.
fn limit(pair: &str) -> Option<&str> {
    pair.strip_prefix("limit=")
}

fn set_limit<B>(request: &mut Request<B>, number: u32) {
    let pairs = query::pairs(request).map(|pair| match limit(pair) {
        Some(_) => format!("limit={number}"),
        None => pair.to_owned(),
    });
    let pairs: Vec<_> = pairs.collect();
    query::set(request, &pairs.join("&"));
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "https://server/apis/g/v1/machines";

    fn asked(sizes: &PageSizes, query: &str) -> (String, Option<u32>) {
        let mut request = Request::new(());
        *request.uri_mut() = format!("{PATH}{query}").parse().unwrap();
        let page = sizes.bound(&mut request);
        let sent = request.uri().to_string().replace(PATH, "");
        (sent, page.map(|page| page.limit))
    }

    #[test]
    fn pages_of_a_path_get_smaller_until_any_objects_fit() {
        let sizes = PageSizes::default();
        let query = |limit: u32| format!("?limit={limit}&continue=a%3D&labelSelector=x");
        for (sent, bounded) in [(500, Some(500)), (62, Some(62)), (16, None), (16, None)] {
            assert_eq!(asked(&sizes, &query(500)), (query(sent), bounded));
            let path = "/apis/g/v1/machines".to_owned();
            if let Some(limit) = bounded {
                sizes.too_large(Page { path, limit });
            }
        }
        assert_eq!(asked(&sizes, &query(10)), (query(10), None), "it asks for less");
    }

    #[test]
    fn other_requests_and_paths_stay_as_they_are() {
        let sizes = PageSizes::default();
        let path = "/apis/g/v1/machines/one".to_owned();
        sizes.too_large(Page { path, limit: 500 });
        for query in ["", "?limit=x", "?watch=1&limit=500", "?limit=16"] {
            assert_eq!(asked(&sizes, query), (query.to_owned(), None));
        }
        assert_eq!(asked(&sizes, "?limit=500"), ("?limit=500".to_owned(), Some(500)));
    }
}
