"""A hook of the conformance suite. The process of the test serves it: `hook_client.py SOCKET NAME [ARGUMENT…]`."""

import socket
import sys

if __name__ == "__main__":
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(sys.argv[1])
        connection.sendall("\0".join(sys.argv[2:]).encode())
        connection.shutdown(socket.SHUT_WR)
        answer = connection.makefile("rb").read()
    if answer[:1] != b"+":
        sys.exit(answer[1:].decode() or "the test has ended")
    sys.stdout.buffer.write(answer[1:])
