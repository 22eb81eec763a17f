#!/usr/bin/env python3
"""Runs part 1 of docs/start/first-cluster.md as it is printed, as root: `make quickstart DRIVER=container` in a
pseudo-terminal, the other commands beside it, and Ctrl-C at the end. Prints the commands with their output.
"""

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/start/first-cluster.md"
PART = re.compile(r"^## 1\. .*?(?=^## 2\. )", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# The quickstart shows it when the Cluster is up.
UP = b"In another terminal, as root:"
# Seconds, with the builds of the first run.
UNTIL_UP, UNTIL_DONE, UNTIL_GONE = 3600, 1800, 300


class Quickstart:
    """A quickstart in its own terminal."""

    def __init__(self, command):
        self.output = b""
        self.is_up = threading.Event()
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.chdir(ROOT)
            os.execvp(command[0], command)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        while True:
            try:
                part = os.read(self.terminal, 65536)
            except OSError:  # The end of a pseudo-terminal.
                part = b""
            self.output += part
            if UP in self.output or not part:
                self.is_up.set()
            if not part:
                return

    def end(self):
        """Presses Ctrl-C, and returns whether the quickstart ends in time."""
        with contextlib.suppress(OSError):  # It may have gone.
            os.write(self.terminal, b"\x03")
        self.reader.join(UNTIL_GONE)
        is_gone = not self.reader.is_alive()
        if not is_gone:
            # Its folder stays: the next quickstart, or `container.sh down`, removes its machines.
            os.killpg(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        return is_gone

    def tail(self):
        return self.output[-4000:].decode(errors="replace")


def main():
    # By default, SIGTERM would skip `finally` and leave the commands behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    first, *others = BLOCK.findall(PART.search(PAGE.read_text())[0])
    if cache := os.environ.get("XDG_CACHE_HOME"):
        others = [block.replace("~/.cache", cache) for block in others]
    command = first.split()
    if command[0] != "sudo":
        sys.exit(f"{PAGE} does not begin with sudo, but with: {first}")
    quickstart = Quickstart(command[1:])
    quickstart.is_up.wait(UNTIL_UP)
    if UP not in quickstart.output:
        quickstart.end()
        sys.exit(f"the quickstart did not come up: {quickstart.tail()}")
    commands = subprocess.Popen(["bash", "-euxo", "pipefail", "-c", "".join(others)], start_new_session=True)
    try:
        done = commands.wait(UNTIL_DONE) == 0
    except subprocess.TimeoutExpired:
        done = False
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(commands.pid, signal.SIGKILL)
        is_gone = quickstart.end()
    if not done or not is_gone:
        what = "a command of the page failed" if not done else "the quickstart did not end"
        sys.exit(f"{what}: {quickstart.tail()}")


if __name__ == "__main__":
    main()
