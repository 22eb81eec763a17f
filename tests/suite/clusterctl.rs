//! The real clusterctl, from `init` to `delete`, with a repository from `make release`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt;
use kube::api::DynamicObject;
use management_cluster::stand_in::StandInController;
use management_cluster::{CLUSTER_API_VERSION, eventually};
use serde_json::json;

use crate::support::by_hand::small;
use crate::support::world::run;
use crate::support::{Cloud, DEADLINE, Fleet, Provider, World};

const NAMESPACE: &str = "clusterctl";
const PROVIDER: &str = "capcmi-cmi";

/// Objects that clusterctl looks for: the parts of cert-manager that it checks, and the inventory of a
/// Cluster API installed by clusterctl. The management cluster installs Cluster API differently.
const FOUND: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: cert-manager}
---
apiVersion: v1
kind: Namespace
metadata: {name: clusterctl}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: issuers.cert-manager.io}
spec:
  group: cert-manager.io
  names: {kind: Issuer, listKind: IssuerList, plural: issuers, singular: issuer}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: certificates.cert-manager.io}
spec:
  group: cert-manager.io
  names: {kind: Certificate, listKind: CertificateList, plural: certificates, singular: certificate}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: clusterctl.cluster.x-k8s.io/v1alpha3
kind: Provider
metadata:
  name: cluster-api
  namespace: capi-system
  labels:
    cluster.x-k8s.io/provider: cluster-api
    clusterctl.cluster.x-k8s.io: ""
    clusterctl.cluster.x-k8s.io/core: inventory
providerName: cluster-api
type: CoreProvider
version: $CORE
"#;

const CORE_METADATA: &str = "
apiVersion: clusterctl.cluster.x-k8s.io/v1alpha3
kind: Metadata
releaseSeries:
- {major: 1, minor: 14, contract: v1beta2}
";

/// Releases of the provider, and clusterctl's configuration.
struct Repository<'a> {
    folder: &'a Path,
    kubectl: &'a Path,
}

impl Repository<'_> {
    /// Runs `make release`, which also writes the configuration.
    fn make(&self, version: &str) -> Result<()> {
        run(&mut testbed::make_release(self.folder, version, self.kubectl)).map(drop)
    }

    fn config(&self) -> PathBuf {
        self.folder.join("clusterctl-config.yaml")
    }

    /// Adds a user's settings to the configuration: a variable, and another place for Cluster API's
    /// repository, as in a network that does not reach it.
    fn configure(&self) -> Result<()> {
        let core = self.folder.join("cluster-api").join(CLUSTER_API_VERSION);
        std::fs::create_dir_all(&core)?;
        std::fs::write(core.join("metadata.yaml"), CORE_METADATA)?;
        let config = std::fs::read_to_string(self.config())?;
        let config = format!(
            "{config}- name: cluster-api\n  type: CoreProvider\n  url: file://{}/core-components.yaml\n\
             CAPCMI_DRIVERS_CONFIGMAP: our-drivers\n",
            core.display()
        );
        Ok(std::fs::write(self.config(), config)?)
    }

    /// clusterctl on a management cluster.
    fn clusterctl(&self, world: &World, arguments: &[&str]) -> Result<String> {
        let mut command = world.management.clusterctl();
        run(command.args(arguments).arg("--config").arg(self.config()))
    }

    /// Runs `clusterctl init` on a new management cluster, and checks its answers before.
    async fn init(&self, world: &World, provider: &str) -> Result<()> {
        // clusterctl installs the definitions of its inventory, which is still empty.
        let refusal = self.clusterctl(world, &["upgrade", "plan"]);
        let refusal = refusal.err().map(|error| error.to_string()).unwrap_or_default();
        ensure!(refusal.contains("there must be one core provider"), "{refusal}");
        world.apply(&FOUND.replace("$CORE", CLUSTER_API_VERSION)).await?;
        let images = self.clusterctl(world, &["init", "list-images", "--infrastructure", provider])?;
        ensure!(
            images.trim() == "ghcr.io/capcmi/cluster-api-provider-cmi:v0.1.0",
            "{images}"
        );
        self.clusterctl(world, &["init", "--infrastructure", provider])?;
        testbed::permitted(&world.management).await
    }
}

/// The image and the ConfigMap of the installed Deployment.
fn installed(world: &World) -> Result<String> {
    let path = "{.spec.template.spec.containers[0].image} {.spec.template.spec.volumes[0].configMap.name}";
    world.kubectl(&[
        "get",
        "deployment",
        "--namespace=capcmi-system",
        "capcmi-controller-manager",
        &format!("--output=jsonpath={path}"),
    ])
}

fn is_installed(world: &World, version: &str) -> Result<()> {
    let (found, image) = (installed(world)?, "ghcr.io/capcmi/cluster-api-provider-cmi");
    ensure!(found == format!("{image}:{version} our-drivers"), "{found}");
    Ok(())
}

fn uids(machines: &[DynamicObject]) -> Vec<Option<String>> {
    let mut uids: Vec<_> = machines.iter().map(ResourceExt::uid).collect();
    uids.sort();
    uids
}

/// Runs the clusterctl commands in docs/how-to/install.md while machines exist. Cluster API and the provider
/// are processes instead of Pods, and cert-manager consists only of its definitions.
#[tokio::test]
#[expect(
    clippy::too_many_lines,
    reason = "one story, each step of which needs those before it"
)]
async fn clusterctl_installs_upgrades_and_removes_the_provider() -> Result<()> {
    let source = World::without_provider(NAMESPACE).await?;
    let repository = Repository {
        folder: &source.folder.join("out"),
        kubectl: &source.management.programs().kubectl.clone(),
    };
    repository.make("v0.1.0")?;
    repository.configure()?;
    repository.init(&source, &format!("{PROVIDER}:v0.1.0")).await?;
    is_installed(&source, "v0.1.0")?;

    let cloud = Cloud::new(&source);
    let provider = Provider::new(cloud.drivers(json!({})));
    let old = provider.start(&source).await?;
    let _control_planes = StandInController::start(&source.management).await?;
    let _kubelets = source.kubelets(&cloud);
    source.cluster("md").await?;
    let fleet = Fleet::of(&source, "md");
    fleet.template("md-1", small()).await?;
    fleet.deployment("md-1", 2).await?;
    let machines = fleet.running(2).await?;
    let vms = cloud.holds(2).await?;

    let mut shown = vec![format!("InfraCluster {NAMESPACE}/md")];
    for kind in ["Machine", "InfraMachine"] {
        shown.extend(
            machines
                .iter()
                .map(|machine| format!("{kind} {NAMESPACE}/{}", machine.name_any())),
        );
    }
    eventually(DEADLINE, "a Cluster that clusterctl shows as ready", async || {
        let describe = [
            "describe",
            "cluster",
            "md",
            "--namespace",
            NAMESPACE,
            "--echo",
            "--grouping=false",
        ];
        let described = repository.clusterctl(&source, &describe)?;
        for object in &shown {
            let line = described.lines().find_map(|line| line.split_once(object));
            let said: Vec<_> = line
                .map(|(_, rest)| rest.split_whitespace().collect())
                .unwrap_or_default();
            let is_ready = said.windows(2).any(|words| words == ["True", "Ready"]);
            ensure!(is_ready, "{object} is not shown as ready:\n{described}");
        }
        Ok(())
    })
    .await?;

    repository.make("v0.1.1")?;
    let plan = repository.clusterctl(&source, &["upgrade", "plan"])?;
    let ours = plan.lines().find(|line| line.starts_with("infrastructure-"));
    let words: Vec<_> = ours.unwrap_or_default().split_whitespace().collect();
    ensure!(words.ends_with(&["v0.1.0", "v0.1.1"]), "{plan}");
    repository.clusterctl(&source, &["upgrade", "apply", "--contract", "v1beta2"])?;
    is_installed(&source, "v0.1.1")?;
    drop(old);
    let upgraded = provider.clone().named("upgraded").start(&source).await?;
    ensure!(
        uids(&fleet.running(2).await?) == uids(&machines),
        "Machines were replaced"
    );
    ensure!(cloud.vms()? == vms, "VMs were touched");

    // clusterctl can't downgrade, so the case deletes the new version and installs the old one.
    repository.clusterctl(&source, &["delete", "--infrastructure", PROVIDER])?;
    ensure!(installed(&source).is_err(), "nothing was deleted");
    repository.clusterctl(
        &source,
        &["init", "--infrastructure", &format!("{PROVIDER}:v0.1.0")],
    )?;
    is_installed(&source, "v0.1.0")?;
    drop(upgraded);
    let _again = provider.clone().named("again").start(&source).await?;
    ensure!(
        uids(&fleet.running(2).await?) == uids(&machines),
        "Machines were replaced"
    );
    fleet.scale(3).await?;
    fleet.running(3).await?;
    cloud.holds(3).await?;

    source.kubectl(&["delete", "machinedeployment", "md", "--wait=false"])?;
    fleet.gone().await?;
    cloud.holds(0).await?;
    // clusterctl keeps a definition while it has objects.
    source.kubectl(&["delete", "cluster", "md", "--wait=false"])?;
    source.kubectl(&["delete", "inframachinetemplates", "--all"])?;
    eventually(DEADLINE, "the end of the Cluster", async || {
        let left = source.kubectl(&["get", "clusters,infraclusters", "--output=name"])?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
    .await?;
    repository.clusterctl(
        &source,
        &[
            "delete",
            "--infrastructure",
            PROVIDER,
            "--include-crd",
            "--include-namespace",
        ],
    )?;
    eventually(DEADLINE, "the end of what clusterctl has installed", async || {
        let kinds = "deployments,services,configmaps,serviceaccounts,roles,rolebindings,crds,namespaces";
        let ours = "--selector=cluster.x-k8s.io/provider=infrastructure-capcmi-cmi";
        let left = source.kubectl(&["get", kinds, "--all-namespaces", ours, "--output=name"])?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
    .await
}

/// With the configuration in docs/how-to/air-gapped.md, clusterctl reads files from a folder, and all images
/// are in the registry. Here each of the other releases names a single image.
#[tokio::test]
async fn clusterctl_lists_the_images_of_a_mirror_without_a_network() -> Result<()> {
    let world = World::new("mirror").await?;
    let mirror = world.folder.join("mirror");
    let kubectl = world.management.programs().kubectl.clone();
    run(&mut testbed::make_release(&mirror, "v0.1.0", &kubectl))?;
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/how-to/air-gapped.md"))?;
    let (_, config) = page.split_once("```yaml\n").context("no configuration")?;
    let (config, _) = config
        .split_once("```")
        .context("a configuration without an end")?;
    let config = config.replace("/srv/clusterctl", &mirror.display().to_string());
    let path = world.folder.join("mirror.yaml");
    std::fs::write(&path, &config)?;
    let write = |place: &str, text: &str| -> Result<()> {
        let path = mirror.join(place);
        std::fs::create_dir_all(path.parent().context("a file has a folder")?)?;
        Ok(std::fs::write(path, text)?)
    };
    let components = |name: &str| {
        COMPONENTS
            .replace("$NAME", name)
            .replace("$CORE", CLUSTER_API_VERSION)
    };
    for (provider, file) in [
        ("cluster-api", "core-components.yaml"),
        ("bootstrap-kubeadm", "bootstrap-components.yaml"),
        ("control-plane-kubeadm", "control-plane-components.yaml"),
    ] {
        let folder = format!("{provider}/{CLUSTER_API_VERSION}");
        write(&format!("{folder}/metadata.yaml"), CORE_METADATA)?;
        write(&format!("{folder}/{file}"), &components(provider))?;
    }
    let (_, version) = config.split_once("cert-manager/").context("no cert-manager")?;
    let (version, _) = version.split_once('/').context("no version of cert-manager")?;
    write(
        &format!("cert-manager/{version}/cert-manager.yaml"),
        &components("cert-manager"),
    )?;

    let mut clusterctl = world.management.clusterctl();
    clusterctl
        .args(["init", "list-images", "--infrastructure", PROVIDER, "--config"])
        .arg(path)
        .env("GOPROXY", "off")
        .envs(["HTTP_PROXY", "HTTPS_PROXY"].map(|variable| (variable, "http://127.0.0.1:1")));
    let listed = run(&mut clusterctl)?;
    let images: Vec<_> = listed.lines().collect();
    let all_of_mirror = images
        .iter()
        .all(|image| image.starts_with("registry.example.com/mirror/"));
    ensure!(all_of_mirror && images.len() == 5, "{images:#?}");
    ensure!(
        images.contains(&"registry.example.com/mirror/cluster-api-provider-cmi:v0.1.0"),
        "{images:#?}"
    );
    Ok(())
}

/// A Deployment, since clusterctl looks for images there.
const COMPONENTS: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: $NAME-system}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: $NAME, namespace: $NAME-system}
spec:
  selector: {matchLabels: {app: $NAME}}
  template:
    metadata: {labels: {app: $NAME}}
    spec:
      containers: [{name: manager, image: 'registry.k8s.io/$NAME:$CORE'}]
";
