"""EC2 as moto serves it, as a process for tests from outside: with client tokens, faults and a console.

    python ec2_server.py 127.0.0.1:5000 [AUTHORITIES]

AUTHORITIES is the file that the driver's AWS_CA_BUNDLE names.

`/console/HOOK?machine=&cluster=&identity=&amount=` carries out the conformance suite's hook of that name.
`/console/guests` lists the running instances as JSON, with their user data in base64. `/console/subnets` lists the
subnets.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import certifi
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from client_tokens import Tokens
from cloud import Cloud

StartResponse = Callable[..., Any]

_ERROR = "<Response><Errors><Error><Code>{0}</Code><Message>{0}, as asked for</Message></Error></Errors></Response>"
# An instance, as EC2 describes none.
_CONTRADICTION = b"""<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><reservationSet><item>
<reservationId>r-0123456789abcdef0</reservationId>
<instancesSet><item><instanceId>i-0123456789abcdef0</instanceId></item></instancesSet>
</item></reservationSet></DescribeInstancesResponse>"""
# What EC2 says to those whom it does not let in, by the id of their access key. The signature of others is theirs.
_REFUSED = {
    "AKIAEXAMPLERESTRICTED": ("UnauthorizedOperation", 403),
    "AKIAEXAMPLESTRANGER": ("AuthFailure", 401),
}
_ACCESS_KEY = re.compile(r"Credential=(\w+)/")
_MAKES_OR_ENDS = ("RunInstances", "TerminateInstances")


@dataclass
class Faults:
    """The failures in effect."""

    # For every request.
    refusal: str = ""
    http_status: int = 503
    seconds: float = 0
    # For creates.
    exhausted: bool = False
    # For so many of them.
    failing_initializations: int = 0
    # Operations whose next answer gets lost.
    lost: tuple[str, ...] = ()
    # Whether descriptions of instances contradict themselves.
    contradicting: bool = False


class Authorities:
    """The file with the authorities that the driver trusts for EC2."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # One is enough, and read sooner than all.
        first, end, _ = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----\n")
        self._sound = first + end
        self.restore()

    def restore(self) -> None:
        """Puts it in its place."""
        self._path.write_text(self._sound)

    def spoil(self) -> None:
        """Leaves nothing in it that is a certificate."""
        self._path.write_text("a page of a proxy\n")

    def remove(self) -> None:
        """As before it is written."""
        self._path.unlink(missing_ok=True)


class Server:
    """A WSGI application in front of moto's."""

    def __init__(self, url: str, authorities: Authorities | None) -> None:
        self._url = url
        self._authorities = authorities
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        # moto fails if it changes a list while it reads it.
        self._moto_lock = threading.Lock()
        self._faults = Faults()
        self._changes = 0
        self._console: Cloud | None = None

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path.startswith("/console/"):
            query = {key: values[0] for key, values in parse_qs(environ["QUERY_STRING"]).items()}
            body = self._hook(path.removeprefix("/console/"), **query)
            return _answer(start_response, 200, body)
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = BytesIO(body)
        if "X-Console" in environ.get("HTTP_USER_AGENT", ""):
            return self._ec2(environ, start_response)
        operation = parse_qs(body.decode()).get("Action", [""])[0]
        refusal = self._refusal(operation, environ.get("HTTP_AUTHORIZATION", ""))
        if refusal:
            return _answer(start_response, refusal[1], _ERROR.format(refusal[0]).encode())
        if operation == "DescribeInstances" and self._faults.contradicting:
            return _answer(start_response, 200, _CONTRADICTION)
        answer = self._ec2(environ, start_response if operation not in self._faults.lost else lambda *_: None)
        if not operation.startswith("Describe"):
            with self._lock:
                self._changes += 1
        if operation in self._faults.lost:
            self._faults.lost = tuple(lost for lost in self._faults.lost if lost != operation)
            return _answer(start_response, 502, b"the answer got lost")
        return answer

    def _ec2(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        with self._moto_lock:
            return list(self._moto(environ, start_response))

    def _refusal(self, operation: str, authorization: str) -> tuple[str, int] | None:
        faults = self._faults
        time.sleep(faults.seconds)
        if faults.refusal:
            return faults.refusal, faults.http_status
        key = _ACCESS_KEY.search(authorization)
        if key and key[1] in _REFUSED:
            return _REFUSED[key[1]]
        if operation == "RunInstances" and faults.exhausted:
            return "InsufficientInstanceCapacity", 500
        with self._lock:
            if operation == "ModifyInstanceAttribute" and faults.failing_initializations:
                faults.failing_initializations -= 1
                return "IncorrectInstanceState", 400
        return None

    def _hook(self, hook: str, machine: str = "", cluster: str = "", identity: str = "", amount: str = "0") -> bytes:
        faults = Faults()
        match hook:
            case "unavailable":
                faults.refusal = "ServiceUnavailable"
            case "unknown":
                faults.refusal, faults.http_status = "AnUnheardOfError", 400
            case "internal":
                faults.contradicting = True
            case "slow":
                faults.seconds = int(amount) / 1000
            case "loseResponse":
                faults.lost = _MAKES_OR_ENDS
            case "failInitialize":
                faults.failing_initializations = int(amount)
            case "exhaust":
                faults.exhausted = True
            case "unhealthy" if self._authorities:
                self._authorities.spoil()
            case "starting" if self._authorities:
                self._authorities.remove()
            case "restore":
                if self._authorities:
                    self._authorities.restore()
            case "mutations":
                return str(self._changes).encode()
            case _:
                return self._on_console(hook, machine, cluster, identity)
        self._faults = faults
        return b""

    def _on_console(self, hook: str, machine: str, cluster: str, identity: str) -> bytes:
        with self._lock:
            self._console = self._console or Cloud.at(self._url, user_agent="X-Console")
        console = self._console
        if hook == "plant":
            console.plant(cluster, machine, identity)
            return b""
        if hook == "subnets":
            return json.dumps(list(console.subnets.values())).encode()
        if hook == "guests":
            return json.dumps([_guest(console, raw) for raw in console.running()]).encode()
        found = [raw["InstanceId"] for raw in console.alive(cluster or "*") if _name(raw) == machine]
        if not found:
            raise LookupError(f"there is no VM {machine} in {cluster}")
        match hook:
            case "lock" | "unlock":
                console.protect(found[0], hook == "lock")
            case "vanish":
                console.ec2.terminate_instances(InstanceIds=found)
            case "uninitialize":
                console.ec2.modify_instance_attribute(InstanceId=found[0], SourceDestCheck={"Value": True})
            case "userData":
                return b64decode(console.user_data(found[0]))
            case "vmSpec":
                raw = next(raw for raw in console.alive(cluster) if raw["InstanceId"] == found[0])
                tags = {tag["Key"]: tag["Value"] for tag in raw["Tags"]}
                return json.dumps({"tags": tags, "sourceDestCheck": raw["SourceDestCheck"]}).encode()
            case _:
                raise LookupError(f"there is no hook {hook}")
        return b""


def _guest(console: Cloud, raw: dict[str, Any]) -> dict[str, Any]:
    return {
        "providerId": f"aws:///{raw['Placement']['AvailabilityZone']}/{raw['InstanceId']}",
        "nodeName": raw["PrivateDnsName"],
        "address": raw["PrivateIpAddress"],
        "sourceDestCheck": raw["SourceDestCheck"],
        "tags": {tag["Key"]: tag["Value"] for tag in raw["Tags"]},
        "userData": console.user_data(raw["InstanceId"]),
    }


def _name(raw: dict[str, Any]) -> str | None:
    return next((tag["Value"] for tag in raw["Tags"] if tag["Key"] == "capcmi.io/machine-name"), None)


def _answer(start_response: StartResponse, status: int, body: bytes) -> Iterable[bytes]:
    start_response(f"{status} .", [("Content-Type", "text/xml"), ("Content-Length", str(len(body)))])
    return [body]


def main(address: str, authorities: str = "") -> None:
    """Serves until it is ended."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    Tokens().install()
    host, port = address.split(":")
    server = Server(f"http://{address}", Authorities(Path(authorities)) if authorities else None)
    make_server(host, int(port), server, threaded=True).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
