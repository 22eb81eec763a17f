//! Clients that take all that they can get, and a probe that must still be answered.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};

use axum::routing::get;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::*;

/// The time limit of a probe, on a machine with other work.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// More than twice the connections of a server, and few enough for the usual limit of file descriptors.
const HELD: usize = 600;

struct Server {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    async fn start(tls: Option<Tls>) -> Self {
        let router = Router::new().route("/healthz", get(async || "ok\n"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        Self {
            address: listener.local_addr().unwrap(),
            task: tokio::spawn(serve(listener, tls, router)),
        }
    }

    /// A connection from an address of this host.
    async fn connect(&self, from: Ipv4Addr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        socket.connect(self.address).await.unwrap()
    }
}

async fn request(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> String {
    let request = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn probe(server: &Server) {
    let answered = timeout(PROBE_TIMEOUT, async {
        request(server.connect(Ipv4Addr::LOCALHOST).await).await
    });
    let answer = answered.await.expect("the probe was not answered in time");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// Accepts any certificate, as scrapers of a self-signed one do.
#[derive(Debug)]
struct Trusting;

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

async fn scrape(server: &Server) {
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Trusting))
        .with_no_client_auth();
    let answered = timeout(PROBE_TIMEOUT, async {
        let stream = server.connect(Ipv4Addr::LOCALHOST).await;
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        request(stream.unwrap()).await
    });
    let answer = answered.await.expect("the scraper was not answered in time");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_is_answered_while_silent_clients_hold_connections() {
    let server = Server::start(None).await;
    let mut held = VecDeque::new();
    for number in 0..1500 {
        held.push_back(server.connect(Ipv4Addr::LOCALHOST).await);
        if held.len() > HELD {
            held.pop_front();
        }
        if number % 100 == 99 {
            probe(&server).await;
        }
    }
}

/// As fast as possible, with a number that leaves ports to other tests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_is_answered_during_a_flood_from_another_address() {
    let server = Arc::new(Server::start(None).await);
    let flooded = Arc::clone(&server);
    let flood = tokio::spawn(async move {
        let mut held = VecDeque::new();
        for _ in 0..1000 {
            let mut stream = flooded.connect(Ipv4Addr::new(127, 0, 0, 2)).await;
            // An evicted connection can't be written to.
            let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\n").await;
            held.push_back(stream);
            if held.len() > HELD {
                held.pop_front();
            }
        }
    });
    let mut probes = 0;
    while !flood.is_finished() {
        probe(&server).await;
        probes += 1;
    }
    flood.await.unwrap();
    assert!(probes > 0, "the flood was over before a probe");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_is_answered_while_others_send_their_headers_byte_by_byte() {
    let server = Server::start(None).await;
    let mut slow = Vec::new();
    for _ in 0..HELD {
        slow.push(server.connect(Ipv4Addr::LOCALHOST).await);
    }
    for byte in b"GET /healthz HTTP/1.1\r\nx: ".iter().cycle().take(60) {
        for stream in &mut slow {
            // An evicted connection can't be written to.
            let _ = stream.write_all(&[*byte]).await;
        }
        probe(&server).await;
    }
}

/// Headers that never end are not a request. A client that sends no headers is disconnected after a while.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_end_its_headers_is_cut_off_after_seconds() {
    let server = Server::start(None).await;
    let mut slow = server.connect(Ipv4Addr::LOCALHOST).await;
    let start = Instant::now();
    slow.write_all(b"GET /healthz HTTP/1.1\r\nx: ").await.unwrap();
    let mut answer = Vec::new();
    // The client may get the reason.
    let _ = slow.read_to_end(&mut answer).await;
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scraper_is_answered_while_handshakes_are_begun_and_not_ended() {
    let server = Server::start(Some(Tls::self_signed().unwrap())).await;
    let mut held = VecDeque::new();
    for number in 0..1500 {
        let mut stream = server.connect(Ipv4Addr::LOCALHOST).await;
        if number % 2 == 0 {
            // The beginning of a ClientHello.
            stream.write_all(&[0x16, 3, 1, 2, 0, 1, 0]).await.unwrap();
        }
        held.push_back(stream);
        if held.len() > HELD {
            held.pop_front();
        }
        if number % 100 == 99 {
            scrape(&server).await;
        }
    }
}

#[tokio::test]
async fn a_self_signed_certificate_is_served() {
    let server = Server::start(Some(Tls::self_signed().unwrap())).await;
    scrape(&server).await;
}
