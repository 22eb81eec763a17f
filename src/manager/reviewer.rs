//! Decides which callers may read the diagnostics, by the API server's TokenReview and SubjectAccessReview.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

/// How long an answer is cached: a scraper asks more often than permissions change.
const CACHE_TTL: Duration = Duration::from_mins(1);
/// How long an allowed caller does not queue with others for its next answer.
const ALLOWED_TTL: Duration = Duration::from_hours(1);
/// The most answers of one kind that are cached.
const MAX_CACHED: usize = 1024;
/// The most concurrent reviews of each kind: a sender of made-up tokens must not flood the API server.
const MAX_REVIEWS: usize = 2;
/// How long a review may take.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

/// The decision of the API server on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// The request may be answered.
    Allowed,
    /// The token is not valid.
    Unauthenticated,
    /// The token's user may not do this.
    Forbidden,
}

/// Why a request could not be reviewed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReviewError {
    #[error("token review failed")]
    Token(#[source] kube::Error),
    #[error("access review failed")]
    Access(#[source] kube::Error),
    #[error("review timed out")]
    TimedOut,
}

/// Asks the API server, and caches its answers for a minute.
///
/// # Guarantees
/// A caller that was allowed within the last hour is neither delayed nor evicted by callers that were not.
/// Made-up tokens cost nothing, and there can be many.
pub(super) struct Reviewer {
    tokens: Api<TokenReview>,
    accesses: Api<SubjectAccessReview>,
    allowed_slots: Semaphore,
    other_slots: Semaphore,
    cache: Mutex<Cache>,
}

/// The decisions, by hash of token and path.
#[derive(Default)]
struct Cache {
    allowed: HashMap<Key, Instant>,
    refused: HashMap<Key, (Decision, Instant)>,
}

/// The hash of a token and a path: tokens are not kept.
type Key = [u8; 32];

impl Reviewer {
    pub(super) fn new(client: Client) -> Self {
        Self {
            tokens: Api::all(client.clone()),
            accesses: Api::all(client),
            allowed_slots: Semaphore::new(MAX_REVIEWS),
            other_slots: Semaphore::new(MAX_REVIEWS),
            cache: Mutex::default(),
        }
    }

    /// Whether the bearer of this token may `get` this path.
    pub(super) async fn review(&self, token: &str, path: &str) -> Result<Decision, ReviewError> {
        let key = key(token, path);
        if let Some(decision) = self.cache(|all| all.get(&key)) {
            return Ok(decision);
        }
        let slots = if self.cache(|all| all.allowed.contains_key(&key)) {
            &self.allowed_slots
        } else {
            &self.other_slots
        };
        let reviewed = async {
            let _slot = slots.acquire().await;
            // An earlier caller may have asked the same.
            match self.cache(|all| all.get(&key)) {
                Some(decision) => Ok(decision),
                None => self.review_token(token, path).await,
            }
        };
        let decision = timeout(REVIEW_TIMEOUT, reviewed)
            .await
            .map_err(|_elapsed| ReviewError::TimedOut)??;
        self.cache(|all| all.insert(key, decision));
        Ok(decision)
    }

    fn cache<T>(&self, act: impl FnOnce(&mut Cache) -> T) -> T {
        act(&mut self.cache.lock())
    }

    async fn review_token(&self, token: &str, path: &str) -> Result<Decision, ReviewError> {
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
            Some(user) if status.authenticated == Some(true) => self.review_access(user, path).await,
            Some(_) | None => Ok(Decision::Unauthenticated),
        }
    }

    async fn review_access(&self, user: UserInfo, path: &str) -> Result<Decision, ReviewError> {
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
            Some(status) if status.allowed => Ok(Decision::Allowed),
            Some(_) | None => Ok(Decision::Forbidden),
        }
    }
}

impl Cache {
    fn get(&self, key: &Key) -> Option<Decision> {
        let allowed = self.allowed.get(key).map(|since| (Decision::Allowed, *since));
        allowed
            .or_else(|| self.refused.get(key).copied())
            .filter(|(_, since)| since.elapsed() < CACHE_TTL)
            .map(|(decision, _)| decision)
    }

    fn insert(&mut self, key: Key, decision: Decision) {
        if self.allowed.len() >= MAX_CACHED {
            self.allowed.retain(|_, since| since.elapsed() < ALLOWED_TTL);
        }
        if self.refused.len() >= MAX_CACHED {
            self.refused.retain(|_, (_, since)| since.elapsed() < CACHE_TTL);
        }
        let now = Instant::now();
        match decision {
            Decision::Allowed => {
                self.refused.remove(&key);
                if self.allowed.len() < MAX_CACHED || self.allowed.contains_key(&key) {
                    self.allowed.insert(key, now);
                }
            }
            Decision::Unauthenticated | Decision::Forbidden => {
                self.allowed.remove(&key);
                if self.refused.len() < MAX_CACHED || self.refused.contains_key(&key) {
                    self.refused.insert(key, (decision, now));
                }
            }
        }
    }
}

fn key(token: &str, path: &str) -> Key {
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
                json!({"authenticated": !token.starts_with("bad"), "user": {"username": token}})
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
    async fn the_api_server_says_which_callers_may_read_metrics() {
        let (reviewer, _) = reviewer();
        for (token, decision) in [
            ("good", Decision::Allowed),
            ("weak", Decision::Forbidden),
            ("bad", Decision::Unauthenticated),
        ] {
            assert_eq!(
                reviewer.review(token, "/metrics").await.unwrap(),
                decision,
                "{token}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_cached_for_a_minute() {
        let (reviewer, asked) = reviewer();
        for _ in 0..5 {
            reviewer.review("good", "/metrics").await.unwrap();
        }
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        advance(CACHE_TTL).await;
        reviewer.review("good", "/metrics").await.unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 4);
    }
    #[tokio::test(start_paused = true)]
    async fn made_up_tokens_do_not_crowd_out_the_answer_about_a_real_one() {
        let (reviewer, asked) = reviewer();
        for number in 0..=MAX_CACHED {
            reviewer
                .review(&format!("bad-{number}"), "/metrics")
                .await
                .unwrap();
        }
        reviewer.review("good", "/metrics").await.unwrap();
        let before = asked.load(Ordering::SeqCst);
        reviewer.review("good", "/metrics").await.unwrap();
        reviewer.review("bad-0", "/metrics").await.unwrap();
        assert_eq!(
            asked.load(Ordering::SeqCst),
            before,
            "it was not cached, or the first refusal was evicted"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_was_let_in_before_does_not_wait_behind_strangers() {
        let (reviewer, _) = reviewer();
        reviewer.review("good", "/metrics").await.unwrap();
        advance(CACHE_TTL).await;
        let _others = reviewer.other_slots.acquire_many(2).await.unwrap();
        assert_eq!(
            reviewer.review("good", "/metrics").await.unwrap(),
            Decision::Allowed
        );
        let stranger = reviewer.review("weak", "/metrics").await;
        assert!(matches!(stranger, Err(ReviewError::TimedOut)), "{stranger:?}");
    }
}
