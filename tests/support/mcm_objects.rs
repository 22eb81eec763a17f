//! The objects and VMs of machine-controller-manager.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, anyhow};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use cmi_driver::tags;
use cmi_simulated::PlantedVm;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::{Cloud, World};

pub const GROUP: &str = "machine.sapcloud.io";
/// The back end requires this token, and the Secrets of classes contain it.
pub const TOKEN: &str = "canary-token-of-a-machine-class";

/// A back end that refuses every call without the token. The Cluster has no credentials.
pub fn guarded() -> Value {
    json!({"credentials": {"token": TOKEN}, "disabledCalls": ["ListZones"]})
}

/// Makes the objects and VMs of a namespace.
#[derive(Clone, Copy)]
pub struct McmObjects<'a> {
    pub world: &'a World,
    pub cloud: &'a Cloud,
    pub user_data: &'a str,
}

impl McmObjects<'_> {
    /// A VM as machine-controller-manager has it made.
    pub fn plant(&self, name: &str) -> Result<String> {
        let mut planted = PlantedVm::new("shoot--old", name, "");
        planted.tags.remove(tags::MACHINE);
        planted.tags.insert("worker".to_owned(), "1".to_owned());
        planted.user_data = self.user_data.into();
        let id = self.cloud.console()?.plant(planted);
        id.map_err(|status| anyhow!("planting a VM: {status}"))
    }

    /// A MachineDeployment with its set, class and Secret, and with machines of these names.
    pub fn deployment(&self, names: &[impl AsRef<str>]) -> Result<Vec<Value>> {
        let mut all = self.class();
        all.push(self.set("MachineDeployment", "workers", None));
        all.push(self.set("MachineSet", "workers-1", Some(("MachineDeployment", "workers"))));
        for name in names.iter().map(AsRef::as_ref) {
            let id = self.plant(name)?;
            all.push(self.machine(name, &id, Some(("MachineSet", "workers-1"))));
        }
        Ok(all)
    }

    /// A class, and its Secret before it.
    pub fn class(&self) -> Vec<Value> {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": self.metadata("cloud"),
            "data": {
                "userData": BASE64_STANDARD.encode(self.user_data), "token": BASE64_STANDARD.encode(TOKEN),
            },
        });
        let provider_spec = json!({
            "vmPool": "default", "size": "small",
            "tags": {"worker": "1", tags::CLUSTER: "shoot--old", tags::ROLE: "node"},
        });
        let class = json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass",
            "metadata": self.metadata("small"),
            "provider": "simulated", "providerSpec": provider_spec,
            "secretRef": {"name": "cloud", "namespace": self.world.namespace},
        });
        vec![secret, class]
    }

    /// A MachineDeployment or MachineSet of two machines of the class.
    pub fn set(&self, kind: &str, name: &str, owner: Option<(&str, &str)>) -> Value {
        let spec = json!({"class": {"kind": "MachineClass", "name": "small"}});
        let mut set = json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": kind, "metadata": self.metadata(name),
            "spec": {
                "replicas": 2, "selector": {"matchLabels": {"name": "workers"}},
                "template": {"metadata": {"labels": {"name": "workers"}}, "spec": spec},
            },
        });
        if let Some(owner) = owner {
            set["metadata"]["ownerReferences"] = owned_by(owner);
        } else {
            set["spec"]["strategy"] =
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
        }
        set
    }

    /// A Machine of the class.
    pub fn machine(&self, name: &str, id: &str, owner: Option<(&str, &str)>) -> Value {
        let mut machine = json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "metadata": self.metadata(name),
            "spec": {"providerID": id, "class": {"kind": "MachineClass", "name": "small"}},
        });
        if let Some(owner) = owner {
            machine["metadata"]["ownerReferences"] = owned_by(owner);
        }
        machine
    }

    pub fn metadata(&self, name: &str) -> Value {
        json!({"name": name, "namespace": self.world.namespace, "labels": {"name": "workers"}})
    }

    /// Creates objects, owners first.
    pub async fn apply(&self, objects: Vec<Value>) -> Result<()> {
        let mut uids = BTreeMap::new();
        for mut object in objects {
            for owner in object["metadata"]["ownerReferences"]
                .as_array_mut()
                .into_iter()
                .flatten()
            {
                let uid: Option<&String> = uids.get(&(owner["kind"].to_string(), owner["name"].to_string()));
                owner["uid"] = json!(uid.context("an owner that was not made before")?);
            }
            let key = (object["kind"].to_string(), object["metadata"]["name"].to_string());
            let made = management_cluster::apply(&self.world.admin, object).await?;
            uids.insert(key, made.uid().context("no UID")?);
        }
        Ok(())
    }
}

fn owned_by((kind, name): (&str, &str)) -> Value {
    json!([{"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": kind, "name": name,
        "uid": "of-another-cluster", "controller": true}])
}
