//! Builds a manager from flags. Flags have the names of Cluster API's managers, where those have such a flag.

use std::num::NonZeroU16;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{ArgAction, Args, ValueEnum};
use kube::config::{KubeConfigOptions, Kubeconfig};
use sha2::{Digest as _, Sha256};

use super::address::BindAddress;
use super::{CommandError, ResultExt as _, drivers};
use crate::manager::{
    self, ApiServer, ControllerOptions, Diagnostics, Election, OrphanOptions, Protocol, RuntimeExtension,
    Setup, Timing,
};
use crate::nodes::workload_cluster;
use crate::telemetry::metrics::Metrics;
use cmi_grpc::cli::{duration, signals};
use cmi_grpc::server::{CertificateFiles, ServerTls};

/// The name of the Lease, after the custom of Cluster API's managers. For a provider that watches only some
/// of the objects, it is the beginning of the name.
const LEASE: &str = "controller-leader-election-capcmi";

/// Flags of `capcmi-manager`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Drivers file.
    #[arg(long, env = "CAPCMI_DRIVERS_CONFIG", value_name = "FILE")]
    drivers_config: PathBuf,
    /// Kubeconfig. Default: KUBECONFIG, ~/.kube/config or the pod's service account.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Use HTTP/2 to the API server if available; otherwise HTTP/1.1.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_value_t = true, default_missing_value = "true", value_name = "BOOL")]
    kube_api_http2: bool,
    /// Watch only this namespace. Default: all namespaces.
    #[arg(long, value_name = "NAMESPACE", default_value = "", hide_default_value = true)]
    namespace: String,
    /// Watch only objects of the provider whose label cluster.x-k8s.io/watch-filter has this value.
    #[arg(long, value_name = "VALUE", default_value = "", hide_default_value = true)]
    watch_filter: String,
    #[command(flatten)]
    election: ElectionArgs,
    #[command(flatten)]
    servers: ServerArgs,
    #[command(flatten)]
    runtime_extension: RuntimeExtensionArgs,
    #[command(flatten)]
    work: WorkArgs,
}

/// Which of several replicas acts.
#[derive(Debug, Args)]
#[command(next_help_heading = "Leader election")]
struct ElectionArgs {
    /// Act only while holding a Lease; required with several replicas. Replicas with the same --namespace and
    /// --watch-filter share a Lease.
    #[arg(long = "leader-elect", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_value_t = false, default_missing_value = "true", value_name = "BOOL")]
    wanted: bool,
    /// Time until another replica may replace a leader that stopped renewing the Lease.
    // A follower reads the Lease at intervals of the retry period and up to a fifth more. It counts from when
    // it saw the last renewal. With these times, a killed leader is replaced within 14 s.
    #[arg(long = "leader-elect-lease-duration", value_parser = duration::parse, default_value = "10s",
        value_name = "TIME")]
    lease_duration: Duration,
    /// Time until a leader stops if it cannot renew the Lease.
    #[arg(long = "leader-elect-renew-deadline", value_parser = duration::parse, default_value = "7s",
        value_name = "TIME")]
    renew_deadline: Duration,
    /// Interval between attempts to acquire or renew the Lease.
    #[arg(long = "leader-elect-retry-period", value_parser = duration::parse, default_value = "1.5s",
        value_name = "TIME")]
    retry_period: Duration,
    /// Namespace of the Lease. Default: the namespace of the pod or the kubeconfig.
    #[arg(
        id = "lease_namespace",
        long = "leader-elect-resource-namespace",
        env = "POD_NAMESPACE",
        value_name = "NAMESPACE"
    )]
    namespace: Option<String>,
}

/// Flags of the HTTP servers.
#[derive(Debug, Args)]
#[command(next_help_heading = "Health and metrics")]
struct ServerArgs {
    /// Address of /healthz and /readyz, over HTTP.
    #[arg(long, default_value = ":9440", value_name = "ADDRESS")]
    health_addr: BindAddress,
    /// Address of /metrics, over HTTPS, for callers that the API server allows to `get` it.
    #[arg(long, default_value = ":8443", value_name = "ADDRESS")]
    diagnostics_address: BindAddress,
    /// Serve /metrics over HTTP, to every caller.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_value_t = false, default_missing_value = "true", value_name = "BOOL")]
    insecure_diagnostics: bool,
}

/// Flags of the Runtime Extension.
#[derive(Debug, Args)]
#[command(next_help_heading = "Updates in place")]
struct RuntimeExtensionArgs {
    /// Address of the Runtime Extension for updates in place, over HTTPS. Default: not served. Requires
    /// config/components/in-place-updates.
    #[arg(
        id = "runtime_extension_address",
        long = "runtime-extension-address",
        value_name = "ADDRESS"
    )]
    address: Option<BindAddress>,
    /// Directory with tls.crt and tls.key for that address, reloaded on change.
    #[arg(
        long = "runtime-extension-cert-dir",
        value_name = "FOLDER",
        default_value = "/tmp/k8s-runtime-extension-server/serving-certs"
    )]
    cert_dir: PathBuf,
    /// PEM file with the CAs of clients that may call the Runtime Extension (core's
    /// --runtime-extension-client-cert-file). Default: every client may.
    #[arg(long = "runtime-extension-client-ca-file", value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
}

/// Flags of the controllers.
#[derive(Debug, Args)]
#[command(next_help_heading = "Work")]
struct WorkArgs {
    /// Number of InfraMachines that are reconciled concurrently, in addition to those in a driver call
    /// (maxConcurrentCalls).
    #[arg(long, default_value = "32", value_name = "NUMBER")]
    inframachine_concurrency: NonZeroU16,
    /// As --inframachine-concurrency, for InfraMachineTemplates.
    #[arg(long, default_value = "4", value_name = "NUMBER")]
    inframachinetemplate_concurrency: NonZeroU16,
    /// As --inframachine-concurrency, for InfraClusters.
    #[arg(long, default_value = "8", value_name = "NUMBER")]
    infracluster_concurrency: NonZeroU16,
    /// Interval between lists of the VMs of a driver and class, which find vanished and changed VMs.
    #[arg(long, value_parser = duration::parse, default_value = "1m", value_name = "TIME")]
    inventory_interval: Duration,
    /// Number of machines of a driver up to which each VM is looked up every 10 minutes, if lists have no
    /// addresses and power states. 0: never.
    #[arg(long, default_value = "1000", value_name = "NUMBER")]
    max_refreshed_machines: usize,
    /// Time until InfraClusters and running machines report that a driver is unreachable, or reachable again.
    #[arg(long, value_parser = duration::parse, default_value = "1m", value_name = "TIME")]
    driver_unreachable_grace: Duration,
    /// Restart the VMs of unhealthy Machines as InfraMachineRemediations specify. Requires
    /// config/components/remediation.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_value_t = false, default_missing_value = "true", value_name = "BOOL")]
    enable_remediation: bool,
    /// Evict pods with volumes one at a time when a Machine with the annotation
    /// infrastructure.capcmi.io/volume-drain is deleted. Requires config/components/volume-drain.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_value_t = false, default_missing_value = "true", value_name = "BOOL")]
    enable_volume_drain: bool,
    #[command(flatten)]
    orphans: OrphanArgs,
    /// Time for running reconciles to end after SIGTERM.
    #[arg(long, value_parser = duration::parse, default_value = "30s", value_name = "TIME")]
    graceful_shutdown_timeout: Duration,
}

/// Flags for VMs without an InfraMachine.
#[derive(Debug, Args)]
struct OrphanArgs {
    /// VMs without an InfraMachine: `report` them, or also `delete` those whose InfraMachine this process saw
    /// being deleted.
    #[arg(long, value_enum, default_value_t = Orphans::Report, value_name = "MODE")]
    orphans: Orphans,
    /// Interval between scans for orphans: one list call for each class, at most 512 for a driver.
    #[arg(long, value_parser = duration::parse, default_value = "10m", value_name = "TIME")]
    orphans_interval: Duration,
    /// Minimum age of a VM that is deleted as an orphan.
    #[arg(long, value_parser = duration::parse, default_value = "1h", value_name = "TIME")]
    orphans_min_age: Duration,
    /// Maximum number of orphans that one scan deletes at a driver.
    #[arg(long, default_value = "10", value_name = "NUMBER")]
    orphans_max_deletes: NonZeroU16,
}

/// Handling of orphans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Orphans {
    /// Report them.
    Report,
    /// Report them, and delete proven orphans.
    Delete,
}

impl RunArgs {
    /// Runs the manager until it is asked to stop.
    ///
    /// # Errors
    /// A flag or the drivers file is wrong, or the manager ended by itself.
    pub async fn run(self) -> Result<(), CommandError> {
        let drivers = drivers::load(&self.drivers_config)?;
        let api_server = api_server(self.kubeconfig).await?;
        let lease = lease(&self.namespace, &self.watch_filter);
        let election = self.election.election(&api_server.default_namespace, lease)?;
        let stop = signals::asked_to_stop().context("cannot listen for signals")?;
        let setup = Setup {
            api_server: ApiServer::Network {
                config: Box::new(api_server),
                protocol: if self.kube_api_http2 {
                    Protocol::Http2
                } else {
                    Protocol::Http1
                },
            },
            dial: workload_cluster::network(),
            metrics: Arc::new(Metrics::new()),
            drivers,
            election,
            options: self.work.options(self.namespace, self.watch_filter),
            health: self.servers.health_addr.bind().await?,
            diagnostics: self.servers.diagnostics().await?,
            runtime_extension: self.runtime_extension.listen().await?,
            grace: self.work.graceful_shutdown_timeout,
        };
        tracing::info!(version = env!("CARGO_PKG_VERSION"), "starting");
        Ok(manager::run(setup, stop).await?)
    }
}

/// Returns the configuration that reaches the API server.
pub async fn api_server(kubeconfig: Option<PathBuf>) -> Result<kube::Config, CommandError> {
    let Some(path) = kubeconfig else {
        return kube::Config::infer()
            .await
            .context("cannot find the API server: set --kubeconfig, or run in a pod")
            .misconfigured();
    };
    let what = || format!("cannot read kubeconfig {}", path.display());
    let kubeconfig = Kubeconfig::read_from(&path).with_context(what).misconfigured()?;
    kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .with_context(what)
        .misconfigured()
}

/// Returns the name of a provider's Lease: one for all replicas that watch the same objects. A replica that
/// watches other objects must not stand by for them.
fn lease(namespace: &str, watch_filter: &str) -> String {
    if namespace.is_empty() && watch_filter.is_empty() {
        return LEASE.to_owned();
    }
    // Hashed, since the value of a label may have characters that a name may not have. Neither of the two
    // values has a line break.
    let hash = Sha256::digest(format!("{namespace}\n{watch_filter}"));
    let short = hash
        .iter()
        .take(8)
        .fold(0, |all: u64, byte| (all << 8) | u64::from(*byte));
    format!("{LEASE}-{short:016x}")
}

impl ElectionArgs {
    fn election(self, default_namespace: &str, lease: String) -> Result<Option<Election>, CommandError> {
        let timing = Timing::new(self.lease_duration, self.renew_deadline, self.retry_period)
            .context("invalid leader election flags")
            .misconfigured()?;
        if !self.wanted {
            return Ok(None);
        }
        Ok(Some(Election {
            namespace: self
                .namespace
                .filter(|namespace| !namespace.is_empty())
                .unwrap_or_else(|| default_namespace.to_owned()),
            lease,
            identity: manager::holder_identity(&host_name()),
            timing,
        }))
    }
}

impl ServerArgs {
    async fn diagnostics(&self) -> anyhow::Result<Diagnostics> {
        let listener = self.diagnostics_address.bind().await?;
        Ok(if self.insecure_diagnostics {
            Diagnostics::Insecure(listener)
        } else {
            Diagnostics::Secure(listener)
        })
    }
}

impl RuntimeExtensionArgs {
    async fn listen(self) -> Result<Option<RuntimeExtension>, CommandError> {
        let Some(address) = self.address else {
            return Ok(None);
        };
        let tls = ServerTls::http1(CertificateFiles {
            certificate: self.cert_dir.join("tls.crt"),
            key: self.cert_dir.join("tls.key"),
            client_authorities: self.client_ca_file,
        });
        tls.check()
            .context("cannot use the certificates of the Runtime Extension")
            .misconfigured()?;
        let listener = address.bind().await?;
        Ok(Some(RuntimeExtension::Https {
            listener,
            tls: Arc::new(tls),
        }))
    }
}

impl OrphanArgs {
    fn options(&self) -> OrphanOptions {
        OrphanOptions {
            delete: self.orphans == Orphans::Delete,
            interval: self.orphans_interval,
            min_age: self.orphans_min_age,
            max_deletes: self.orphans_max_deletes.get().into(),
        }
    }
}

impl WorkArgs {
    fn options(&self, namespace: String, watch_filter: String) -> ControllerOptions {
        let given = |text: String| (!text.is_empty()).then_some(text);
        ControllerOptions {
            namespace: given(namespace),
            watch_filter: given(watch_filter),
            machine_concurrency: self.inframachine_concurrency.get(),
            template_concurrency: self.inframachinetemplate_concurrency.get(),
            cluster_concurrency: self.infracluster_concurrency.get(),
            inventory_interval: self.inventory_interval,
            max_refreshed_machines: self.max_refreshed_machines,
            driver_unreachable_grace: self.driver_unreachable_grace,
            orphans: self.orphans.options(),
            remediation: self.enable_remediation,
            volume_drain: self.enable_volume_drain,
            reporter: host_name(),
        }
    }
}

/// Returns the host name, usually the name of the pod, for operators.
fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .ok()
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "capcmi".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::Manager;
    use super::*;

    fn args(flags: &[&str]) -> RunArgs {
        let all = ["capcmi-manager", "--drivers-config=d.yaml"].iter().chain(flags);
        Manager::try_parse_from(all).unwrap().run
    }

    #[test]
    fn flags_are_written_as_cluster_api_managers_take_them() {
        let args = args(&[
            "--leader-elect",
            "--leader-elect-lease-duration=30s",
            "--insecure-diagnostics=false",
            "--namespace=",
            "--watch-filter=red",
            "--watch-filter=blue",
            "--diagnostics-address=127.0.0.1:8080",
        ]);
        assert!(args.election.wanted && !args.servers.insecure_diagnostics);
        let election = args.election.election("ns", "lease".to_owned());
        let election = election.unwrap_or(None).unwrap();
        assert_eq!(
            (election.namespace.as_str(), election.lease.as_str()),
            ("ns", "lease")
        );
        let options = args.work.options(args.namespace, args.watch_filter);
        assert_eq!(
            (options.namespace, options.watch_filter),
            (None, Some("blue".to_owned()))
        );
    }

    #[test]
    fn no_leader_is_elected_unless_it_is_asked_for() {
        for flags in [&[][..], &["--leader-elect=false"]] {
            let election = args(flags).election.election("ns", LEASE.to_owned());
            assert!(election.unwrap_or(None).is_none(), "{flags:?}");
        }
    }

    /// Otherwise the second would stand by for the first, and its machines would wait forever.
    #[test]
    fn providers_that_look_at_different_objects_do_not_share_a_lease() {
        let scopes = [
            ("", ""),
            ("", "Red_1"),
            ("", "blue"),
            ("blue", ""),
            ("blue", "blue"),
        ];
        let mut names: Vec<_> = scopes.map(|(namespace, filter)| lease(namespace, filter)).into();
        assert_eq!(
            names[0], "controller-leader-election-capcmi",
            "that of all objects stays"
        );
        assert_eq!(names[1], lease("", "Red_1"), "that of two replicas is the same");
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(
            names.iter().all(|name| name.len() < 64 && name.chars().all(fits)),
            "{names:?}"
        );
        names.sort();
        names.dedup();
        assert_eq!(names.len(), scopes.len(), "none twice: {names:?}");
    }

    #[test]
    fn times_that_do_not_fit_together_are_a_misconfiguration() {
        let args = args(&["--leader-elect-lease-duration=5s"]);
        let failure = args.election.election("ns", LEASE.to_owned()).unwrap_err();
        assert!(matches!(failure, CommandError::Misconfigured(_)));
        assert!(
            failure.message().contains("renew-deadline"),
            "{}",
            failure.message()
        );
    }
}
