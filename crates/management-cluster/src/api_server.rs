//! kube-apiserver, for the management cluster and for the workload cluster.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use http::Request;
use kube::Client;
use rcgen::KeyPair;
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::{
    Programs,
    authority::Authority,
    etcd::Etcd,
    kubeconfig,
    port::{is_port_clash, with_free_ports},
    process::Process,
    run_folder::RunFolder,
};

const START_DEADLINE: Duration = Duration::from_mins(4);
/// More than a run records; unset, it is 100.
const AUDIT_LOG_MEGABYTES: u32 = 100_000;

/// The options of one kube-apiserver.
pub(crate) struct ApiServerOptions<'a> {
    /// Ends the name of its log, and names its folder and its part of etcd.
    pub name: &'a str,
    /// Where requests are recorded, if they are.
    pub audit_log: Option<&'a Path>,
    /// Whether to run the admission plugin that wants a `ServiceAccount` for every Pod, which
    /// needs a controller manager.
    pub service_account_admission: bool,
}

/// A running kube-apiserver and the credentials of its administrator.
#[derive(Debug)]
pub(crate) struct ApiServer {
    pub url: String,
    pub authority: String,
    pub admin_kubeconfig: PathBuf,
    /// Signs the tokens of service accounts.
    pub service_account_key: PathBuf,
    document: String,
    /// The command that started it, with its port.
    command: Command,
    /// Ends the name of its log.
    name: String,
    /// `None` while the server is killed.
    process: Mutex<Option<Process>>,
}

impl ApiServer {
    pub(crate) async fn start(
        programs: &Programs,
        folder: &RunFolder,
        etcd: &Etcd,
        options: &ApiServerOptions<'_>,
    ) -> Result<Self> {
        let name = options.name;
        let own = folder.path().join(name);
        fs::create_dir_all(&own).with_context(|| format!("creating {}", own.display()))?;
        let authority = Authority::new(name)?;
        let serving = authority.issue(name)?;
        fs::write(own.join("tls.crt"), serving.certificate)?;
        fs::write(own.join("tls.key"), serving.key)?;
        let service_account = KeyPair::generate().context("generating the key of service account tokens")?;
        fs::write(own.join("service-account.key"), service_account.serialize_pem())?;
        fs::write(own.join("service-account.pub"), service_account.public_key_pem())?;
        let token = Uuid::new_v4().to_string();
        fs::write(
            own.join("tokens.csv"),
            format!("{token},admin,admin,system:masters\n"),
        )?;
        with_free_ports(async |[port]: [u16; 1]| {
            let url = format!("https://127.0.0.1:{port}");
            let document = kubeconfig::render(&url, authority.certificate(), &token)?;
            let mut command = command(programs, &own, etcd, options, port);
            if let Some(audit_log) = options.audit_log {
                audit(&mut command, &own, audit_log)?;
            }
            let mut process = Process::start(folder, &log_name(name), &command)?;
            let client = kubeconfig::client(&document).await?;
            process
                .wait_until(START_DEADLINE, || is_ready(client.clone()))
                .await?;
            Ok(Self {
                url,
                authority: authority.certificate().to_owned(),
                admin_kubeconfig: kubeconfig::write(own.join("admin.kubeconfig"), &document)?,
                service_account_key: own.join("service-account.key"),
                document,
                command,
                name: name.to_owned(),
                process: Mutex::new(Some(process)),
            })
        })
        .await
        .with_context(|| format!("starting kube-apiserver for {name}"))
    }

    /// Kills the server with `SIGKILL`, if it runs.
    pub(crate) async fn kill(&self) {
        *self.process.lock().await = None;
    }

    /// Starts the server again after [`ApiServer::kill`], unless it runs: at the same address, with the same
    /// data and credentials. Returns when it is ready.
    pub(crate) async fn revive(&self, folder: &RunFolder) -> Result<()> {
        let mut held = self.process.lock().await;
        if let Some(process) = held.as_mut()
            && process.status()?.is_none()
        {
            return Ok(());
        }
        let what = || format!("starting kube-apiserver for {} again", self.name);
        let client = self.admin_client().await?;
        let expiry = Instant::now() + START_DEADLINE;
        loop {
            let mut process =
                Process::start(folder, &log_name(&self.name), &self.command).with_context(what)?;
            // Owns its client, so that the future of this function can be sent to another thread.
            let own = client.clone();
            let ready = move || is_ready(own.clone());
            match process.wait_until(START_DEADLINE, ready).await {
                Ok(()) => {
                    *held = Some(process);
                    return Ok(());
                }
                // The port is in the range of outgoing connections, so another client may use it for a
                // moment.
                Err(error) if is_port_clash(&error) && Instant::now() < expiry => {}
                Err(error) => return Err(error).with_context(what),
            }
        }
    }

    pub(crate) async fn admin_client(&self) -> Result<Client> {
        kubeconfig::client(&self.document).await
    }

    /// The administrator's kubeconfig.
    pub(crate) fn admin_document(&self) -> &str {
        &self.document
    }
}

fn log_name(name: &str) -> String {
    format!("kube-apiserver-{name}")
}

fn command(
    programs: &Programs,
    own: &Path,
    etcd: &Etcd,
    options: &ApiServerOptions<'_>,
    port: u16,
) -> Command {
    let file = |flag: &str, name: &str| format!("--{flag}={}", own.join(name).display());
    let mut command = Command::new(&programs.kube_apiserver);
    command
        .arg(format!("--etcd-servers={}", etcd.url))
        .arg(format!("--etcd-prefix=/{}", options.name))
        .arg(format!("--secure-port={port}"))
        .args([
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
        ])
        .args([
            file("cert-dir", "."),
            file("tls-cert-file", "tls.crt"),
            file("tls-private-key-file", "tls.key"),
        ])
        .arg(file("token-auth-file", "tokens.csv"))
        .arg("--enable-bootstrap-token-auth")
        .arg("--authorization-mode=RBAC")
        .arg("--service-account-issuer=https://kubernetes.default.svc")
        .arg(file("service-account-key-file", "service-account.pub"))
        .arg(file("service-account-signing-key-file", "service-account.key"))
        .arg("--service-cluster-ip-range=10.0.0.0/24")
        // Nothing is to be queued or refused because others are busy: tests and the
        // benchmark measure the provider.
        .args([
            "--enable-priority-and-fairness=false",
            "--max-requests-inflight=0",
        ])
        .arg("--max-mutating-requests-inflight=0");
    if !options.service_account_admission {
        command.arg("--disable-admission-plugins=ServiceAccount");
    }
    command
}

/// Records every request with its verb, user and resource, before its answer is sent.
///
/// The log is one file: kube-apiserver begins another one when the log has its greatest size, and the
/// requests in the first one would look as if they were never made.
fn audit(command: &mut Command, own: &Path, audit_log: &Path) -> Result<()> {
    const POLICY: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n\
                          omitManagedFields: true\nrules: [{level: Metadata}]\n";
    let policy = own.join("audit-policy.yaml");
    fs::write(&policy, POLICY).context("writing the audit policy")?;
    command
        .arg(format!("--audit-policy-file={}", policy.display()))
        .arg(format!("--audit-log-path={}", audit_log.display()))
        .arg("--audit-log-mode=blocking")
        .arg(format!("--audit-log-maxsize={AUDIT_LOG_MEGABYTES}"));
    Ok(())
}

async fn is_ready(client: Client) -> bool {
    let Ok(request) = Request::get("/readyz").body(Vec::new()) else {
        return false;
    };
    client.request_text(request).await.is_ok()
}
