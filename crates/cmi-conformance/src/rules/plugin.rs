//! The rules of the Common Machine Interface: services, fields and operation.

use super::Rule;

pub(super) const RULES: &[Rule] = rules! { Published:
    "CMI-02"     Said   "What is asked for in the spec decides what VM is made";
    "CMI-03"     Must   "Every declared call is served";
    "CMI-06"     Should "CREATE_MACHINE and DELETE_MACHINE are declared";
    "CMI-07"     Should "A call that is not supported says so";
    "CMI-08"     Must   "Identity and Machine are both served";
    "CMI-10"     Should "Calls at once for one machine do no harm";
    "CMI-11"     May    "The second of two calls at once may be ABORTED";
    "CMI-13"     Said / Must "Nothing sensitive in plain text or in logs", by_every_case;
    "CMI-14"     Must   "Fields keep to their size limits";
    "CMI-15"     Must   "A REQUIRED field is there";
    "CMI-17"     Must   "A REQUIRED list may be empty only where none is an answer";
    "CMI-19"     Said   "A field that is not set has its zero value";
    "CMI-22"     Said   "A call that is repeated goes on where it was";
    "CMI-23"     Must   "Every answer ends in a gRPC status";
    "CMI-24"     Must   "The status has a canonical code";
    "CMI-26"     Must   "Every call answers the code of its table";
    "CMI-27"     Must   "The codes that all calls have in common are answered, too";
    "CMI-28"     Must   "A missing field is INVALID_ARGUMENT";
    "CMI-30"     Must   "A field that is not valid is INVALID_ARGUMENT";
    "CMI-32"     Must   "A caller without the permission gets PERMISSION_DENIED";
    "CMI-34"     Must   "A pending operation is ABORTED, or waited for";
    "CMI-36"     Must   "What is not implemented is UNIMPLEMENTED";
    "CMI-38"     Must   "Secrets that are not valid are UNAUTHENTICATED";
    "CMI-40"     Must   "Every error says in words what is wrong";
    "CMI-41"     Must   "Status details stay empty";
    "CMI-43"     Must   "Secret keys are alphanumeric, `-`, `_` and `.`"
                        untested "a rule for the caller; Kubernetes has no Secret with another key";
    "CMI-44"     Must   "A secret value of any bytes does no harm";
    "CMI-48"     Said   "Every call that takes a provider spec checks it";
    "CMI-49"     Should "The VMs of one cluster can be told from those of another";
    "CMI-50"     Must   "GetPluginInfo is implemented";
    "CMI-51"     Must   "The name is in domain name notation";
    "CMI-52"     Should "The name holds whose plugin it is";
    "CMI-53"     Must   "The name has at most 63 bytes and is alphanumeric at both ends";
    "CMI-54"     Must   "The name is there";
    "CMI-55"     Must   "The version is there";
    "CMI-56"     May    "The manifest keeps to its size limit";
    "CMI-57"     Must   "GetPluginInfo that fails is not OK"
                        untested "nothing outside of a plugin keeps it from telling its name; \
                            `capcmi driver serve` has a test of its own for it";
    "CMI-58"     Must   "GetPluginCapabilities is implemented";
    "CMI-59"     Must   "A version has one set of capabilities";
    "CMI-60"     May    "Capabilities are those that are known";
    "CMI-61"     Must   "CREATE_MACHINE is declared";
    "CMI-62"     Must   "DELETE_MACHINE is declared";
    "CMI-63"     Must   "GetPluginCapabilities that fails is not OK"
                        untested "nothing outside of a plugin keeps it from telling what it can do; \
                            `capcmi driver serve` has a test of its own for it";
    "CMI-64"     Must   "Probe is implemented";
    "CMI-68"     Must   "A plugin that is not healthy answers an error";
    "CMI-69"     Must   "A plugin that still starts answers OK and is not ready";
    "CMI-70"     Said   "A plugin that has started is ready";
    "CMI-72"     Must   "Probe that fails is not OK";
    "CMI-73"     Must   "Probe answers the code of its table";
    "CMI-75"     Must   "A plugin that is not healthy is FAILED_PRECONDITION";
    "CMI-77"     Must   "A missing dependency is FAILED_PRECONDITION";
    "CMI-79"     Must   "A machine leads to one VM";
    "CMI-80"     Should "A provider spec leads to one cluster";
    "CMI-81"     Must   "CreateMachine is implemented and declared";
    "CMI-82"     Must   "A VM that is there and fits is adopted";
    "CMI-83"     Must   "Each machine has a VM of its own";
    "CMI-84"     Must   "CreateMachine can be repeated";
    "CMI-85"     Said   "Provider id and node name are those of the Node";
    "CMI-87"     Must   "CreateMachine takes no blank name";
    "CMI-88"     Should "A provider spec that can't be read is refused";
    "CMI-89"     Must   "CreateMachine takes no empty provider spec";
    "CMI-90"     May    "CreateMachine takes secrets";
    "CMI-91"     May    "CreateMachine takes any LastKnownState";
    "CMI-92"     Must   "CreateMachine answers a provider id";
    "CMI-93"     Must   "CreateMachine answers a node name";
    "CMI-94"     May    "A LastKnownState may hold any bytes";
    "CMI-95"     Must   "A create that is not complete does not answer OK";
    "CMI-96"     Must   "CreateMachine answers the code of its table";
    "CMI-98"     Must   "An error of CreateMachine says in words what is wrong";
    "CMI-99"     Must   "DeleteMachine is implemented and declared";
    "CMI-100"    Must   "To delete what is not there is OK";
    "CMI-101"    Must   "DeleteMachine touches no VM of another cluster";
    "CMI-102"    Must   "DeleteMachine can be repeated";
    "CMI-103"    Said   "A machine leads to the VM that is to be deleted";
    "CMI-105"    Must   "DeleteMachine takes no blank name";
    "CMI-106"    Must   "DeleteMachine takes no empty provider spec";
    "CMI-107"    May    "DeleteMachine takes secrets";
    "CMI-108"    May    "DeleteMachine works with and without the provider id";
    "CMI-109"    May    "DeleteMachine takes any LastKnownState";
    "CMI-110"    May    "DeleteMachine may answer a LastKnownState";
    "CMI-111"    Must   "A deletion that is not complete does not answer OK";
    "CMI-112"    Must   "DeleteMachine answers the code of its table";
    "CMI-113"    Must   "An error of DeleteMachine says in words what is wrong";
    "CMI-114"    Must   "GetMachineStatus that is declared is implemented";
    "CMI-115"    Said   "GetMachineStatus answers as CreateMachine does";
    "CMI-116"    Must   "GetMachineStatus sees no VM of another cluster";
    "CMI-117"    Must   "GetMachineStatus can be repeated";
    "CMI-118"    Must   "GetMachineStatus takes no blank name";
    "CMI-119"    Must   "GetMachineStatus takes no empty provider spec";
    "CMI-120"    May    "GetMachineStatus works with and without the provider id";
    "CMI-121"    Must   "GetMachineStatus answers a provider id";
    "CMI-122"    Must   "GetMachineStatus answers a node name";
    "CMI-123"    Must   "A look-up that is not complete does not answer OK";
    "CMI-124"    Must   "GetMachineStatus answers the code of its table";
    "CMI-125"    Must   "An error of GetMachineStatus says in words what is wrong";
    "CMI-126"    Must   "ShutDownMachine that is declared is implemented";
    "CMI-127"    Must   "A guest that is stopped, or has accepted to stop, is OK";
    "CMI-128"    Must   "ShutDownMachine stops no guest of another cluster";
    "CMI-129"    Must   "ShutDownMachine can be repeated";
    "CMI-130"    Must   "ShutDownMachine takes no blank name";
    "CMI-131"    Must   "ShutDownMachine takes no empty provider spec";
    "CMI-132"    May    "ShutDownMachine works with and without its optional fields";
    "CMI-133"    Must   "A request to stop that failed does not answer OK";
    "CMI-134"    Must   "ShutDownMachine answers the code of its table";
    "CMI-135"    Must   "An error of ShutDownMachine says in words what is wrong";
    "CMI-136"    Must   "ListMachines that is declared is implemented";
    "CMI-137"    Must   "ListMachines names every VM of the provider spec";
    "CMI-138"    Said   "The list leads from provider ids to machine names";
    "CMI-139"    Must   "ListMachines takes no empty provider spec";
    "CMI-140"    May    "ListMachines takes secrets";
    "CMI-141"    Must   "A cluster without VMs has an empty list";
    "CMI-142"    Must   "A list that is not complete does not answer OK";
    "CMI-143"    Must   "ListMachines answers the code of its table";
    "CMI-145"    Must   "An error of ListMachines says in words what is wrong";
    "CMI-146"    Must   "GetVolumeIDs that is declared is implemented";
    "CMI-147"    Must   "GetVolumeIDs of own volumes is OK";
    "CMI-148"    May    "Volumes of others may be left out";
    "CMI-149"    Must   "GetVolumeIDs can be repeated";
    "CMI-150"    Must   "GetVolumeIDs takes no empty PVSpecList";
    "CMI-151"    Must   "No volumes have no ids";
    "CMI-152"    Must   "An error of GetVolumeIDs says in words what is wrong";
    "CMI-153"    Must   "The services are spoken to by their published names";
    "CMI-154"    Should "Messages are those of proto3: a field that is not known yet does no harm";
    "CMI-155"    Must   "The five REQUIRED calls are implemented";
    "CMI-157"    Must   "The plugin listens where CMI_ENDPOINT says";
    "CMI-158"    May    "Only network sockets are endpoints"
                        untested "a unix socket is an endpoint of this project, too: the extension says so";
    "CMI-159"    Must   "All services are at one address";
    "CMI-161"    Must   "The transport is a network socket";
    "CMI-165"    Should / Must "Nothing sensitive leaks", by_every_case;
    "CMI-174"    Must   "Nothing is taken for granted about the image manifest"
                        untested "about how the program is started and what it writes, which no call \
                            shows; `capcmi driver serve` has tests of its own for it";
    "CMI-179"    Must   "CMI_ENDPOINT has a scheme, an authority and a port"
                        untested "about how the program is started, which no call shows, and the hook \
                            `restart` starts it in its author's way alone; `capcmi driver serve` has tests \
                            of its own for it";
    "CMI-180"    Must   "Loopback and other addresses can be listened on"
                        untested "about how the program is started, which no call shows, and the hook \
                            `restart` starts it in its author's way alone; `capcmi driver serve` has tests \
                            of its own for it";
    "CMI-181"    Must   "Without CMI_ENDPOINT the plugin does not start"
                        untested "about how the program is started, which no call shows, and the hook \
                            `restart` starts it in its author's way alone; `capcmi driver serve` has tests \
                            of its own for it";
    "CMI-182"    Must   "The plugin serves for as long as it runs";
    "CMI-183"    Should "Logs go to standard output and standard error alone"
                        untested "about how the program is started and what it writes, which no call \
                            shows; `capcmi driver serve` has tests of its own for it";
    "CMI-186"    Should / Must "No secret is written to logs", by_every_case;
    "CMI-188"    Should "What is configured wrongly fails at once, with an exit code"
                        untested "about how the program is started, which no call shows, and the hook \
                            `restart` starts it in its author's way alone; `capcmi driver serve` has tests \
                            of its own for it";
};
