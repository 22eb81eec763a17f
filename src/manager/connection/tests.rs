//! Clients of a server with TLS in this process.

mod server;

use bytes::Bytes;
use http::Version;
use http::header::{AUTHORIZATION, USER_AGENT};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::ClientBuilder;
use kube::config::AuthInfo;
use tokio::time::Instant;
use tokio::time::timeout;

use super::*;
use crate::apiserver::leadership::{Leadership, is_not_leader};
use crate::manager::client::{controller_client, manager_client};
use crate::manager::{ApiServer, Protocol};

use server::{Conduct, SLOW, Server};

const ANY: &[&str] = &["h2", "http/1.1"];
/// Both times of a ping, and a margin for a busy computer.
const GIVEN_UP: Duration = Duration::from_secs(20);

fn network(config: Config, protocol: Protocol) -> ApiServer {
    ApiServer::Network {
        config: Box::new(config),
        protocol,
    }
}

fn client(config: Config) -> Client {
    controller_client(&network(config, Protocol::Http2), Leadership::unelected()).unwrap()
}

async fn request(client: &Client, method: Method, path: &str) -> Result<Bytes, kube::Error> {
    let request = Request::builder().method(method).uri(path);
    let answer = client
        .send(request.body(Body::from(b"{}".to_vec())).unwrap())
        .await?;
    Ok(answer.into_body().collect_bytes().await.unwrap())
}

/// A watch whose first event has come.
async fn watch(client: &Client, path: &str) -> Body {
    let request = Request::get(format!("{path}?watch=1")).body(Body::empty());
    let mut body = client.send(request.unwrap()).await.unwrap().into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "{}");
    body
}

#[tokio::test]
async fn watches_share_one_connection_and_requests_another() {
    let server = Server::start(ANY, &[]).await;
    let client = client(server.config());
    request(&client, Method::GET, "/first").await.unwrap();
    let _watch = watch(&client, "/machines").await;
    let _another = watch(&client, "/clusters").await;
    let answers = (0..64).map(|_| request(&client, Method::PATCH, "/machines/one"));
    for answer in futures::future::join_all(answers).await {
        assert_eq!(answer.unwrap(), "{}");
    }
    let asked = server.asked();
    assert_eq!(asked.len(), 67);
    for request in asked {
        let connection = usize::from(matches!(&*request.what, "GET /machines" | "GET /clusters"));
        assert_eq!(
            (request.version, request.connection),
            (Version::HTTP_2, connection),
            "{}",
            request.what
        );
    }
}

/// A connection is known to be HTTP/2 only once it is established.
#[tokio::test]
async fn requests_that_come_before_there_is_a_connection_are_all_answered() {
    let server = Server::start(ANY, &[]).await;
    let client = client(server.config());
    let answers = (0..64).map(|_| request(&client, Method::GET, "/machines"));
    for answer in futures::future::join_all(answers).await {
        assert_eq!(answer.unwrap(), "{}");
    }
    assert!(server.asked().iter().all(|one| one.version == Version::HTTP_2));
}

#[tokio::test]
async fn a_server_without_http2_or_tls_is_spoken_to_in_http1() {
    for server in [
        Server::start(&[], &[]).await,
        Server::start(&["http/1.1"], &[]).await,
        Server::plain().await,
    ] {
        let client = client(server.config());
        let _watch = watch(&client, "/machines").await;
        assert_eq!(request(&client, Method::GET, "/first").await.unwrap(), "{}");
        assert_all_is_http1(&server, 2);
    }
}

/// One client speaks HTTP/1.1 because of a flag, and the other renews the lease. Each sends one request at a
/// time.
#[tokio::test]
async fn http1_is_spoken_where_that_is_asked_for_and_by_what_renews_the_lease() {
    let server = Server::start(ANY, &[]).await;
    let asked_for = controller_client(
        &network(server.config(), Protocol::Http1),
        Leadership::unelected(),
    )
    .unwrap();
    for client in [
        asked_for,
        manager_client(&network(server.config(), Protocol::Http1)).unwrap(),
    ] {
        request(&client, Method::GET, "/first").await.unwrap();
    }
    assert_all_is_http1(&server, 2);
}

fn assert_all_is_http1(server: &Server, requests: usize) {
    let asked = server.asked();
    assert_eq!(asked.len(), requests);
    assert!(
        asked.iter().all(|one| one.version == Version::HTTP_11),
        "{asked:?}"
    );
}

#[tokio::test]
async fn a_request_has_the_credentials_of_the_kubeconfig_and_says_who_asks() {
    let server = Server::start(ANY, &[]).await;
    let mut config = server.config();
    config.auth_info = AuthInfo {
        token: Some("t0ken".to_owned().into()),
        impersonate: Some("jane".to_owned()),
        ..AuthInfo::default()
    };
    request(&client(config), Method::GET, "/first").await.unwrap();
    let headers = server.asked().remove(0).headers;
    assert_eq!(headers[AUTHORIZATION], "Bearer t0ken");
    assert_eq!(headers["impersonate-user"], "jane");
    assert!(headers[USER_AGENT].to_str().unwrap().starts_with("capcmi/"));
}

#[tokio::test]
async fn a_server_that_is_not_the_one_that_is_configured_is_not_spoken_to() {
    let server = Server::start(ANY, &[]).await;
    let mut config = server.config();
    config.tls_server_name = Some("another".to_owned());
    let error = request(&client(config.clone()), Method::GET, "/first")
        .await
        .unwrap_err();
    let shown = cmi_driver::ErrorChain(&error).to_string();
    assert!(shown.contains("another"), "{shown}");
    config.accept_invalid_certs = true;
    request(&client(config), Method::GET, "/first").await.unwrap();
    config = server.config();
    config.tls_server_name = Some("no name".to_owned());
    assert!(controller_client(&network(config, Protocol::Http2), Leadership::unelected()).is_err());
}

/// An API server closes connections when it stops, and now and then with `--goaway-chance`.
#[tokio::test]
async fn a_write_that_the_server_did_not_look_at_is_sent_again() {
    for conduct in [Conduct::CloseUnseen, Conduct::Refuse] {
        let server = Server::start(ANY, &[conduct]).await;
        let client = client(server.config());
        assert_eq!(
            request(&client, Method::POST, "/events").await.unwrap(),
            "{}",
            "{conduct:?}"
        );
        let asked = server.asked();
        assert_eq!(asked.len(), 1, "{conduct:?}");
        assert_eq!((asked[0].connection, &*asked[0].what), (1, "POST /events"));
    }
}

/// The server may have processed the write, and only the caller knows how to handle that.
#[tokio::test]
async fn a_write_that_the_server_may_have_carried_out_is_not_sent_again() {
    let server = Server::start(ANY, &[Conduct::CloseSeen]).await;
    let client = client(server.config());
    request(&client, Method::POST, "/events").await.unwrap_err();
    assert!(server.asked().is_empty());
    request(&client, Method::POST, "/events").await.unwrap();
}

/// Another replica may lead when a connection is established. This concerns first requests and repeated ones.
#[tokio::test]
async fn no_write_uses_a_connection_made_after_the_leadership_was_lost() {
    for (conducts, lost_at) in [
        (&[][..], 0),
        (&[Conduct::CloseUnseen], 1),
        (&[Conduct::Refuse], 1),
    ] {
        let server = Server::start(ANY, conducts).await;
        let leadership = Leadership::unelected();
        let client =
            controller_client(&network(server.config(), Protocol::Http2), leadership.clone()).unwrap();
        server.on_open(move |number| {
            if number == lost_at {
                leadership.resign();
            }
        });
        let refused = request(&client, Method::PATCH, "/machines/one")
            .await
            .unwrap_err();
        assert!(is_not_leader(&refused), "{conducts:?}: {refused:?}");
        request(&client, Method::GET, "/first").await.unwrap();
        let asked: Vec<_> = server.asked().into_iter().map(|one| one.what).collect();
        assert_eq!(asked, ["GET /first"], "{conducts:?}");
    }
}

/// Over HTTP/2, all requests wait for one connection. Its loss must be noticed soon, for example when a node
/// fails silently.
#[tokio::test]
async fn a_connection_that_fell_silent_is_given_up() {
    let server = Server::start(ANY, &[]).await;
    let client = client(server.config());
    request(&client, Method::GET, "/first").await.unwrap();
    let mut watched = watch(&client, "/machines").await;
    server.fall_silent();
    let silent = Instant::now();
    let (written, ended) = tokio::join!(request(&client, Method::PATCH, "/machines/one"), watched.frame());
    written.unwrap_err();
    assert!(ended.unwrap().is_err(), "the watch ended as if it were over");
    assert!(silent.elapsed() < GIVEN_UP, "{:?}", silent.elapsed());
    request(&client, Method::GET, "/first").await.unwrap();
    watch(&client, "/machines").await;
}

/// The next connection may lead to another server, if several share the address.
#[tokio::test]
async fn a_server_that_answers_pings_and_no_request_loses_its_connections() {
    let server = Server::start(ANY, &[Conduct::Hang, Conduct::Answer]).await;
    let config = server.config();
    let timeout_after = Duration::from_millis(100);
    let service = giving_up_after(timeout_after, &config, Leadership::unelected()).unwrap();
    let client = ClientBuilder::new(service, config.default_namespace).build();
    let given_up = timeout(timeout_after * 2, request(&client, Method::GET, "/first")).await;
    given_up.unwrap_err();
    let second = timeout(GIVEN_UP, request(&client, Method::GET, "/second")).await;
    second.unwrap().unwrap();
    let connections: Vec<_> = server.asked().into_iter().map(|one| one.connection).collect();
    assert_eq!(connections, [0, 1]);
}

/// One slow request is no reason to replace it, nor is a request that its caller abandons.
#[tokio::test]
async fn a_connection_over_which_others_are_answered_is_kept() {
    let server = Server::start(ANY, &[]).await;
    let config = server.config();
    let timeout_after = Duration::from_millis(100);
    let service = giving_up_after(timeout_after, &config, Leadership::unelected()).unwrap();
    let client = ClientBuilder::new(service, config.default_namespace).build();
    request(&client, Method::GET, "/first").await.unwrap();
    let slow = timeout(timeout_after * 2, request(&client, Method::GET, SLOW));
    let (given_up, answered) = tokio::join!(slow, request(&client, Method::GET, "/second"));
    given_up.unwrap_err();
    answered.unwrap();
    let given_up = timeout(timeout_after / 2, request(&client, Method::GET, SLOW)).await;
    given_up.unwrap_err();
    request(&client, Method::GET, "/third").await.unwrap();
    let asked = server.asked();
    assert_eq!(asked.len(), 5);
    assert!(asked.iter().all(|one| one.connection == 0), "{asked:?}");
}
