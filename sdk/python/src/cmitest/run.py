"""Runs the suite against the program of a driver."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cmi
from cmi.backend import spec_type
from cmi.faults import Folder

from .hooks import Hooks
from .suite import Suite

PARENT_VARIABLE = "CMITEST_PARENT"
"""The variable with the process that a driver ends with."""

# The end of the driver's log that a failure shows, in characters.
_SHOWN_LOG = 4 << 10
_SHOWN_LINES = 6


def run(
    program: str | os.PathLike[str],
    backend: cmi.Backend[Any],
    suite: Suite,
    *,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Runs the suite against a program in Python, and returns the suite's report.

    The back end shares its VMs with the program; the hooks act on it. The environment is added to that of the program.

    Raises:
        AssertionError: The driver does not reach the required verdict.
    """
    capcmi = shutil.which(os.environ.get("CAPCMI", "capcmi"))
    assert capcmi, "the conformance suite needs the program capcmi: install it, or set CAPCMI to its path"
    # A short path: that of a Unix socket has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="cmitest"))
    try:
        with _Process(program, folder, environment or {}).running() as process:
            hooks = Hooks(backend, suite, Folder(folder / "faults"), process.restart)
            stop = hooks.start(folder / "hooks.sock")
            try:
                config = suite.configuration(cmi.schema(spec_type(backend)))
                config["hooks"] = hooks.commands(folder / "hooks.sock")
                config["logs"] = [str(process.log)]
                return _judge(capcmi, folder, config, suite, process)
            finally:
                stop()
    finally:
        shutil.rmtree(folder)


class _Process:
    """The program, which the suite may kill and start again."""

    def __init__(self, program: str | os.PathLike[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.log = folder / "driver.log"
        self.endpoint = f"unix://{folder}/driver.sock"
        self._command = [sys.executable, "-m", "cmitest", os.fspath(program)]
        # The program has the packages of this process.
        path = os.pathsep.join([each for each in sys.path if each])
        own = {
            "CMI_ENDPOINT": self.endpoint,
            "CAPCMI_FAULTS": str(folder / "faults"),
            PARENT_VARIABLE: str(os.getpid()),
            "PYTHONPATH": path,
        }
        self._environment = {**os.environ, **environment, **own}
        Folder(folder / "faults").make()
        self._start()

    def _start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def restart(self) -> None:
        """Kills the program without warning, and starts it again."""
        self._end()
        self._start()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()

    @contextmanager
    def running(self) -> Iterator[_Process]:
        """Ends the program at last."""
        try:
            yield self
        finally:
            self._end()


def _judge(capcmi: str, folder: Path, config: dict[str, Any], suite: Suite, process: _Process) -> dict[str, Any]:
    file, report = folder / "suite.json", folder / "report.json"
    file.write_text(json.dumps(config))
    selection = ["--only", ",".join(suite.only)] if suite.only else ["--require", suite.require]
    command = [capcmi, "conformance", "--endpoint", process.endpoint, "--config", str(file), "--wait", "30s"]
    command += ["--json", str(report), *selection]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        ended = f"{' '.join(command)}: exit code {done.returncode}"
        log = process.log.read_text(errors="replace")[-_SHOWN_LOG:]
        raise AssertionError(f"{ended}\n{_summary(done.stdout)}\n\nthe driver's log ends:\n{log}")
    print(*done.stdout.strip().splitlines()[-_SHOWN_LINES:], sep="\n")
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def _summary(output: str) -> str:
    """The failures and the verdict, without hundreds of cases and rules. The whole output if it has no summary."""
    _, mark, summary = output.rpartition("\ncases: ")
    return (mark + summary).strip() if mark else output
