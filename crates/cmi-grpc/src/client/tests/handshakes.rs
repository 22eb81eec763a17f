//! The plugin's name, capabilities and readiness.

use super::faults::html;
use super::plugin::{CallEnd, Plugin, Reply, capabilities};
use super::*;
use crate::convert::tests::driver_values::{AnyValue, sample};
use crate::proto::capcmi::v1::GetExtensionCapabilitiesResponse;
use crate::proto::cmi::v1::plugin_capability::rpc::Type as Capability;
use crate::proto::cmi::v1::{GetPluginInfoResponse, ProbeResponse};
use cmi_driver::Request;

const HANDSHAKE: [&str; 4] = [
    "GetPluginInfo",
    "GetPluginCapabilities",
    "Probe",
    "GetExtensionCapabilities",
];

/// CMI-153, CMI-169
#[tokio::test]
async fn each_connection_starts_with_the_identity_calls_in_order() {
    let mut plugin = Plugin::start();
    let driver = driver(&plugin);
    assert_eq!(
        driver.get_plugin_info().await.unwrap().name,
        "scripted.example.com"
    );
    let declared = driver.get_plugin_capabilities().await.unwrap();
    assert_eq!(plugin.methods(), HANDSHAKE);
    assert_eq!(
        (declared.connection_generation, driver.connection_generation()),
        (1, 1)
    );
    plugin.kill();
    plugin.listen();
    eventually(async || driver.probe().await).await;
    assert_eq!(
        plugin.methods(),
        [&HANDSHAKE[..], &HANDSHAKE[..], &["Probe"][..]].concat()
    );
    assert_eq!(driver.connection_generation(), 2);
}

/// CMI-37
#[tokio::test]
async fn a_restarted_plugin_gets_no_call_that_it_no_longer_offers() {
    let mut plugin = Plugin::start();
    let driver = driver(&plugin);
    assert!(
        driver
            .get_plugin_capabilities()
            .await
            .unwrap()
            .capabilities
            .supports(Operation::ListMachines)
    );
    plugin.kill();
    plugin.answers("GetPluginCapabilities", Reply::ok(&capabilities(&[])));
    plugin.listen();
    let refused = eventually(async || match driver.list_machines(list()).await {
        Err(status) if status.code() == Code::Unimplemented => Ok(status),
        other => Err(other.unwrap_err()),
    });
    assert_eq!(
        refused.await.message(),
        "the driver does not implement ListMachines"
    );
    assert_eq!(plugin.count("ListMachines"), 0);
    assert!(
        !driver
            .get_plugin_capabilities()
            .await
            .unwrap()
            .capabilities
            .supports(Operation::ListMachines)
    );
}

/// Makes the call, unless every driver has it.
async fn assert_not_offered<Q: Request + AnyValue>(driver: &GrpcDriver) {
    if !Q::OPERATION.is_required() {
        let answer = sample::<Q>().send(driver).await;
        let code = answer.err().map(|status| status.code());
        assert_eq!(code, Some(Code::Unimplemented), "{}", Q::OPERATION);
    }
}

/// CMI-37
#[tokio::test]
async fn what_is_not_declared_is_unimplemented_without_a_round_trip() {
    let plugin = Plugin::start();
    plugin.answers(
        "GetPluginCapabilities",
        Reply::ok(&capabilities(&[
            Capability::CreateMachine,
            Capability::DeleteMachine,
        ])),
    );
    let driver = driver(&plugin);
    macro_rules! ask_for_all {
        ($(
            $(#[$doc:meta])* $operation:ident $name:literal $method:ident($request:ident)
                -> $response:ty, $need:ident, $effect:ident, [$($class:ident).*];
        )+) => {
            $(assert_not_offered::<cmi_driver::$request>(&driver).await;)+
        };
    }
    cmi_driver::for_each_call!(ask_for_all);
    assert_eq!(plugin.methods(), HANDSHAKE);
}

/// The smallest possible plugin only has a name.
#[tokio::test]
async fn a_plugin_with_create_and_delete_alone_makes_and_deletes_vms() {
    let plugin = Plugin::start();
    plugin.answers("GetPluginCapabilities", Reply::ok(&capabilities(&[])));
    for method in ["Probe", "GetExtensionCapabilities"] {
        plugin.answers(method, Reply::error(12, "unknown method"));
    }
    let driver = driver(&plugin);
    assert_eq!(driver.probe().await.unwrap_err().code(), Code::Unimplemented);
    let machine = driver.create_machine(create()).await.unwrap();
    assert_eq!(machine.provider_id.as_str(), "sim://1");
    driver.delete_machine(delete()).await.unwrap();
    assert_eq!(plugin.connections(), 1);
}

/// CMI-50, CMI-58, CMI-155: any gRPC server answers UNIMPLEMENTED to an unknown call, and so does a proxy
/// without a route.
#[tokio::test]
async fn a_grpc_server_that_does_not_serve_the_identity_calls_is_no_plugin() {
    for method in &HANDSHAKE[..2] {
        let plugin = Plugin::start();
        plugin.answers(method, Reply::error(12, "unknown service cmi.v1.Identity"));
        let driver = driver(&plugin);
        let status = driver.create_machine(create()).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{method}: {status}");
        for part in [
            "cmi.sock: ",
            "does not serve cmi.v1.Identity",
            "UNIMPLEMENTED (`unknown service cmi.v1.Identity`)",
            "check the endpoint",
        ] {
            assert!(
                status.message().contains(part),
                "{method}: {part} is not in {status}"
            );
        }
        assert_eq!(driver.probe().await.unwrap_err().code(), Code::Unavailable);
        assert_eq!(
            (plugin.count("CreateMachine"), driver.connection_generation()),
            (0, 0)
        );
    }
}

/// A proxy that loses its route during a connection answers every call with UNIMPLEMENTED. If the client
/// believed that the driver lacks the look-up, it would create a second VM.
#[tokio::test]
async fn unimplemented_counts_only_while_the_plugin_says_its_name() {
    let plugin = Plugin::start();
    let driver = driver(&plugin);
    let info = GetPluginInfoResponse {
        name: "scripted.example.com".to_owned(),
        version: "1".to_owned(),
        ..GetPluginInfoResponse::default()
    };
    for method in ["GetMachineStatus", "Probe"] {
        plugin.answers(method, Reply::error(12, ""));
        driver.get_plugin_info().await.unwrap();
        plugin.answers("GetPluginInfo", Reply::error(12, ""));
        let asked = async || match method {
            "Probe" => driver.probe().await.map(drop),
            _ => driver.get_machine_status(look_up()).await.map(drop),
        };
        let lost = asked().await.unwrap_err();
        assert_eq!(lost.code(), Code::Unavailable, "{method}: {lost}");
        let status = driver.create_machine(create()).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{method}: {status}");
        plugin.answers("GetPluginInfo", Reply::ok(&info));
        eventually(async || driver.get_plugin_info().await).await;
        assert_eq!(asked().await.unwrap_err().code(), Code::Unimplemented, "{method}");
    }
    assert_eq!(plugin.count("CreateMachine"), 0);
}

/// Some HTTP servers answer 404 for an unregistered service: Go's, and servers that mix gRPC with other
/// content.
#[tokio::test]
async fn a_plugin_that_answers_404_for_the_extension_is_used_without_it() {
    let plugin = Plugin::start();
    plugin.answers("GetExtensionCapabilities", html(404));
    let driver = driver(&plugin);
    assert_eq!(driver.probe().await.unwrap(), Readiness::Ready);
    driver.create_machine(create()).await.unwrap();
    assert!(
        driver
            .get_plugin_capabilities()
            .await
            .unwrap()
            .capabilities
            .supports(Operation::ListMachines)
    );
}

/// DRV-30: a proxy that has lost its plugin knows nothing about VMs.
#[tokio::test]
async fn a_server_that_has_no_page_for_the_identity_service_is_no_plugin() {
    for method in &HANDSHAKE[..3] {
        let plugin = Plugin::start();
        plugin.answers(method, html(404));
        let driver = driver(&plugin);
        let status = driver.create_machine(create()).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{method}: {status}");
        assert!(status.message().contains("HTTP status 404"), "{method}: {status}");
        assert_eq!(
            (plugin.count("CreateMachine"), driver.connection_generation()),
            (0, 0)
        );
    }
}

/// CMI-71
#[tokio::test]
async fn a_plugin_that_does_not_say_whether_it_is_ready_is_ready() {
    let plugin = Plugin::start();
    plugin.answers("Probe", Reply::ok(&ProbeResponse { ready: None }));
    let driver = driver(&plugin);
    assert_eq!(driver.probe().await.unwrap(), Readiness::Ready);
    driver.create_machine(create()).await.unwrap();
}

/// CMI-74, CMI-76, CMI-78: such a plugin's statements about a VM cannot be trusted.
#[tokio::test]
async fn a_plugin_that_is_not_ready_or_not_healthy_is_not_asked_about_machines() {
    let plugin = Plugin::start();
    let driver = driver(&plugin);
    for (reply, why) in [
        (Reply::ok(&ProbeResponse { ready: Some(false) }), "still starting"),
        (Reply::error(9, "no route to the cloud"), "no route to the cloud"),
    ] {
        plugin.answers("Probe", reply);
        let probed = driver.probe().await;
        assert!(!matches!(probed, Ok(Readiness::Ready)), "{probed:?}");
        let status = driver.get_machine_status(look_up()).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains(why), "{status}");
    }
    assert_eq!(plugin.count("GetMachineStatus"), 0);
    plugin.answers("Probe", Reply::ok(&ProbeResponse { ready: Some(true) }));
    driver.probe().await.unwrap();
    driver.create_machine(create()).await.unwrap();
    assert_eq!(plugin.connections(), 1);
}

/// CMI-68, CMI-72, CMI-74: any code except for UNIMPLEMENTED means that the plugin is unhealthy. The client
/// then makes no calls until the plugin reports otherwise, even right after the handshake.
#[tokio::test]
async fn a_failed_probe_means_unhealthy_also_on_a_new_connection() {
    let refusing = || (1..=16).filter(|code| *code != 12);
    for code in refusing() {
        let mut plugin = Plugin::start();
        let driver = driver(&plugin);
        driver.create_machine(create()).await.unwrap();
        plugin.answers("Probe", Reply::error(code, "the disk is full"));
        assert_eq!(driver.probe().await.unwrap_err().code().number(), code);
        let refused = driver.create_machine(create()).await.unwrap_err();
        plugin.kill();
        plugin.listen();
        eventually(
            async || match (driver.get_plugin_info().await?, driver.connection_generation()) {
                (_, 2) => Ok(()),
                (_, generation) => Err(Status::new(Code::Unknown, format!("generation {generation}"))),
            },
        )
        .await;
        let refused_anew = driver.create_machine(create()).await.unwrap_err();
        for status in [refused, refused_anew] {
            assert_eq!(status.code(), Code::Unavailable, "{code}: {status}");
            let said = "the plugin is not healthy: the disk is full";
            assert_eq!(status.message(), said, "{code}");
        }
        assert_eq!(plugin.count("CreateMachine"), 1);
        plugin.answers("Probe", Reply::ok(&ProbeResponse { ready: Some(true) }));
        driver.probe().await.unwrap();
        driver.create_machine(create()).await.unwrap();
    }
}

/// A lost answer is not the plugin's answer.
#[tokio::test]
async fn a_probe_whose_answer_is_lost_says_nothing_of_the_plugins_health() {
    let plugin = Plugin::start();
    let driver = driver(&plugin);
    driver.create_machine(create()).await.unwrap();
    for lost in [html(503), html(404), Reply::raw(vec![]).ending(CallEnd::Reset)] {
        plugin.answers("Probe", lost);
        assert_eq!(driver.probe().await.unwrap_err().code(), Code::Unavailable);
        driver.create_machine(create()).await.unwrap();
    }
}

/// CMI-169, CMI-167
#[tokio::test]
async fn a_plugin_that_comes_late_is_waited_for_without_being_hammered() {
    let mut plugin = Plugin::absent();
    let driver = driver(&plugin);
    let status = driver.create_machine(create()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("cmi.sock: "), "{status}");
    // It listens, but does not answer yet: the next call fails without an attempt.
    plugin.answers("GetPluginInfo", Reply::error(14, "starting"));
    plugin.listen();
    let asked = futures::future::join_all((0..100).map(|_| driver.create_machine(create()))).await;
    assert!(
        asked
            .iter()
            .all(|answer| answer.as_ref().is_err_and(|s| s.code() == Code::Unavailable))
    );
    assert!(plugin.connections() <= 1, "{} connections", plugin.connections());
    let info = GetPluginInfoResponse {
        name: "late.example.com".to_owned(),
        version: "1".to_owned(),
        ..GetPluginInfoResponse::default()
    };
    plugin.answers("GetPluginInfo", Reply::ok(&info));
    eventually(async || driver.create_machine(create()).await).await;
}

#[tokio::test]
async fn calls_that_wait_for_a_connection_share_it() {
    let plugin = Plugin::start();
    let driver = driver(&plugin);
    let made = futures::future::join_all((0..50).map(|_| driver.create_machine(create()))).await;
    assert!(made.iter().all(Result::is_ok));
    assert_eq!((plugin.connections(), plugin.count("CreateMachine")), (1, 50));
}

/// Behind a proxy, a plugin is replaced without a connection being lost.
#[tokio::test]
async fn a_plugin_that_answers_differently_starts_a_new_generation() {
    let plugin = Plugin::start();
    let driver = driver(&plugin);
    let declared = driver.get_plugin_capabilities().await.unwrap();
    driver.channel.renew(Duration::from_mins(5), LONG).await;
    assert_eq!(plugin.connections(), 1);
    driver.channel.renew(Duration::ZERO, LONG).await;
    assert_eq!((plugin.connections(), driver.connection_generation()), (2, 1));
    let again = driver.get_plugin_capabilities().await.unwrap();
    assert_eq!(again.connection_generation, 1);
    assert!(
        Arc::ptr_eq(&again.capabilities, &declared.capabilities),
        "it is kept once"
    );
    plugin.answers("GetPluginCapabilities", Reply::ok(&capabilities(&[])));
    driver.channel.renew(Duration::ZERO, LONG).await;
    assert_eq!((plugin.connections(), driver.connection_generation()), (3, 2));
    let other = driver.get_plugin_capabilities().await.unwrap();
    assert_eq!(other.connection_generation, 2);
    assert!(!other.capabilities.supports(Operation::ListMachines));
}

/// A successor that accepts but does not answer within a probe's timeout does not replace a plugin that
/// answers.
#[tokio::test]
async fn a_renewal_that_hangs_leaves_the_old_connection_and_time_to_ask_on_it() {
    let plugin = Plugin::start();
    let mut driver = driver(&plugin);
    driver.get_plugin_info().await.unwrap();
    driver.max_session_age = Duration::ZERO;
    driver.deadlines = Deadlines::new([(Operation::Probe, 4 * SHORT)]);
    plugin.answers("GetPluginInfo", Reply::raw(vec![]).ending(CallEnd::Never));
    assert_eq!(driver.probe().await.unwrap(), Readiness::Ready);
    assert_eq!(plugin.count("GetPluginInfo"), 2, "a new connection was tried");
    driver.create_machine(create()).await.unwrap();
    assert_eq!((plugin.connections(), driver.connection_generation()), (2, 1));
}

#[tokio::test]
async fn the_extension_adds_to_what_the_plugin_declares() {
    let plugin = Plugin::start();
    let extension = GetExtensionCapabilitiesResponse {
        zones: true,
        tag_path: "/meta/tags".to_owned(),
        ..GetExtensionCapabilitiesResponse::default()
    };
    plugin.answers("GetExtensionCapabilities", Reply::ok(&extension));
    let declared = driver(&plugin).get_plugin_capabilities().await.unwrap();
    let capabilities = declared.capabilities;
    assert!(capabilities.zones && capabilities.supports(Operation::ListMachines));
    assert_eq!(capabilities.tag_path.to_string(), "/meta/tags");
}
