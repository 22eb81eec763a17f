use serde_json::json;

use super::*;
use crate::api::identity::fixtures::{existing, in_state};
use crate::api::v1alpha1::InfraMachineSpec;
use jiff::Timestamp;

fn machine(record: &str) -> InfraMachine {
    let mut machine = InfraMachine::new("m1", InfraMachineSpec::default());
    machine.metadata.namespace = Some("ns1".to_owned());
    machine.metadata.uid = Some("u-1".to_owned());
    machine.metadata.annotations = Some([(VM_RECORD.to_owned(), record.to_owned())].into());
    machine
}

/// Later versions must be able to read the records of earlier versions.
#[test]
fn the_format_of_a_record_is_fixed() {
    let at = Timestamp::from_second(1_800_000_000).unwrap();
    let mut record = VmRecord::new(&machine(""), "c-1").unwrap();
    let written = |record: &VmRecord| record.annotation().unwrap();
    assert_eq!(
        written(&record),
        r#"{"version":"v1","machine":"ns1/m1/u-1","cluster":"c-1","state":{"name":"None"}}"#
    );
    record = record.adopting(MadeFrom {
        driver: "pool".to_owned(),
        secret: Some("creds".to_owned()),
        provider_spec: ProviderSpec(json!({"size": "s"}).as_object().unwrap().clone()),
    });
    record = record.with_last_known_state(LastKnownState::new(b"s1".to_vec()).as_ref());
    record = record.after(VmEvent::ShutDownAccepted { at });
    record.last_start = Some(at);
    let text = concat!(
        r#"{"version":"v1","machine":"ns1/m1/u-1","cluster":"c-1","#,
        r#""state":{"name":"ShuttingDown","accepted":"2027-01-15T08:00:00Z"},"#,
        r#""madeFrom":{"driver":"pool","secret":"creds","providerSpec":{"size":"s"}},"#,
        r#""lastKnownState":"czE=","adopted":true,"lastStart":"2027-01-15T08:00:00Z"}"#
    );
    assert_eq!(written(&record), text);
    assert_eq!(VmRecord::of(&machine(text)), Ok(Some(record)));
    assert_eq!(
        without_last_known_state(text).unwrap().len(),
        text.len() - r#""lastKnownState":"czE=","#.len()
    );
    assert_eq!(without_last_known_state("{}"), None);
}

#[test]
fn a_record_that_is_unreadable_or_anothers_is_an_error_that_says_why() {
    let made = json!({"driver": "pool", "providerSpec": {}});
    for (text, why) in [
        (String::new(), "EOF"),
        ("{}".to_owned(), "missing field `version`"),
        (
            existing("ns1/m1/u-1", &made).replace("v1", "v2"),
            "unknown variant `v2`",
        ),
        (
            existing("ns1/m1/u-1", &json!(null)),
            "madeFrom is missing in state Exists",
        ),
        (existing("ns1/m1", &made), "is not <namespace>/<name>/<id>"),
        (existing("ns1/m1/", &made), "is not <namespace>/<name>/<id>"),
        (
            in_state("ns1/m1/u-1", &json!({"name": "Gone"}), &made),
            "unknown variant `Gone`",
        ),
        (
            existing("ns1/m2/u-9", &made),
            "the record of InfraMachine `ns1/m2`",
        ),
        (
            existing("ns2/m1/u-9", &made),
            "the record of InfraMachine `ns2/m1`",
        ),
    ] {
        let invalid = VmRecord::of(&machine(&text)).unwrap_err().to_string();
        assert!(
            invalid.contains(why) && invalid.contains(VM_RECORD),
            "{text}: {invalid}"
        );
    }
    let own = VmRecord::of(&machine(&existing("ns1/m1/u-9", &made))).unwrap();
    assert_eq!(
        own.unwrap().machine.tag(),
        "u-9",
        "an object that was restored has another UID"
    );
}

/// Without a VM, the spec applies.
#[test]
fn what_a_vm_was_made_from_binds_while_there_may_be_something_of_it() {
    let made = json!({"driver": "pool", "providerSpec": {}});
    let binds = |state: &str, is_deleted| {
        let text = in_state("ns1/m1/u-1", &json!({"name": state}), &made);
        let record = VmRecord::parse(&text).unwrap();
        record.bound(is_deleted).is_some()
    };
    for (state, alive, deleted) in [
        ("None", false, false),
        ("Refused", false, true),
        ("Exists", true, true),
        ("Updating", true, true),
    ] {
        assert_eq!(
            (binds(state, false), binds(state, true)),
            (alive, deleted),
            "{state}"
        );
    }
}
