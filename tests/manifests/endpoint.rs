//! The control-plane endpoint of the flavours: kube-vip on the control-plane machines, or a load balancer.

use std::{fs, process::Command};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::{Value, json};

use crate::{
    objects::{find, output, parse},
    release::Release,
};

const MANIFEST: &str = "/etc/kubernetes/manifests/kube-vip.yaml";

/// The flavours whose control plane brings kube-vip along. The ClusterClass is in `topology`.
const FLAVORS: [Option<&str>; 4] = [
    None,
    Some("machine-health-check"),
    Some("libvirt"),
    Some("container"),
];

#[tokio::test]
async fn kube_vip_holds_the_endpoint_in_every_flavor_with_a_vip() -> Result<()> {
    let release = Release::make(None).await?;
    for flavor in FLAVORS {
        let objects = release.generate_cluster(flavor)?;
        let control_plane = kubeadm_config(&objects)?;
        let pod = kube_vip(control_plane).with_context(|| format!("{flavor:?}"))?;
        let container = container(&pod)?;
        assert_eq!(
            container.image.as_deref(),
            Some("ghcr.io/kube-vip/kube-vip:v1.0.0")
        );
        assert_eq!(
            environment(container),
            wanted(["api.demo.test", "6443", "", "15", "10", "2"])
        );
        assert_eq!(bind_ports(control_plane), [json!(6443), json!(6443)]);
    }
    Ok(())
}

#[tokio::test]
async fn variables_change_the_vip() -> Result<()> {
    let release = Release::make(None).await?;
    for flavor in FLAVORS {
        let mut command = release.cluster(flavor);
        command
            .env("CONTROL_PLANE_ENDPOINT_HOST", "10.0.0.100")
            .env("CONTROL_PLANE_ENDPOINT_PORT", "8443")
            .env("KUBE_VIP_INTERFACE", "enp1s0")
            .env("KUBE_VIP_IMAGE", "registry.test/kube-vip:v1")
            .env("KUBE_VIP_LEASE_SECONDS", "60")
            .env("KUBE_VIP_RENEW_SECONDS", "40")
            .env("KUBE_VIP_RETRY_SECONDS", "8");
        let objects = parse(&output(&mut command)?)?;
        let endpoint = &find(&objects, "InfraCluster", "demo")?["spec"]["controlPlaneEndpoint"];
        assert_eq!(*endpoint, json!({"host": "10.0.0.100", "port": 8443}));
        let control_plane = kubeadm_config(&objects)?;
        let pod = kube_vip(control_plane)?;
        let container = container(&pod)?;
        assert_eq!(container.image.as_deref(), Some("registry.test/kube-vip:v1"));
        assert_eq!(
            environment(container),
            wanted(["10.0.0.100", "8443", "enp1s0", "60", "40", "8"])
        );
        // The address moves, and the port stays: the API servers have to listen on it.
        assert_eq!(bind_ports(control_plane), [json!(8443), json!(8443)]);
    }
    Ok(())
}

/// `admin.conf` has no permissions until `kubeadm init` has bound them, which waits for the endpoint.
#[tokio::test]
async fn kube_vip_uses_super_admin_conf_on_the_first_machine_only() -> Result<()> {
    let release = Release::make(None).await?;
    for flavor in FLAVORS {
        let objects = release.generate_cluster(flavor)?;
        let control_plane = kubeadm_config(&objects)?;
        for (is_first, credentials) in [(true, "super-admin.conf"), (false, "admin.conf")] {
            let machine = Machine::prepare(control_plane, is_first)?;
            let pod: Pod = serde_saphyr::from_str(&machine.read(MANIFEST)?)?;
            let volumes = pod.spec.unwrap_or_default().volumes.unwrap_or_default();
            let path = volumes.first().and_then(|volume| volume.host_path.as_ref());
            let path = path.map(|host| host.path.as_str()).unwrap_or_default();
            assert_eq!(path, machine.inside(&format!("/etc/kubernetes/{credentials}")));
        }
    }
    Ok(())
}

/// kubeadm reads the kube-proxy configuration with its own, on the machine of `kubeadm init` alone.
#[tokio::test]
async fn a_container_configures_kube_proxy_on_the_first_machine() -> Result<()> {
    let objects = Release::make(None).await?.generate_cluster(Some("container"))?;
    let control_plane = kubeadm_config(&objects)?;
    let documents = parse(&Machine::prepare(control_plane, true)?.read(KUBEADM)?)?;
    let kinds: Vec<_> = documents.iter().map(|document| &document["kind"]).collect();
    assert_eq!(kinds, ["InitConfiguration", "KubeProxyConfiguration"]);
    // The limit of tracked connections is the host's.
    assert_eq!(documents[1]["conntrack"]["maxPerCore"], 0);
    ensure!(Machine::prepare(control_plane, false)?.read(KUBEADM).is_err());
    Ok(())
}

/// On a host with cgroup v1, both kubeadm and the kubelet have to be told to go on.
#[tokio::test]
async fn a_container_may_share_a_host_with_cgroup_v1() -> Result<()> {
    let objects = Release::make(None).await?.generate_cluster(Some("container"))?;
    let control_plane = kubeadm_config(&objects)?;
    let workers = &find(&objects, "KubeadmConfigTemplate", "demo-md-0")?["spec"]["template"]["spec"];
    for (config, kind) in [
        (control_plane, "initConfiguration"),
        (control_plane, "joinConfiguration"),
        (workers, "joinConfiguration"),
    ] {
        let configuration = &config[kind];
        assert_eq!(
            configuration["nodeRegistration"]["ignorePreflightErrors"],
            json!(["SystemVerification"])
        );
        let folder = configuration["patches"]["directory"]
            .as_str()
            .context("no patches")?;
        let patch = parse(file(
            config,
            &format!("{folder}/kubeletconfiguration+strategic.yaml"),
        )?)?;
        assert_eq!(patch[0]["failCgroupV1"], false);
    }
    Ok(())
}

#[tokio::test]
async fn the_flavor_external_endpoint_is_the_template_without_kube_vip() -> Result<()> {
    let release = Release::make(None).await?;
    let external = release.generate_cluster(Some("external-endpoint"))?;
    let mut template = release.generate_cluster(None)?;
    let control_plane = template
        .iter_mut()
        .find(|object| object["kind"] == "KubeadmControlPlane")
        .and_then(|object| object["spec"]["kubeadmConfigSpec"].as_object_mut())
        .context("no control plane")?;
    for field in ["files", "preKubeadmCommands"] {
        control_plane
            .remove(field)
            .with_context(|| format!("no {field}"))?;
    }
    for (kind, field) in [
        ("initConfiguration", "localAPIEndpoint"),
        ("joinConfiguration", "controlPlane"),
    ] {
        let configuration = control_plane[kind].as_object_mut().context("no object")?;
        configuration
            .remove(field)
            .with_context(|| format!("no {field}"))?;
    }
    assert_eq!(external, template);
    Ok(())
}

/// The content of kube-vip's manifest in a KubeadmConfigSpec.
fn manifest(kubeadm_config: &Value) -> Result<&str> {
    file(kubeadm_config, MANIFEST)
}

fn kubeadm_config(objects: &[Value]) -> Result<&Value> {
    let control_plane = find(objects, "KubeadmControlPlane", "demo-control-plane")?;
    Ok(&control_plane["spec"]["kubeadmConfigSpec"])
}

fn kube_vip(kubeadm_config: &Value) -> Result<Pod> {
    serde_saphyr::from_str(manifest(kubeadm_config)?).context("reading the manifest of kube-vip")
}

fn container(pod: &Pod) -> Result<&Container> {
    let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice());
    containers.and_then(<[_]>::first).context("no container")
}

/// The variables of kube-vip that have a value here, and not a field of the Pod.
fn environment(container: &Container) -> Vec<(&str, &str)> {
    let variables = container.env.iter().flatten();
    variables
        .filter_map(|variable| Some((variable.name.as_str(), variable.value.as_deref()?)))
        .collect()
}

fn wanted([address, port, interface, lease, renew, retry]: [&str; 6]) -> Vec<(&str, &str)> {
    vec![
        ("address", address),
        ("port", port),
        ("vip_interface", interface),
        ("vip_arp", "true"),
        ("cp_enable", "true"),
        ("vip_leaderelection", "true"),
        ("vip_leaseduration", lease),
        ("vip_renewdeadline", renew),
        ("vip_retryperiod", retry),
    ]
}

fn bind_ports(kubeadm_config: &Value) -> [Value; 2] {
    [
        kubeadm_config["initConfiguration"]["localAPIEndpoint"]["bindPort"].clone(),
        kubeadm_config["joinConfiguration"]["controlPlane"]["localAPIEndpoint"]["bindPort"].clone(),
    ]
}

fn file<'a>(kubeadm_config: &'a Value, path: &str) -> Result<&'a str> {
    let mut files = kubeadm_config["files"].as_array().into_iter().flatten();
    let file = files.find(|file| file["path"] == path);
    let content = file.and_then(|file| file["content"].as_str());
    content.with_context(|| format!("no file {path}"))
}

const KUBEADM: &str = "/run/kubeadm/kubeadm.yaml";

/// The files of a machine, below a temporary folder, when cloud-init is about to run kubeadm.
struct Machine(tempfile::TempDir);

impl Machine {
    /// Writes the files and runs the commands, as cloud-init does.
    fn prepare(kubeadm_config: &Value, is_first: bool) -> Result<Self> {
        let machine = Self(tempfile::tempdir()?);
        for file in kubeadm_config["files"].as_array().into_iter().flatten() {
            let text = |field: &str| file[field].as_str().with_context(|| format!("no {field}"));
            machine.write(text("path")?, text("content")?)?;
        }
        if is_first {
            machine.write(KUBEADM, "kind: InitConfiguration\n")?;
        }
        let commands = kubeadm_config["preKubeadmCommands"].as_array();
        for command in commands.context("no commands")? {
            let command = command.as_str().context("no text")?;
            output(Command::new("sh").arg("-c").arg(machine.inside(command)))?;
        }
        Ok(machine)
    }

    /// The absolute paths of a text, below the folder.
    fn inside(&self, text: &str) -> String {
        let folder = self.0.path().display();
        text.replace("/etc/", &format!("{folder}/etc/"))
            .replace("/run/", &format!("{folder}/run/"))
    }

    fn write(&self, path: &str, content: &str) -> Result<()> {
        let path = self.inside(path);
        let folder = std::path::Path::new(&path).parent().context("no folder")?;
        fs::create_dir_all(folder)?;
        Ok(fs::write(path, self.inside(content))?)
    }

    fn read(&self, path: &str) -> Result<String> {
        let path = self.inside(path);
        fs::read_to_string(&path).context(path)
    }
}
