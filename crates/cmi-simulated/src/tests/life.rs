//! The life of a VM.

use super::*;

/// DRV-29, INI-01, INI-12, INI-18, INI-22, INI-23
#[tokio::test(start_paused = true)]
async fn a_vm_whose_check_is_to_be_off_waits_for_its_initialization() {
    let driver = driver("faults: [{operation: InitializeMachine, count: 2, code: Uninitialized}]");
    let class = || class("c", "a", &json!({"sourceDestCheck": false}));
    let made = driver.create("a", class()).await.unwrap();
    for _ in 0..10 {
        let waits = driver.status("a", None, class()).await.unwrap_err();
        assert_eq!(waits.code(), Code::Uninitialized);
        assert_eq!(waits.machine().map(|vm| &vm.provider_id), Some(&made.provider_id));
    }
    for _ in 0..2 {
        let failed = driver.initialize("a", class()).await.unwrap_err();
        assert_eq!(
            failed.machine().map(|vm| &vm.provider_id),
            Some(&made.provider_id)
        );
    }
    assert_eq!(driver.mutations(), 1);
    for _ in 0..10 {
        driver.initialize("a", class()).await.unwrap();
    }
    assert_eq!(driver.mutations(), 2);
    driver.status("a", None, class()).await.unwrap();
    driver
        .console()
        .set_source_dest_check(driver.id("a"), true)
        .unwrap();
    assert_eq!(
        code(driver.status("a", None, class()).await),
        Some(Code::Uninitialized)
    );
    assert_eq!(
        code(driver.initialize("b", plain("b")).await),
        Some(Code::NotFound)
    );
}

/// The fault sets one of two changed labels, and returns the error.
#[tokio::test(start_paused = true)]
async fn a_half_update_sets_the_first_of_the_labels_that_change() {
    let driver = driver("faults: [{operation: UpdateMachine, count: 2, half: Aborted}]");
    let labelled = |a: &str, b: &str| class("c", "a", &json!({"labels": {"a": a, "b": b, "c": "same"}}));
    let id = driver.create("a", labelled("1", "1")).await.unwrap().provider_id;
    let labels = || driver.console().vms().unwrap().remove(0).labels;
    let failed = driver
        .update("a", id.clone(), labelled("2", "2"))
        .await
        .unwrap_err();
    assert_eq!(failed.code(), Code::Aborted);
    assert_eq!(
        [&labels()["a"], &labels()["b"], &labels()["c"]],
        ["2", "1", "same"]
    );
    let without = class("c", "a", &json!({"labels": {"b": "2", "c": "same"}}));
    let failed = driver.update("a", id.clone(), without).await.unwrap_err();
    assert_eq!(failed.code(), Code::Aborted);
    assert_eq!(
        labels(),
        [("b", "1"), ("c", "same")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into()
    );
    driver.update("a", id, labelled("2", "2")).await.unwrap();
    assert_eq!([&labels()["a"], &labels()["b"]], ["2", "2"]);
}

/// UPD-01, UPD-03
#[tokio::test(start_paused = true)]
async fn an_update_changes_labels_alone_and_compares_with_the_real_vm() {
    let driver = driver("{}");
    let id = driver.create("a", plain("a")).await.unwrap().provider_id;
    let labelled = || class("c", "a", &json!({"labels": {"tier": "gold"}}));
    for _ in 0..2 {
        driver.update("a", id.clone(), labelled()).await.unwrap();
    }
    assert_eq!(driver.console().vms().unwrap()[0].labels["tier"], "gold");
    assert_eq!(driver.mutations(), 2);
    let larger = driver
        .update("a", id.clone(), class("c", "a", &json!({"size": "large"})))
        .await
        .unwrap_err();
    assert_eq!(larger.code(), Code::InvalidArgument);
    assert!(larger.message().contains("/size"));
    driver.update("a", id, plain("a")).await.unwrap();
    assert!(driver.console().vms().unwrap()[0].labels.is_empty());
}

/// DRV-09, DRV-10: the published interface knows neither the tag of the machine nor that of its role.
#[tokio::test(start_paused = true)]
async fn the_cluster_tag_alone_suffices_to_create_find_and_delete_a_vm() {
    let driver = driver("{}");
    let class = || class("c", "", &json!({"tags": {tags::CLUSTER: "c"}}));
    let id = driver.create("a", class()).await.unwrap().provider_id;
    assert_eq!(driver.create("a", class()).await.unwrap().provider_id, id);
    assert_eq!(driver.status("a", None, class()).await.unwrap().provider_id, id);
    driver.remove("a", None, class()).await.unwrap();
    assert_eq!(
        code(driver.status("a", None, class()).await),
        Some(Code::NotFound)
    );
}

/// CAP-18, CAP-19, CAP-20
#[tokio::test(start_paused = true)]
async fn a_vm_without_an_identity_gets_that_of_the_update_and_keeps_it() {
    let untagged = || {
        class(
            "c",
            "a",
            &json!({"tags": {tags::CLUSTER: "c", tags::ROLE: "node"}}),
        )
    };
    let refusing = driver("{}");
    let id = refusing.create("a", untagged()).await.unwrap().provider_id;
    assert_eq!(
        code(refusing.update("a", id, plain("a")).await),
        Some(Code::NotFound)
    );

    let driver = driver("{addsMachineTag: true}");
    let id = driver.create("a", untagged()).await.unwrap().provider_id;
    assert_eq!(
        code(driver.status("a", Some(&id), plain("a")).await),
        Some(Code::NotFound)
    );
    for _ in 0..2 {
        driver.update("a", id.clone(), plain("a")).await.unwrap();
    }
    assert_eq!(driver.mutations(), 2);
    driver.status("a", None, plain("a")).await.unwrap();
    driver.status("a", Some(&id), untagged()).await.unwrap();
    assert_eq!(
        code(driver.status("a", None, untagged()).await),
        Some(Code::NotFound)
    );
    assert_eq!(
        code(driver.update("a", id.clone(), plain("b")).await),
        Some(Code::NotFound)
    );
    driver.remove("a", Some(&id), untagged()).await.unwrap();
    assert!(driver.console().vms().unwrap().is_empty());
}

/// PLG-SD-00, PLG-SD-10
#[tokio::test(start_paused = true)]
async fn a_guest_boots_stops_and_is_stopped() {
    let driver = driver("{bootSeconds: 2, bootJitterSeconds: 1, shutDownSeconds: 4}");
    let power = async || {
        driver
            .status("a", None, plain("a"))
            .await
            .unwrap()
            .power_state
            .unwrap()
    };
    driver.create("a", plain("a")).await.unwrap();
    assert_eq!(power().await, PowerState::Starting);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(power().await, PowerState::Running);
    assert_eq!(code(driver.shut_down("a", plain("a")).await), Some(Code::Aborted));
    assert_eq!(power().await, PowerState::Stopping);
    tokio::time::sleep(Duration::from_secs(4)).await;
    driver.shut_down("a", plain("a")).await.unwrap();
    assert_eq!(power().await, PowerState::Stopped);
    assert_eq!(
        code(driver.shut_down("b", plain("b")).await),
        Some(Code::NotFound)
    );
}

#[tokio::test(start_paused = true)]
async fn a_restarted_vm_boots_again_and_keeps_its_id_also_if_it_was_off() {
    let driver = driver("{bootSeconds: 2, bootJitterSeconds: 0, shutDownSeconds: 0}");
    let id = driver.create("a", plain("a")).await.unwrap().provider_id;
    let vm = async || driver.status("a", None, plain("a")).await.unwrap();
    for off in [false, true] {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let before = vm().await;
        if off {
            driver.shut_down("a", plain("a")).await.unwrap();
            assert_ne!(vm().await.addresses, before.addresses, "a guest that is off");
        }
        driver.restart_vm("a", id.clone(), plain("a")).await.unwrap();
        let after = vm().await;
        assert_eq!(after.power_state, Some(PowerState::Starting));
        assert_eq!(
            (after.provider_id, after.node_name, after.addresses),
            (before.provider_id, before.node_name, before.addresses)
        );
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(vm().await.power_state, Some(PowerState::Running));
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_is_not_there_or_will_not_run_again_is_not_restarted() {
    let driver = driver("{bootSeconds: 0}");
    let id = driver.create("a", plain("a")).await.unwrap().provider_id;
    let refused = async |name: &str| code(driver.restart_vm(name, id.clone(), plain(name)).await);
    assert_eq!(refused("b").await, Some(Code::NotFound));
    let vm = driver.console().vms().unwrap()[0].id;
    driver.console().set_condition(vm, Condition::Crashed).unwrap();
    assert_eq!(refused("a").await, Some(Code::FailedPrecondition));
    driver.console().vanish(vm).unwrap();
    assert_eq!(refused("a").await, Some(Code::NotFound));
    assert!(driver.console().vms().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_class_is_described_without_tags() {
    let driver = driver("{}");
    let bare = || class("", "", &json!({"tags": null}));
    let described = driver
        .describe_class(cmi_driver::DescribeClassRequest { class: bare() })
        .await
        .unwrap();
    assert_eq!(
        (
            described.capacity["cpu"].as_str(),
            described.capacity["memory"].as_str()
        ),
        ("2", "4Gi")
    );
    assert_eq!(
        driver
            .list_zones(cmi_driver::ListZonesRequest { class: bare() })
            .await
            .unwrap()
            .len(),
        3
    );
}
