//! Making VMs.

use super::*;

/// A cancelled call need not stop a back end.
#[tokio::test(start_paused = true)]
async fn a_create_whose_caller_has_gone_can_be_carried_out_later() {
    let driver = driver(
        "{faults: [{operation: CreateMachine, carryOutAfterMs: 5000, hang: after, count: 1}], deleteSeconds: \
            0}",
    );
    let given_up = tokio::time::timeout(Duration::from_secs(1), driver.create("a", plain("a"))).await;
    assert!(given_up.is_err());
    driver.remove("a", None, plain("a")).await.unwrap();
    let seen = || async { code(driver.status("a", None, plain("a")).await) };
    assert_eq!(seen().await, Some(Code::NotFound));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(seen().await, None);
    driver.remove("a", None, plain("a")).await.unwrap();
    assert_eq!(seen().await, Some(Code::NotFound));
}

/// DRV-12
#[tokio::test(start_paused = true)]
async fn repeating_a_pending_create_returns_its_vm_and_makes_no_other() {
    let driver =
        driver("{faults: [{operation: CreateMachine, carryOutAfterMs: 5000, hang: after, count: 1}]}");
    let given_up = tokio::time::timeout(Duration::from_secs(1), driver.create("a", plain("a"))).await;
    assert!(given_up.is_err());
    let made = driver.create("a", plain("a")).await.unwrap();
    let seen = driver.status("a", None, plain("a")).await.unwrap();
    assert_eq!(
        seen.provider_id, made.provider_id,
        "it is there once it is answered"
    );
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(driver.list(plain("a")).await.unwrap().len(), 1);
    assert_eq!(driver.mutations(), 3, "it was ordered once");
}

/// DRV-10, DRV-12, DRV-13, DRV-14, DRV-27
#[tokio::test(start_paused = true)]
async fn a_create_that_is_repeated_gives_the_same_vm() {
    let driver = driver("{}");
    let first = driver.create("a", plain("a")).await.unwrap();
    for _ in 0..10 {
        let again = driver.create("a", plain("a")).await.unwrap();
        assert_eq!(
            (&again.provider_id, &again.node_name),
            (&first.provider_id, &first.node_name)
        );
        assert_eq!(
            driver
                .status("a", Some(&first.provider_id), plain("a"))
                .await
                .unwrap(),
            again
        );
    }
    assert_eq!(
        driver.list(plain("a")).await.unwrap(),
        [("a".to_owned(), first.provider_id.to_string())]
    );
    assert_eq!((first.node_name.as_str(), driver.mutations()), ("a", 1));
}

/// DRV-11, DRV-CR-10
#[tokio::test(start_paused = true)]
async fn concurrent_creates_make_one_vm_for_each_name() {
    let driver = driver("latencyMs: 10");
    let names: Vec<_> = (0..16).map(|n| format!("a-{}", n % 8)).collect();
    let made = join_all(names.iter().map(|name| driver.create(name, plain(name)))).await;
    let ids: std::collections::BTreeSet<_> = made.into_iter().map(|vm| vm.unwrap().provider_id).collect();
    assert_eq!((ids.len(), driver.list(plain("a")).await.unwrap().len()), (8, 8));
}

/// DRV-12, DRV-CR-01, DRV-CR-04
#[tokio::test(start_paused = true)]
async fn a_create_that_is_dropped_anywhere_is_completed_by_a_repeat() {
    for hang in ["before", "after"] {
        let driver = driver(&format!(
            "faults: [{{operation: CreateMachine, count: 1, hang: {hang}}}]"
        ));
        let dropped = tokio::time::timeout(Duration::from_mins(1), driver.create("a", plain("a"))).await;
        assert!(dropped.is_err());
        driver.create("a", plain("a")).await.unwrap();
        assert_eq!(driver.list(plain("a")).await.unwrap().len(), 1);
        assert_eq!(
            driver.calls().counts()[&(Operation::CreateMachine, Some(Code::Canceled))],
            1
        );
    }
}

/// DRV-CR-14
#[tokio::test(start_paused = true)]
async fn a_lost_response_leaves_the_vm_and_a_repeat_finds_it() {
    let driver = driver("faults: [{operation: CreateMachine, count: 1, loseResponse: Unavailable}]");
    assert_eq!(
        code(driver.create("a", plain("a")).await),
        Some(Code::Unavailable)
    );
    assert_eq!(driver.list(plain("a")).await.unwrap().len(), 1);
    driver.create("a", plain("a")).await.unwrap();
    assert_eq!(driver.mutations(), 1);
}

/// DRV-CR-06
#[tokio::test(start_paused = true)]
async fn a_vm_with_other_parameters_or_another_identity_exists_already() {
    let driver = driver("{}");
    let made = driver.create("a", plain("a")).await.unwrap();
    let others = [
        class("c", "a", &json!({"size": "large"})),
        class("c", "a", &json!({"rootFsSize": 99})),
        class("c", "another-machine", &json!({})),
    ];
    for other in others {
        assert_eq!(code(driver.create("a", other).await), Some(Code::AlreadyExists));
    }
    assert_eq!(
        driver.status("a", None, plain("a")).await.unwrap().provider_id,
        made.provider_id
    );
    let relabelled = class("c", "a", &json!({"labels": {"a": "b"}, "sourceDestCheck": false}));
    assert_eq!(
        driver.create("a", relabelled).await.unwrap().provider_id,
        made.provider_id
    );
}

/// DRV-10, DRV-30
#[tokio::test(start_paused = true)]
async fn a_new_vm_that_is_not_shown_yet_is_not_made_twice() {
    let driver = driver("{consistencyWindowSeconds: 5, hideNewSeconds: 4}");
    let made = driver.create("a", plain("a")).await.unwrap();
    assert_eq!(
        code(driver.status("a", None, plain("a")).await),
        Some(Code::NotFound)
    );
    assert_eq!(
        driver.create("a", plain("a")).await.unwrap().provider_id,
        made.provider_id
    );
    let declared = driver.get_plugin_capabilities().await.unwrap();
    tokio::time::sleep(declared.capabilities.consistency_window).await;
    driver.status("a", None, plain("a")).await.unwrap();
}

/// How many different values the VMs of a cloud have.
fn distinct(vms: &[Vm], of: fn(&Vm) -> String) -> usize {
    vms.iter()
        .map(of)
        .collect::<std::collections::BTreeSet<_>>()
        .len()
}

/// DRV-05
#[tokio::test(start_paused = true)]
async fn vms_have_their_user_data_zone_and_a_unique_address() {
    let driver = driver("{}");
    for name in ["a", "b", "c"] {
        driver.create(name, plain(name)).await.unwrap();
    }
    let vms = driver.console().vms().unwrap();
    assert!(
        vms.iter()
            .all(|vm| vm.user_data.expose() == b"#cloud-config canary-0815")
    );
    assert_eq!(distinct(&vms, |vm| format!("{:?}", vm.address)), 3);
    let zone = class("c", "d", &json!({"failureDomain": "zone-b"}));
    assert_eq!(
        driver.create("d", zone).await.unwrap().failure_domain.as_deref(),
        Some("zone-b")
    );
}

#[tokio::test(start_paused = true)]
async fn a_vm_is_placed_where_the_fewest_are() {
    let driver = driver("{}");
    for name in ["a", "b", "c"] {
        driver.create(name, plain(name)).await.unwrap();
    }
    let vms = driver.console().vms().unwrap();
    assert_eq!(distinct(&vms, |vm| format!("{:?}", vm.zone)), 3);
}
