//! Whole reconciles of a deletion.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::fixtures::{MachineFixture, machine};
use super::plan::SHUT_DOWN_TRIES;
use super::trial::{Server, Vms};
use super::{Context, reconcile};
use crate::driver::Operation;

const NO_SETTLE_TIME: Duration = Duration::ZERO;

/// A machine with a VM, deleted two minutes ago.
fn deleted() -> MachineFixture {
    let deleted = Timestamp::now() - Duration::from_mins(2);
    machine().provider("pool").claimed().deleted_at(deleted)
}

/// Reconciles once more, whatever has to be waited for.
async fn again(server: &Server, ctx: &Arc<Context>) {
    server.ask_again();
    reconcile(server.guarded(), Arc::clone(ctx)).await.unwrap();
}

/// It has no status that would count.
#[tokio::test]
async fn a_deletion_of_an_object_that_cannot_be_read_ends_though_its_guest_can_never_be_asked_to_stop() {
    let mut object = serde_json::to_value(deleted().provider_id("sim://1").build()).unwrap();
    object["spec"]["providerSpec"] = json!("no object");
    object["status"] = Value::Null;
    let server = Server::holding(object);
    assert!(server.guarded().0.is_err());
    let vms = Vms::default();
    vms.add("sim://1", "m1", None);
    let offers = [Operation::ShutDownMachine, Operation::GetMachineStatus];
    let ctx = Arc::new(server.context(vec![vms.provider(&offers, NO_SETTLE_TIME)]));
    for tried in 1..=SHUT_DOWN_TRIES {
        again(&server, &ctx).await;
        assert_eq!(
            vms.count(Operation::ShutDownMachine),
            usize::try_from(tried).unwrap()
        );
        assert!(server.is_kept(), "after {tried} tries");
    }
    again(&server, &ctx).await;
    assert_eq!(vms.ids(), Vec::<String>::new());
    assert!(!server.is_kept());
}
