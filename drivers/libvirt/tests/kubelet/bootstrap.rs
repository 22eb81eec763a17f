//! Bootstrap data. cloud-init in the guest uses it to configure the node image, so that its kubelet joins.

use std::net::SocketAddr;

use anyhow::Result;
use management_cluster::{BOOTSTRAP_KUBECONFIG, KUBELET_CONFIG, WORKLOAD_HOST, Workload};
use serde_json::{Value, json};

/// The Pod network of a single Node, with the plugins from Debian.
const POD_NETWORK: &str = r#"{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "cni0",
      "isGateway": true,
      "isDefaultGateway": true,
      "ipMasq": true,
      "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.85.0.0/24"}]]}
    }
  ]
}
"#;

/// A cloud-config for a guest that reaches the workload cluster's API server at this address. Its Node
/// registers with a taint, and with the ProviderID from the instance metadata. cloud-init fills in the
/// expressions in braces, as in the provider's templates.
pub fn cloud_config(workload: &Workload, api_server: SocketAddr, taint: &str) -> Result<String> {
    let kubelet = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "cgroupDriver": "systemd",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "rotateCertificates": true,
        "registerWithTaints": [{"key": taint, "effect": "NoSchedule"}],
    });
    let server = format!("https://{WORKLOAD_HOST}:{}", api_server.port());
    let config = json!({
        "write_files": [
            file(BOOTSTRAP_KUBECONFIG, &workload.bootstrap_kubeconfig(&server)?),
            file("/etc/cni/net.d/10-bridge.conflist", POD_NETWORK),
            file(KUBELET_CONFIG, &kubelet.to_string()),
            file("/etc/default/kubelet", "KUBELET_EXTRA_ARGS=--provider-id={{ ds.meta_data.provider_id }}\n"),
            {"path": "/etc/hosts", "append": true, "content": format!("{} {WORKLOAD_HOST}\n",
            api_server.ip())},
        ],
        "runcmd": [["systemctl", "start", "kubelet"]],
    });
    Ok(format!("## template: jinja\n#cloud-config\n{config}\n"))
}

fn file(path: &str, content: &str) -> Value {
    json!({"path": path, "permissions": "0600", "content": content})
}
