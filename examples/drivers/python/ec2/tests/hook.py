#!/usr/bin/env python3
"""A hook of the conformance suite, at the console of ec2_server.py: `hook.py CONSOLE HOOK [NAME=VALUE…]`.

The suite starts it some hundred times: a library for HTTP would take longer to load than all the rest.
"""

import socket
import sys
from urllib.parse import urlencode

console, hook, *about = sys.argv[1:]
query = urlencode(dict(pair.split("=", 1) for pair in about))
host, port = console.removeprefix("http://").split(":")
with socket.create_connection((host, int(port)), timeout=60) as connection:
    connection.sendall(f"GET /console/{hook}?{query} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
    with connection.makefile("rb") as answer:
        status = answer.readline()
        while answer.readline().strip():
            pass
        body = answer.read()
if b" 200 " not in status:
    sys.exit(f"{hook}: {status.decode().strip()}")
sys.stdout.buffer.write(body)
