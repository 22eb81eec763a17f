//! Static addresses, which the driver places on VMs. The cases run at the same time, so each has its own
//! addresses.

use std::net::IpAddr;

use serde_json::json;

use super::cases;
use super::shut_down::BETWEEN_LOOKS;
use crate::answer::{CaseError, CaseResult, ensure};
use crate::config::Setting;
use crate::{Case, MachineRequest, Need, TestContext};
use cmi_driver::{Code, Operation};

const PATH: Need = Need::AddressPath;
const STATUS: Need = Need::Call(Operation::GetMachineStatus);
const ADDRESSES: Need = Need::Setting(Setting::StaticAddresses);

pub(super) const CASES: &[Case] = cases! {
    "static-addresses": "VMs have the static addresses of their specs"
        ["CAP-40"], [PATH, STATUS, ADDRESSES] => placed;
    "static-addresses-other": "a request with another static address than the existing VM's is ALREADY_EXISTS"
        ["DRV-CR-06", "PLG-CR-06"], [PATH, ADDRESSES] => another;
    "static-addresses-reused": "a static address can be used again after its VM is deleted"
        ["CAP-41"], [PATH, STATUS, ADDRESSES] => reused;
};

/// Two VMs, because a driver may confuse their addresses.
async fn placed(t: TestContext) -> CaseResult {
    let vms = [with_address(&t, "a", 0)?, with_address(&t, "b", 1)?];
    for (request, _) in &vms {
        t.make(request).await?;
    }
    for (request, address) in &vms {
        until_shown(&t, request, *address).await?;
    }
    let [(first, of_first), (second, of_second)] = &vms;
    for (request, other) in [(first, of_second), (second, of_first)] {
        let shown = shown(&t, request).await?;
        ensure(!shown.contains(other), || {
            format!(
                "the VM of `{}` has the static address {other} of another VM",
                request.name
            )
        })?;
    }
    Ok(())
}

async fn another(t: TestContext) -> CaseResult {
    let (request, _) = with_address(&t, "a", 2)?;
    let (other, _) = with_address(&t, "a", 3)?;
    let id = t.prepare(&request).await?.provider_id;
    t.create(&other).await?.refused(Code::AlreadyExists)?;
    t.survives(&request, &id).await
}

async fn reused(t: TestContext) -> CaseResult {
    let (first, _) = with_address(&t, "a", 4)?;
    let (second, address) = with_address(&t, "b", 4)?;
    t.prepare_gone(&first).await?;
    t.make(&second).await?;
    until_shown(&t, &second, address).await
}

/// The machine with this label and the free address at a place.
fn with_address(t: &TestContext, label: &str, place: u8) -> CaseResult<(MachineRequest, IpAddr)> {
    let (free, path) = (&t.config().static_addresses, &t.capabilities().address_path);
    let (Some(free), Some(path)) = (free, path) else {
        return Err(CaseError::Skipped("there are no static addresses".to_owned()));
    };
    let given = free.at(place);
    let request = t.machine_request(label).with_value(path, json!([given]));
    Ok((request, given.address))
}

/// Waits until the VM has the address: its guest may have to boot.
async fn until_shown(t: &TestContext, request: &MachineRequest, address: IpAddr) -> CaseResult {
    let until = tokio::time::Instant::now() + t.config().call_limit();
    loop {
        let shown = shown(t, request).await?;
        if shown.contains(&address) {
            return Ok(());
        }
        ensure(tokio::time::Instant::now() < until, || {
            let shown: Vec<_> = shown.iter().map(IpAddr::to_string).collect();
            format!(
                "GetMachineStatus shows [{}] for the VM of `{}`, and not its static address {address}",
                shown.join(", "),
                request.name
            )
        })?;
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
}

/// The IP addresses of the VM. Other cases test that GetMachineStatus answers.
async fn shown(t: &TestContext, request: &MachineRequest) -> CaseResult<Vec<IpAddr>> {
    let machine = t.status(request, None).await?.ok();
    let addresses = machine.map_err(CaseError::in_preparation)?.addresses;
    let ips = addresses
        .iter()
        .filter_map(|address| address.address.parse().ok());
    Ok(ips.collect())
}
