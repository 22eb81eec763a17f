//! The effects of `clusterctl move` on the provider.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use capcmi::api::annotations;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Resource as _, ResourceExt as _};
use management_cluster::eventually;
use serde_json::json;

use super::fleet::objects;
use super::{DEADLINE, World};

const CORE: (&str, &str) = ("cluster.x-k8s.io", "v1beta2");
const IPAM: (&str, &str) = ("ipam.cluster.x-k8s.io", "v1beta2");
const INFRA: (&str, &str) = ("infrastructure.capcmi.io", "v1alpha1");
/// The moved kinds: owners come before their dependents.
const MOVED: [((&str, &str), &str); 9] = [
    (CORE, "Cluster"),
    (INFRA, "InfraCluster"),
    (("", "v1"), "Secret"),
    (INFRA, "InfraMachineTemplate"),
    (CORE, "Machine"),
    (INFRA, "InfraMachine"),
    (IPAM, "IPAddressClaim"),
    (IPAM, "IPAddress"),
    (INFRA, "InfraMachineRemediation"),
];

impl World {
    /// Like [`World::move_to`], after no InfraMachine blocks the move. The provider must run.
    pub async fn move_when_unblocked(&self, target: &Self) -> Result<()> {
        self.pause_clusters(true).await?;
        let machines = objects(self, INFRA.0, INFRA.1, "InfraMachine");
        eventually(DEADLINE, "a move that nothing blocks", async || {
            let mut all = machines.list(&ListParams::default()).await?.items.into_iter();
            let blocking = all.find(|machine| machine.annotations().contains_key(annotations::BLOCK_MOVE));
            ensure!(
                blocking.is_none(),
                "{:?}",
                blocking.map(|machine| machine.name_any())
            );
            Ok(())
        })
        .await?;
        self.move_to(target).await
    }

    /// Moves the objects of the namespace like `clusterctl move`, while Clusters are paused. Owner references
    /// get the new UIDs. Status and deletion timestamp are not moved.
    pub async fn move_to(&self, target: &Self) -> Result<()> {
        self.pause_clusters(true).await?;
        let mut uids = BTreeMap::new();
        let mut moved = Vec::new();
        for ((group, version), kind) in MOVED {
            let (here, there) = (
                objects(self, group, version, kind),
                objects(target, group, version, kind),
            );
            for object in here.list(&ListParams::default()).await? {
                let copy = there
                    .create(&kube::api::PostParams::default(), &copy(&object, &uids))
                    .await;
                let copy = copy.with_context(|| format!("moving {kind} {}", object.name_any()))?;
                uids.insert(object.uid(), copy.uid());
                moved.push((here.clone(), object.name_any()));
            }
        }
        for (api, name) in moved.into_iter().rev() {
            forget(&api, &name)
                .await
                .with_context(|| format!("deleting {name}"))?;
        }
        target.pause_clusters(false).await
    }

    async fn pause_clusters(&self, paused: bool) -> Result<()> {
        let clusters = objects(self, CORE.0, CORE.1, "Cluster");
        for cluster in clusters.list(&ListParams::default()).await? {
            let patch = Patch::Merge(json!({"spec": {"paused": paused}}));
            clusters
                .patch(&cluster.name_any(), &PatchParams::default(), &patch)
                .await?;
        }
        Ok(())
    }
}

/// A copy of an object for the target, with the owners' new UIDs.
fn copy(object: &DynamicObject, uids: &BTreeMap<Option<String>, Option<String>>) -> DynamicObject {
    let mut copy = object.clone();
    if let Some(fields) = copy.data.as_object_mut() {
        fields.remove("status");
    }
    let meta = copy.meta_mut();
    (meta.uid, meta.resource_version, meta.deletion_timestamp) = (None, None, None);
    for owner in meta.owner_references.iter_mut().flatten() {
        if let Some(Some(uid)) = uids.get(&Some(owner.uid.clone())) {
            owner.uid.clone_from(uid);
        }
    }
    copy
}

async fn forget(api: &Api<DynamicObject>, name: &str) -> Result<()> {
    let no_finalizers = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    if api.get_opt(name).await?.is_some() {
        api.patch(name, &PatchParams::default(), &no_finalizers).await?;
    }
    if api.get_opt(name).await?.is_some() {
        api.delete(name, &DeleteParams::default()).await?;
    }
    Ok(())
}
