#!/usr/bin/env python3
"""The hooks of the conformance suite (docs/drivers/conformance.md) for back ends that are a folder: go/, python/minimal/ and
the folder example in Rust.

    hook.py FOLDER NAME [ARGUMENT…]

The conformance.yaml of each has the arguments. To have hooks for a back end of your own, copy this file and put its
API in the place of the files. A hook without effect must fail: otherwise the suite judges the wrong behaviour.
"""

import base64
import json
import sys
import uuid
from datetime import datetime, timezone
from pathlib import Path

CLUSTER, IDENTITY = "kubernetes.io/cluster", "capcmi.io/machine"

cloud = Path(sys.argv[1])
vms, faults = cloud / "vms", cloud / "faults"


def of(machine: str, cluster: str) -> list[tuple[Path, dict]]:
    """The VMs of a machine, with their files; there has to be one."""
    found = []
    for path in vms.glob("*.json"):
        try:
            vm = json.loads(path.read_text())
        except FileNotFoundError:
            continue  # deleted since, in a case that runs at the same time
        if (vm["machine"], vm["spec"]["tags"][CLUSTER]) == (machine, cluster):
            found.append((path, vm))
    return found or sys.exit(f"there is no VM {machine} in cluster {cluster}")


def write(path: Path, vm: dict) -> None:
    """Puts a file in its place whole: the driver may be reading."""
    unfinished = path.with_suffix(".hook")
    unfinished.write_text(json.dumps(vm))
    unfinished.rename(path)


match sys.argv[2:]:
    case [("unavailable" | "unknown" | "internal" | "exhaust" | "unhealthy" | "starting") as fault]:
        (faults / fault).touch()
    case ["slow", milliseconds]:
        (faults / "slow").write_text(milliseconds)
    case ["loseResponse"]:
        (faults / "loseCreate").touch()
        (faults / "loseDelete").touch()
    case ["restore"]:
        for fault in faults.iterdir():
            fault.unlink(missing_ok=True)
    case ["plant", machine, cluster, identity]:
        name = uuid.uuid4().hex
        spec = {"vmPool": "default", "size": "small", "rootFsSize": 10, "tags": {CLUSTER: cluster, IDENTITY: identity}}
        now = datetime.now(timezone.utc).isoformat()
        write(vms / f"{name}.json", {"id": f"folder:///{name}", "machine": machine, "spec": spec, "createdAt": now})
    case [("lock" | "unlock") as change, machine, cluster]:
        for path, vm in of(machine, cluster):
            write(path, vm | {"locked": change == "lock"})
    case ["vanish", machine, cluster]:
        for path, _ in of(machine, cluster):
            path.unlink(missing_ok=True)
    case ["mutations"]:
        changes = cloud / "changes"
        print(changes.stat().st_size if changes.exists() else 0)
    case ["userData", machine, cluster]:
        for _, vm in of(machine, cluster):
            sys.stdout.buffer.write(base64.b64decode(vm.get("userData", "")))
    case arguments:
        sys.exit(f"there is no hook {' '.join(arguments)}")
