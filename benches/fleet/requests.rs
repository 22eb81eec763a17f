//! The requests of a bare client about a machine: the same number as the provider's.

use capcmi::api::annotations;
use capcmi::api::v1alpha1::InfraMachine;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Resource as _;
use serde_json::{Value, json};

/// A machine that a bare client brings up.
#[derive(Clone, Debug)]
pub struct Target {
    /// The namespace of the InfraMachine.
    pub namespace: String,
    /// The name of the InfraMachine.
    pub name: String,
    /// The UID of the InfraMachine.
    pub uid: String,
}

impl Target {
    /// Returns the id of the machine's VM.
    pub fn provider_id(&self) -> String {
        format!("simulated://zone-a/{}", self.uid)
    }

    /// Returns the record of a machine whose VM is in this state.
    fn record(&self, state: &Value) -> String {
        let Self { namespace, name, uid } = self;
        let record = json!({
            "version": "v1", "machine": format!("{namespace}/{name}/{uid}"), "cluster": uid, "state": state,
            "madeFrom": {"driver": "simulated", "providerSpec": {
                "vmPool": "default", "size": "small", "tags": {"kubernetes.io/role": "node"},
            }},
        });
        record.to_string()
    }

    /// Returns a patch of finalizer and record.
    pub fn ownership(&self, version: Option<&str>) -> Value {
        let creating = json!({"name": "Creating", "issued": "2026-01-01T00:00:00Z"});
        let mut ownership = json!({"metadata": {
            "finalizers": [capcmi::api::MACHINE_FINALIZER],
            "annotations": {annotations::VM_RECORD: self.record(&creating)},
        }});
        if let Some(version) = version {
            ownership["metadata"]["resourceVersion"] = json!(version);
        }
        ownership
    }

    /// Returns a patch of the providerID, and of the record of a VM that exists.
    pub fn identified(&self, version: Option<&str>) -> Value {
        let record = self.record(&json!({"name": "Exists"}));
        let mut identified = json!({
            "metadata": {"annotations": {annotations::VM_RECORD: record}},
            "spec": {"providerID": self.provider_id()},
        });
        if let Some(version) = version {
            identified["metadata"]["resourceVersion"] = json!(version);
        }
        identified
    }

    /// Returns a status as large as the provider's.
    pub fn status(&self, version: Option<&str>) -> Value {
        let now = Timestamp::now().to_string();
        let condition = |type_: &str, status: &str, reason: &str| {
            json!({"type": type_, "status": status,
            "reason": reason, "message": "", "lastTransitionTime": now, "observedGeneration": 2})
        };
        let mut status = json!({"status": {
            "ready": true, "initialization": {"provisioned": true}, "nodeName": self.name,
            "powerState": "Running", "failureDomain": "zone-a", "observedGeneration": 2,
            "addresses": [{"type": "InternalIP", "address": "10.100.0.1"},
                {"type": "Hostname", "address": self.name}],
            "lastOperation": {"type": "Create", "state": "Successful", "attempts": 0, "lastUpdateTime": now},
            "conditions": [
                condition("Paused", "False", "NotPaused"),
                condition("VirtualMachineCreated", "True", "Created"),
                condition("VirtualMachineInitialized", "True", "Initialized"),
                condition("DriverReachable", "True", "Reachable"),
                condition("VirtualMachineUpToDate", "True", "UpToDate"),
                condition("Ready", "True", "Ready"),
            ],
        }});
        if let Some(version) = version {
            status["metadata"] = json!({"resourceVersion": version});
        }
        status
    }

    /// Returns the Event that is written last.
    pub fn event(&self) -> Event {
        let now = Timestamp::now();
        Event {
            metadata: kube::api::ObjectMeta {
                name: Some(format!("{}.{:x}", self.name, now.as_nanosecond())),
                namespace: Some(self.namespace.clone()),
                ..kube::api::ObjectMeta::default()
            },
            type_: Some("Normal".to_owned()),
            reason: Some("Provisioned".to_owned()),
            action: Some("CreateMachine".to_owned()),
            note: Some(format!("the VM {} is provisioned", self.provider_id())),
            event_time: Some(MicroTime(now)),
            regarding: Some(ObjectReference {
                api_version: Some(InfraMachine::api_version(&()).into_owned()),
                kind: Some(InfraMachine::kind(&()).into_owned()),
                name: Some(self.name.clone()),
                namespace: Some(self.namespace.clone()),
                uid: Some(self.uid.clone()),
                ..ObjectReference::default()
            }),
            reporting_controller: Some("infrastructure.capcmi.io/floor".to_owned()),
            reporting_instance: Some("floor".to_owned()),
            ..Event::default()
        }
    }
}
