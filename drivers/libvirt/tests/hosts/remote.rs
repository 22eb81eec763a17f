//! Hosts that are reached over the network: `qemu+tls://` and `qemu+ssh://`.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use capcmi_driver_libvirt::LibvirtDriver;
use cmi_driver::Code;
use serde_json::json;
use tokio::io::copy;
use tokio::net::{TcpListener, TcpStream};

use crate::lab::machines::{code, create, delete, status};
use crate::lab::{self, HOSTS, Lab, eventually, machine};

const HOST: &str = HOSTS[0];
/// Where libvirtd listens, on the host.
const TLS_PORT: &str = "16514";
const SCRIPT: &str = "```sh\n";

/// A process that ends with this.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait()) {
            eprintln!("a process could not be ended: {error}");
        }
    }
}

fn run(command: &mut Command) -> Result<()> {
    let ran = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(
        ran.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&ran.stderr)
    );
    Ok(())
}

/// Makes certificates for the host `localhost` as the documentation has it.
fn certificates(folder: &Path) -> Result<()> {
    let page = fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/back-ends/libvirt-hosts.md"),
    )?;
    let (_, section) = page
        .split_once("### Hosts over TLS\n")
        .context("no section about TLS")?;
    let (_, script) = section.split_once(SCRIPT).context("no script")?;
    let (script, _) = script.split_once("```").context("it does not end")?;
    let script = script.replacen("host=b.example ", "host=localhost ", 1);
    ensure!(script.contains("localhost"), "the script names no host: {script}");
    fs::create_dir(folder)?;
    run(Command::new("bash").args(["-euc", &script]).current_dir(folder))
}

/// Passes connections on to a port of a host, whose network is its own. Returns the port here.
async fn pass_on(lab: &Lab, host: &str, port: &'static str) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let here = listener.local_addr()?.port();
    let namespace = format!("--net=/proc/{}/ns/net", lab.libvirtd(host)?);
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let passed = pass(connection, namespace.clone(), port);
            tokio::spawn(async move {
                if let Err(error) = passed.await {
                    eprintln!("a connection was not passed on: {error:#}");
                }
            });
        }
    });
    Ok(here)
}

async fn pass(mut connection: TcpStream, namespace: String, port: &str) -> Result<()> {
    let mut there = tokio::process::Command::new("nsenter")
        .args([namespace.as_str(), "busybox", "nc", "127.0.0.1", port])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let (mut input, mut output) = connection.split();
    let mut to = there.stdin.take().context("no input")?;
    let mut from = there.stdout.take().context("no output")?;
    tokio::select! {
        sent = copy(&mut input, &mut to) => sent?,
        got = copy(&mut from, &mut output) => got?,
    };
    Ok(())
}

/// A driver that reaches the host, and only it, by this URI.
fn driver_at(lab: &Lab, uri: &str) -> Result<LibvirtDriver> {
    lab.driver_with(&json!({"hosts": {HOST: {"uri": uri}}}))
}

/// A machine comes and goes.
async fn serves(lab: &Lab, driver: &LibvirtDriver) -> Result<()> {
    let machine = machine("far", &json!({"failureDomain": HOST}), &vec![b'#'; 1 << 20]);
    create(driver, &machine).await?;
    status(driver, &machine, None).await?;
    delete(driver, &machine, None).await?;
    assert_eq!(lab.left()?, Vec::<String>::new());
    Ok(())
}

/// DRV-04
#[tokio::test]
async fn the_documented_certificates_reach_a_host_over_tls() -> Result<()> {
    let Some(lab) = lab::lab_of(&[HOST]).await? else {
        return Ok(());
    };
    let [ours, theirs] = ["ours", "theirs"].map(|name| lab.folder().join(name));
    certificates(&ours)?;
    certificates(&theirs)?;
    let at = |file: &str| ours.join(file).display().to_string();
    let listen = format!(
        "listen_tls = 1\nlisten_tcp = 0\nlisten_addr = \"127.0.0.1\"\ntls_port = \"{TLS_PORT}\"\n\
         ca_file = \"{}\"\ncert_file = \"{}\"\nkey_file = \"{}\"\n",
        at("cacert.pem"),
        at("servercert.pem"),
        at("serverkey.pem")
    );
    let configuration = lab.of(HOST).join("etc/libvirtd.conf");
    lab.stop(HOST)?;
    OpenOptions::new()
        .append(true)
        .open(configuration)?
        .write_all(listen.as_bytes())?;
    lab.resume(HOST)?;
    let port = pass_on(&lab, HOST, TLS_PORT).await?;
    let uri =
        |host: &str, folder: &Path| format!("qemu+tls://{host}:{port}/system?pkipath={}", folder.display());

    serves(&lab, &driver_at(&lab, &uri("localhost", &ours))?).await?;
    // The host does not know this driver, which itself trusts both authorities.
    let stranger = lab.folder().join("stranger");
    fs::create_dir(&stranger)?;
    for file in ["clientcert.pem", "clientkey.pem"] {
        fs::copy(theirs.join(file), stranger.join(file))?;
    }
    let both = [&ours, &theirs].map(|folder| fs::read(folder.join("cacert.pem")));
    let [of_ours, of_theirs] = both;
    fs::write(stranger.join("cacert.pem"), [of_ours?, of_theirs?].concat())?;
    // The driver does not know this host, or by another name.
    for (name, folder) in [
        ("localhost", &stranger),
        ("localhost", &theirs),
        ("127.0.0.1", &ours),
    ] {
        let driver = driver_at(&lab, &uri(name, folder))?;
        let refused = status(
            &driver,
            &machine("far", &json!({"failureDomain": HOST}), b""),
            None,
        )
        .await;
        ensure!(
            // A host of TLS 1.3 closes the connection on a driver that it does not know.
            matches!(code(&refused), Some(Code::Unauthenticated | Code::Unavailable)),
            "{name} with {}: {refused:?}",
            folder.display()
        );
    }
    Ok(())
}

/// DRV-04
#[tokio::test]
async fn a_host_is_reached_over_ssh_with_a_key() -> Result<()> {
    let Some(lab) = lab::lab_of(&[HOST]).await? else {
        return Ok(());
    };
    let folder = lab.folder().join("ssh");
    fs::create_dir(&folder)?;
    let at = |file: &str| folder.join(file).display().to_string();
    run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &at("key")]))?;
    let port = testbed::free_address()?
        .rsplit(':')
        .next()
        .unwrap_or_default()
        .to_owned();
    // It has the key in the home of its user, and libvirt where that usually is; no other program sees that.
    let serve = format!(
        "set -e; mount -t tmpfs -o mode=700 tmpfs ~root; mkdir -m 700 ~root/.ssh
         install -m 600 {key}.pub ~root/.ssh/authorized_keys
         exec dropbear -F -E -R -s -r {host_key} -p 127.0.0.1:{port}",
        key = at("key"),
        host_key = at("host-key"),
    );
    run(Command::new("dropbearkey").args(["-t", "ed25519", "-f", &at("host-key")]))?;
    let log = fs::File::create(folder.join("server.log"))?;
    let _server = Process(
        Command::new("setpriv")
            .args([
                "--pdeathsig",
                "KILL",
                "--",
                "nsenter",
                "--mount",
                "--target",
                &lab.libvirtd(HOST)?,
            ])
            .args([
                "--",
                "unshare",
                "--mount",
                "--propagation",
                "private",
                "bash",
                "-c",
            ])
            .arg(serve)
            .stderr(log)
            .spawn()?,
    );
    // The user's known hosts remain unchanged.
    let client = format!(
        "#!/bin/sh\nexec ssh -F none -o UserKnownHostsFile={} \"$@\"\n",
        at("known-hosts")
    );
    fs::write(folder.join("client"), client)?;
    fs::set_permissions(folder.join("client"), fs::Permissions::from_mode(0o755))?;
    let uri = format!(
        "qemu+ssh://root@127.0.0.1:{port}/system?keyfile={}&command={}&no_tty=1&no_verify=1",
        at("key"),
        at("client"),
    );
    let driver = driver_at(&lab, &uri)?;
    let reached = eventually("the way to the host", async || {
        let seen = status(
            &driver,
            &machine("far", &json!({"failureDomain": HOST}), b""),
            None,
        )
        .await;
        ensure!(code(&seen) == Some(Code::NotFound), "{seen:?}");
        Ok(())
    });
    reached
        .await
        .with_context(|| fs::read_to_string(at("server.log")).unwrap_or_default())?;
    serves(&lab, &driver).await
}
