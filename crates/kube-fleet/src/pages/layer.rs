//! The layer of a client that bounds its lists.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Either, LengthLimitError, Limited};
use tower::{BoxError, Layer, Service};

use super::most_recent::request_most_recent;
use super::sizes::{MAX_BYTES, Page, PageSizes};

/// Bounds the answers to lists in pages, and makes streamed lists as recent as these. Add it to a client with
/// [`kube::client::ClientBuilder::with_layer`]. Clones share the sizes of pages.
#[derive(Clone, Debug, Default)]
pub struct ListLayer {
    sizes: Arc<PageSizes>,
}

/// The service of a [`ListLayer`].
#[derive(Clone, Debug)]
pub struct Lists<S> {
    sizes: Arc<PageSizes>,
    inner: S,
}

impl<S> Layer<S> for ListLayer {
    type Service = Lists<S>;

    fn layer(&self, inner: S) -> Lists<S> {
        Lists {
            sizes: Arc::clone(&self.sizes),
            inner,
        }
    }
}

/// The bounded body of a page, or the body of any other answer.
type ListBody<B> = Either<UnsyncBoxBody<Bytes, BoxError>, B>;

impl<S, T, B> Service<Request<T>> for Lists<S>
where
    S: Service<Request<T>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<ListBody<B>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<T>) -> Self::Future {
        request_most_recent(&mut request);
        let page = self.sizes.bound(&mut request);
        let (sizes, response) = (Arc::clone(&self.sizes), self.inner.call(request));
        Box::pin(async move {
            let response = response.await.map_err(Into::into)?;
            Ok(match page {
                Some(page) => response.map(|body| Either::Left(bounded(body, page, sizes))),
                None => response.map(Either::Right),
            })
        })
    }
}

/// A body that fails when it exceeds the size of a page.
fn bounded<B>(body: B, page: Page, sizes: Arc<PageSizes>) -> UnsyncBoxBody<Bytes, BoxError>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let mut page = Some(page);
    let limited = Limited::new(body, MAX_BYTES).map_err(move |error| {
        match page.take_if(|_| error.is::<LengthLimitError>()) {
            Some(page) => sizes.too_large(page).into(),
            None => error,
        }
    });
    limited.boxed_unsync()
}
