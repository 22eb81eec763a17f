//! No fault leads to a false statement about a VM: that it is gone, that it was created, or that it is
//! refused for good.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;

use super::plugin::{CallEnd, Plugin, Reply};
use super::*;
use crate::proto::cmi::v1::{CreateMachineResponse, GetMachineStatusResponse};

pub fn html(status: u16) -> Reply {
    Reply {
        status,
        headers: vec![("content-type", "text/html".to_owned())],
        body: b"<html></html>".to_vec(),
        ending: CallEnd::Nothing,
    }
}

fn machine() -> GetMachineStatusResponse {
    GetMachineStatusResponse {
        provider_id: "sim://1".to_owned(),
        node_name: "m".to_owned(),
    }
}

/// Possible answers of a plugin, and the expected code.
fn faults() -> Vec<(&'static str, Reply, Code)> {
    let whole = Reply::ok(&machine());
    let mut half = whole.clone();
    half.body.truncate(7);
    let mut compressed = whole.clone();
    compressed.body[0] = 1;
    // 4 GiB are promised.
    let endless = Reply::raw(vec![0, 255, 255, 255, 255, 0]);
    let nameless = GetMachineStatusResponse {
        provider_id: String::new(),
        ..machine()
    };
    vec![
        (
            "no status",
            whole.clone().ending(CallEnd::Nothing),
            Code::Unavailable,
        ),
        (
            "no answer at all",
            Reply::raw(vec![]).ending(CallEnd::Nothing),
            Code::Unavailable,
        ),
        (
            "half a message",
            half.clone().ending(CallEnd::Nothing),
            Code::Unavailable,
        ),
        (
            "a reset after the message",
            whole.clone().ending(CallEnd::Reset),
            Code::Unavailable,
        ),
        (
            "a reset before it",
            Reply::raw(vec![]).ending(CallEnd::Reset),
            Code::Unavailable,
        ),
        ("a page that is not there", html(404), Code::Unavailable),
        ("a page for others", html(401), Code::Unavailable),
        ("a page", html(200), Code::Unavailable),
        ("a proxy without a plugin", html(503), Code::Unavailable),
        ("garbage", Reply::frame(b"\xff\xff\xff\xff"), Code::Internal),
        ("half a message and OK", half, Code::Internal),
        ("no message and OK", Reply::raw(vec![]), Code::Internal),
        ("an endless message", endless, Code::Internal),
        ("a compressed message", compressed, Code::Internal),
        (
            "an unknown encoding",
            whole.header("grpc-encoding", "snappy"),
            Code::Internal,
        ),
        ("OK without a provider id", Reply::ok(&nameless), Code::Internal),
    ]
}

/// DRV-30, CMI-15
#[tokio::test]
async fn broken_answers_are_unavailable_and_invalid_answers_are_internal() {
    let plugin = Plugin::start();
    let driver = driver(&plugin);
    for (fault, reply, code) in faults() {
        plugin.answers("GetMachineStatus", reply.clone());
        plugin.answers("CreateMachine", reply);
        let looked_up = driver.get_machine_status(look_up()).await.unwrap_err();
        assert_eq!(looked_up.code(), code, "{fault}: {looked_up}");
        let created = driver.create_machine(create()).await.unwrap_err();
        assert_eq!(created.code(), code, "{fault}: {created}");
    }
    plugin.answers("GetMachineStatus", Reply::ok(&machine()));
    driver.get_machine_status(look_up()).await.unwrap();
}

/// CLI-CR-04, CLI-GS-04, CMI-20
#[tokio::test]
async fn a_hanging_plugin_gets_the_deadline_and_then_a_cancellation() {
    let plugin = Plugin::start();
    let driver = hasty_driver(&plugin);
    plugin.answers("CreateMachine", Reply::raw(vec![]).ending(CallEnd::Never));
    let status = driver.create_machine(create()).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    plugin.cancelled(1).await;
    let call = plugin.calls().pop().unwrap();
    let timeout = call.headers["grpc-timeout"].to_str().unwrap();
    let micros: u64 = timeout.strip_suffix('u').unwrap().parse().unwrap();
    assert!(micros > 0 && Duration::from_micros(micros) < SHORT, "{timeout}");
}

/// A plugin that hangs in the middle of an answer is no better.
#[tokio::test]
async fn an_answer_that_does_not_end_is_deadline_exceeded() {
    let plugin = Plugin::start();
    plugin.answers("GetMachineStatus", Reply::ok(&machine()).ending(CallEnd::Never));
    let status = hasty_driver(&plugin)
        .get_machine_status(look_up())
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
}

/// grpc-go resets a stream when its deadline passes, and may be faster than the client's own clock.
#[tokio::test]
async fn a_stream_reset_at_the_deadline_is_deadline_exceeded() {
    let plugin = Plugin::start();
    let driver = hasty_driver(&plugin);
    // The look-up gets nine tenths of the time.
    for (reset_after, code) in [
        (SHORT.mul_f64(0.85), Code::DeadlineExceeded),
        (Duration::ZERO, Code::Unavailable),
    ] {
        let reply = Reply::raw(vec![]).ending(CallEnd::ResetAfter(reset_after));
        plugin.answers("GetMachineStatus", reply);
        let status = driver.get_machine_status(look_up()).await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
    }
}

/// A server that stops, or has as many streams as it takes. After such a create no VM is looked for.
#[tokio::test]
async fn a_refused_http2_stream_was_never_sent_and_a_reset_one_may_have_been() {
    let plugin = Plugin::start();
    let driver = driver(&plugin);
    for (ending, is_never_sent) in [(CallEnd::Refused, true), (CallEnd::Reset, false)] {
        plugin.answers("CreateMachine", Reply::raw(vec![]).ending(ending));
        let status = driver.create_machine(create()).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert_eq!(status.is_never_sent(), is_never_sent, "{status}");
    }
    assert_eq!(plugin.connections(), 1);
}

/// CLI-CR-01
#[tokio::test]
async fn a_call_whose_caller_no_longer_waits_is_cancelled_at_the_plugin() {
    let plugin = Plugin::start();
    let driver = Arc::new(driver(&plugin));
    plugin.answers("CreateMachine", Reply::raw(vec![]).ending(CallEnd::Never));
    let calling = Arc::clone(&driver);
    let call = tokio::spawn(async move { calling.create_machine(create()).await });
    plugin.called("CreateMachine").await;
    call.abort();
    plugin.cancelled(1).await;
    driver.delete_machine(delete()).await.unwrap();
    assert_eq!(plugin.connections(), 1);
}

/// CLI-CR-14
#[tokio::test]
async fn a_plugin_that_dies_during_a_create_is_unavailable_until_it_is_back() {
    let mut plugin = Plugin::start();
    let driver = Arc::new(driver(&plugin));
    plugin.answers("CreateMachine", Reply::raw(vec![]).ending(CallEnd::Never));
    let calling = Arc::clone(&driver);
    let call = tokio::spawn(async move { calling.create_machine(create()).await });
    plugin.called("CreateMachine").await;
    plugin.kill();
    let status = call.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(
        status.message().starts_with("CreateMachine was not answered: "),
        "{status}"
    );
    let status = driver.get_machine_status(look_up()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    plugin.answers(
        "CreateMachine",
        Reply::ok(&CreateMachineResponse {
            provider_id: "sim://1".to_owned(),
            node_name: "m".to_owned(),
            ..CreateMachineResponse::default()
        }),
    );
    plugin.listen();
    eventually(async || driver.create_machine(create()).await).await;
}

/// A rolling update of the plugin costs no call.
#[tokio::test]
async fn a_retiring_plugin_finishes_its_call_and_its_successor_takes_over() {
    let (mut old, successor) = (Plugin::start(), Plugin::absent());
    let driver = Arc::new(driver(&old));
    let machine = Reply::ok(&machine());
    old.answers("GetMachineStatus", machine.clone().ending(CallEnd::Held));
    successor.answers("GetMachineStatus", machine);
    let calling = Arc::clone(&driver);
    let call = tokio::spawn(async move { calling.get_machine_status(look_up()).await });
    old.called("GetMachineStatus").await;
    old.retire();
    old.hand_over(&successor);
    eventually(
        async || match (driver.probe().await?, driver.connection_generation()) {
            (_, 2) => Ok(()),
            (_, connection_generation) => Err(Status::new(
                Code::Unknown,
                format!("generation {connection_generation}"),
            )),
        },
    )
    .await;
    driver.get_machine_status(look_up()).await.unwrap();
    assert_eq!(old.count("GetMachineStatus"), 1);
    old.release();
    call.await.unwrap().unwrap();
}

/// The client drops a silent connection.
#[tokio::test]
async fn a_probe_that_is_not_answered_ends_the_connection() {
    let plugin = Plugin::start();
    let driver = hasty_driver(&plugin);
    driver.get_plugin_info().await.unwrap();
    plugin.answers("Probe", Reply::raw(vec![]).ending(CallEnd::Never));
    assert_eq!(driver.probe().await.unwrap_err().code(), Code::DeadlineExceeded);
    plugin.answers("Probe", Reply::error(12, "unknown method"));
    driver.create_machine(create()).await.unwrap();
    assert_eq!((plugin.connections(), driver.connection_generation()), (2, 2));
}

/// Servers that are not plugins: one answers, the other waits for a preface.
#[tokio::test]
async fn a_server_that_speaks_no_http2_is_unavailable() {
    let folder = tempfile::tempdir().unwrap();
    for (says, why) in [
        (
            "HTTP/1.1 400 Bad Request\r\n\r\n",
            "the endpoint is an HTTP/1 server (`HTTP/1.1 400 Bad Request`): check the endpoint",
        ),
        ("SSH-2.0-OpenSSH_9.6\r\n", "not an HTTP/2 server"),
        ("", "within 1 s"),
    ] {
        let socket = folder.path().join(format!("{}.sock", says.len()));
        let listener = UnixListener::bind(&socket).unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(says.as_bytes()).await.unwrap();
            let mut preface = Vec::new();
            stream.read_to_end(&mut preface).await.unwrap_or_default();
        });
        let mut driver = driver_of(Target::Unix(socket), SHORT);
        driver.deadlines = Deadlines::new([]);
        let status = driver.create_machine(create()).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(status.message().contains(why), "{status}");
        server.abort();
    }
}
