//! Lists in pages of a bounded size.
//!
//! The size of a page is unknown in advance. 500 ordinary objects have 4 MiB, and 500 objects of the maximum
//! size have 750 MiB. [`ListLayer`] drops the answer to a page beyond [`MAX_BYTES`], and makes later pages of
//! that path smaller. [`each`] repeats the page, and a watch repeats its list.

mod layer;
mod most_recent;
mod query;
mod sizes;

use std::error::Error as StdError;
use std::fmt::Debug;
use std::ops::ControlFlow;

use kube::Client;
use kube::api::{ListParams, ObjectList};
use kube::core::Request;
use serde::de::DeserializeOwned;

pub use self::layer::ListLayer;
pub use self::sizes::{MAX_BYTES, PageTooLarge};

/// The number of objects in a page of a list, if they are small.
pub const PAGE: u32 = 500;

/// Passes every object of the list at this path to the callback, page by page, until the callback stops. A
/// type with few fields keeps the memory small.
///
/// Without a resource version, the first page is a quorum read, and the others are of the same revision. A
/// page that is too large is requested again, with fewer objects.
///
/// # Errors
/// The API server refused or could not be reached, or a token expired. The callback then saw only a part of
/// the list.
pub async fn each<T>(
    client: &Client,
    path: &str,
    mut list: ListParams,
    mut take: impl FnMut(T) -> ControlFlow<()>,
) -> Result<(), kube::Error>
where
    T: DeserializeOwned + Clone + Debug,
{
    list.limit = Some(PAGE);
    loop {
        let request = Request::new(path)
            .list(&list)
            .map_err(kube::Error::BuildRequest)?;
        let page: ObjectList<T> = match client.request(request).await {
            Err(error) if is_too_large(&error) => continue,
            answer => answer?,
        };
        for object in page.items {
            if take(object).is_break() {
                return Ok(());
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => list.continue_token = Some(token),
            None => return Ok(()),
        }
    }
}

/// Whether a page was too large. The next request for it has fewer objects, and a page of
/// [`sizes::MIN_PAGE`] objects is never too large.
fn is_too_large(error: &kube::Error) -> bool {
    let first: &(dyn StdError + 'static) = error;
    let mut causes = std::iter::successors(Some(first), |&error| error.source());
    causes.any(<dyn StdError>::is::<PageTooLarge>)
}

#[cfg(test)]
mod tests;
