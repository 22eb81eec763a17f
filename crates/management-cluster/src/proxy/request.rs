//! A request as the hook of a proxy sees it.

use http::{Method, Uri};

/// Groups and kinds whose writes are housekeeping of a client: not counted, so that the index of a write
/// does not depend on timing.
const UNCOUNTED: &[&str] = &[
    "/apis/coordination.k8s.io/",
    "/apis/authentication.k8s.io/",
    "/apis/authorization.k8s.io/",
    "/apis/events.k8s.io/",
];

/// A request on its way to the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxiedRequest {
    /// The HTTP method.
    pub method: Method,
    /// The path, `/apis/…`.
    pub path: String,
    /// Which write this is, from 0, among those through this proxy. Nothing for reads, and for writes of
    /// Leases, Events, reviews (`TokenReview`, `SubjectAccessReview`) and tokens.
    pub write: Option<u64>,
}

impl ProxiedRequest {
    /// Takes the next index from `count` if the request is a counted write.
    pub(super) fn new(method: &Method, uri: &Uri, count: impl FnOnce() -> u64) -> Self {
        let path = uri.path().to_owned();
        let is_write = matches!(
            *method,
            Method::POST | Method::PUT | Method::PATCH | Method::DELETE
        );
        let write = (is_write && !is_housekeeping(&path)).then(count);
        Self {
            method: method.clone(),
            path,
            write,
        }
    }
}

fn is_housekeeping(path: &str) -> bool {
    let is_core = path.starts_with("/api/v1/");
    let is_event = is_core && path.split('/').any(|segment| segment == "events");
    let is_token = is_core && path.ends_with("/token");
    is_event || is_token || UNCOUNTED.iter().any(|prefix| path.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(method: &Method, path: &'static str) -> Option<u64> {
        ProxiedRequest::new(method, &Uri::from_static(path), || 7).write
    }

    #[test]
    fn only_writes_that_matter_are_counted() {
        let machines = "/apis/infrastructure.cluster.x-k8s.io/v1alpha1/namespaces/a/cmimachines/m/status";
        assert_eq!(write(&Method::PATCH, machines), Some(7));
        assert_eq!(write(&Method::GET, machines), None);
        assert_eq!(
            write(&Method::PUT, "/apis/coordination.k8s.io/v1/namespaces/a/leases/l"),
            None
        );
        assert_eq!(
            write(&Method::POST, "/apis/events.k8s.io/v1/namespaces/a/events"),
            None
        );
        assert_eq!(write(&Method::POST, "/api/v1/namespaces/a/events"), None);
        assert_eq!(
            write(
                &Method::POST,
                "/apis/authorization.k8s.io/v1/subjectaccessreviews"
            ),
            None
        );
        assert_eq!(
            write(&Method::POST, "/api/v1/namespaces/a/serviceaccounts/s/token"),
            None
        );
        assert_eq!(write(&Method::POST, "/api/v1/namespaces/a/secrets"), Some(7));
    }
}
