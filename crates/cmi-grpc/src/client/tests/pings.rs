//! By default, gRPC servers close a connection with too frequent pings: three within five minutes, unless
//! they have sent data in between.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use super::plugin::{CallEnd, Reply};
use super::*;

/// The length of the HTTP/2 client preface, and of a frame's head.
const PREFACE: usize = 24;
const HEAD: usize = 9;
const PING: u8 = 6;
const ACKNOWLEDGES: u8 = 1;

/// Counts the pings on the connections to a plugin.
#[derive(Clone, Debug, Default)]
struct Pings(Arc<AtomicUsize>);

impl Pings {
    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// Accepts connections in the plugin's place, and relays their bytes to the plugin.
    async fn relay(self, listener: UnixListener, plugin: PathBuf) {
        while let Ok((client, _)) = listener.accept().await {
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_plugin, mut to_plugin) = UnixStream::connect(&plugin).await.unwrap().into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_plugin, &mut to_client).await });
            let pings = self.clone();
            tokio::spawn(async move { pings.hand_on(&mut from_client, &mut to_plugin).await });
        }
    }

    /// Copies frames and counts pings until either side has ended.
    async fn hand_on(
        self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let mut preface = [0; PREFACE];
        from.read_exact(&mut preface).await?;
        to.write_all(&preface).await?;
        loop {
            let mut frame = vec![0; HEAD];
            from.read_exact(&mut frame).await?;
            let payload = u32::from_be_bytes([0, frame[0], frame[1], frame[2]]);
            if frame[3] == PING && frame[4] & ACKNOWLEDGES == 0 {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
            frame.resize(HEAD + usize::try_from(payload).unwrap(), 0);
            from.read_exact(&mut frame[HEAD..]).await?;
            to.write_all(&frame).await?;
        }
    }
}

#[tokio::test]
async fn a_plugin_that_answers_probes_is_never_pinged_and_a_silent_one_is() {
    const KEEPALIVE: Duration = Duration::from_millis(500);
    let plugin = Plugin::start();
    plugin.answers("CreateMachine", Reply::raw(vec![]).ending(CallEnd::Never));
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("relay.sock");
    let pings = Pings::default();
    let relay = pings
        .clone()
        .relay(UnixListener::bind(&socket).unwrap(), plugin.socket());
    tokio::spawn(relay);
    let timeouts = Timeouts {
        connect: LONG,
        keepalive: KEEPALIVE,
        keepalive_answer: LONG,
    };
    let driver = Arc::new(GrpcDriver {
        channel: Channel::new(Target::Unix(socket.clone()), timeouts),
        ..driver_of(Target::Unix(socket), LONG)
    });
    let creating = Arc::clone(&driver);
    let call = tokio::spawn(async move { creating.create_machine(create()).await });
    plugin.called("CreateMachine").await;
    let answered = Instant::now();
    let mut longest_silence = Duration::ZERO;
    while answered.elapsed() < 4 * KEEPALIVE {
        let before = Instant::now();
        driver.probe().await.unwrap();
        tokio::time::sleep(KEEPALIVE / 50).await;
        longest_silence = longest_silence.max(before.elapsed());
    }
    // A computer that was too busy to probe shows nothing.
    if longest_silence < KEEPALIVE {
        assert_eq!(pings.count(), 0);
    }
    let pinged = eventually(async || match pings.count() {
        0 => Err(Status::new(Code::Unknown, "no ping yet")),
        count => Ok(count),
    });
    pinged.await;
    assert!(!call.is_finished());
}
