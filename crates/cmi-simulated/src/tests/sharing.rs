//! The ownership of VMs, and a cloud that several processes share.

use super::*;

/// DRV-03, DRV-08, DRV-20, DRV-28
#[tokio::test(start_paused = true)]
async fn a_vm_of_another_cluster_or_machine_object_is_never_touched() {
    let driver = driver("{}");
    let ours = driver.create("a", plain("a")).await.unwrap();
    let foreign = driver.create("a", class("other", "a", &json!({}))).await.unwrap();
    let stranger = driver
        .console()
        .plant(PlantedVm::new("c", "b", "another-machine"))
        .unwrap();
    let stranger: ProviderId = stranger.parse().unwrap();
    assert_ne!(ours.provider_id, foreign.provider_id);
    assert_eq!(
        code(driver.status("a", Some(&foreign.provider_id), plain("a")).await),
        Some(Code::NotFound)
    );
    assert_eq!(
        code(driver.status("b", Some(&stranger), plain("b")).await),
        Some(Code::NotFound)
    );
    assert_eq!(code(driver.remove("b", Some(&stranger), plain("b")).await), None);
    assert_eq!(
        code(
            driver
                .remove("never", Some(&foreign.provider_id), plain("never"))
                .await
        ),
        None
    );
    assert_eq!(
        code(driver.remove("a", Some(&foreign.provider_id), plain("a")).await),
        None
    );
    let left: Vec<_> = driver
        .console()
        .vms()
        .unwrap()
        .iter()
        .map(Vm::provider_id)
        .collect();
    assert_eq!(left.len(), 2);
    assert!(left.contains(&stranger.to_string()) && left.contains(&foreign.provider_id.to_string()));
    assert_eq!(
        driver.list(class("other", "", &json!({}))).await.unwrap().len(),
        1
    );
}

/// A client of the published interface alone does not know the tag `capcmi.io/machine`.
#[tokio::test(start_paused = true)]
async fn a_vm_without_an_identity_matches_only_requests_without_one() {
    let driver = driver("{}");
    let bare = || {
        let mut class = plain("a");
        let all = class.provider_spec.0["tags"].as_object_mut().unwrap();
        all.remove(tags::MACHINE);
        class
    };
    let made = driver.create("a", bare()).await.unwrap().provider_id;
    assert_eq!(driver.create("a", bare()).await.unwrap().provider_id, made);
    assert_eq!(driver.status("a", None, bare()).await.unwrap().provider_id, made);
    assert_eq!(
        code(driver.status("a", None, plain("a")).await),
        Some(Code::NotFound)
    );
    assert_eq!(
        code(driver.create("a", plain("a")).await),
        Some(Code::AlreadyExists)
    );
    assert_eq!(code(driver.remove("a", None, plain("a")).await), None);
    assert_eq!(driver.console().vms().unwrap().len(), 1);
    assert_eq!(code(driver.remove("a", None, bare()).await), None);
    assert_eq!(driver.console().vms().unwrap(), []);
}

/// DRV-30: a cloud that can't be read has not confirmed that there is no VM.
#[tokio::test(start_paused = true)]
async fn drivers_share_a_state_file_and_a_damaged_file_is_not_absence() {
    let folder = tempfile::tempdir().unwrap();
    let (state, log) = (folder.path().join("cloud"), folder.path().join("calls"));
    let text = format!(
        "{{stateFile: '{}', callLog: '{}'}}",
        state.display(),
        log.display()
    );
    let new = || SimulatedDriver::new(serde_saphyr::from_str(&text).unwrap()).unwrap();
    let (one, two) = (new(), new());
    let made = one.create("a", plain("a")).await.unwrap();
    assert_eq!(
        two.create("a", plain("a")).await.unwrap().provider_id,
        made.provider_id
    );
    CloudConsole::open(&state).unwrap().vanish(two.id("a")).unwrap();
    assert_eq!(
        code(one.status("a", None, plain("a")).await),
        Some(Code::NotFound)
    );
    let logged = std::fs::read_to_string(&log).unwrap();
    assert_eq!(logged.lines().count(), 6);
    assert!(!logged.contains("canary"), "OPS-11");
    std::fs::write(&state, vec![b'\n'; 100_000]).unwrap();
    assert_eq!(
        code(one.status("a", None, plain("a")).await),
        Some(Code::Internal)
    );
    assert_eq!(code(one.create("b", plain("b")).await), Some(Code::Internal));
}
