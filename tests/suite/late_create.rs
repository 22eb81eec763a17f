//! A create that is never sent, because nothing listens at the plugin's socket. `tests/world` covers creates
//! whose answer is lost.

use anyhow::{Result, ensure};
use capcmi::api::conditions::READY;
use capcmi::api::identity;
use serde_json::json;

use crate::support::by_hand::says;
use crate::support::{ByHand, Cloud, Plugin, Provider, World};

/// CTL-CR-14: the connection is refused, so that no VM can exist. The plugin's later refusal of the spec does
/// not change that.
#[tokio::test]
async fn a_create_that_never_reached_the_plugin_makes_no_vm_possible() -> Result<()> {
    let world = World::new("unsent").await?;
    let cloud = Cloud::new(&world);
    let config = cloud.config(json!({"disabledCalls": ["GetMachineStatus", "ListMachines"]}));
    let mut plugin = Plugin::absent(&world, "simulated", &config)?;
    plugin.listen(&world).await?;
    let _provider = Provider::new(plugin.drivers(json!({}))).start(&world).await?;
    world.cluster("one").await?;
    ByHand::new(&world, "one", "first")
        .create()
        .await?
        .provisioned()
        .await?;
    plugin.kill();
    let machine = ByHand::new(&world, "one", "m").create().await?;
    let unsent = machine
        .until("a create that was not sent", |machine| {
            says(machine, READY, "False", "Unavailable")
        })
        .await?;
    let state = identity::vm_state(&unsent);
    ensure!(!state.may_exist(), "{state:?}");
    cloud.fail(json!([
        {"operation": "CreateMachine", "machine": "m", "code": "InvalidArgument"},
        {"operation": "DeleteMachine", "machine": "m", "code": "InvalidArgument"},
    ]))?;
    plugin.listen(&world).await?;
    machine
        .patch(json!({"metadata": {"annotations": {"example.com/retry": "1"}}}))
        .await?;
    machine
        .until("a refused spec", |machine| {
            says(machine, READY, "False", "InvalidArgument")
        })
        .await?;
    machine.delete().await?;
    machine.gone().await?;
    Ok(())
}
