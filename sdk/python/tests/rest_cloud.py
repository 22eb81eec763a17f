"""A VM platform behind a REST API with latency, quotas, pages, deletions that take time and lists that lag behind."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

# Seconds. For LAG, a list may miss a change.
LATENCY, LAG, DELETION = 0.003, 0.05, 0.03
PAGE = 20


@dataclass
class VM:
    id: str
    name: str
    size: str
    labels: dict[str, str]
    userData: str
    state: str
    created: float
    deleted: float = float("inf")


class Cloud:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.vms: list[VM] = []
        self.tokens: dict[str, VM] = {}

    def answer(self, method: str, path: str, token: str, body: Any) -> tuple[int, Any]:
        url = urlsplit(path)
        with self.lock:
            match (method, *url.path.split("/")[1:]):
                case ("GET", "vms"):
                    return 200, self.page({key: values[0] for key, values in parse_qs(url.query).items()})
                case ("POST", "vms"):
                    return self.create(token, body)
                case ("DELETE", "vms", id):
                    return self.change(id, "deleting")
                case ("POST", "vms", id, "stop"):
                    return self.change(id, "stopped")
        return 404, {}

    def create(self, token: str, body: Any) -> tuple[int, Any]:
        if body["size"] == "xlarge":
            return 429, {}
        known = self.tokens.get(token)
        if known is None or known.deleted < float("inf"):
            fields = {key: body[key] for key in ("name", "size", "labels", "userData")}
            known = VM(id=f"vm-{len(self.vms):06}", state="running", created=time.monotonic(), **fields)
            self.vms.append(known)
            self.tokens[token] = known
        return 200, asdict(known) | {"deleted": None}

    def page(self, query: dict[str, str]) -> Any:
        """Returns a page of the VMs as they were a moment ago."""
        seen, cluster = time.monotonic() - LAG, query["cluster"]
        found = [vm for vm in self.vms if vm.created < seen < vm.deleted and vm.labels["cluster"] == cluster]
        begin = int(query.get("page", 0))
        rest = found[begin + PAGE :]
        shown = [asdict(vm) | {"deleted": None} for vm in found[begin : begin + PAGE]]
        return {"vms": shown, "next": str(begin + PAGE) if rest else ""}

    def change(self, id: str, state: str) -> tuple[int, Any]:
        now = time.monotonic()
        for vm in self.vms:
            if vm.id == id and now < vm.deleted:
                if vm.deleted == float("inf"):
                    vm.state = state
                    vm.deleted = now + DELETION if state == "deleting" else vm.deleted
                return 200, {}
        return 404, {}


@contextmanager
def rest_cloud() -> Iterator[str]:
    """Serves a platform, and returns its address."""
    cloud = Cloud()

    class Handler(BaseHTTPRequestHandler):
        def serve(self) -> None:
            time.sleep(LATENCY)
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"null")
            match self.headers["Authorization"]:
                case "Bearer the-right-token":
                    status, answer = cloud.answer(self.command, self.path, self.headers["Idempotency-Key"], body)
                case "Bearer the-token-without-rights":
                    status, answer = 403, {}
                case _:
                    status, answer = 401, {}
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = serve

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
