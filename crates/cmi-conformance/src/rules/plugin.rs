//! The rules of the Common Machine Interface: services, fields and operation.

use super::Rule;

pub(super) const RULES: &[Rule] = rules! { Published:
    "CMI-02"     Said   "The provider spec configures the VM";
    "CMI-03"     Must   "Declared calls are served";
    "CMI-06"     Should "CREATE_MACHINE and DELETE_MACHINE are declared";
    "CMI-07"     Should "Unsupported calls have an appropriate code";
    "CMI-08"     Must   "Identity and Machine are both served";
    "CMI-10"     Should "Concurrent calls for one machine are handled gracefully";
    "CMI-11"     May    "The second of two concurrent calls can be ABORTED";
    "CMI-13"     Said / Must "Messages and logs contain no sensitive data", by_every_case;
    "CMI-14"     Must   "Fields are within their size limits";
    "CMI-15"     Must   "REQUIRED fields are set";
    "CMI-17"     Must   "A REQUIRED list is empty only where an empty answer is valid";
    "CMI-19"     Said   "An unset field has its zero value";
    "CMI-22"     Said   "A retried call continues where it stopped";
    "CMI-23"     Must   "Calls return a gRPC status";
    "CMI-24"     Must   "The status has a canonical code";
    "CMI-26"     Must   "Calls use the codes of their tables";
    "CMI-27"     Must   "Calls use the general codes too";
    "CMI-28"     Must   "A missing field is INVALID_ARGUMENT";
    "CMI-30"     Must   "An invalid field is INVALID_ARGUMENT";
    "CMI-32"     Must   "A caller without the permission gets PERMISSION_DENIED";
    "CMI-34"     Must   "A pending operation is ABORTED, or the call waits";
    "CMI-36"     Must   "An unimplemented call is UNIMPLEMENTED";
    "CMI-38"     Must   "Invalid secrets are UNAUTHENTICATED";
    "CMI-40"     Must   "Errors have a readable message";
    "CMI-41"     Must   "Status details are empty";
    "CMI-43"     Must   "Secret keys are alphanumeric, `-`, `_` and `.`"
                        untested "a rule for the caller; Kubernetes allows no other keys in a Secret";
    "CMI-44"     Must   "Secret values can contain any bytes";
    "CMI-48"     Said   "Calls validate the provider spec first";
    "CMI-49"     Should "VMs of different clusters can be distinguished";
    "CMI-50"     Must   "GetPluginInfo is implemented";
    "CMI-51"     Must   "The name follows domain name notation";
    "CMI-52"     Should "The name contains the host name of the author";
    "CMI-53"     Must   "The name has at most 63 bytes and is alphanumeric at both ends";
    "CMI-54"     Must   "The name is set";
    "CMI-55"     Must   "The version is set";
    "CMI-56"     May    "The manifest is within its size limit";
    "CMI-57"     Must   "A failed GetPluginInfo is not OK"
                        untested "no client can make this call fail; `capcmi driver serve` has its own test";
    "CMI-58"     Must   "GetPluginCapabilities is implemented";
    "CMI-59"     Must   "A version has one set of capabilities";
    "CMI-60"     May    "Capabilities are known ones";
    "CMI-61"     Must   "CREATE_MACHINE is declared";
    "CMI-62"     Must   "DELETE_MACHINE is declared";
    "CMI-63"     Must   "A failed GetPluginCapabilities is not OK"
                        untested "no client can make this call fail; `capcmi driver serve` has its own test";
    "CMI-64"     Must   "Probe is implemented";
    "CMI-68"     Must   "An unhealthy plugin answers Probe with an error";
    "CMI-69"     Must   "A starting plugin is OK and not ready";
    "CMI-70"     Said   "A started plugin is ready";
    "CMI-72"     Must   "A failed Probe is not OK";
    "CMI-73"     Must   "Probe uses the codes of its table";
    "CMI-75"     Must   "An unhealthy plugin is FAILED_PRECONDITION";
    "CMI-77"     Must   "A missing dependency is FAILED_PRECONDITION";
    "CMI-79"     Must   "A machine maps to one VM";
    "CMI-80"     Should "A provider spec maps to one cluster";
    "CMI-81"     Must   "CreateMachine is implemented and declared";
    "CMI-82"     Must   "CreateMachine adopts a VM that matches the request";
    "CMI-83"     Must   "Each machine has its own VM";
    "CMI-84"     Must   "CreateMachine is idempotent";
    "CMI-85"     Said   "Provider ID and node name match the Node";
    "CMI-87"     Must   "CreateMachine rejects a blank name";
    "CMI-88"     Should "An invalid provider spec is rejected";
    "CMI-89"     Must   "CreateMachine rejects an empty provider spec";
    "CMI-90"     May    "CreateMachine accepts secrets";
    "CMI-91"     May    "CreateMachine accepts any LastKnownState";
    "CMI-92"     Must   "CreateMachine returns a provider ID";
    "CMI-93"     Must   "CreateMachine returns a node name";
    "CMI-94"     May    "LastKnownState can contain any bytes";
    "CMI-95"     Must   "An incomplete CreateMachine is not OK";
    "CMI-96"     Must   "CreateMachine uses the codes of its table";
    "CMI-98"     Must   "CreateMachine reports errors with a readable message";
    "CMI-99"     Must   "DeleteMachine is implemented and declared";
    "CMI-100"    Must   "Deleting a VM that does not exist is OK";
    "CMI-101"    Must   "DeleteMachine ignores VMs of other clusters";
    "CMI-102"    Must   "DeleteMachine is idempotent";
    "CMI-103"    Said   "A machine maps to the VM to delete";
    "CMI-105"    Must   "DeleteMachine rejects a blank name";
    "CMI-106"    Must   "DeleteMachine rejects an empty provider spec";
    "CMI-107"    May    "DeleteMachine accepts secrets";
    "CMI-108"    May    "DeleteMachine works with and without the provider ID";
    "CMI-109"    May    "DeleteMachine accepts any LastKnownState";
    "CMI-110"    May    "DeleteMachine can return a LastKnownState";
    "CMI-111"    Must   "An incomplete DeleteMachine is not OK";
    "CMI-112"    Must   "DeleteMachine uses the codes of its table";
    "CMI-113"    Must   "DeleteMachine reports errors with a readable message";
    "CMI-114"    Must   "A declared GetMachineStatus is implemented";
    "CMI-115"    Said   "GetMachineStatus answers match CreateMachine";
    "CMI-116"    Must   "GetMachineStatus ignores VMs of other clusters";
    "CMI-117"    Must   "GetMachineStatus is idempotent";
    "CMI-118"    Must   "GetMachineStatus rejects a blank name";
    "CMI-119"    Must   "GetMachineStatus rejects an empty provider spec";
    "CMI-120"    May    "GetMachineStatus works with and without the provider ID";
    "CMI-121"    Must   "GetMachineStatus returns a provider ID";
    "CMI-122"    Must   "GetMachineStatus returns a node name";
    "CMI-123"    Must   "An incomplete GetMachineStatus is not OK";
    "CMI-124"    Must   "GetMachineStatus uses the codes of its table";
    "CMI-125"    Must   "GetMachineStatus reports errors with a readable message";
    "CMI-126"    Must   "A declared ShutDownMachine is implemented";
    "CMI-127"    Must   "Shutting down a guest that stops or has stopped is OK";
    "CMI-128"    Must   "ShutDownMachine ignores VMs of other clusters";
    "CMI-129"    Must   "ShutDownMachine is idempotent";
    "CMI-130"    Must   "ShutDownMachine rejects a blank name";
    "CMI-131"    Must   "ShutDownMachine rejects an empty provider spec";
    "CMI-132"    May    "ShutDownMachine works with and without its optional fields";
    "CMI-133"    Must   "An incomplete ShutDownMachine is not OK";
    "CMI-134"    Must   "ShutDownMachine uses the codes of its table";
    "CMI-135"    Must   "ShutDownMachine reports errors with a readable message";
    "CMI-136"    Must   "A declared ListMachines is implemented";
    "CMI-137"    Must   "ListMachines returns every VM of the provider spec";
    "CMI-138"    Said   "The list maps provider IDs to machine names";
    "CMI-139"    Must   "ListMachines rejects an empty provider spec";
    "CMI-140"    May    "ListMachines accepts secrets";
    "CMI-141"    Must   "A cluster without VMs has an empty list";
    "CMI-142"    Must   "An incomplete ListMachines is not OK";
    "CMI-143"    Must   "ListMachines uses the codes of its table";
    "CMI-145"    Must   "ListMachines reports errors with a readable message";
    "CMI-146"    Must   "A declared GetVolumeIDs is implemented";
    "CMI-147"    Must   "GetVolumeIDs of own volumes is OK";
    "CMI-148"    May    "Volumes of others can be skipped";
    "CMI-149"    Must   "GetVolumeIDs is idempotent";
    "CMI-150"    Must   "GetVolumeIDs rejects an empty PVSpecList";
    "CMI-151"    Must   "An empty volume list has no IDs";
    "CMI-152"    Must   "GetVolumeIDs reports errors with a readable message";
    "CMI-153"    Must   "The services have their published names";
    "CMI-154"    Should "Messages follow proto3: unknown fields are ignored";
    "CMI-155"    Must   "The five REQUIRED calls are implemented";
    "CMI-157"    Must   "The plugin listens at CMI_ENDPOINT";
    "CMI-158"    May    "Only network sockets are endpoints"
                        untested "the extension of this project also allows unix sockets";
    "CMI-159"    Must   "All services have one address";
    "CMI-161"    Must   "The transport is a network socket";
    "CMI-165"    Should / Must "No sensitive data leaks", by_every_case;
    "CMI-174"    Must   "The program does not expect variables from its image manifest"
                        untested "calls do not reveal start-up and output of the program; `capcmi driver \
                            serve` has its own tests";
    "CMI-179"    Must   "CMI_ENDPOINT has a scheme, an authority and a port"
                        untested "calls do not reveal how the program starts, and the hook `restart` starts \
                            it only in its author's way; `capcmi driver serve` has its own tests";
    "CMI-180"    Must   "The plugin can listen on loopback and other addresses"
                        untested "calls do not reveal how the program starts, and the hook `restart` starts \
                            it only in its author's way; `capcmi driver serve` has its own tests";
    "CMI-181"    Must   "The plugin does not start without CMI_ENDPOINT"
                        untested "calls do not reveal how the program starts, and the hook `restart` starts \
                            it only in its author's way; `capcmi driver serve` has its own tests";
    "CMI-182"    Must   "The plugin is a long-running service";
    "CMI-183"    Should "Logs are written only to standard output and standard error"
                        untested "calls do not reveal start-up and output of the program; `capcmi driver \
                            serve` has its own tests";
    "CMI-186"    Should / Must "Logs contain no secrets", by_every_case;
    "CMI-188"    Should "A wrong configuration fails immediately with an exit code"
                        untested "calls do not reveal how the program starts, and the hook `restart` starts \
                            it only in its author's way; `capcmi driver serve` has its own tests";
};
