//! The Pods of the provider and of its driver.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{
    apps::v1::{Deployment, DeploymentStatus},
    coordination::v1::Lease,
    core::v1::{ContainerStatus, Pod, PodStatus, Service},
};
use kube::{Api, ResourceExt as _, api::ListParams};
use management_cluster::eventually;

use super::installation::{MANAGER, NAMESPACE};
use crate::{sandbox::run, workload::Workload};

const DEADLINE: Duration = Duration::from_mins(3);
const LEASE: &str = "controller-leader-election-capcmi";

/// The Deployments of the provider's namespace.
pub struct Provider<'a> {
    workload: &'a Workload,
}

impl<'a> Provider<'a> {
    /// The provider in a cluster.
    pub const fn of(workload: &'a Workload) -> Self {
        Self { workload }
    }

    /// Waits until a Deployment consists of available Pods of its latest form only. Returns the Pods.
    ///
    /// # Errors
    /// When that takes too long, or a container restarted.
    pub async fn rolled_out(&self, name: &str) -> Result<Vec<Pod>> {
        let deployments = Api::<Deployment>::namespaced(self.workload.client(), NAMESPACE);
        let selector = eventually(DEADLINE, &format!("the rollout of {name}"), async || {
            let deployment = deployments.get(name).await?;
            let spec = deployment.spec.context("no spec")?;
            let status = deployment.status.unwrap_or_default();
            ensure!(
                status.observed_generation == deployment.metadata.generation
                    && has_only_available(&status, spec.replicas),
                "{status:?}"
            );
            Ok(spec.selector.match_labels.unwrap_or_default())
        })
        .await?;
        self.settled(name, &selector).await
    }

    /// Waits until Pods of an earlier form are gone, and checks the others.
    async fn settled(&self, name: &str, selector: &BTreeMap<String, String>) -> Result<Vec<Pod>> {
        let selector: Vec<_> = selector
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let selected = ListParams::default().labels(&selector.join(","));
        let pods = eventually(DEADLINE, &format!("the Pods of {name}"), async || {
            let pods = self.pods().list(&selected).await?.items;
            let ending = pods
                .iter()
                .filter(|pod| pod.metadata.deletion_timestamp.is_some());
            ensure!(ending.count() == 0, "some Pods of {name} still end");
            Ok(pods)
        })
        .await?;
        for pod in &pods {
            let status = pod.status.as_ref().context("a Pod has no status")?;
            ensure!(
                is_ready(status) && restarts(status) == 0,
                "{}: {status:#?}",
                pod.name_any()
            );
        }
        Ok(pods)
    }

    /// The Pod that holds the lease.
    ///
    /// # Errors
    /// When no Pod of the provider holds it in time.
    pub async fn leader(&self) -> Result<String> {
        let leases = Api::<Lease>::namespaced(self.workload.client(), NAMESPACE);
        eventually(DEADLINE, "a leader", async || {
            let lease = leases.get(LEASE).await?;
            let holder = lease
                .spec
                .and_then(|spec| spec.holder_identity)
                .unwrap_or_default();
            let pods = self.pods().list(&ListParams::default()).await?.items;
            // The identity is the name of the Pod with a unique ending.
            let pod = pods.iter().find(|pod| holder.starts_with(&pod.name_any()));
            let pod = pod.with_context(|| format!("`{holder}` is no Pod"))?;
            Ok(pod.name_any())
        })
        .await
    }

    /// Deletes a Pod without waiting for its end.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub fn delete_now(&self, pod: &str) -> Result<()> {
        let namespace = format!("--namespace={NAMESPACE}");
        self.workload
            .kubectl(&["delete", "pod", pod, &namespace, "--grace-period=0", "--force"])?;
        Ok(())
    }

    /// Restarts all Pods of a Deployment, one after another.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub fn restart(&self, name: &str) -> Result<()> {
        let (namespace, deployment) = (format!("--namespace={NAMESPACE}"), format!("deployment/{name}"));
        self.workload
            .kubectl(&["rollout", "restart", &deployment, &namespace])?;
        Ok(())
    }

    /// Waits until the provider of a Pod ended with this exit code.
    ///
    /// # Errors
    /// When that takes too long.
    pub async fn ended_with(&self, code: i32) -> Result<()> {
        let ended = |status: &ContainerStatus| {
            let states = [status.state.as_ref(), status.last_state.as_ref()];
            let ends = states
                .into_iter()
                .flatten()
                .filter_map(|state| state.terminated.as_ref());
            ends.into_iter().any(|end| end.exit_code == code)
        };
        eventually(DEADLINE, &format!("a Pod that ends with {code}"), async || {
            let pods = self.pods().list(&ListParams::default()).await?.items;
            let statuses = pods.iter().filter_map(|pod| pod.status.as_ref());
            let mut containers = statuses.flat_map(|status| status.container_statuses.iter().flatten());
            ensure!(containers.any(ended), "none of {} Pods", pods.len());
            Ok(())
        })
        .await
    }

    /// The metrics, through the Service and as a caller with a token.
    ///
    /// # Errors
    /// When the Service does not answer; with the HTTP status if that is no success.
    pub async fn metrics(&self, token: Option<&str>) -> Result<String> {
        let services = Api::<Service>::namespaced(self.workload.client(), NAMESPACE);
        let service = services.get("capcmi-metrics").await?;
        let address = service
            .spec
            .and_then(|spec| spec.cluster_ip)
            .context("no address")?;
        let url = format!("https://{address}:8443/metrics");
        let authorization = format!("Authorization: Bearer {}", token.unwrap_or_default());
        let mut arguments = vec![
            "--silent",
            "--show-error",
            "--fail",
            "--insecure",
            "--max-time",
            "10",
        ];
        if token.is_some() {
            arguments.extend(["--header", &authorization]);
        }
        arguments.push(&url);
        run("curl", arguments)
    }

    /// The log of the provider.
    pub fn log(&self) -> String {
        let (namespace, deployment) = (
            format!("--namespace={NAMESPACE}"),
            format!("deployment/{MANAGER}"),
        );
        let log = self.workload.kubectl(&[
            "logs",
            &namespace,
            &deployment,
            "--all-pods",
            "--all-containers",
            "--tail=40",
        ]);
        log.unwrap_or_else(|error| format!("{error:#}"))
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.workload.client(), NAMESPACE)
    }
}

fn has_only_available(status: &DeploymentStatus, wanted: Option<i32>) -> bool {
    [
        status.replicas,
        status.updated_replicas,
        status.ready_replicas,
        status.available_replicas,
    ]
    .iter()
    .all(|count| *count == wanted)
}

fn is_ready(status: &PodStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn restarts(status: &PodStatus) -> i32 {
    let containers = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses);
    containers
        .flatten()
        .map(|container| container.restart_count)
        .sum()
}
