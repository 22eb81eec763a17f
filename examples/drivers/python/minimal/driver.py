"""A driver in one file, explained step by step in docs/drivers/quickstart.md. Its back end, a folder, is backend.py."""

import json
import os
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import wraps

import grpc
from cmi.v1 import cmi_pb2 as cmi
from cmi.v1 import cmi_pb2_grpc as services
from grpc import StatusCode

import backend

# Tags: the cluster of the VM, and the machine object that owns it.
CLUSTER, IDENTITY = "kubernetes.io/cluster", "capcmi.io/machine"
FIELDS = {"vmPool": str, "size": str, "rootFsSize": int, "tags": dict}
# Sizes, with their allowed root file systems in GB.
SIZES = {"small": range(10, 101), "large": range(10, 1001)}
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
STOP = {signal.SIGINT, signal.SIGTERM}
PROVIDER_ID = re.compile(r"minimal:///[0-9a-f]{32}")

# Codes of back-end errors. None is NOT_FOUND: the provider would create a second VM.
CODES = {
    backend.Away: StatusCode.UNAVAILABLE,
    backend.Broken: StatusCode.INTERNAL,
    backend.Busy: StatusCode.ABORTED,
    backend.Full: StatusCode.RESOURCE_EXHAUSTED,
    backend.Unfit: StatusCode.FAILED_PRECONDITION,
    TimeoutError: StatusCode.DEADLINE_EXCEEDED,
}


class Refused(Exception):
    """Ends a call with a code, and a sentence for an operator."""


def call(method):
    """Turns exceptions into gRPC codes. An unexpected one becomes UNKNOWN without its text, which may hold secrets."""

    @wraps(method)
    def answered(self, request, context):
        try:
            return method(self, request, context)
        except Refused as refused:
            code, why = refused.args
        except Exception as error:
            code = CODES.get(type(error), StatusCode.UNKNOWN)
            why = str(error) if type(error) in CODES else f"the driver failed with a {type(error).__name__}"
        context.abort(code, why)

    return answered


def read_spec(raw, *tags):
    """The ProviderSpec, checked in full before anything is done: what is misread makes the wrong VM."""

    def refuse(why):
        raise Refused(StatusCode.INVALID_ARGUMENT, f"ProviderSpec {why}")

    try:
        spec = json.loads(raw)
    except ValueError as error:
        refuse(f"is not JSON: {error}")
    if not isinstance(spec, dict):
        refuse("is not a JSON object")
    for field in sorted(spec.keys() | {"vmPool", "size", "tags"}):
        if field not in FIELDS:
            refuse(f"has the field /{field}, which is not known")
        if type(spec.get(field)) is not FIELDS[field] or spec[field] == "":
            refuse(f"needs a value of type {FIELDS[field].__name__} in /{field}")
    if not all(isinstance(value, str) for value in spec["tags"].values()):
        refuse("has a tag in /tags whose value is no text")
    for tag in tags:
        if not spec["tags"].get(tag, "").strip():
            refuse(f"needs the tag {tag} in /tags")
    return {"rootFsSize": 10} | spec


def check_size(size, disk):
    """Checks the size against those offered now. Only a create calls it: VMs of removed sizes must still be found."""
    if size not in SIZES or disk < 0:
        raise Refused(StatusCode.INVALID_ARGUMENT, f"ProviderSpec has the /size {size} or a negative /rootFsSize")
    if disk not in SIZES[size]:
        raise Refused(StatusCode.OUT_OF_RANGE, f"ProviderSpec has the /rootFsSize {disk}; no VM of /size {size} has it")


def read(request):
    """The checked spec of a request about one machine, whose name and id are checked, too."""
    if not NAME.fullmatch(request.MachineName) or len(request.MachineName) > 253:
        raise Refused(StatusCode.INVALID_ARGUMENT, "MachineName has to be a DNS subdomain of 1 to 253 bytes")
    provider_id = getattr(request, "ProviderID", "")
    if provider_id and not PROVIDER_ID.fullmatch(provider_id):
        raise Refused(StatusCode.INVALID_ARGUMENT, f"ProviderID does not read {PROVIDER_ID.pattern}")
    return read_spec(request.ProviderSpec, CLUSTER, IDENTITY)


def several(request, vms):
    return f"the machine {request.MachineName} has several VMs: {', '.join(vm.id for vm in vms)}"


class Identity(services.IdentityServicer):
    def __init__(self, folder):
        self.backend = folder

    def GetPluginInfo(self, request, context):
        return cmi.GetPluginInfoResponse(name="minimal.example.com", version="0.1.0")

    def GetPluginCapabilities(self, request, context):
        calls = ("CREATE_MACHINE", "DELETE_MACHINE", "GET_MACHINE_STATUS", "LIST_MACHINES")
        return cmi.GetPluginCapabilitiesResponse(capabilities=[{"rpc": {"type": call}} for call in calls])

    @call
    def Probe(self, request, context):
        return cmi.ProbeResponse(ready={"value": self.backend.is_ready()})


class Machine(services.MachineServicer):
    """The calls that are not here answer UNIMPLEMENTED: the generated class sees to that."""

    def __init__(self, folder):
        self.backend = folder

    def find(self, request, spec, context):
        """The VMs of the name, and those of them that are meant: of this machine object, with the id of the request."""
        every = self.backend.vms(spec["tags"][CLUSTER], context.time_remaining())
        named = [vm for vm in every if vm.machine == request.MachineName]
        ours = [vm for vm in named if vm.spec["tags"].get(IDENTITY) == spec["tags"][IDENTITY]]
        meant = [vm for vm in ours if getattr(request, "ProviderID", "") in ("", vm.id)]
        if any(vm.locked for vm in meant):
            raise Refused(StatusCode.FAILED_PRECONDITION, f"the VM {meant[0].id} is locked at the back end")
        return named, meant

    @call
    def CreateMachine(self, request, context):
        spec = read(request)
        check_size(spec["size"], spec["rootFsSize"])
        with self.backend.held(spec["tags"][CLUSTER], request.MachineName):
            named, ours = self.find(request, spec, context)
            if len(ours) > 1:
                raise Refused(StatusCode.FAILED_PRECONDITION, several(request, ours))
            if named and (not ours or ours[0].spec != spec):
                raise Refused(StatusCode.ALREADY_EXISTS, f"{named[0].id} is of another machine or another spec")
            data = request.Secrets.get("userData", b"")
            vm = ours[0] if ours else self.backend.create(request.MachineName, spec, data, context.time_remaining())
        return cmi.CreateMachineResponse(ProviderID=vm.id, NodeName=vm.machine)

    @call
    def DeleteMachine(self, request, context):
        spec = read(request)
        with self.backend.held(spec["tags"][CLUSTER], request.MachineName):
            for vm in self.find(request, spec, context)[1]:
                self.backend.delete(vm, context.time_remaining())
        return cmi.DeleteMachineResponse()

    @call
    def GetMachineStatus(self, request, context):
        _, found = self.find(request, read(request), context)
        if not found:
            raise Refused(StatusCode.NOT_FOUND, f"no VM of machine {request.MachineName} exists in this cluster")
        if len(found) > 1:
            raise Refused(StatusCode.OUT_OF_RANGE, several(request, found))
        return cmi.GetMachineStatusResponse(ProviderID=found[0].id, NodeName=found[0].machine)

    @call
    def ListMachines(self, request, context):
        cluster = read_spec(request.ProviderSpec, CLUSTER)["tags"][CLUSTER]
        found = self.backend.vms(cluster, context.time_remaining())
        return cmi.ListMachinesResponse(MachineList={vm.id: vm.machine for vm in found})


def main():
    endpoint, folder = os.environ.get("CMI_ENDPOINT", ""), os.environ.get("MINIMAL_CLOUD")
    if not endpoint.startswith(("tcp://", "unix:///")):
        sys.exit("CMI_ENDPOINT must be tcp://HOST:PORT or unix:///PATH")
    if not folder:
        sys.exit("MINIMAL_CLOUD has to name the folder that the VMs are kept in")
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)  # before any thread starts
    # no shared port; requests of up to 5 MiB
    options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 5 << 20)]
    server = grpc.server(ThreadPoolExecutor(64), options=options)
    vms = backend.Folder(folder)
    services.add_IdentityServicer_to_server(Identity(vms), server)
    services.add_MachineServicer_to_server(Machine(vms), server)
    server.add_insecure_port(endpoint.removeprefix("tcp://"))
    server.start()
    print(f"serving at {endpoint}", file=sys.stderr)
    signal.sigwait(STOP)
    server.stop(grace=10).wait()


if __name__ == "__main__":
    main()
