//! Cluster API's kubeadm providers, for bootstrap data and for control planes.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, PostParams},
    core::GroupVersionKind,
};
use serde_json::json;

use crate::{
    ManagementCluster,
    eventually::eventually,
    manager::{self, Pace, Place},
    process::Process,
    programs::{KubeadmProgram, Programs},
    release::Release,
};

const DEADLINE: Duration = Duration::from_mins(4);

/// Cluster API 1.14 cannot reconcile a control plane with it when the manager watches one namespace: "failed
/// to cast Machine informer to SharedIndexInformer".
const RATE_LIMITING: bool = false;

/// The kubeadm providers for one namespace, each with its own `ServiceAccount` and the permissions of its
/// release. They end with this value. Their installed objects stay.
#[derive(Debug)]
pub struct KubeadmProviders {
    _control_plane: Process,
    _bootstrap: Process,
}

const BOOTSTRAP: Release = Release {
    name: "kubeadm-bootstrap",
    namespace: "capi-kubeadm-bootstrap-system",
    service_account: "capi-kubeadm-bootstrap-manager",
    aggregated_role: None,
};

const CONTROL_PLANE: Release = Release {
    name: "kubeadm-control-plane",
    namespace: "capi-kubeadm-control-plane-system",
    service_account: "capi-kubeadm-control-plane-manager",
    aggregated_role: Some("capi-kubeadm-control-plane-aggregated-manager-role"),
};

/// The timeouts of a call to a lost member of etcd. The defaults are 10 and 15 s.
const ETCD_TIMEOUTS: &[&str] = &[
    "--etcd-dial-timeout-duration=3s",
    "--etcd-call-timeout-duration=5s",
];

impl KubeadmProviders {
    /// Builds the missing programs of both providers and of a management cluster. A later start needs no
    /// network.
    ///
    /// # Errors
    /// A program can't be built.
    pub async fn build() -> Result<()> {
        let programs = Programs::find().await?;
        KubeadmProgram::bootstrap(&programs).await?;
        KubeadmProgram::control_plane(&programs).await?;
        Ok(())
    }

    /// Installs and starts both providers, and returns when their webhooks are in effect. Builds them first
    /// if necessary. They watch one namespace, and their webhooks apply only to writes in that namespace.
    ///
    /// # Errors
    /// A program can't be built, installed or started.
    pub async fn start(management: &ManagementCluster, namespace: &str) -> Result<Self> {
        let programs = management.programs();
        let bootstrap = KubeadmProgram::bootstrap(programs).await?;
        let control_plane = KubeadmProgram::control_plane(programs).await?;
        let providers = Self {
            _bootstrap: start(management, &BOOTSTRAP, &bootstrap, namespace, &[]).await?,
            _control_plane: start(
                management,
                &CONTROL_PLANE,
                &control_plane,
                namespace,
                ETCD_TIMEOUTS,
            )
            .await?,
        };
        wait_until_in_effect(&management.admin_client().await?, namespace).await?;
        Ok(providers)
    }
}

async fn start(
    management: &ManagementCluster,
    release: &Release,
    program: &KubeadmProgram,
    namespace: &str,
    flags: &[&str],
) -> Result<Process> {
    let pace = Pace {
        rate_limiting: RATE_LIMITING,
        ..management.pace()
    };
    let command = |place: &Place| {
        let mut command = manager::command(&program.manager, place, pace);
        command.arg(format!("--namespace={namespace}")).args(flags);
        command
    };
    release
        .start(management, &program.components, Some(namespace), command)
        .await
}

/// The API server applies a registration some time after it was written.
async fn wait_until_in_effect(client: &Client, namespace: &str) -> Result<()> {
    let kind = GroupVersionKind::gvk("controlplane.cluster.x-k8s.io", "v1beta2", "KubeadmControlPlane");
    let resource = ApiResource::from_gvk(&kind);
    let control_planes = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource);
    eventually(
        DEADLINE,
        "the effect of the kubeadm providers' webhooks",
        async || {
            let defaulted = dry_run(&control_planes, "v1.0.0").await?;
            let strategy = &defaulted.data["spec"]["rollout"]["strategy"]["type"];
            ensure!(strategy == "RollingUpdate", "no default: {:#}", defaulted.data);
            match dry_run(&control_planes, "not-a-version").await {
                Err(kube::Error::Api(status)) if status.message.contains("admission webhook") => Ok(()),
                answer => bail!("not validated: {answer:?}"),
            }
        },
    )
    .await
}

async fn dry_run(control_planes: &Api<DynamicObject>, version: &str) -> kube::Result<DynamicObject> {
    let control_plane = json!({
        "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KubeadmControlPlane",
        "metadata": {"name": "webhook-probe"},
        "spec": {
            "replicas": 1, "version": version,
            "machineTemplate": {"spec": {"infrastructureRef": {
                "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "WebhookProbe",
                "name": "webhook-probe",
            }}},
        },
    });
    let control_plane = serde_json::from_value(control_plane).map_err(kube::Error::SerdeError)?;
    let parameters = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    control_planes.create(&parameters, &control_plane).await
}
