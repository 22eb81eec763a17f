//! Deleting VMs, and the list afterwards.

use super::*;

/// DRV-07, DRV-19, DRV-21, DRV-23
#[tokio::test(start_paused = true)]
async fn a_delete_is_done_only_when_the_vm_is_gone() {
    let driver = driver("deleteSeconds: 3");
    for name in ["a", "b", "c"] {
        driver.create(name, plain(name)).await.unwrap();
    }
    let (one, two) = tokio::join!(
        driver.remove("b", None, plain("b")),
        driver.remove("b", None, plain("b"))
    );
    assert!(one.is_ok() && two.is_ok());
    assert_eq!(
        code(driver.status("b", None, plain("b")).await),
        Some(Code::NotFound)
    );
    for _ in 0..10 {
        assert_eq!(code(driver.remove("b", None, plain("b")).await), None);
    }
    assert_eq!(driver.list(plain("a")).await.unwrap().len(), 2);
}

/// DRV-21, DRV-DE-01, DRV-DE-10
#[tokio::test(start_paused = true)]
async fn a_delete_that_takes_long_is_pending_and_a_dropped_one_goes_on() {
    let driver = driver("{deleteSeconds: 12, deleteWaitSeconds: 5}");
    driver.create("a", plain("a")).await.unwrap();
    let dropped = tokio::time::timeout(Duration::from_secs(1), driver.remove("a", None, plain("a"))).await;
    assert!(dropped.is_err());
    let seen = driver.status("a", None, plain("a")).await.unwrap();
    assert_eq!(seen.power_state, Some(PowerState::Stopping));
    assert_eq!(code(driver.create("a", plain("a")).await), Some(Code::Aborted));
    let pending = driver.remove("a", None, plain("a")).await.unwrap_err();
    assert_eq!(
        (pending.code(), pending.retry_after()),
        (Code::Aborted, Some(Duration::from_secs(6)))
    );
    assert_eq!(
        code(driver.remove("a", None, plain("a")).await),
        Some(Code::Aborted)
    );
    assert_eq!(code(driver.remove("a", None, plain("a")).await), None);
}

/// DRV-GS-11
#[tokio::test(start_paused = true)]
async fn two_vms_of_one_machine_are_named_and_both_deleted() {
    let driver = driver("{}");
    let made = driver.create("a", plain("a")).await.unwrap().provider_id;
    let planted = driver.console().plant(PlantedVm::new("c", "a", "a")).unwrap();
    let status = driver.status("a", None, plain("a")).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange);
    assert!(status.message().contains(&planted) && status.message().contains(made.as_str()));
    driver.remove("a", Some(&made), plain("a")).await.unwrap();
    assert!(driver.console().vms().unwrap().is_empty());
}

/// Simulates a failure outside any call: only lists concern the VM of a healthy machine.
#[tokio::test(start_paused = true)]
async fn a_vm_that_nothing_else_is_asked_about_vanishes_when_it_is_listed() {
    let driver = driver("{faults: [{machine: a, vanish: true, after: 1, count: 1}]}");
    driver.console().plant(PlantedVm::new("c", "a", "a")).unwrap();
    driver.console().plant(PlantedVm::new("c", "b", "b")).unwrap();
    let mut lists = Vec::new();
    for _ in 0..2 {
        let list = driver.list(plain("b")).await.unwrap();
        lists.push(list.into_iter().map(|(name, _)| name).collect::<Vec<_>>());
    }
    lists[0].sort();
    assert_eq!(lists, [vec!["a", "b"], vec!["b"]]);
}

/// DRV-34, DRV-36, DRV-GS-05
#[tokio::test(start_paused = true)]
async fn the_list_has_every_vm_of_the_cluster_and_none_that_is_gone() {
    let driver = driver("{faults: [{operation: GetMachineStatus, machine: a-7, vanish: true}]}");
    for name in (0..25).map(|n| format!("a-{n}")) {
        driver.create(&name, plain(&name)).await.unwrap();
    }
    driver.console().plant(PlantedVm::new("c", "", "x")).unwrap();
    driver.status("a-7", None, plain("a-7")).await.unwrap();
    assert_eq!(
        code(driver.status("a-7", None, plain("a-7")).await),
        Some(Code::NotFound)
    );
    let names: Vec<_> = driver
        .list(plain("a"))
        .await
        .unwrap()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(
        (names.len(), names[0].as_str(), names.contains(&"a-7".to_owned())),
        (25, "", false)
    );
}
