//! What happens, in order.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::Client;
use management_cluster::{
    CLUSTER_API_VERSION, KUBERNETES_VERSION, ManagementCluster, Programs, apply, stand_in,
};
use serde_json::{Value, json};
use testbed::{Launch, Launched};

use crate::backend::{Backend, StandInDriver, program};
use crate::checks;
use crate::fleet::{Fleet, Row};
use crate::screen::Screen;

/// Name of the sample's Cluster and of its MachineDeployment.
pub const NAME: &str = "quickstart";
/// Where the sample is applied: where a user's kubectl puts it.
pub const NAMESPACE: &str = "default";

const SAMPLE: &str = include_str!("../../config/samples/machine-deployment.yaml");
const SAMPLE_PATH: &str = "config/samples/machine-deployment.yaml";
/// Replicas of the sample, before and after it is scaled.
const FIRST: usize = 3;
const THEN: usize = 5;
/// How long machines may take to become Running; far more than is usual, for a computer that is busy.
const DEADLINE: Duration = Duration::from_mins(5);
/// How often the machines are looked at while they come up, and later.
const LOOK: Duration = Duration::from_millis(200);
const LATER_LOOK: Duration = Duration::from_secs(1);

/// Brings everything up; in a terminal it then stays for good.
pub async fn run(screen: &Screen, driver: StandInDriver) -> Result<()> {
    let binary = program("capcmi-manager")?;
    screen.doing(&format!(
        "looking for Kubernetes {KUBERNETES_VERSION} and Cluster API {CLUSTER_API_VERSION}; the first time, \
            they are built"
    ));
    Programs::find().await?;
    screen.doing("starting etcd, kube-apiserver, kube-controller-manager and Cluster API");
    let management = ManagementCluster::builder()
        .manifests(testbed::definitions()?)
        .start()
        .await?;
    let outcome = bring_up(screen, &management, binary, driver).await;
    if outcome.is_err() {
        screen.close();
        management.folder().keep();
    }
    outcome
}

async fn bring_up(
    screen: &Screen,
    management: &ManagementCluster,
    binary: PathBuf,
    driver: StandInDriver,
) -> Result<()> {
    screen.doing("installing the provider's manifests: config/default");
    testbed::install(management).await?;
    // Before the provider, and so removed after it.
    let backend = Backend::start(driver, screen, management).await?;
    let name = backend.name();
    screen.doing(&format!(
        "starting capcmi under its ServiceAccount, with the {name} driver"
    ));
    let mut provider = start_provider(management, binary.clone(), &backend.drivers()).await?;
    screen.doing("starting a workload cluster for the machines to join");
    let workload = management.workload().await?;
    let _kubelets = backend.kubelets(management).await?;
    screen.doing("making stand-ins of a control plane and of bootstrap data");
    let admin = management.admin_client().await?;
    let control_plane = stand_in::create_control_plane(management, NAMESPACE, NAME).await?;
    apply(&admin, bootstrap_secret(&workload.bootstrap_data()?)).await?;

    screen.doing(&format!("applying {SAMPLE_PATH}: a MachineDeployment of {FIRST}"));
    apply_sample(&admin, &control_plane, backend.name()).await?;
    let fleet = Fleet::new(&admin, Some(workload.admin_client().await?));
    screen.open();
    let first = running(screen, &fleet, &mut provider, FIRST).await?;
    checks::rows(&first, FIRST)?;
    screen.doing(&format!("{FIRST} Machines are Running; scaling to {THEN}"));
    fleet.scale(THEN).await?;
    let then = running(screen, &fleet, &mut provider, THEN).await?;
    checks::rows(&then, THEN)?;
    checks::kept(&first, &then)?;
    checks::provider(&mut provider, THEN, backend.makes_at_once()).await?;

    if !screen.is_terminal() {
        screen.doing(&format!(
            "{THEN} Machines are Running, each with one VM, one Node and one providerID"
        ));
        backend.consoles(&then).iter().for_each(|line| screen.say(line));
        return Ok(());
    }
    let capcmi = binary.with_file_name("capcmi");
    let how_to_reach = how_to_reach(management, &capcmi, workload.admin_kubeconfig());
    loop {
        let rows = fleet.look().await?;
        screen.note(&[how_to_reach.clone(), backend.consoles(&rows)].concat());
        let running = rows.iter().filter(|row| row.is_running()).count();
        screen.doing(&format!(
            "{running} of {} Machines are Running. Ctrl-C ends everything",
            rows.len()
        ));
        screen.show(rows);
        tokio::time::sleep(LATER_LOOK).await;
        if let Some(status) = provider.process.status()? {
            bail!("the provider ended with {status}");
        }
    }
}

/// Starts the provider with this drivers file.
pub async fn start_provider(
    management: &ManagementCluster,
    binary: PathBuf,
    drivers: &Value,
) -> Result<Launched> {
    let file = management.folder().path().join("drivers.yaml");
    std::fs::write(&file, drivers.to_string()).context("writing the drivers file")?;
    let launch = Launch {
        binary,
        name: "capcmi".to_owned(),
        drivers: file,
        kubeconfig: testbed::service_account(management).await?,
        // For the checks, which ask it without a token.
        flags: vec!["--insecure-diagnostics".to_owned()],
    };
    let mut provider = launch.start(management)?;
    provider.ready(DEADLINE).await?;
    Ok(provider)
}

fn bootstrap_secret(data: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "cluster.x-k8s.io/secret",
        "metadata": {
            "name": format!("{NAME}-bootstrap"), "namespace": NAMESPACE,
            "labels": {"cluster.x-k8s.io/cluster-name": NAME},
        },
        "stringData": {"value": data, "format": "cloud-config"},
    })
}

/// Applies the sample with this driver; the Cluster also gets its control plane.
async fn apply_sample(admin: &Client, control_plane: &Value, driver: &str) -> Result<()> {
    let objects: Vec<Value> = objects_of(SAMPLE)?;
    for mut object in objects {
        if object["kind"] == "Cluster" {
            object["spec"]["controlPlaneRef"] = control_plane.clone();
        }
        for spec in ["/spec", "/spec/template/spec"] {
            if let Some(named) = object.pointer_mut(&format!("{spec}/driver")) {
                *named = json!(driver);
            }
        }
        apply(admin, object).await?;
    }
    Ok(())
}

fn objects_of(text: &str) -> Result<Vec<Value>> {
    serde_saphyr::from_multiple(text).with_context(|| format!("reading {SAMPLE_PATH}"))
}

/// Shows the machines until this many, and no others, are Running.
async fn running(screen: &Screen, fleet: &Fleet, provider: &mut Launched, count: usize) -> Result<Vec<Row>> {
    let expiry = Instant::now() + DEADLINE;
    loop {
        let rows = fleet.look().await?;
        screen.show(rows.clone());
        if screen.is_terminal() {
            let running = rows.iter().filter(|row| row.is_running()).count();
            screen.doing(&format!(
                "MachineDeployment {NAME}: {running} of {count} Machines are Running"
            ));
        }
        if rows.len() == count && rows.iter().all(Row::is_running) {
            return Ok(rows);
        }
        if let Some(status) = provider.process.status()? {
            bail!("the provider ended with {status}");
        }
        if Instant::now() >= expiry {
            bail!("{count} Running Machines were awaited for {DEADLINE:?}: {rows:#?}");
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn how_to_reach(management: &ManagementCluster, capcmi: &Path, workload: &Path) -> Vec<String> {
    vec![
        "In another terminal:".to_owned(),
        format!("  export KUBECONFIG={}", management.admin_kubeconfig().display()),
        format!(
            "  alias kubectl={} capcmi={}",
            management.programs().kubectl.display(),
            capcmi.display()
        ),
        "  kubectl get machines,inframachines -o wide".to_owned(),
        "  capcmi describe machine NAME".to_owned(),
        format!("  kubectl scale machinedeployment {NAME} --replicas=7"),
        format!("  kubectl get nodes --kubeconfig={}", workload.display()),
        format!(
            "  tail -f {}",
            management.folder().path().join("capcmi.log").display()
        ),
    ]
}
