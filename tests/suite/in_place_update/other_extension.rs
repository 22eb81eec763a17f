//! Another extension than the provider's, which updates machines in place: Cluster API 1.14 calls one alone,
//! so that the provider's is not registered beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use axum::Json;
use axum::extract::State;
use axum::routing::post;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use capcmi::api::conditions::{READY, VIRTUAL_MACHINE_UP_TO_DATE};
use cmi_driver::Operation;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use management_cluster::eventually;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::{InPlace, ids, retemplate, settled, tier};
use crate::support::by_hand::says;
use crate::support::{Authority, DEADLINE, Extension, World, extension};

const VERSION: &str = "hooks.runtime.cluster.x-k8s.io/v1alpha1";
const HOOKS: [&str; 3] = ["CanUpdateMachineSet", "CanUpdateMachine", "UpdateMachine"];
/// Looks of Cluster API that have to find the VM as it was.
const LOOKS: usize = 3;

/// Core moves the Machine and writes its spec because the other one says that it can, and asks that one until
/// it has ended. Meanwhile the provider leaves the VM alone, also after a restart.
#[tokio::test]
async fn an_update_of_another_extension_is_left_to_it_until_core_has_ended_it() -> Result<()> {
    let in_place = InPlace::new("in-place-owned").await?;
    let (world, cloud) = (&in_place.world, &in_place.cloud);
    let replica = in_place.provider.start(world).await?;
    let _kubelets = cloud.kubelets();
    let other = OtherExtension::serve(world).await?;
    let fleet = in_place.fleet(1).await?;
    let before = cloud.holds(1).await?;
    let name = &before[0].name;
    retemplate(&fleet, "md-2", tier("gold")).await?;
    let looks = async || {
        let asked = other.asked();
        other.asked_again(asked + LOOKS).await?;
        for machine in fleet.infra_machines().await? {
            ensure!(
                says(
                    &machine,
                    VIRTUAL_MACHINE_UP_TO_DATE,
                    "False",
                    "WaitingForUpdateRequest"
                ) && says(&machine, READY, "True", "Ready"),
                "{:?}",
                machine.status
            );
        }
        let calls = cloud.count(Operation::UpdateMachine, name)?;
        ensure!(calls == 0 && cloud.vms()? == before, "the VM was touched");
        Ok(())
    };
    eventually(DEADLINE, "a machine whose update is another's", looks).await?;
    let looks_again = async || {
        let asked = other.asked();
        other.asked_again(asked + LOOKS).await?;
        let calls = cloud.count(Operation::UpdateMachine, name)?;
        ensure!(calls == 0 && cloud.vms()? == before, "the VM was touched");
        Ok::<_, anyhow::Error>(())
    };
    looks_again().await?;
    drop(replica);
    let _again = in_place.provider.clone().named("again").start(world).await?;
    looks_again().await?;

    // It has ended, and has left the VM as it was: what the driver can change, the provider applies.
    other.finish();
    settled(world, cloud, &fleet, "gold").await?;
    ensure!(ids(&cloud.holds(1).await?) == ids(&before), "the VM was replaced");
    let calls = cloud.count(Operation::UpdateMachine, name)?;
    ensure!(calls == 1, "{calls} updates");
    Extension::unregister(world).await
}

/// An extension that says of every change that it can make it, and then that it is at it.
struct OtherExtension {
    work: Arc<Work>,
    server: JoinHandle<()>,
}

#[derive(Default)]
struct Work {
    asked: AtomicUsize,
    is_done: AtomicBool,
}

impl OtherExtension {
    /// Serves it, and registers it with Cluster API for the namespace of the case.
    async fn serve(world: &World) -> Result<Self> {
        let authority = Authority::new()?;
        let files = (world.folder.join("other.crt"), world.folder.join("other.key"));
        authority.vouch_for("127.0.0.1", &files)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain = vec![CertificateDer::from_pem_file(&files.0)?];
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, PrivateKeyDer::from_pem_file(&files.1)?)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let work = Arc::new(Work::default());
        let router = router(Arc::clone(&work));
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, acceptor.clone(), router.clone()));
            }
        });
        let extension = Self { work, server };
        extension::register(world, &address, &authority.certificate()).await?;
        Ok(extension)
    }

    /// How often Cluster API has called its UpdateMachine.
    fn asked(&self) -> usize {
        self.work.asked.load(Ordering::SeqCst)
    }

    /// Waits until it was called so often.
    async fn asked_again(&self, times: usize) -> Result<()> {
        eventually(DEADLINE, "calls of the other extension", async || {
            ensure!(self.asked() >= times, "{} calls", self.asked());
            Ok(())
        })
        .await
    }

    /// Says from now on that the update has ended.
    fn finish(&self) {
        self.work.is_done.store(true, Ordering::SeqCst);
    }
}

impl Drop for OtherExtension {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Answers the requests of a connection, until Cluster API closes it.
async fn answer(stream: TcpStream, acceptor: TlsAcceptor, router: axum::Router) {
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    let served = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await;
    if let Err(error) = served {
        eprintln!("the other extension: {error}");
    }
}

fn router(work: Arc<Work>) -> axum::Router {
    let path = |hook: &str| format!("/{VERSION}/{}/{}", hook.to_lowercase(), handler(hook));
    axum::Router::new()
        .route(&format!("/{VERSION}/discovery"), post(discovery))
        .route(&path(HOOKS[0]), post(can_update_machine_set))
        .route(&path(HOOKS[1]), post(can_update_machine))
        .route(&path(HOOKS[2]), post(update_machine))
        .with_state(work)
}

/// The name of the handler of a hook.
fn handler(hook: &str) -> String {
    format!("other-{}", hook.to_lowercase())
}

fn success(kind: &str) -> Value {
    json!({"apiVersion": VERSION, "kind": format!("{kind}Response"), "status": "Success", "message": ""})
}

async fn discovery() -> Json<Value> {
    let served = |hook| {
        json!({
            "name": handler(hook), "requestHook": {"apiVersion": VERSION, "hook": hook},
            "timeoutSeconds": 10, "failurePolicy": "Fail",
        })
    };
    let mut answer = success("Discovery");
    answer["handlers"] = json!(HOOKS.map(served));
    Json(answer)
}

async fn can_update_machine_set(body: String) -> Json<Value> {
    let object = "infrastructureMachineTemplate";
    Json(can_update("CanUpdateMachineSet", object, &body))
}

async fn can_update_machine(body: String) -> Json<Value> {
    Json(can_update("CanUpdateMachine", "infrastructureMachine", &body))
}

/// A patch of all that differs in the spec of the infrastructure object.
fn can_update(hook: &str, object: &str, body: &str) -> Value {
    let patch = || -> Result<String> {
        let request: Value = serde_json::from_str(body)?;
        let spec = |side: &str| json!({"spec": request[side][object]["spec"]});
        let patch = json_patch::diff(&spec("current"), &spec("desired"));
        Ok(BASE64_STANDARD.encode(serde_json::to_string(&patch)?))
    };
    let mut answer = success(hook);
    match patch() {
        Ok(patch) => answer[format!("{object}Patch")] = json!({"patchType": "JSONPatch", "patch": patch}),
        Err(error) => {
            answer["status"] = json!("Failure");
            answer["message"] = json!(error.to_string());
        }
    }
    answer
}

async fn update_machine(State(work): State<Arc<Work>>) -> Json<Value> {
    work.asked.fetch_add(1, Ordering::SeqCst);
    let mut answer = success("UpdateMachine");
    if !work.is_done.load(Ordering::SeqCst) {
        answer["retryAfterSeconds"] = json!(1);
        answer["message"] = json!("the other extension is at it");
    }
    Json(answer)
}
