use super::*;

use VmEvent as Event;
use VmState as State;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn states() -> [State; 6] {
    [
        State::None,
        State::Creating {
            issued: at(1),
            several: false,
        },
        State::Refused,
        State::Exists { unanswered: None },
        State::Updating { unanswered: None },
        State::ShuttingDown {
            accepted: at(1),
            unanswered: None,
        },
    ]
}

fn events() -> [(&'static str, Event); 7] {
    [
        (
            "CreateMachine is issued",
            Event::CreateIssued {
                at: at(1),
                others: false,
            },
        ),
        (
            "CreateMachine is refused",
            Event::CreateRefused {
                issued: at(1),
                left_something: true,
            },
        ),
        (
            "CreateMachine did nothing",
            Event::CreateRefused {
                issued: at(1),
                left_something: false,
            },
        ),
        ("the driver confirms the VM", Event::Found),
        ("UpdateMachine is issued", Event::UpdateIssued),
        ("UpdateMachine succeeds", Event::UpdateDone),
        (
            "ShutDownMachine is accepted",
            Event::ShutDownAccepted { at: at(1) },
        ),
    ]
}

/// Compares the diagram and the table in the documentation with the code.
#[test]
fn the_documentation_shows_the_states_as_they_are() {
    let documentation = include_str!("../../../../docs/internals/architecture.md");
    let mut diagram = vec!["```mermaid\nstateDiagram-v2\n    [*] --> None\n".to_owned()];
    for state in states() {
        for (name, event) in events() {
            let next = state.after(event).map(State::name);
            diagram.extend(next.map(|next| format!("    {} --> {next}: {name}\n", state.name())));
        }
    }
    let row = |name: &str, fields: [&str; 6]| {
        let fields = fields.map(|field| format!("{field:13}")).concat();
        format!("{name:28}{fields}").trim_end().to_owned() + "\n"
    };
    let mut table = vec!["```text\n".to_owned(), row("", states().map(State::name))];
    for (name, event) in events() {
        let next = states().map(|state| state.after(event).map_or("", State::name));
        table.push(row(name, next));
    }
    for shown in [diagram, table].map(|lines| lines.concat() + "```\n") {
        assert!(documentation.contains(&shown), "the page lacks:\n{shown}");
    }
}

#[test]
fn an_unanswered_create_is_kept_until_it_can_make_no_vm() {
    let second = Event::CreateIssued {
        at: at(2),
        others: true,
    };
    let several = State::Creating {
        issued: at(1),
        several: false,
    }
    .after(second);
    let several = several.unwrap();
    assert_eq!(several.unanswered(), Some(at(2)));
    let refused = Event::CreateRefused {
        issued: at(2),
        left_something: true,
    };
    assert_eq!(several.after(refused), None, "the first may have made a VM");
    let found = several.after(Event::Found).unwrap();
    assert_eq!(found.unanswered(), Some(at(2)), "one of them may make another VM");
    let gone = found
        .after(Event::UpdateIssued)
        .and_then(|state| state.after(Event::UpdateDone))
        .and_then(|state| state.after(Event::ShutDownAccepted { at: at(9) }));
    assert_eq!(gone.unwrap().unanswered(), Some(at(2)));
    let only = states()[1];
    assert_eq!(
        only.after(Event::Found).unwrap().unanswered(),
        None,
        "it made the VM"
    );
}

#[test]
fn a_refusal_ends_the_create_that_it_answers_and_no_other() {
    let only = states()[1];
    let refused = |issued, left_something| {
        only.after(Event::CreateRefused {
            issued,
            left_something,
        })
    };
    assert_eq!(refused(at(1), true), Some(State::Refused));
    assert_eq!(refused(at(1), false), Some(State::None));
    assert_eq!(refused(at(2), false), None);
}

#[test]
fn known_and_possible_vms_are_never_forgotten() {
    for state in states() {
        for (name, event) in events() {
            let Some(next) = state.after(event) else {
                continue;
            };
            if state.is_known() {
                assert!(next.is_known(), "{state:?}: {name}");
            }
            let is_refusal = matches!(event, Event::CreateRefused { .. });
            if state.may_exist() && !is_refusal {
                assert!(next.may_exist(), "{state:?}: {name}");
            }
        }
    }
}
