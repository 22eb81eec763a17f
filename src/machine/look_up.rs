//! Ask the driver for the VM.

use super::object::Object;
use super::outcome::Failure;
use crate::driver::retry::{Call, Next};
use crate::driver::{self, Code, GetMachineStatusRequest, MachineClass, ProviderId, Status};
use crate::provider::Turn;

/// What a look-up saw.
pub enum Seen {
    /// The VM is there.
    Machine(driver::Machine),
    /// It is there and not initialized.
    Uninitialized(Failure),
    /// The driver does not see it, and may be behind.
    Absent,
    /// The driver can't look up: its create finds what is there.
    CannotLook,
    /// Nobody knows.
    Failed(Failure),
}

/// Looks the VM up, by its id where that is known.
pub async fn look_up(
    object: &mut Object<'_>,
    turn: &Turn<'_>,
    known: Option<&ProviderId>,
    call: Call,
    class: MachineClass,
) -> Seen {
    if !turn.known_capabilities().offers(call.operation()) {
        return Seen::CannotLook;
    }
    let request = GetMachineStatusRequest {
        machine_name: object.name().to_owned(),
        provider_id: known.cloned(),
        class,
    };
    let answer = turn.driver().get_machine_status(request);
    let status = match object.awaiting(call.operation(), answer).await {
        Ok(machine) => {
            return match another_vm(call, known, Some(&machine)) {
                Some(failure) => Seen::Failed(failure),
                None => Seen::Machine(machine),
            };
        }
        Err(status) => status,
    };
    if let Some(failure) = another_vm(call, known, status.machine()) {
        return Seen::Failed(failure);
    }
    let failure = Failure::new(call, status);
    match failure.next {
        Next::Create | Next::Vanished => Seen::Absent,
        Next::Fallback => Seen::CannotLook,
        Next::Initialize => Seen::Uninitialized(failure),
        Next::Retry
        | Next::AwaitCapacity
        | Next::AwaitPerson
        | Next::AwaitDriver
        | Next::Terminal
        | Next::LookUp
        | Next::Delete
        | Next::LookWhetherGone
        | Next::StillThere
        | Next::Gone => Seen::Failed(failure),
    }
}

/// The failure that it is when a driver answers with another VM than the one that was asked about: nothing is done to that
/// one, and its id is not written, since it may be anybody's.
pub fn another_vm(call: Call, known: Option<&ProviderId>, seen: Option<&driver::Machine>) -> Option<Failure> {
    let (known, seen) = (known?, &seen?.provider_id);
    (known != seen).then(|| {
        let message =
            format!("the driver answered providerID `{seen}` for the machine whose providerID is `{known}`");
        Failure::new(call, Status::new(Code::Internal, message))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(id: &str) -> driver::Machine {
        driver::Machine::new(id.parse().unwrap(), "node")
    }

    #[test]
    fn a_vm_of_another_id_is_not_taken_for_the_one_that_was_asked_about() {
        let known = "sim://1".parse().unwrap();
        let call = Call::LookUpAgain;
        assert!(another_vm(call, Some(&known), Some(&vm("sim://1"))).is_none());
        assert!(another_vm(call, None, Some(&vm("sim://2"))).is_none());
        let failure = another_vm(call, Some(&known), Some(&vm("sim://2"))).unwrap();
        assert_eq!(failure.status.code(), Code::Internal);
        assert!(
            failure.machine.is_none(),
            "nothing of the other VM is kept: {failure:?}"
        );
    }
}
