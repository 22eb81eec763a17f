//! Who may read the diagnostics: the API server says, by TokenReview and SubjectAccessReview.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

/// How long an answer is remembered: a scraper asks more often than permissions change.
const REMEMBERED: Duration = Duration::from_mins(1);
/// The most answers that are remembered.
const MOST_REMEMBERED: usize = 1024;
/// Reviews at the same time: who sends made-up tokens must not flood the API server.
const MOST_REVIEWS: usize = 4;
/// How long a review may take.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

/// What the API server says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It may be answered.
    Allowed,
    /// The token is nobody's.
    Unauthenticated,
    /// The token's user may not do this.
    Forbidden,
}

/// Why a request could not be reviewed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReviewError {
    #[error("reviewing a token failed")]
    Token(#[source] kube::Error),
    #[error("reviewing an access failed")]
    Access(#[source] kube::Error),
    #[error("reviewing a request took too long")]
    TimedOut,
}

/// Asks the API server, and remembers its answers for a minute.
pub(super) struct Reviewer {
    tokens: Api<TokenReview>,
    accesses: Api<SubjectAccessReview>,
    reviews: Semaphore,
    remembered: Mutex<HashMap<[u8; 32], (Verdict, Instant)>>,
}

impl Reviewer {
    pub(super) fn new(client: Client) -> Self {
        Self {
            tokens: Api::all(client.clone()),
            accesses: Api::all(client),
            reviews: Semaphore::new(MOST_REVIEWS),
            remembered: Mutex::default(),
        }
    }

    /// Whether the bearer of this token may `get` this path.
    pub(super) async fn review(&self, token: &str, path: &str) -> Result<Verdict, ReviewError> {
        let key = key(token, path);
        if let Some(verdict) = self.recall(&key) {
            return Ok(verdict);
        }
        let asked = async {
            let _slot = self.reviews.acquire().await;
            // Whoever was before us may have asked the same.
            match self.recall(&key) {
                Some(verdict) => Ok(verdict),
                None => self.ask(token, path).await,
            }
        };
        let verdict = timeout(REVIEW_TIMEOUT, asked)
            .await
            .map_err(|_elapsed| ReviewError::TimedOut)??;
        self.remember(key, verdict);
        Ok(verdict)
    }

    async fn ask(&self, token: &str, path: &str) -> Result<Verdict, ReviewError> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token.to_owned()),
                ..TokenReviewSpec::default()
            },
            ..TokenReview::default()
        };
        let answer = self
            .tokens
            .create(&PostParams::default(), &review)
            .await
            .map_err(ReviewError::Token)?;
        let status = answer.status.unwrap_or_default();
        match status.user {
            Some(user) if status.authenticated == Some(true) => self.ask_access(user, path).await,
            Some(_) | None => Ok(Verdict::Unauthenticated),
        }
    }

    async fn ask_access(&self, user: UserInfo, path: &str) -> Result<Verdict, ReviewError> {
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                non_resource_attributes: Some(NonResourceAttributes {
                    path: Some(path.to_owned()),
                    verb: Some("get".to_owned()),
                }),
                user: user.username,
                uid: user.uid,
                groups: user.groups,
                extra: user.extra,
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let answer = self
            .accesses
            .create(&PostParams::default(), &review)
            .await
            .map_err(ReviewError::Access)?;
        match answer.status {
            Some(status) if status.allowed => Ok(Verdict::Allowed),
            Some(_) | None => Ok(Verdict::Forbidden),
        }
    }

    fn recall(&self, key: &[u8; 32]) -> Option<Verdict> {
        let remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        remembered
            .get(key)
            .filter(|(_, since)| since.elapsed() < REMEMBERED)
            .map(|(verdict, _)| *verdict)
    }

    fn remember(&self, key: [u8; 32], verdict: Verdict) {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= MOST_REMEMBERED {
            remembered.retain(|_, (_, since)| since.elapsed() < REMEMBERED);
        }
        if remembered.len() < MOST_REMEMBERED {
            remembered.insert(key, (verdict, Instant::now()));
        }
    }
}

/// Tokens are not kept, only what they hash to.
fn key(token: &str, path: &str) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(token.len().to_le_bytes());
    hash.update(token);
    hash.update(path);
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;
    use tokio::time::advance;

    use super::super::tests::client_of;
    use super::*;

    /// An API server that knows the tokens `good` and `weak`, and lets the first alone read metrics.
    fn reviewer() -> (Reviewer, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let client = client_of(move |request, body| {
            count.fetch_add(1, Ordering::SeqCst);
            let status = if request.uri.path().ends_with("/tokenreviews") {
                let token = body["spec"]["token"].as_str().unwrap();
                json!({"authenticated": token != "bad", "user": {"username": token}})
            } else {
                let spec = &body["spec"];
                assert_eq!(
                    spec["nonResourceAttributes"],
                    json!({"path": "/metrics", "verb": "get"})
                );
                json!({"allowed": spec["user"] == "good"})
            };
            let mut answer = body.clone();
            answer["status"] = status;
            (201, answer)
        });
        (Reviewer::new(client), asked)
    }

    #[tokio::test]
    async fn the_api_server_says_who_may_read_metrics() {
        let (reviewer, _) = reviewer();
        for (token, verdict) in [
            ("good", Verdict::Allowed),
            ("weak", Verdict::Forbidden),
            ("bad", Verdict::Unauthenticated),
        ] {
            assert_eq!(
                reviewer.review(token, "/metrics").await.unwrap(),
                verdict,
                "{token}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_remembered_for_a_minute() {
        let (reviewer, asked) = reviewer();
        for _ in 0..5 {
            reviewer.review("good", "/metrics").await.unwrap();
        }
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        advance(REMEMBERED).await;
        reviewer.review("good", "/metrics").await.unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 4);
    }
}
