//! A real API server with definitions, permissions and policies, from the view of administrators, tenants and
//! controllers.

use std::{fmt::Debug, path::Path, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use capcmi::api::{GROUP, MACHINE_FINALIZER, VERSION};
use capcmi_manifests as manifests;
use kube::{
    Api, Client, Config,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::GroupVersionKind,
};
use management_cluster::{ManagementCluster, eventually};
use serde_json::{Value, json};
use tokio::sync::Mutex;

pub const DEADLINE: Duration = Duration::from_mins(1);

static ACCOUNTS: Mutex<()> = Mutex::const_new(());

/// The management cluster with everything that `capcmi manifests` prints, applied unchanged.
async fn cluster() -> Result<&'static ManagementCluster> {
    let stream = manifests::stream(&manifests::Part::ALL)?;
    let builder = || ManagementCluster::builder().core(false).manifests(stream);
    ManagementCluster::shared(builder).await
}

/// Sends objects to the API server in a dry run, and fails if it rejects one.
pub async fn would_take(objects: &[Value]) -> Result<()> {
    let client = cluster().await?.admin_client().await?;
    for object in objects {
        let object: DynamicObject = serde_json::from_value(object.clone())?;
        let types = object.types.clone().context("an object has a kind")?;
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types)?);
        // The object's namespace need not exist in a dry run.
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let params = PatchParams::apply("tests").dry_run();
        let name = object.metadata.name.clone().unwrap_or_default();
        api.patch(&name, &params, &Patch::Apply(&object))
            .await
            .with_context(|| format!("{} {name}", types.kind))?;
    }
    Ok(())
}

/// A namespace with a tenant. Waits until the API server enforces the permissions and policies.
pub async fn namespace() -> Result<String> {
    let cluster = cluster().await?;
    let namespace = cluster.namespace("manifests").await?;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "tenant", "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": tenant(&namespace)}],
    });
    cluster.apply_yaml(&binding.to_string()).await?;
    for object in owner_of(&namespace) {
        cluster.apply_yaml(&object.to_string()).await?;
    }
    let forged = json!({"annotations": {"infrastructure.capcmi.io/vm-record": "forged"}});
    let probes = [
        (
            "capcmi-reserved-annotations",
            "InfraMachine",
            object("InfraMachine", "probe", &forged, &json!({})),
        ),
        (
            "capcmi-provider-id",
            "InfraMachine",
            object(
                "InfraMachine",
                "probe",
                &json!({}),
                &json!({"providerID": "cmi:///forged"}),
            ),
        ),
        (
            "capcmi-templates",
            "InfraMachineTemplate",
            object(
                "InfraMachineTemplate",
                "probe",
                &json!({}),
                &json!({"template": {"metadata": forged, "spec": {}}}),
            ),
        ),
    ];
    guarded_finalizer(&namespace).await?;
    for (policy, kind, probe) in probes {
        let api = api(User::Tenant, &namespace, kind).await?;
        eventually(DEADLINE, policy, async || {
            let message = refusal(
                api.create(&dry_run(), &serde_json::from_value(probe.clone())?)
                    .await,
            )?;
            ensure!(message.contains(policy), "{message}");
            Ok(())
        })
        .await?;
    }
    Ok(namespace)
}

/// Waits until the policy protects the finalizer of a machine that may have a VM.
async fn guarded_finalizer(namespace: &str) -> Result<()> {
    let administrator = api(User::Administrator, namespace, "InfraMachine").await?;
    let tenant = api(User::Tenant, namespace, "InfraMachine").await?;
    let metadata = json!({"finalizers": [MACHINE_FINALIZER]});
    let named = json!({"providerID": "cmi:///probe"});
    create(
        &administrator,
        &object("InfraMachine", "finalized", &metadata, &named),
    )
    .await??;
    eventually(DEADLINE, "capcmi-finalizer", async || {
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let message = refusal(tenant.patch("finalized", &params, &patch).await)?;
        ensure!(message.contains("capcmi-finalizer"), "{message}");
        Ok(())
    })
    .await
}

/// A user with all rights on our kinds in the namespace: by a Role with wildcards, and by a RoleBinding to
/// cluster-admin.
fn owner_of(namespace: &str) -> [Value; 3] {
    let rbac = "rbac.authorization.k8s.io";
    let role = |kind: &str, name: &str| json!({"apiGroup": rbac, "kind": kind, "name": name});
    let binding = |name: &str, role: Value| {
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding",
            "metadata": {"name": name, "namespace": namespace}, "roleRef": role,
            "subjects": [{"apiGroup": rbac, "kind": "User", "name": owner(namespace)}],
        })
    };
    [
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "Role",
            "metadata": {"name": "everything", "namespace": namespace},
            "rules": [{"apiGroups": [GROUP], "resources": ["*"], "verbs": ["*"]}],
        }),
        binding("owner-everything", role("Role", "everything")),
        binding("owner-cluster-admin", role("ClusterRole", "cluster-admin")),
    ]
}

/// The identity of a client.
#[derive(Clone, Copy, Debug)]
pub enum User {
    /// cluster-admin.
    Administrator,
    /// A user who is bound to the ClusterRole `admin` in the namespace.
    Tenant,
    /// A user with all rights in the namespace: by a Role with wildcards, and by a RoleBinding to
    /// cluster-admin.
    Owner,
    /// The provider's ServiceAccount, with the shipped permissions.
    Provider,
    /// A user with the rights of providers of hosted control planes, in the namespace.
    HostedControlPlane,
    /// Cluster API's core manager, with its own permissions and the ones that our role aggregates.
    Core,
}

impl User {
    /// A client for requests in the namespace.
    pub async fn client(self, namespace: &str) -> Result<Client> {
        let cluster = cluster().await?;
        // One test at a time, since each of them rewrites the account's file.
        let _one = ACCOUNTS.lock().await;
        let account = async |namespace: &str, name: &str| {
            let kubeconfig = cluster.kubeconfig_for_service_account(namespace, name).await?;
            client(&kubeconfig, None).await
        };
        match self {
            Self::Administrator => cluster.admin_client().await,
            Self::Tenant => client(cluster.admin_kubeconfig(), Some(tenant(namespace))).await,
            Self::Owner => client(cluster.admin_kubeconfig(), Some(owner(namespace))).await,
            Self::HostedControlPlane => client(cluster.admin_kubeconfig(), Some(hosted(namespace))).await,
            Self::Provider => account(manifests::NAMESPACE, "capcmi-manager").await,
            Self::Core => account("capi-system", "capi-manager").await,
        }
    }
}

fn tenant(namespace: &str) -> String {
    format!("tenant-of-{namespace}")
}

/// The name of [`User::HostedControlPlane`].
pub fn hosted(namespace: &str) -> String {
    format!("hosted-control-plane-of-{namespace}")
}

fn owner(namespace: &str) -> String {
    format!("owner-of-{namespace}")
}

async fn client(kubeconfig: &Path, impersonate: Option<String>) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    config.auth_info.impersonate = impersonate;
    Ok(Client::try_from(config)?)
}

/// The API of one of our kinds in a namespace, with one of these identities.
pub async fn api(who: User, namespace: &str, kind: &str) -> Result<Api<DynamicObject>> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, VERSION, kind));
    Ok(Api::namespaced_with(
        who.client(namespace).await?,
        namespace,
        &resource,
    ))
}

/// An object of one of our kinds.
pub fn object(kind: &str, name: &str, metadata: &Value, spec: &Value) -> Value {
    let mut object =
        json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": kind, "metadata": metadata, "spec": spec});
    object["metadata"]["name"] = json!(name);
    object
}

/// A dry run: the API server stores nothing.
pub fn dry_run() -> PostParams {
    PostParams {
        dry_run: true,
        ..PostParams::default()
    }
}

/// Creates an object of one of our kinds.
pub async fn create(api: &Api<DynamicObject>, object: &Value) -> Result<kube::Result<DynamicObject>> {
    let object = serde_json::from_value(object.clone())?;
    Ok(api.create(&PostParams::default(), &object).await)
}

/// A JSON merge patch.
pub async fn merge(api: &Api<DynamicObject>, name: &str, patch: Value) -> kube::Result<DynamicObject> {
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
}

/// The API server's message for a refused request.
pub fn refusal<T: Debug>(answer: kube::Result<T>) -> Result<String> {
    match answer {
        Err(kube::Error::Api(status)) => Ok(status.message),
        Err(other) => Err(other).context("a refusal was expected"),
        Ok(accepted) => bail!("a refusal was expected, and this was accepted: {accepted:?}"),
    }
}
