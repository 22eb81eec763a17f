"""A driver in one file, built step by step in docs/driver-authors.md. Its VMs are entries of a dictionary."""

import json
import os
import re
import signal
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import grpc
from cmi.v1 import cmi_pb2 as cmi
from cmi.v1 import cmi_pb2_grpc as services
from grpc import StatusCode

# The tags that say which cluster a VM belongs to, and which machine object.
CLUSTER, IDENTITY = "kubernetes.io/cluster", "capcmi.io/machine"
FIELDS = {"vmPool": str, "size": str, "rootFsSize": int, "tags": dict}
# The sizes that there are, with the GB that their root file systems may have.
SIZES = {"small": range(10, 101), "large": range(10, 1001)}
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
STOP = {signal.SIGINT, signal.SIGTERM}
PROVIDER_ID = re.compile(r"minimal:///[0-9a-f]{32}")


class Vm(NamedTuple):
    """A VM: its id, and what it was made from. The tags in there say whose it is."""

    provider_id: str
    spec: dict


def read_spec(request, context, *tags):
    """The ProviderSpec, checked in full before anything is done: what is misread makes the wrong VM."""

    def refuse(why):
        context.abort(StatusCode.INVALID_ARGUMENT, f"ProviderSpec {why}")

    try:
        spec = json.loads(request.ProviderSpec)
    except ValueError as error:
        refuse(f"is no JSON: {error}")
    if not isinstance(spec, dict):
        refuse("is no JSON object")
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
    return spec


def check_size(spec, context):
    """What there is may change: a VM that was made before has to be found and deleted all the same."""
    size, disk = spec["size"], spec.get("rootFsSize", 10)
    if size not in SIZES or disk < 0:
        context.abort(StatusCode.INVALID_ARGUMENT, f"ProviderSpec has the /size {size} or a negative /rootFsSize")
    if disk not in SIZES[size]:
        context.abort(StatusCode.OUT_OF_RANGE, f"ProviderSpec has the /rootFsSize {disk}; no VM of /size {size} has it")


class Identity(services.IdentityServicer):
    def GetPluginInfo(self, request, context):
        return cmi.GetPluginInfoResponse(name="minimal.example.com", version="0.1.0")

    def GetPluginCapabilities(self, request, context):
        calls = ("CREATE_MACHINE", "DELETE_MACHINE", "GET_MACHINE_STATUS", "LIST_MACHINES")
        return cmi.GetPluginCapabilitiesResponse(capabilities=[{"rpc": {"type": call}} for call in calls])

    def Probe(self, request, context):
        return cmi.ProbeResponse(ready={"value": True})


class Machine(services.MachineServicer):
    """The calls that are not here answer UNIMPLEMENTED: the generated class sees to that."""

    def __init__(self):
        self.vms = {}  # by cluster and machine name
        self.lock = threading.Lock()  # what was looked up must still be so when it is acted on

    def find(self, request, context):
        """The checked spec, the key of the VM, and the VM when it is the one that the request is about."""
        if not NAME.fullmatch(request.MachineName) or len(request.MachineName) > 253:
            context.abort(StatusCode.INVALID_ARGUMENT, "MachineName has to be a DNS subdomain of 1 to 253 bytes")
        provider_id = getattr(request, "ProviderID", "")
        if provider_id and not PROVIDER_ID.fullmatch(provider_id):
            context.abort(StatusCode.INVALID_ARGUMENT, f"ProviderID does not read {PROVIDER_ID.pattern}")
        spec = read_spec(request, context, CLUSTER, IDENTITY)
        key = (spec["tags"][CLUSTER], request.MachineName)
        vm = self.vms.get(key)
        is_meant = vm and vm.spec["tags"][IDENTITY] == spec["tags"][IDENTITY] and provider_id in ("", vm.provider_id)
        return spec, key, vm if is_meant else None

    def CreateMachine(self, request, context):
        with self.lock:
            spec, key, vm = self.find(request, context)
            check_size(spec, context)
            if key in self.vms and (vm is None or vm.spec != spec):
                context.abort(StatusCode.ALREADY_EXISTS, f"{key[1]} exists and is another machine's or of another spec")
            if vm is None:
                vm = self.vms[key] = Vm(f"minimal:///{uuid.uuid4().hex}", spec)
        return cmi.CreateMachineResponse(ProviderID=vm.provider_id, NodeName=key[1])

    def DeleteMachine(self, request, context):
        with self.lock:
            _, key, vm = self.find(request, context)
            if vm:
                del self.vms[key]
        return cmi.DeleteMachineResponse()

    def GetMachineStatus(self, request, context):
        with self.lock:
            _, key, vm = self.find(request, context)
        if vm is None:
            context.abort(StatusCode.NOT_FOUND, f"cluster {key[0]} has no VM of machine {key[1]}")
        return cmi.GetMachineStatusResponse(ProviderID=vm.provider_id, NodeName=key[1])

    def ListMachines(self, request, context):
        cluster = read_spec(request, context, CLUSTER)["tags"][CLUSTER]
        with self.lock:
            found = {vm.provider_id: key[1] for key, vm in self.vms.items() if key[0] == cluster}
        return cmi.ListMachinesResponse(MachineList=found)


def main():
    endpoint = os.environ.get("CMI_ENDPOINT", "")
    if not endpoint.startswith(("tcp://", "unix:///")):
        sys.exit("CMI_ENDPOINT has to be tcp://HOST:PORT or unix:///PATH")
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)  # before there are threads that they could be sent to
    options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 5 << 20)]  # ours alone, and whole
    server = grpc.server(ThreadPoolExecutor(64), options=options)
    services.add_IdentityServicer_to_server(Identity(), server)
    services.add_MachineServicer_to_server(Machine(), server)
    server.add_insecure_port(endpoint.removeprefix("tcp://"))
    server.start()
    print(f"serving at {endpoint}", file=sys.stderr)
    signal.sigwait(STOP)
    server.stop(grace=10).wait()


if __name__ == "__main__":
    main()
