//! The workload cluster: a second kube-apiserver, which machines join.

use std::path::Path;

use anyhow::{Context, Result};
use k8s_openapi::{
    ByteString,
    api::core::v1::{Secret, Taint},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::Client;
use serde_json::json;
use uuid::Uuid;

use crate::{
    Programs,
    api_server::{ApiServer, ApiServerOptions},
    apply::apply_yaml,
    etcd::Etcd,
    kubeconfig,
    run_folder::RunFolder,
};

/// Where the bootstrap data puts the kubeconfig of a kubelet that joins.
pub const BOOTSTRAP_KUBECONFIG: &str = "/etc/kubernetes/bootstrap-kubelet.conf";

/// Where the bootstrap data puts the configuration of the kubelet.
pub const KUBELET_CONFIG: &str = "/var/lib/kubelet/config.yaml";

/// A workload cluster without any controller: an API server that has the Nodes of machines.
///
/// Clusters of the management cluster share it, so provider ids and Node names have to differ between them.
#[derive(Debug)]
pub struct Workload {
    api_server: ApiServer,
    bootstrap_token: String,
}

impl Workload {
    pub(crate) async fn start(programs: &Programs, folder: &RunFolder, etcd: &Etcd) -> Result<Self> {
        let options = ApiServerOptions {
            name: "workload",
            audit_log: None,
            service_account_admission: false,
        };
        let api_server = ApiServer::start(programs, folder, etcd, &options).await?;
        let random = Uuid::new_v4().simple().to_string();
        let (id, secret) = (&random[..6], &random[6..22]);
        apply_yaml(&api_server.admin_client().await?, &bootstrap_access(id, secret))
            .await
            .context("granting access to machines that join")?;
        Ok(Self {
            api_server,
            bootstrap_token: format!("{id}.{secret}"),
        })
    }

    /// A client with all permissions.
    ///
    /// # Errors
    /// When the kubeconfig cannot be used, which would be a fault of this crate.
    pub async fn admin_client(&self) -> Result<Client> {
        self.api_server.admin_client().await
    }

    /// The file with the administrator's kubeconfig.
    pub fn admin_kubeconfig(&self) -> &Path {
        &self.api_server.admin_kubeconfig
    }

    /// Address of the API server.
    pub fn url(&self) -> &str {
        &self.api_server.url
    }

    /// The kubeconfig of a kubelet that joins, with a bootstrap token.
    ///
    /// # Errors
    /// When the document cannot be rendered, which would be a fault of this crate.
    pub fn bootstrap_kubeconfig(&self) -> Result<String> {
        kubeconfig::render(self.url(), &self.api_server.authority, &self.bootstrap_token)
    }

    /// Bootstrap data of a machine: a cloud-config which writes a kubeconfig for this API server, whose token
    /// is a bootstrap token. The bearer may read, create and patch Nodes.
    ///
    /// # Errors
    /// When the document cannot be rendered, which would be a fault of this crate.
    pub fn bootstrap_data(&self) -> Result<String> {
        self.bootstrap_data_with_taints(&[])
    }

    /// As [`Workload::bootstrap_data`], with taints that the Node registers with.
    ///
    /// # Errors
    /// As [`Workload::bootstrap_data`].
    pub fn bootstrap_data_with_taints(&self, taints: &[Taint]) -> Result<String> {
        let document = self.bootstrap_kubeconfig()?;
        let file = |path: &str, content: String| {
            json!({"path": path, "owner": "root:root",
            "permissions": "0600", "content": content})
        };
        let mut files = vec![file(BOOTSTRAP_KUBECONFIG, document)];
        if !taints.is_empty() {
            let config = json!({
                "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
                "registerWithTaints": taints,
            });
            files.push(file(KUBELET_CONFIG, serde_saphyr::to_string(&config)?));
        }
        let cloud_config = json!({
            "write_files": files,
            "runcmd": [["systemctl", "start", "kubelet"]],
        });
        Ok(format!(
            "#cloud-config\n{}",
            serde_saphyr::to_string(&cloud_config)?
        ))
    }

    /// The kubeconfig Secret that core reads to reach this workload cluster for the Cluster `cluster` in
    /// `namespace`. Core reads it when it first sees the Cluster and then only half a minute later, so create
    /// it before the Cluster.
    pub fn kubeconfig_secret(&self, namespace: &str, cluster: &str) -> Secret {
        let value = ByteString(self.api_server.admin_document().as_bytes().to_vec());
        let label = ("cluster.x-k8s.io/cluster-name".to_owned(), cluster.to_owned());
        Secret {
            metadata: ObjectMeta {
                name: Some(format!("{cluster}-kubeconfig")),
                namespace: Some(namespace.to_owned()),
                labels: Some([label].into()),
                ..ObjectMeta::default()
            },
            type_: Some("cluster.x-k8s.io/secret".to_owned()),
            data: Some([("value".to_owned(), value)].into()),
            ..Secret::default()
        }
    }
}

/// A bootstrap token and what its bearer, a member of `system:bootstrappers`, may do.
fn bootstrap_access(id: &str, secret: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Secret
metadata: {{name: bootstrap-token-{id}, namespace: kube-system}}
type: bootstrap.kubernetes.io/token
stringData: {{token-id: "{id}", token-secret: "{secret}", usage-bootstrap-authentication: "true"}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: join}}
rules:
- apiGroups: [""]
  resources: [nodes, nodes/status]
  verbs: [get, create, patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: join}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: join}}
subjects:
- {{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:bootstrappers"}}
"#
    )
}
