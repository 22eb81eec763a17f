// Package mcmbridge serves a driver of machine-controller-manager (MCM) as a driver of the Common Machine Interface.
//
//	func main() {
//		driver := openstack.NewOpenstackDriver(decoder)
//		mcmbridge.Main(info, driver, mcmbridge.Provider("OpenStack"), mcmbridge.Tags(mcmbridge.DashTags))
//	}
//
// # Identity
//
// The contract of MCM is weaker than that of package cmi. A driver of MCM knows a machine by its name, returns no tags,
// and need not compare them before it deletes a VM. One rule is common to these drivers: ListMachines returns the VMs that have
// two tags of the class, one for the cluster and one for the role, compared by their names. The bridge builds on it:
//
//   - A new VM gets the tags of the caller, the tag of its cluster, and three tags of a role: `node`, a digest of the
//     machine object, and a digest of that and the provider spec. [TagForm] has the names.
//   - A VM belongs to a machine if ListMachines returns it, under the machine's name, for the cluster and the digest of the
//     machine object. No other VM is deleted or initialized.
//   - A VM of the same name that ListMachines returns only for the role `node` belongs to another machine object, and
//     CreateMachine answers ALREADY_EXISTS. It answers the same if the digest of the provider spec differs.
//   - A VM of the same name that GetMachineStatus finds and ListMachines does not return for the cluster may belong to
//     another cluster. CreateMachine answers ALREADY_EXISTS, or ABORTED if [cmi.Info].ConsistencyWindow allows for an
//     outdated list. No other call touches the VM.
//   - A machine that was adopted without an identity is known by its ProviderID and the tag of its cluster.
//
// # Calls
//
//   - CreateMachine looks up the VM before it calls the driver. It does not rely on a driver that finds an existing VM by its
//     name.
//   - GetMachineStatus calls ListMachines, and then the driver's GetMachineStatus for the Node name, the addresses and
//     code 17. A driver that does not implement GetMachineStatus reports the machine's name as the Node name. A VM that
//     ListMachines returns and GetMachineStatus does not find does not exist.
//   - DeleteMachine calls the driver for each VM of the machine, and then for each other entry of its list: some drivers list
//     disks and network interfaces that a failed create left behind.
//   - InitializeMachine always calls the driver. The answer Unimplemented means that nothing is missing, as in MCM, unless
//     GetMachineStatus answers code 17.
//   - LastKnownState, addresses and the ids of volumes pass unchanged.
//   - Codes pass unchanged with their messages. NotFound means that a VM does not exist only if it comes from GetMachineStatus,
//     DeleteMachine or InitializeMachine; from another call it becomes UNKNOWN, as does code 17 from CreateMachine and
//     ListMachines, an error without a code, and an error with the code OK.
//   - Drivers validate the key `userData` in each call. Calls other than CreateMachine send a comment.
//
// # Missing calls
//
//   - ShutDownMachine, UpdateMachine, RestartMachine, GetConsole, ListZones and DescribeClass: MCM has no such calls.
//   - GetVolumeIDs, if the driver answers Unimplemented when the program starts.
//   - GenerateMachineClassForMigration, unless the driver still has this method. MCM has removed it from the interface. The
//     driver receives the old class as an *unstructured.Unstructured.
//   - Lists have no `capcmi.io/machine`, no power state and no addresses. The caller reports orphans and never deletes them.
//   - The published schema allows every field: the driver checks the provider spec.
//
// # Remaining limits
//
//   - The bridge runs one changing call at a time for each machine, within one process. Run one replica: two could make
//     two VMs, unless the platform has unique names.
//   - A driver that tolerates unknown fields, or fields in another case, does so here, too.
//   - The driver writes its own log. It must not log secrets.
package mcmbridge
