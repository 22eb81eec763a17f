//! `capcmi driver serve`: start, signals, logs and mistakes.

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cmi_grpc::endpoint::Endpoint;
use cmi_grpc::proto::cmi::v1;
use cmi_grpc::proto::cmi::v1::identity_client::IdentityClient;
use cmi_grpc::proto::cmi::v1::machine_client::MachineClient;
use management_cluster::eventually;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::process::Command;
use tokio_stream::wrappers::TcpListenerStream;

use crate::support::{Plugin, TIMEOUT, connect, create};

/// How long a plugin that cannot start may take to report the error (OPS-13).
const FAIL_FAST: Duration = Duration::from_secs(5);

fn unix(folder: &Path) -> Endpoint {
    Endpoint::Unix(folder.join("p.sock"))
}

/// Runs a plugin that fails to start, and returns its output.
async fn fails(endpoint: &str, more: &[&str]) -> Result<String> {
    let begun = Instant::now();
    let Output { status, stderr, .. } = Plugin::command()
        .env("CMI_ENDPOINT", endpoint)
        .args(more)
        .stdout(Stdio::null())
        .output()
        .await?;
    let said = String::from_utf8(stderr)?;
    ensure!(status.code() == Some(2), "{endpoint}: {status}: {said}");
    ensure!(begun.elapsed() < FAIL_FAST, "{endpoint}: {:?}", begun.elapsed());
    Ok(said)
}

/// OPS-03, CMI-156, CMI-157, CMI-168, CMI-174
#[tokio::test]
async fn a_plugin_needs_nothing_but_cmi_endpoint() -> Result<()> {
    let plugin = Plugin::start(Plugin::command().env("CMI_ENDPOINT", "tcp://127.0.0.1:0")).await?;
    let mut identity = IdentityClient::new(connect(&plugin.endpoint).await?);
    let info = identity
        .get_plugin_info(v1::GetPluginInfoRequest {})
        .await?
        .into_inner();
    ensure!(info.name == "simulated.capcmi.io", "{info:?}");
    let ready = identity.probe(v1::ProbeRequest {}).await?.into_inner().ready;
    ensure!(ready == Some(true), "{ready:?}");
    plugin.ask_to_stop().await?;
    let (status, log) = plugin.ended().await?;
    ensure!(status.success(), "{status}: {log}");
    Ok(())
}

/// `capcmi driver info` of a plugin, with further flags.
fn info(endpoint: &Endpoint, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_capcmi"));
    command
        .args(["driver", "info", "--endpoint", &endpoint.to_string()])
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// As in a script that has just started it.
#[tokio::test]
async fn a_plugin_that_does_not_listen_yet_is_waited_for_as_long_as_is_said() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let endpoint = unix(folder.path());
    for (more, least) in [(&[][..], 0), (&["--wait", "1s"], 1)] {
        let begun = Instant::now();
        let Output { status, stdout, .. } = info(&endpoint, more).output().await?;
        let said = String::from_utf8(stdout)?;
        ensure!(
            status.code() == Some(1) && said.contains("cannot reach"),
            "{status}: {said}"
        );
        ensure!(begun.elapsed() >= Duration::from_secs(least), "it did not wait");
    }
    let waiting = info(&endpoint, &["--wait", "60s"]).spawn()?;
    let _plugin = Plugin::start(Plugin::command().arg(format!("--endpoint={endpoint}"))).await?;
    let Output { status, stdout, .. } = waiting.wait_with_output().await?;
    let said = String::from_utf8(stdout)?;
    ensure!(
        status.success() && said.contains("simulated.capcmi.io"),
        "{status}: {said}"
    );
    Ok(())
}

/// GetMachine and ListMachinesPaged replace other calls: the author has to see that they are declared.
#[tokio::test]
async fn all_that_a_plugin_declares_of_the_extension_is_printed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let endpoint = unix(folder.path());
    let _plugin = Plugin::start(Plugin::command().arg(format!("--endpoint={endpoint}"))).await?;
    let file = folder.path().join("drivers.yaml");
    std::fs::write(
        &file,
        format!(
            "drivers: [{{name: ours, grpc: {{endpoint: '{endpoint}'}}}}, {{name: other, simulated: {{}}}}]"
        ),
    )?;
    let mut of_file = Command::new(env!("CARGO_BIN_EXE_capcmi"));
    of_file.args(["driver", "info", "--drivers-config"]).arg(&file);
    for mut command in [info(&endpoint, &[]), of_file] {
        let said = String::from_utf8(command.output().await?.stdout)?;
        let declared: Vec<_> = said
            .lines()
            .filter_map(|line| line.trim().strip_prefix("extension "))
            .collect();
        ensure!(declared.len() == 1, "{said}");
        for call in [
            "GET_MACHINE",
            "LIST_MACHINES_PAGED",
            "INITIALIZE_MACHINE",
            "UPDATE_MACHINE",
            "GENERATE_MACHINE_CLASS_FOR_MIGRATION",
            "LIST_ZONES",
            "DESCRIBE_CLASS",
            "RESTART_MACHINE",
        ] {
            let mut calls = declared[0].trim().split(", ");
            ensure!(calls.any(|declared| declared == call), "no {call} in {said}");
        }
    }
    Ok(())
}

/// CMI-182
#[tokio::test]
async fn a_call_that_runs_at_sigterm_ends_well_and_no_other_is_taken() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (config, calls) = (folder.path().join("config.yaml"), folder.path().join("calls"));
    let settings = json!({"callLog": calls, "faults": [{"operation": "CreateMachine", "latencyMs": 1000}]});
    std::fs::write(&config, settings.to_string())?;
    let endpoint = unix(folder.path());
    let plugin = Plugin::start(
        Plugin::command()
            .arg(format!("--endpoint={endpoint}"))
            .arg(format!("--config={}", config.display())),
    )
    .await?;
    let mut machines = MachineClient::new(connect(&endpoint).await?);
    let call = tokio::spawn(async move { machines.create_machine(create("m-0")).await });
    eventually(TIMEOUT, "the call has begun", async || {
        let log = std::fs::read_to_string(&calls)?;
        ensure!(log.contains("CreateMachine"), "{log}");
        Ok(())
    })
    .await?;
    plugin.ask_to_stop().await?;
    let created = tokio::time::timeout(TIMEOUT, call).await???.into_inner();
    ensure!(created.node_name == "m-0", "{created:?}");
    let (status, log) = plugin.ended().await?;
    ensure!(status.success(), "{status}: {log}");
    ensure!(connect(&endpoint).await.is_err(), "the plugin is gone");
    let Endpoint::Unix(socket) = endpoint else {
        anyhow::bail!("it was a socket");
    };
    ensure!(!socket.exists());
    Ok(())
}

#[tokio::test]
async fn a_plugin_takes_over_the_socket_of_one_that_was_killed_and_of_no_other() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let endpoint = unix(folder.path());
    let command = || {
        let mut command = Plugin::command();
        command.env("CMI_ENDPOINT", endpoint.to_string());
        command
    };
    drop(Plugin::start(&mut command()).await?);
    let second = eventually(TIMEOUT, "a second plugin", async || {
        // The first is gone when the operating system has closed its socket.
        Plugin::start(&mut command()).await
    })
    .await?;
    let said = fails(&endpoint.to_string(), &[]).await?;
    ensure!(said.contains("another process listens on"), "{said}");
    let mut identity = IdentityClient::new(connect(&second.endpoint).await?);
    identity.probe(v1::ProbeRequest {}).await?;
    drop(identity);
    second.ask_to_stop().await?;
    let (status, log) = second.ended().await?;
    ensure!(status.success(), "{status}: {log}");
    Ok(())
}

/// OPS-13, CMI-179, CMI-181, CMI-188
#[tokio::test]
async fn a_mistake_ends_the_plugin_at_once_with_a_line_that_names_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("config.yaml");
    std::fs::write(&config, "quotas: 1")?;
    let config = config.display().to_string();
    let good = unix(folder.path()).to_string();
    for (endpoint, more, named) in [
        ("", vec![], "start it with `tcp://`"),
        ("127.0.0.1:8080", vec![], "invalid endpoint `127.0.0.1:8080`"),
        ("tcp://127.0.0.1", vec![], "the port is missing"),
        ("tcp://192.0.2.1:1", vec![], "cannot listen on tcp://192.0.2.1:1"),
        (
            "unix:///no/such/folder/p.sock",
            vec![],
            "cannot listen on unix:///no/such/folder/p.sock",
        ),
        ("tls://127.0.0.1:0", vec![], "requires a certificate"),
        (
            &good,
            vec!["--config", "/no/such/file"],
            "cannot use driver configuration /no/such/file",
        ),
        (&good, vec!["--config", &config], "quotas"),
        (
            &good,
            vec!["--tls-cert-file=/no/such/cert"],
            "TLS also requires --tls-key-file and --client-ca-file",
        ),
    ] {
        let said = fails(endpoint, &more).await?;
        let lines: Vec<_> = said.lines().filter(|line| line.contains(named)).collect();
        ensure!(lines.len() == 1, "`{named}` of {endpoint} is no line of: {said}");
    }
    let none = Plugin::command().output().await?;
    let said = String::from_utf8(none.stderr)?;
    ensure!(none.status.code() == Some(2), "{}: {said}", none.status);
    ensure!(
        said.trim_end().lines().count() == 1 && said.contains("CMI_ENDPOINT"),
        "{said}"
    );
    Ok(())
}

/// OPS-08, OPS-11, CMI-13, CMI-183, CMI-186
#[tokio::test]
async fn logs_go_to_standard_error_alone_and_hold_no_secret() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let endpoint = unix(folder.path());
    let plugin = Plugin::start(
        Plugin::command()
            .arg(format!("--endpoint={endpoint}"))
            .args(["-v", "9"])
            .current_dir(folder.path()),
    )
    .await?;
    let mut machines = MachineClient::new(connect(&endpoint).await?);
    let mut request = create("m-0");
    request
        .secrets
        .insert("token".to_owned(), b"canary-4711".to_vec());
    machines.create_machine(request.clone()).await?;
    request.provider_spec = b"{}".to_vec();
    machines
        .create_machine(request)
        .await
        .err()
        .context("the spec is no good")?;
    drop(machines);
    plugin.ask_to_stop().await?;
    let (status, log) = plugin.ended().await?;
    ensure!(status.success(), "{status}: {log}");
    ensure!(
        log.contains("CreateMachine") && log.contains("InvalidArgument"),
        "{log}"
    );
    ensure!(!log.contains("canary"), "{log}");
    let left = std::fs::read_dir(folder.path())?.count();
    ensure!(left == 0, "{left} files were left");
    Ok(())
}

/// More than twice the connections that a plugin serves.
const SILENT: usize = 600;
/// More files than a plugin has, with as many connections as it serves and as many that are being closed.
const MAX_FILES: usize = 560;

/// A client that has made a call keeps its connection. Silent clients evict each other, and are disconnected
/// after some seconds.
#[tokio::test]
async fn silent_clients_cost_a_plugin_neither_its_files_nor_its_callers() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("p.sock");
    for endpoint in [
        format!("unix://{}", socket.display()),
        "tcp://127.0.0.1:0".to_owned(),
    ] {
        let plugin = Plugin::start(Plugin::command().args(["--endpoint", &endpoint])).await?;
        let before = plugin.open_files()?;
        let mut caller = MachineClient::new(connect(&plugin.endpoint).await?);
        caller.create_machine(create("m-0")).await?;
        let mut silent = Vec::new();
        for _ in 0..SILENT {
            silent.push(silence(&plugin.endpoint).await?);
            ensure!(
                plugin.open_files()? < MAX_FILES,
                "the plugin holds too many connections"
            );
        }
        caller.create_machine(create("m-0")).await?;
        let mut late = MachineClient::new(connect(&plugin.endpoint).await?);
        late.create_machine(create("m-1")).await?;

        eventually(TIMEOUT, "an end of the silent connections", async || {
            let open = plugin.open_files()?;
            ensure!(
                open <= before + 2,
                "{open} files are open, and {before} were before"
            );
            Ok(())
        })
        .await?;
        caller.create_machine(create("m-0")).await?;
    }
    Ok(())
}

/// Opens a connection and sends nothing.
async fn silence(endpoint: &Endpoint) -> Result<Box<dyn Send>> {
    Ok(match endpoint {
        Endpoint::Unix(path) => Box::new(UnixStream::connect(path).await?),
        Endpoint::Tcp(address) | Endpoint::Tls(address) => {
            Box::new(TcpStream::connect((address.host.as_str(), address.port)).await?)
        }
    })
}

/// The error names the endpoint, its answer and the checks to make.
#[tokio::test]
async fn a_server_that_is_no_plugin_is_named_with_what_it_answered() -> Result<()> {
    let (_, health) = tonic_health::server::health_reporter();
    let grpc = TcpListener::bind("127.0.0.1:0").await?;
    let grpc_endpoint: Endpoint = format!("tcp://{}", grpc.local_addr()?).parse()?;
    let served = tonic::transport::Server::builder()
        .add_service(health)
        .serve_with_incoming(TcpListenerStream::new(grpc));
    let grpc = tokio::spawn(served);
    let http = TcpListener::bind("127.0.0.1:0").await?;
    let http_endpoint: Endpoint = format!("tcp://{}", http.local_addr()?).parse()?;
    let http = tokio::spawn(async move {
        while let Ok((mut stream, _)) = http.accept().await {
            let _ = stream
                .write_all(b"HTTP/1.1 505 HTTP Version Not Supported\r\n\r\n")
                .await;
        }
    });
    for (endpoint, found) in [
        (grpc_endpoint, "does not serve cmi.v1.Identity"),
        (
            http_endpoint,
            "the endpoint is an HTTP/1 server (`HTTP/1.1 505 HTTP Version Not Supported`)",
        ),
    ] {
        let Output { status, stdout, .. } = info(&endpoint, &[]).output().await?;
        let said = String::from_utf8(stdout)?;
        ensure!(status.code() == Some(1), "{status}: {said}");
        for part in [&endpoint.to_string(), found, "check the endpoint"] {
            ensure!(said.contains(part), "{part} is not in: {said}");
        }
    }
    grpc.abort();
    http.abort();
    Ok(())
}
