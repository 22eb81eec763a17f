use std::sync::Mutex;
use std::time::Duration;

use futures::FutureExt as _;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::*;

const DEADLINE: Duration = Duration::from_secs(10);

/// A platform in memory.
struct Cloud {
    vms: Mutex<Vec<Vm>>,
    /// A permit for each create that the platform carries out.
    creates: Semaphore,
    /// The platform still shows deleted VMs.
    is_slow: bool,
    /// Lists answer 404.
    is_elsewhere: bool,
}

impl Cloud {
    fn with(creates: usize) -> Self {
        Self {
            vms: Mutex::default(),
            creates: Semaphore::new(creates),
            is_slow: false,
            is_elsewhere: false,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Spec {
    size: u32,
}

#[async_trait]
impl Backend for Cloud {
    type Spec = Spec;

    fn check(&self, spec: &Spec) -> Result<()> {
        match spec.size {
            0..=9 => Ok(()),
            _ => Err(crate::fields::out_of_range("/size", "must be at most 9")),
        }
    }

    async fn list(&self, _cluster: &str, _class: &DecodedClass<Spec>) -> Result<Vec<Vm>> {
        if self.is_elsewhere {
            return Err(Status::new(Code::NotFound, "no such path"));
        }
        Ok(self.vms.lock().unwrap().clone())
    }

    async fn create(&self, key: &MachineKey, class: &DecodedClass<Spec>) -> Result<Vm> {
        self.creates.acquire().await.unwrap().forget();
        let id = format!("cloud:///{}", self.vms.lock().unwrap().len());
        let vm = Vm::new(&id, &key.name, class.tags.clone())?;
        self.vms.lock().unwrap().push(vm.clone());
        match class.spec.size {
            9 => Err(Status::new(Code::Unavailable, "the answer was lost")),
            _ => Ok(vm),
        }
    }

    async fn delete(&self, vm: &Vm, _class: &DecodedClass<Spec>) -> Result<()> {
        if !self.is_slow {
            self.vms.lock().unwrap().retain(|one| one != vm);
        }
        Ok(())
    }

    async fn stop(&self, vm: &Vm, _class: &DecodedClass<Spec>) -> Result<()> {
        for one in self.vms.lock().unwrap().iter_mut().filter(|one| *one == vm) {
            assert_eq!(one.machine.power_state, None, "it runs");
            one.machine.power_state = Some(PowerState::Stopped);
        }
        Ok(())
    }
}

fn driver(cloud: Cloud) -> BackendDriver<Cloud> {
    BackendDriver::new(PluginInfo::new("cloud.example.com", "v1"), cloud)
}

fn machine(identity: &str, size: u32) -> MachineRef {
    let tags = json!({tags::CLUSTER: "c", tags::ROLE: "node", tags::MACHINE: identity});
    let spec = json!({"size": size, "tags": tags});
    let class = MachineClass {
        provider_spec: serde_json::from_value(spec).unwrap(),
        ..MachineClass::default()
    };
    MachineRef::new("m", class)
}

fn create(identity: &str, size: u32) -> CreateMachineRequest {
    CreateMachineRequest {
        machine: machine(identity, size),
        last_known_state: None,
    }
}

fn status(identity: &str) -> GetMachineStatusRequest {
    GetMachineStatusRequest {
        machine: machine(identity, 1),
        provider_id: None,
    }
}

fn delete(identity: &str) -> DeleteMachineRequest {
    DeleteMachineRequest {
        machine: machine(identity, 1),
        provider_id: None,
        last_known_state: None,
    }
}

fn stop(identity: &str) -> ShutDownMachineRequest {
    ShutDownMachineRequest {
        machine: machine(identity, 1),
        provider_id: None,
        last_known_state: None,
    }
}

/// DRV-30
#[tokio::test]
async fn a_platform_that_finds_nothing_never_means_a_machine_without_a_vm() {
    let driver = driver(Cloud {
        is_elsewhere: true,
        ..Cloud::with(1)
    });
    let class = machine("i", 1).class;
    let answers = [
        driver.create_machine(create("i", 1)).await.map(drop),
        driver.get_machine_status(status("i")).await.map(drop),
        driver.delete_machine(delete("i")).await.map(drop),
        driver.shut_down_machine(stop("i")).await.map(drop),
        driver
            .list_machines(ListMachinesRequest { class })
            .await
            .map(drop),
    ];
    for answer in answers {
        let refused = answer.unwrap_err();
        assert_eq!(
            (refused.code(), refused.message()),
            (Code::Unknown, "no such path")
        );
    }
}

/// DRV-10, DRV-CR-06
#[tokio::test]
async fn a_repeated_create_returns_the_vm_and_another_is_refused() {
    let driver = driver(Cloud::with(1));
    let made = driver.create_machine(create("i", 1)).await.unwrap();
    assert_eq!(driver.create_machine(create("i", 1)).await.unwrap(), made);
    for other in [create("i", 2), create("j", 1)] {
        let refused = driver.create_machine(other).await.unwrap_err();
        assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
        assert!(refused.has_no_side_effects(), "{refused}");
    }
    assert_eq!(driver.calls.backend.vms.lock().unwrap().len(), 1);
}

/// DRV-10
#[tokio::test]
async fn a_create_whose_answer_was_lost_is_adopted() {
    let driver = driver(Cloud::with(1));
    let lost = driver.create_machine(create("i", 9)).await.unwrap_err();
    assert!(!lost.has_no_side_effects(), "the platform got the request");
    let made = driver.create_machine(create("i", 9)).await.unwrap();
    assert_eq!(driver.get_machine_status(status("i")).await.unwrap(), made);
}

#[tokio::test]
async fn a_create_goes_on_when_its_call_is_dropped() {
    let driver = driver(Cloud::with(0));
    assert!(driver.create_machine(create("i", 1)).now_or_never().is_none());
    driver.calls.backend.creates.add_permits(1);
    let made = async {
        loop {
            match driver.get_machine_status(status("i")).await {
                Ok(machine) => break machine,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    let made = timeout(DEADLINE, made).await.unwrap();
    // A second VM would wait for a permit.
    let again = timeout(DEADLINE, driver.create_machine(create("i", 1)))
        .await
        .unwrap();
    assert_eq!(again.unwrap(), made);
}

#[tokio::test]
async fn a_size_that_no_vm_can_have_is_refused_before_the_platform_is_asked() {
    let driver = driver(Cloud::with(1));
    let refused = driver.create_machine(create("i", 10)).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    assert!(driver.calls.backend.vms.lock().unwrap().is_empty());
}

/// DRV-19, DRV-20
#[tokio::test]
async fn delete_removes_the_machines_vm_and_leaves_those_of_others() {
    let driver = driver(Cloud::with(1));
    driver.create_machine(create("i", 1)).await.unwrap();
    driver.delete_machine(delete("j")).await.unwrap();
    driver.get_machine_status(status("i")).await.unwrap();
    driver.delete_machine(delete("i")).await.unwrap();
    driver.delete_machine(delete("i")).await.unwrap();
    let gone = driver.get_machine_status(status("i")).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
}

#[tokio::test]
async fn delete_is_aborted_while_the_platform_shows_the_vm() {
    let driver = driver(Cloud {
        is_slow: true,
        ..Cloud::with(1)
    });
    driver.create_machine(create("i", 1)).await.unwrap();
    let busy = driver.delete_machine(delete("i")).await.unwrap_err();
    assert_eq!(busy.code(), Code::Aborted);
}

#[tokio::test]
async fn several_vms_of_a_machine_are_named_and_all_deleted() {
    let driver = driver(Cloud::with(1));
    driver.create_machine(create("i", 1)).await.unwrap();
    let copy = {
        let mut vms = driver.calls.backend.vms.lock().unwrap();
        let copy = Vm::new("cloud:///copy", "m", vms[0].tags.clone()).unwrap();
        vms.push(copy.clone());
        copy
    };
    for (refused, code) in [
        (driver.get_machine_status(status("i")).await, Code::OutOfRange),
        (
            driver.create_machine(create("i", 1)).await,
            Code::FailedPrecondition,
        ),
    ] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), code);
        assert!(refused.message().contains(copy.id()), "{refused}");
    }
    driver.delete_machine(delete("i")).await.unwrap();
    assert!(driver.calls.backend.vms.lock().unwrap().is_empty());
}

/// CMI-127
#[tokio::test]
async fn a_guest_is_asked_to_stop_once_and_only_by_its_machine() {
    let driver = driver(Cloud::with(1));
    driver.create_machine(create("i", 1)).await.unwrap();
    let foreign = driver.shut_down_machine(stop("j")).await.unwrap_err();
    assert_eq!(foreign.code(), Code::NotFound);
    driver.shut_down_machine(stop("i")).await.unwrap();
    driver.shut_down_machine(stop("i")).await.unwrap();
    let stopped = driver.get_machine_status(status("i")).await.unwrap();
    assert_eq!(stopped.power_state, Some(PowerState::Stopped));
}

/// Existing VMs have tags from earlier versions.
#[test]
fn the_digest_of_a_spec_never_changes() {
    let of = |text: &str| digest(serde_json::from_str(text).unwrap());
    assert_eq!(of(r#"{"a": 1}"#), "d768360bb87758eb94726e59c2a22409");
    assert_ne!(of(r#"{"a": 1}"#), of(r#"{"a": 2}"#));
}
