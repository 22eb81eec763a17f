//! The client passes on the plugin's answer, for every code of every call.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use prost::Message as _;

use super::plugin::{CallEnd, Plugin, Reply};
use super::*;
use crate::convert::Declaration;
use crate::convert::tests::driver_values::{AnyValue, sample};
use crate::proto::capcmi::v1::get_extension_capabilities_response::Call as ExtensionCall;
use crate::proto::capcmi::v1::{Machine, MachineAddress, machine_address};
use cmi_driver::{Capabilities, Request, SecretValue, Secrets};

/// Answers the call with every code.
async fn every_code_arrives<Q: Request + AnyValue>(plugin: &Plugin, driver: &GrpcDriver) {
    let method = Q::OPERATION.name();
    for code in Code::ALL.into_iter().filter(|code| *code != Code::Uninitialized) {
        plugin.answers(method, Reply::error(code.number(), "pool is full"));
        let status = sample::<Q>().send(driver).await.map(drop).unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (code, "pool is full"),
            "{method}"
        );
    }
}

/// CMI-25, CLI-CR-01..CLI-CR-16, CLI-DE-02..CLI-DE-16, CLI-GS-02..CLI-GS-16, CLI-SD-02..CLI-SD-16,
/// CLI-LM-01..CLI-LM-16, CLI-GV-02..CLI-GV-14, PLG-CR-xx, PLG-DE-xx, PLG-GS-xx, PLG-SD-xx, PLG-LM-xx,
/// PLG-GV-xx: every code arrives with its message. The retry table holds the consequences.
#[tokio::test]
async fn every_code_of_every_call_arrives_as_it_was_said() {
    let plugin = Plugin::start();
    let all = Capabilities {
        operations: Operation::ALL.into(),
        ..Capabilities::minimal()
    };
    let mut extension = Declaration::from(&all).extension.unwrap();
    let instead = [ExtensionCall::GetMachine, ExtensionCall::ListMachinesPaged].map(i32::from);
    extension.calls.retain(|call| !instead.contains(call));
    plugin.answers("GetExtensionCapabilities", Reply::ok(&extension));
    let driver = driver(&plugin);
    macro_rules! say_to_all {
        ($(
            $(#[$doc:meta])* $operation:ident $name:literal $method:ident($request:ident)
                -> $response:ty, $need:ident, $effect:ident, [$($class:ident).*];
        )+) => {
            $(every_code_arrives::<cmi_driver::$request>(&plugin, &driver).await;)+
        };
    }
    cmi_driver::for_each_call!(say_to_all);
    assert_eq!(plugin.connections(), 1);
}

/// Servers that have sent headers already end with trailers.
#[tokio::test]
async fn a_status_in_trailers_is_worth_the_same() {
    let plugin = Plugin::start();
    let trailers = vec![
        ("grpc-status", "9".to_owned()),
        ("grpc-message", "it waits".to_owned()),
        ("capcmi-machine-code", "Uninitialized".to_owned()),
        ("capcmi-retry-after-ms", "1500".to_owned()),
    ];
    plugin.answers(
        "CreateMachine",
        Reply::raw(vec![]).ending(CallEnd::Trailers(trailers)),
    );
    let status = driver(&plugin).create_machine(create()).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Uninitialized, "it waits")
    );
    assert_eq!(status.retry_after(), Some(Duration::from_millis(1500)));
}

#[derive(Debug, Default)]
struct Debugging(std::sync::Mutex<Vec<(Operation, String)>>);

impl MetadataObserver for Debugging {
    fn observe(&self, operation: Operation, metadata: &http::HeaderMap) {
        let values = metadata.get_all("x-debug").iter();
        let texts = values.map(|value| (operation, value.to_str().unwrap().to_owned()));
        self.0.lock().unwrap().extend(texts);
    }
}

/// A plugin may write any metadata without a secret (CMI-186).
#[tokio::test]
async fn an_observer_sees_also_the_headers_and_trailers_that_mean_nothing() {
    let plugin = Plugin::start();
    let trailers = vec![("grpc-status", "9".to_owned()), ("x-debug", "trailer".to_owned())];
    let reply = Reply::raw(vec![]).ending(CallEnd::Trailers(trailers));
    plugin.answers("CreateMachine", reply.header("x-debug", "header"));
    plugin.answers(
        "DeleteMachine",
        Reply::error(9, "it waits").header("x-debug", "alone"),
    );
    let observer = Arc::new(Debugging::default());
    let driver = driver(&plugin).with_metadata_observer(observer.clone());
    driver.create_machine(create()).await.unwrap_err();
    driver.delete_machine(delete()).await.unwrap_err();
    let seen = [
        (Operation::CreateMachine, "header"),
        (Operation::CreateMachine, "trailer"),
        (Operation::DeleteMachine, "alone"),
    ];
    assert_eq!(
        *observer.0.lock().unwrap(),
        seen.map(|(operation, text)| (operation, text.to_owned()))
    );
}

/// A plugin may send more than many clients accept. The client removes secrets from a message before it cuts
/// the message (OPS-11).
#[tokio::test]
async fn an_error_of_many_kib_arrives_whole() {
    let plugin = Plugin::start();
    let message = "no room for it ".repeat(2000);
    let (state, id) = (vec![0xFF; 4096], "p".repeat(512));
    let machine = Machine {
        provider_id: id.clone(),
        node_name: "m".to_owned(),
        addresses: (0..20)
            .map(|_| MachineAddress {
                r#type: machine_address::Type::Hostname.into(),
                address: "a".repeat(256),
            })
            .collect(),
        ..Machine::default()
    };
    assert!((5 * 1024..=6 * 1024).contains(&machine.encoded_len()));
    let reply = Reply::error(9, message.trim_end())
        .header("capcmi-machine-code", "Uninitialized")
        .header("capcmi-last-known-state-bin", &BASE64_STANDARD.encode(&state))
        .header(
            "capcmi-response-bin",
            &BASE64_STANDARD.encode(machine.encode_to_vec()),
        );
    plugin.answers("CreateMachine", reply);
    let status = driver(&plugin).create_machine(create()).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Uninitialized, message.trim_end())
    );
    let read = status.machine().unwrap();
    assert_eq!(
        (read.provider_id.as_str(), read.addresses.len()),
        (id.as_str(), 20)
    );
    assert_eq!(status.last_known_state().unwrap().as_bytes(), state);
}

/// OPS-11
#[tokio::test]
async fn of_a_long_secret_that_a_plugin_echoes_no_part_is_left() {
    const PART: usize = 12;
    let plugin = Plugin::start();
    let data = "correct horse battery staple ".repeat(200);
    let encoded = BASE64_STANDARD.encode(&data);
    let echo = format!("no {encoded} and no {data}either");
    plugin.answers("CreateMachine", Reply::error(3, &echo));
    let value = SecretValue::from(data.clone().into_bytes());
    let secrets: Secrets = [("userData".to_owned(), value)].into_iter().collect();
    let status = driver(&plugin).create_machine(create()).await.unwrap_err();
    let shown = status.redacted(&secrets).to_string();
    assert!(shown.contains("no [redacted] and no [redacted]"), "{shown}");
    for part in [encoded, data]
        .iter()
        .flat_map(|secret| secret.as_bytes().windows(PART))
    {
        let part = std::str::from_utf8(part).unwrap();
        assert!(!shown.contains(part), "{part} in {shown}");
    }
}

/// A code that gRPC does not have is meaningless.
#[tokio::test]
async fn a_code_that_there_is_not_is_unknown() {
    let plugin = Plugin::start();
    plugin.answers("GetMachineStatus", Reply::error(99, "unheard of"));
    let status = driver(&plugin).get_machine_status(look_up()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unknown);
}
