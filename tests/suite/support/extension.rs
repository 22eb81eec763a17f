//! The provider's Runtime Extension. It is registered with Cluster API like an administrator does.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind};
use management_cluster::eventually;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use testbed::free_address;

use super::{Authority, DEADLINE, Provider, World};

/// An address with a certificate.
pub struct Extension {
    authority: Mutex<Authority>,
    address: String,
    folder: PathBuf,
}

impl Extension {
    /// A free address, and a certificate for it.
    pub fn new(world: &World) -> Result<Self> {
        let folder = world.folder.join("extension");
        std::fs::create_dir_all(&folder).context("making the folder of the certificate")?;
        let extension = Self {
            authority: Mutex::new(Authority::new()?),
            address: free_address()?,
            folder,
        };
        extension.renew()?;
        Ok(extension)
    }

    /// Writes a certificate of another authority, which must then be registered.
    pub fn renew(&self) -> Result<()> {
        let files = (self.folder.join("tls.crt"), self.folder.join("tls.key"));
        let authority = Authority::new()?;
        authority.vouch_for("127.0.0.1", &files)?;
        *self.authority() = authority;
        Ok(())
    }

    fn authority(&self) -> MutexGuard<'_, Authority> {
        self.authority.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The provider with this extension.
    pub fn of(&self, provider: Provider) -> Provider {
        provider
            .flag(format!("--runtime-extension-address={}", self.address))
            .flag(format!("--runtime-extension-cert-dir={}", self.folder.display()))
    }

    /// Registers the extension for the namespace of the case, and waits until Cluster API has discovered it.
    pub async fn register(&self, world: &World) -> Result<()> {
        let certificate = self.authority().certificate();
        register(world, &self.address, &certificate).await
    }

    /// Calls a hook like Cluster API does, with this certificate and key.
    pub async fn call_as(
        &self,
        client: Option<&(PathBuf, PathBuf)>,
        hook: &str,
        request: &Value,
    ) -> Result<Value> {
        let mut config = kube::Config::new(format!("https://{}", self.address).parse()?);
        let authority = CertificateDer::from_pem_slice(self.authority().certificate().as_bytes())?;
        config.root_cert = Some(vec![authority.to_vec()]);
        if let Some((certificate, key)) = client {
            config.auth_info.client_certificate = Some(certificate.display().to_string());
            config.auth_info.client_key = Some(key.display().to_string());
        }
        let client = kube::Client::try_from(config)?;
        let request = http::Request::post(format!("/hooks.runtime.cluster.x-k8s.io/v1alpha1/{hook}"))
            .body(request.to_string().into_bytes())?;
        Ok(client.request(request).await?)
    }

    /// Removes the registration.
    pub async fn unregister(world: &World) -> Result<()> {
        let configs = configs(world);
        let deleted = configs.delete(&world.namespace, &DeleteParams::default()).await;
        deleted.map(drop).context("deleting the ExtensionConfig")
    }
}

/// Registers the extension at an address for the namespace of the case, with the certificate of its
/// authority. Waits until Cluster API has discovered it.
async fn register(world: &World, address: &str, authority: &str) -> Result<()> {
    let config = json!({
        "apiVersion": "runtime.cluster.x-k8s.io/v1beta2", "kind": "ExtensionConfig",
        "metadata": {"name": world.namespace},
        "spec": {
            "clientConfig": {"url": format!("https://{address}"),
            "caBundle": BASE64_STANDARD.encode(authority)},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}},
        },
    });
    management_cluster::apply(&world.admin, config).await?;
    eventually(DEADLINE, "an extension that was discovered", async || {
        let config = configs(world).get(&world.namespace).await?;
        let handlers = config.data["status"]["handlers"].as_array().map_or(0, Vec::len);
        ensure!(handlers == 3, "{:#}", config.data);
        Ok(())
    })
    .await
}

fn configs(world: &World) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("runtime.cluster.x-k8s.io", "v1beta2", "ExtensionConfig");
    Api::all_with(world.admin.clone(), &ApiResource::from_gvk(&kind))
}
