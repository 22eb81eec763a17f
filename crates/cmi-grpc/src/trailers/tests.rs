use proptest::prelude::*;

use super::*;
use crate::convert::tests::driver_values as any_driver;
use cmi_driver::{Address, AddressType, PowerState};

/// The parts of a status that travel.
type Parts<'a> = (
    Code,
    &'a str,
    Option<&'a LastKnownState>,
    Option<&'a Machine>,
    Option<Duration>,
    bool,
);

fn parts(status: &Status) -> Parts<'_> {
    (
        status.code(),
        status.message(),
        status.last_known_state(),
        status.machine(),
        status.retry_after(),
        status.has_no_side_effects() && status.machine().is_none(),
    )
}

fn machine() -> Machine {
    Machine::new("sim:///m-0".parse::<ProviderId>().unwrap(), "m-0")
}

fn long_address() -> Address {
    Address {
        kind: AddressType::InternalDNS,
        address: "a".repeat(256),
    }
}

/// The bytes that HTTP/2 counts for the headers of an error, with the headers that an HTTP server adds.
fn header_bytes(status: &tonic::Status) -> usize {
    let response = status.clone().into_http::<()>();
    let headers = response.headers().iter();
    let others = [(":status", "200"), ("date", "Sun, 06 Nov 1994 08:49:37 GMT")];
    headers
        .map(|(name, value)| name.as_str().len() + value.len() + 32)
        .chain(others.map(|(name, value)| name.len() + value.len() + 32))
        .sum()
}

/// CMI-24, CMI-41, INI-12
#[test]
fn every_code_goes_over_the_wire_and_code_seventeen_as_a_canonical_one() {
    for code in Code::ALL {
        let sent = to_grpc(&Status::new(code, "pool [a] is full"));
        assert!(sent.details().is_empty());
        if code == Code::Uninitialized {
            assert_eq!(sent.code(), tonic::Code::FailedPrecondition);
            assert_eq!(sent.metadata().get(MACHINE_CODE).unwrap(), "Uninitialized");
        } else {
            assert_eq!(sent.code() as i32, i32::from(code.number()));
            assert!(sent.metadata().is_empty());
        }
        let read = from_grpc(sent);
        assert_eq!((read.code(), read.message()), (code, "pool [a] is full"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// INI-18, CTL-01: the larger the other metadata, the fewer addresses fit.
    #[test]
    fn all_that_comes_with_an_error_arrives(
        code in prop::sample::select(&Code::ALL[..]),
        message in "[a-z][ -~ä€]{0,100}",
        state in any_driver::state(),
        machine in prop::option::of(any_driver::machine()),
        retry_after in prop::option::of(any::<u64>()),
        no_side_effects in any::<bool>(),
    ) {
        let mut sent = Status::new(code, message);
        if let Some(state) = state {
            sent = sent.with_last_known_state(state);
        }
        if let Some(mut machine) = machine.filter(|_| code != Code::NotFound) {
            machine.last_known_state = None;
            sent = sent.with_machine(machine);
        }
        if let Some(millis) = retry_after {
            sent = sent.with_retry_after(Duration::from_millis(millis));
        }
        if no_side_effects {
            sent = sent.with_no_side_effects();
        }
        let read = from_grpc(to_grpc(&sent));
        if let (Some(read), Some(sent_machine)) = (read.machine(), sent.machine().cloned()) {
            prop_assert!(sent_machine.addresses.starts_with(&read.addresses));
            let is_short = sent.last_known_state().is_none();
            prop_assert!(!is_short || *read == sent_machine);
            sent = sent.with_machine(Machine {
                addresses: read.addresses.clone(),
                failure_domain: sent_machine.failure_domain.filter(|_| read.failure_domain.is_some()),
                ..sent_machine
            });
        }
        prop_assert_eq!(parts(&read), parts(&sent));
    }

    /// Clients of any language accept the answer, for any message, in any script, and with any amount of
    /// metadata. The mandatory keys and a sentence always fit.
    #[test]
    fn an_answer_is_never_larger_than_a_client_takes(message in any::<String>(), times in 1..4000_usize) {
        let state = LastKnownState::new(vec![0xFF; LastKnownState::MAX_BYTES]);
        let longest = Machine {
            provider_id: "p".repeat(ProviderId::MAX_BYTES).parse().unwrap(),
            node_name: "n".repeat(253),
            addresses: vec![long_address(); 50],
            power_state: Some(PowerState::Running),
            failure_domain: Some("f".repeat(256)),
            last_known_state: state.clone(),
        };
        let status = Status::new(Code::Uninitialized, format!("{}{}", "word ".repeat(100),
            message.repeat(times)))
            .with_last_known_state(state.clone().unwrap())
            .with_machine(longest.clone())
            .with_retry_after(Duration::from_millis(u64::MAX));
        let sent = to_grpc(&status);
        prop_assert!(header_bytes(&sent) < MAX_METADATA, "{}", header_bytes(&sent));
        let read = from_grpc(sent);
        prop_assert_eq!(read.code(), Code::Uninitialized);
        prop_assert_eq!(read.retry_after(), status.retry_after());
        prop_assert_eq!(read.last_known_state(), state.as_ref());
        let Some(vm) = read.machine() else { panic!("{read:?}") };
        prop_assert_eq!((&vm.provider_id, &vm.node_name), (&longest.provider_id, &longest.node_name));
        prop_assert_eq!(vm.power_state, longest.power_state);
        prop_assert!(read.message().starts_with(&"word ".repeat(90)), "{}", read.message());

        let beside = beside(longest);
        prop_assert!(header_bytes(&tonic::Status::with_metadata(tonic::Code::Ok, "",
            beside)) < MAX_METADATA);
    }

    /// A plugin may send anything.
    #[test]
    fn garbage_in_the_metadata_costs_neither_code_nor_message(
        code in 0..40_i32,
        text in "[ -~]{0,40}",
        bytes in prop::collection::vec(any::<u8>(), 0..8000),
    ) {
        let mut metadata = MetadataMap::new();
        insert(&mut metadata, MACHINE_CODE, &text);
        insert(&mut metadata, RETRY_AFTER, &text);
        insert_bytes(&mut metadata, LAST_KNOWN_STATE, &bytes);
        insert_bytes(&mut metadata, RESPONSE, &bytes);
        let read = from_grpc(tonic::Status::with_metadata(tonic::Code::from(code), "no", metadata));
        let expected = u8::try_from(code).ok().and_then(|code| Code::try_from(code).ok());
        let expected = expected.filter(|code| *code != Code::Uninitialized).unwrap_or(Code::Unknown);
        prop_assert_eq!((read.code(), read.message()), (expected, "no"));
    }
}

/// CMI-25: the value is not base64.
#[test]
fn binary_metadata_that_is_not_binary_is_ignored() {
    let mut headers = http::HeaderMap::new();
    headers.insert(LAST_KNOWN_STATE, "!!!".parse().unwrap());
    headers.insert(RESPONSE, "AAAA====".parse().unwrap());
    headers.insert(MACHINE_CODE, http::HeaderValue::from_bytes(b"\xFF\xFE").unwrap());
    headers.insert(RETRY_AFTER, "-5".parse().unwrap());
    let metadata = MetadataMap::from_headers(headers);
    let read = from_grpc(tonic::Status::with_metadata(
        tonic::Code::NotFound,
        "no",
        metadata,
    ));
    assert_eq!(parts(&read), (Code::NotFound, "no", None, None, None, false));
}

#[test]
fn a_wait_is_decimal_digits_and_nothing_else() {
    assert_eq!(milliseconds("1500"), Some(Duration::from_millis(1500)));
    for text in ["", "+5", "-5", "1.5", " 5", "5s", "99999999999999999999"] {
        assert_eq!(milliseconds(text), None, "{text}");
    }
}

/// DRV-17, CMI-40
#[test]
fn an_error_without_a_message_gets_one() {
    let read = from_grpc(tonic::Status::new(tonic::Code::Aborted, " "));
    assert!(read.message().contains("without a message"), "{read}");
}

/// DRV-30: a key for values that gRPC lacks must not change gRPC's code to NOT_FOUND.
#[test]
fn a_canonical_code_has_no_name_in_the_metadata() {
    for code in Code::ALL {
        let mut metadata = MetadataMap::new();
        insert(&mut metadata, MACHINE_CODE, code.name());
        let read = from_grpc(tonic::Status::with_metadata(
            tonic::Code::Internal,
            "no",
            metadata,
        ));
        let is_known = code == Code::Uninitialized;
        assert_eq!(read.code(), if is_known { code } else { Code::Internal });
    }
}

/// DRV-30: a caller that believed the NOT_FOUND would create a second VM.
#[test]
fn not_found_beside_a_machine_is_internal_and_nothing_of_it_is_believed() {
    let state = LastKnownState::new(b"gone".to_vec()).unwrap();
    let said = Status::new(Code::NotFound, "no VM").with_last_known_state(state);
    let sent = to_grpc(&said.with_machine(machine()));
    let read = from_grpc(sent);
    assert_eq!(read.code(), Code::Internal);
    for part in ["is contradictory", "sim:///m-0", "no VM"] {
        assert!(read.message().contains(part), "{read}");
    }
    assert_eq!((read.machine(), read.last_known_state()), (None, None));
}

/// CMI-25: unreadable bytes contradict nothing.
#[test]
fn not_found_beside_bytes_that_are_no_machine_stays_not_found() {
    let mut metadata = MetadataMap::new();
    insert_bytes(&mut metadata, RESPONSE, b"\xFF\xFF");
    let sent = tonic::Status::with_metadata(tonic::Code::NotFound, "no VM", metadata);
    assert_eq!(from_grpc(sent).code(), Code::NotFound);
}

#[test]
fn an_error_that_says_ok_is_unknown() {
    assert_eq!(from_grpc(tonic::Status::ok("fine")).code(), Code::Unknown);
}

#[test]
fn a_long_message_is_cut_between_characters_and_says_so() {
    let cut = |message: &str| super::cut(message, 1000);
    for message in ["ä€ ", "機器無法建立"] {
        let short = cut(&message.repeat(1000));
        assert!(short.ends_with(CUT) && short.starts_with(message), "{short}");
        assert!(short.chars().map(size_in_header).sum::<usize>() <= 1000);
        assert_eq!(cut(&short), short);
    }
    assert_eq!(cut("short"), "short");
}

/// OPS-11: a search for secrets would not find half of one.
#[test]
fn a_long_message_is_not_cut_within_a_word() {
    for before in 0..1000 {
        let said = format!(
            "{}the password hunter2-hunter2 is wrong, says the back end and stops",
            "so ".repeat(before)
        );
        let cut = cut(&said, 1000);
        assert!(
            !cut.contains("hunter2") || cut.contains("hunter2-hunter2"),
            "{cut}"
        );
    }
    assert_eq!(cut(&"x".repeat(2000), 1000), CUT);
}

/// OPS-11: secrets are removed before the cut, since half of a secret would not be found.
#[test]
fn a_message_is_read_as_long_as_it_is() {
    let message = "no room for userData: ".repeat(1000);
    let read = from_grpc(tonic::Status::new(tonic::Code::Internal, message.as_str()));
    assert_eq!(read.message(), message);
    let sent = tonic::Status::with_metadata(tonic::Code::NotFound, message.as_str(), beside(machine()));
    assert!(from_grpc(sent).message().ends_with(&message));
}

/// INI-18: state and machine may hold the same state, and only one copy fits.
#[test]
fn the_last_known_state_of_a_machine_in_an_error_is_sent_once() {
    let state = LastKnownState::new(b"seen".to_vec());
    let vm = Machine {
        last_known_state: state.clone(),
        ..machine()
    };
    let read = from_grpc(to_grpc(&Status::new(Code::Uninitialized, "x").with_machine(vm)));
    assert_eq!(read.last_known_state(), state.as_ref());
    assert_eq!(read.machine(), Some(&machine()));
}

/// The length of an address takes one byte or two.
#[test]
fn as_many_addresses_are_sent_as_find_room() {
    for length in [1, 123, 124, 128, 256] {
        let address = Address {
            address: "a".repeat(length),
            ..long_address()
        };
        let with = |count| {
            v1::Machine::from(Machine {
                addresses: vec![address.clone(); count],
                ..machine()
            })
        };
        let mut outgoing = Outgoing::new();
        let most = (outgoing.room - RESPONSE.len() - PER_HEADER) / 4 * 3;
        outgoing.machine(with(5000));
        let sent = bytes(&outgoing.metadata, RESPONSE).unwrap();
        let kept = v1::Machine::decode(sent.as_slice()).unwrap().addresses.len();
        assert_eq!(sent, with(kept).encode_to_vec());
        assert!(
            sent.len() <= most && with(kept + 1).encoded_len() > most,
            "{length}"
        );
    }
}

#[test]
fn a_response_is_completed_by_what_stands_beside_its_ok() {
    let full = Machine {
        failure_domain: Some("zone-a".to_owned()),
        last_known_state: LastKnownState::new(b"old".to_vec()),
        ..machine()
    };
    assert_eq!(completed(machine(), &beside(full.clone())), full);
    let newer = Machine {
        last_known_state: LastKnownState::new(b"new".to_vec()),
        ..machine()
    };
    assert_eq!(
        completed(newer.clone(), &beside(full.clone())).last_known_state,
        newer.last_known_state
    );
    let other = Machine {
        node_name: "m-1".to_owned(),
        ..full
    };
    assert_eq!(completed(machine(), &beside(other)), machine());
    assert_eq!(completed(machine(), &MetadataMap::new()), machine());
}
