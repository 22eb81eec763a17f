//! The rules of the Common Machine Interface: services, fields and operation.

use super::{Rule, STARTS};

pub(super) const RULES: &[Rule] = rules! { Published:
    "CMI-02"     Said   "The provider spec configures the VM";
    "CMI-03"     Must   "The services Identity and Machine are at one network address, with all declared \
                        and REQUIRED calls";
    "CMI-06"     Should "The call is implemented and declared";
    "CMI-07"     Should "The call answers UNIMPLEMENTED if and only if not offered";
    "CMI-08"     Must   "The services Identity and Machine are at one network address, with all declared \
                        and REQUIRED calls";
    "CMI-10"     Should "Concurrent calls for one machine are handled gracefully";
    "CMI-11"     May    "The call answers ABORTED or OK while an operation is pending";
    "CMI-13"     Said / Must "Logs, messages and answers contain no secrets", by_every_case;
    "CMI-14"     Must   "Fields are within their size limits";
    "CMI-15"     Must   "REQUIRED fields are set";
    "CMI-17"     Must   "A cluster without VMs has an empty list, and no other list is empty";
    "CMI-19"     Said   "An unset field has its zero value";
    "CMI-22"     Said   "A retried call continues where it stopped";
    "CMI-23"     Must   "Calls return a gRPC status with a canonical code and no details";
    "CMI-24"     Must   "Calls return a gRPC status with a canonical code and no details";
    "CMI-26"     Must   "The call uses the codes of its table";
    "CMI-27"     Must   "Calls use the general codes too";
    "CMI-28"     Must   "The call answers INVALID_ARGUMENT with an explanation if a field is missing or \
                        invalid";
    "CMI-30"     Must   "The call answers INVALID_ARGUMENT with an explanation if a field is missing or \
                        invalid";
    "CMI-32"     Must   "The call answers PERMISSION_DENIED if the credentials lack the permission";
    "CMI-34"     Must   "The call answers ABORTED or OK while an operation is pending";
    "CMI-36"     Must   "The call answers UNIMPLEMENTED if and only if not offered";
    "CMI-38"     Must   "The call answers UNAUTHENTICATED if credentials are missing or wrong";
    "CMI-40"     Must   "The call reports errors with a readable message";
    "CMI-41"     Must   "Calls return a gRPC status with a canonical code and no details";
    "CMI-43"     Must   "Secret keys are alphanumeric, `-`, `_` and `.`"
                        untested "a rule for the caller; Kubernetes allows no other keys in a Secret";
    "CMI-44"     Must   "Credentials and bootstrap data of any bytes reach the VM unchanged";
    "CMI-48"     Said   "Calls validate the provider spec first";
    "CMI-49"     Should "VMs of different clusters can be distinguished";
    "CMI-50"     Must   "GetPluginInfo is implemented";
    "CMI-51"     Must   "Name and version are set; the name is a domain name of at most 63 bytes, \
                        alphanumeric at both ends";
    "CMI-52"     Should "The name contains the host name of the author";
    "CMI-53"     Must   "Name and version are set; the name is a domain name of at most 63 bytes, \
                        alphanumeric at both ends";
    "CMI-54"     Must   "Name and version are set; the name is a domain name of at most 63 bytes, \
                        alphanumeric at both ends";
    "CMI-55"     Must   "Name and version are set; the name is a domain name of at most 63 bytes, \
                        alphanumeric at both ends";
    "CMI-56"     May    "Fields are within their size limits";
    "CMI-57"     Must   "A failed GetPluginInfo is not OK"
                        untested "no client can make this call fail; `capcmi driver serve` has its own test";
    "CMI-58"     Must   "GetPluginCapabilities is implemented";
    "CMI-59"     Must   "A version has one set of capabilities";
    "CMI-60"     May    "Capabilities are known ones";
    "CMI-61"     Must   "CreateMachine is implemented and declared";
    "CMI-62"     Must   "DeleteMachine is implemented and declared";
    "CMI-63"     Must   "A failed GetPluginCapabilities is not OK"
                        untested "no client can make this call fail; `capcmi driver serve` has its own test";
    "CMI-64"     Must   "Probe is implemented";
    "CMI-68"     Must   "Probe of an unhealthy plugin, or without a dependency, is FAILED_PRECONDITION";
    "CMI-69"     Must   "A starting plugin is OK and not ready, a started one is ready";
    "CMI-70"     Said   "A starting plugin is OK and not ready, a started one is ready";
    "CMI-72"     Must   "Probe of an unhealthy plugin, or without a dependency, is FAILED_PRECONDITION";
    "CMI-73"     Must   "Probe uses the codes of its table";
    "CMI-75"     Must   "Probe of an unhealthy plugin, or without a dependency, is FAILED_PRECONDITION";
    "CMI-77"     Must   "Probe of an unhealthy plugin, or without a dependency, is FAILED_PRECONDITION";
    "CMI-79"     Must   "Each machine maps to its own VM, and deleting it deletes only that VM";
    "CMI-80"     Should "A provider spec maps to one cluster";
    "CMI-81"     Must   "CreateMachine is implemented and declared";
    "CMI-82"     Must   "CreateMachine adopts a VM that matches the request";
    "CMI-83"     Must   "Each machine maps to its own VM, and deleting it deletes only that VM";
    "CMI-84"     Must   "CreateMachine is idempotent";
    "CMI-85"     Said   "The provider ID is unique and stable, and the node name is the name of the Node";
    "CMI-87"     Must   "CreateMachine answers INVALID_ARGUMENT with an explanation if a field is \
                        missing or invalid";
    "CMI-88"     Should "The call answers INVALID_ARGUMENT with an explanation if a field is missing or \
                        invalid";
    "CMI-89"     Must   "CreateMachine answers INVALID_ARGUMENT with an explanation if a field is \
                        missing or invalid";
    "CMI-90"     May    "CreateMachine works with and without secrets, provider ID and LastKnownState, \
                        which can be any bytes";
    "CMI-91"     May    "CreateMachine works with and without secrets, provider ID and LastKnownState, \
                        which can be any bytes";
    "CMI-92"     Must   "CreateMachine returns a provider ID and a node name";
    "CMI-93"     Must   "CreateMachine returns a provider ID and a node name";
    "CMI-94"     May    "CreateMachine works with and without secrets, provider ID and LastKnownState, \
                        which can be any bytes";
    "CMI-95"     Must   "An incomplete CreateMachine is not OK";
    "CMI-96"     Must   "CreateMachine uses the codes of its table";
    "CMI-98"     Must   "CreateMachine reports errors with a readable message";
    "CMI-99"     Must   "DeleteMachine is implemented and declared";
    "CMI-100"    Must   "Deleting a VM that does not exist is OK";
    "CMI-101"    Must   "DeleteMachine ignores VMs of other clusters";
    "CMI-102"    Must   "DeleteMachine is idempotent";
    "CMI-103"    Said   "Each machine maps to its own VM, and deleting it deletes only that VM";
    "CMI-105"    Must   "DeleteMachine answers INVALID_ARGUMENT with an explanation if a field is \
                        missing or invalid";
    "CMI-106"    Must   "DeleteMachine answers INVALID_ARGUMENT with an explanation if a field is \
                        missing or invalid";
    "CMI-107"    May    "DeleteMachine works with and without secrets, provider ID and LastKnownState, \
                        which can be any bytes";
    "CMI-108"    May    "DeleteMachine works with and without secrets, provider ID and LastKnownState, \
                        which can be any bytes";
    "CMI-109"    May    "DeleteMachine works with and without secrets, provider ID and LastKnownState, \
                        which can be any bytes";
    "CMI-110"    May    "DeleteMachine works with and without secrets, provider ID and LastKnownState, \
                        which can be any bytes";
    "CMI-111"    Must   "An incomplete DeleteMachine is not OK";
    "CMI-112"    Must   "DeleteMachine uses the codes of its table";
    "CMI-113"    Must   "DeleteMachine reports errors with a readable message";
    "CMI-114"    Must   "A declared GetMachineStatus is implemented";
    "CMI-115"    Said   "GetMachineStatus answers match CreateMachine";
    "CMI-116"    Must   "GetMachineStatus ignores VMs of other clusters";
    "CMI-117"    Must   "GetMachineStatus is idempotent";
    "CMI-118"    Must   "GetMachineStatus answers INVALID_ARGUMENT with an explanation if a field is \
                        missing or invalid";
    "CMI-119"    Must   "GetMachineStatus answers INVALID_ARGUMENT with an explanation if a field is \
                        missing or invalid";
    "CMI-120"    May    "GetMachineStatus works with and without secrets, provider ID and \
                        LastKnownState, which can be any bytes";
    "CMI-121"    Must   "GetMachineStatus returns a provider ID and a node name";
    "CMI-122"    Must   "GetMachineStatus returns a provider ID and a node name";
    "CMI-123"    Must   "An incomplete GetMachineStatus is not OK";
    "CMI-124"    Must   "GetMachineStatus uses the codes of its table";
    "CMI-125"    Must   "GetMachineStatus reports errors with a readable message";
    "CMI-126"    Must   "A declared ShutDownMachine is implemented";
    "CMI-127"    Must   "Shutting down a guest that stops or has stopped is OK";
    "CMI-128"    Must   "ShutDownMachine ignores VMs of other clusters";
    "CMI-129"    Must   "ShutDownMachine is idempotent";
    "CMI-130"    Must   "ShutDownMachine answers INVALID_ARGUMENT with an explanation if a field is \
                        missing or invalid";
    "CMI-131"    Must   "ShutDownMachine answers INVALID_ARGUMENT with an explanation if a field is \
                        missing or invalid";
    "CMI-132"    May    "ShutDownMachine works with and without secrets, provider ID and LastKnownState, \
                        which can be any bytes";
    "CMI-133"    Must   "An incomplete ShutDownMachine is not OK";
    "CMI-134"    Must   "ShutDownMachine uses the codes of its table";
    "CMI-135"    Must   "ShutDownMachine reports errors with a readable message";
    "CMI-136"    Must   "A declared ListMachines is implemented";
    "CMI-137"    Must   "ListMachines returns every VM of the provider spec";
    "CMI-138"    Said   "The list maps provider IDs to machine names";
    "CMI-139"    Must   "ListMachines answers INVALID_ARGUMENT with an explanation if a field is missing \
                        or invalid";
    "CMI-140"    May    "ListMachines works with and without secrets, provider ID and LastKnownState, \
                        which can be any bytes";
    "CMI-141"    Must   "A cluster without VMs has an empty list, and no other list is empty";
    "CMI-142"    Must   "An incomplete ListMachines is not OK";
    "CMI-143"    Must   "ListMachines uses the codes of its table";
    "CMI-145"    Must   "ListMachines reports errors with a readable message";
    "CMI-146"    Must   "A declared GetVolumeIDs is implemented";
    "CMI-147"    Must   "GetVolumeIDs returns the IDs of all own volumes";
    "CMI-148"    May    "Volumes of others can be skipped, and never get an invented ID";
    "CMI-149"    Must   "GetVolumeIDs is idempotent";
    "CMI-150"    Must   "GetVolumeIDs answers INVALID_ARGUMENT with an explanation if a field is missing \
                        or invalid";
    "CMI-151"    Must   "An empty volume list has no IDs";
    "CMI-152"    Must   "GetVolumeIDs reports errors with a readable message";
    "CMI-153"    Must   "The services Identity and Machine are at one network address, with all declared \
                        and REQUIRED calls";
    "CMI-154"    Should "Messages follow proto3: unknown fields are ignored";
    "CMI-155"    Must   "The services Identity and Machine are at one network address, with all declared \
                        and REQUIRED calls";
    "CMI-157"    Must   "The plugin is a long-running service that listens at CMI_ENDPOINT";
    "CMI-158"    May    "Only network sockets are endpoints"
                        untested "the extension of this project also allows unix sockets";
    "CMI-159"    Must   "The services Identity and Machine are at one network address, with all declared \
                        and REQUIRED calls";
    "CMI-161"    Must   "The services Identity and Machine are at one network address, with all declared \
                        and REQUIRED calls";
    "CMI-165"    Should / Must "Logs, messages and answers contain no secrets", by_every_case;
    "CMI-174"    Must   "The program does not expect variables from its image manifest"
                        untested STARTS;
    "CMI-179"    Must   "CMI_ENDPOINT is required, with a scheme, an authority and a port, on loopback \
                        or another address"
                        untested STARTS;
    "CMI-180"    Must   "CMI_ENDPOINT is required, with a scheme, an authority and a port, on loopback \
                        or another address"
                        untested STARTS;
    "CMI-181"    Must   "CMI_ENDPOINT is required, with a scheme, an authority and a port, on loopback \
                        or another address"
                        untested STARTS;
    "CMI-182"    Must   "The plugin is a long-running service that listens at CMI_ENDPOINT";
    "CMI-183"    Should "Logs are written only to standard output and standard error"
                        untested STARTS;
    "CMI-186"    Should / Must "Logs, messages and answers contain no secrets", by_every_case;
    "CMI-188"    Should "A wrong configuration fails immediately with an exit code"
                        untested STARTS;
};
