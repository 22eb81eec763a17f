//! Requests that the driver refuses.

use super::*;

/// DRV-04, DRV-CR-03, DRV-DE-03, DRV-GS-03, DRV-LM-03
#[tokio::test(start_paused = true)]
async fn every_call_checks_name_spec_and_tags_and_changes_nothing() {
    let driver = driver("{}");
    let made = driver.create("a", plain("a")).await.unwrap();
    let without = |tag: &str| {
        let mut class = plain("a");
        class.provider_spec.0["tags"].as_object_mut().unwrap().remove(tag);
        class
    };
    let broken = [
        class("c", "a", &json!({"vmPool": null})),
        class("c", "a", &json!({"size": null})),
        class("c", "a", &json!({"tags": null})),
        class("c", "a", &json!({"rootFsSize": -1})),
        class("c", "a", &json!({"unknown": 1})),
        without(tags::CLUSTER),
        class("c", " ", &json!({})),
    ];
    let refused = Some(Code::InvalidArgument);
    for class in broken {
        assert_eq!(code(driver.create("a", class.clone()).await), refused);
        assert_eq!(code(driver.remove("a", None, class.clone()).await), refused);
        assert_eq!(code(driver.status("a", None, class.clone()).await), refused);
        assert_eq!(code(driver.initialize("a", class.clone()).await), refused);
        assert_eq!(code(driver.shut_down("a", class.clone()).await), refused);
        assert_eq!(
            code(driver.update("a", made.provider_id.clone(), class).await),
            refused
        );
    }
    assert_eq!(code(driver.list(without(tags::CLUSTER)).await), refused);
    assert_eq!(driver.list(without(tags::MACHINE)).await.unwrap().len(), 1);
    for name in ["", " ", "A", "a_b", &"a".repeat(254)] {
        assert_eq!(code(driver.create(name, plain("a")).await), refused);
        assert_eq!(code(driver.remove(name, None, plain("a")).await), refused);
        assert_eq!(code(driver.status(name, None, plain("a")).await), refused);
    }
    let malformed = "i-4711".parse().unwrap();
    assert_eq!(
        code(driver.remove("a", Some(&malformed), plain("a")).await),
        refused
    );
    assert_eq!(driver.mutations(), 1);
}

/// DRV-CR-08
#[tokio::test(start_paused = true)]
async fn a_full_pool_or_a_used_up_quota_refuses_until_there_is_room() {
    let driver =
        driver("{quota: 2, pools: {default: {subnet: 10.0.0.0/24, capacity: 1}, b: {subnet: 10.1.0.0/24}}}");
    driver.create("a", plain("a")).await.unwrap();
    assert_eq!(
        code(driver.create("b", plain("b")).await),
        Some(Code::ResourceExhausted)
    );
    driver.console().set_capacity("default", 9).unwrap();
    driver.create("b", plain("b")).await.unwrap();
    assert_eq!(
        code(driver.create("c", plain("c")).await),
        Some(Code::ResourceExhausted)
    );
    driver.console().set_quota(None).unwrap();
    driver.create("c", plain("c")).await.unwrap();
    driver.create("a", plain("a")).await.unwrap();
    assert_eq!(driver.list(plain("a")).await.unwrap().len(), 3);
}

/// DRV-CR-09, DRV-DE-09, DRV-GS-09, PLG-SD-09
#[tokio::test(start_paused = true)]
async fn a_locked_vm_is_refused_until_it_is_unlocked() {
    let driver = driver("{}");
    driver.create("a", plain("a")).await.unwrap();
    let (console, id) = (driver.console(), driver.id("a"));
    console.set_condition(id, Condition::Locked).unwrap();
    let refused = Some(Code::FailedPrecondition);
    assert_eq!(code(driver.create("a", plain("a")).await), refused);
    assert_eq!(code(driver.status("a", None, plain("a")).await), refused);
    assert_eq!(code(driver.shut_down("a", plain("a")).await), refused);
    assert_eq!(code(driver.remove("a", None, plain("a")).await), refused);
    console.set_condition(id, Condition::Crashed).unwrap();
    let seen = driver.status("a", None, plain("a")).await.unwrap();
    assert_eq!(seen.power_state, Some(PowerState::Failed));
    driver.remove("a", None, plain("a")).await.unwrap();
}

/// DRV-CR-07, DRV-CR-16, DRV-DE-07, DRV-GS-07, DRV-LM-07
#[tokio::test(start_paused = true)]
async fn a_token_that_is_missing_wrong_or_weak_is_refused() {
    for (credentials, create, status) in [
        ("{token: canary-4711}", None, None),
        (
            "{token: other}",
            Some(Code::Unauthenticated),
            Some(Code::Unauthenticated),
        ),
        (
            "{token: x, readOnlyToken: canary-4711}",
            Some(Code::PermissionDenied),
            Some(Code::NotFound),
        ),
        (
            "{token: x, powerlessToken: canary-4711}",
            Some(Code::PermissionDenied),
            Some(Code::PermissionDenied),
        ),
    ] {
        let driver = driver(&format!("credentials: {credentials}"));
        assert_eq!(code(driver.create("a", plain("a")).await), create);
        if create.is_some() {
            assert_eq!(code(driver.remove("a", None, plain("a")).await), create);
            assert_eq!(code(driver.status("a", None, plain("a")).await), status);
        }
        let mut bare = plain("a");
        bare.secrets = cmi_driver::Secrets::default();
        assert_eq!(code(driver.list(bare).await), Some(Code::Unauthenticated));
    }
}

/// DRV-26, DRV-33, DRV-GS-12
#[tokio::test(start_paused = true)]
async fn a_call_that_is_switched_off_is_neither_declared_nor_answered() {
    let driver = driver("disabledCalls: [GetMachineStatus, ListMachines, InitializeMachine]");
    let offered = driver.get_plugin_capabilities().await.unwrap().capabilities;
    assert!(!offered.supports(Operation::GetMachineStatus) && offered.supports(Operation::UpdateMachine));
    assert_eq!(
        code(driver.status("", None, plain("a")).await),
        Some(Code::Unimplemented)
    );
    assert_eq!(code(driver.list(plain("a")).await), Some(Code::Unimplemented));
    driver
        .create("a", class("c", "a", &json!({"sourceDestCheck": false})))
        .await
        .unwrap();
    assert!(!driver.console().vms().unwrap()[0].source_dest_check);
}
