//! Lists that are read page by page, past every cache.

use std::fmt::Debug;
use std::ops::ControlFlow;

use kube::Client;
use kube::api::{ListParams, ObjectList};
use kube::core::Request;
use serde::de::DeserializeOwned;

/// The number of objects in a page of a list, including the list of a watch. For large objects, the manager's
/// client makes the pages smaller.
pub const PAGE: u32 = 500;

/// Passes every object of the list at this path to the callback, page by page, until the callback stops. A
/// type with few fields keeps the memory small.
///
/// Without a resource version, the first page is a quorum read, and the others are of the same revision.
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
        let page: ObjectList<T> = client.request(request).await?;
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
