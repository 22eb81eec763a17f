"""The package cmitest, without the conformance suite."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import cmi
import cmitest
import pytest
from cmi.faults import Folder
from cmitest.hooks import Hooks

from everything import Everything, Spec

SUITE = cmitest.Suite(provider_spec={"size": "small"}, secrets={"token": "the-right-token"})


def test_a_missing_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPCMI", "/no/such/program")
    with pytest.raises(AssertionError, match="install it, or set CAPCMI to its path"):
        cmitest.run("driver.py", Everything(tmp_path), SUITE)


def test_a_failure_is_shown_without_the_cases_that_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = "[1/1] passed   one-case\n\nRules:\n\nROW-1 skipped\n\ncases: 1 passed, 0 failed\nthe verdict\n"
    capcmi, driver = tmp_path / "capcmi", tmp_path / "driver.py"
    capcmi.write_text(f"#!/bin/sh\necho '{output}'\nexit 1\n")
    capcmi.chmod(0o755)
    driver.touch()
    monkeypatch.setenv("CAPCMI", str(capcmi))
    with pytest.raises(AssertionError, match="exit code 1\ncases: 1 passed, 0 failed\nthe verdict\n"):
        cmitest.run(driver, Everything(tmp_path), SUITE)


def test_the_type_of_a_spec_gives_invalid_specs() -> None:
    config = SUITE.configuration(cmi.schema(Spec))
    assert config["mandatoryFields"] == ["/size"]
    assert {"size": 7} in config["invalidSpecs"]
    assert {"labels": "a text"} in config["invalidSpecs"]
    assert config["outOfRangeSpecs"] == [{"diskGB": 1001}]
    assert config["noCredentials"] is False


def test_hooks_are_served_from_this_process(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "faults")
    folder.make()
    restarts: list[str] = []
    hooks = Hooks(Everything(tmp_path), SUITE, folder, lambda: restarts.append("restarted"))
    stop = hooks.start(tmp_path / "hooks.sock")
    commands = hooks.commands(tmp_path / "hooks.sock")
    assert len(commands) == 19

    def call(name: str, **values: str) -> str:
        command = [part.format(**values) for part in commands[name]]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    machine = {"machine": "m", "cluster": "c"}
    try:
        call("slow", amount="20")
        assert folder.has("slow")
        call("restore")
        assert not folder.has("slow")
        call("restart")
        assert restarts == ["restarted"]
        call("plant", **machine, identity="i")
        assert call("userData", **machine) == ""
        assert call("mutations") == "1"
        call("lock", **machine)
        assert folder.locked("c", "m")
        call("vanish", **machine)
        with pytest.raises(subprocess.CalledProcessError) as failed:
            call("vanish", **machine)
        assert "there is no VM of machine m of cluster c" in failed.value.stderr
    finally:
        stop()


def test_a_call_without_a_deadline_leaves_a_time_that_sockets_take() -> None:
    with socket.socket() as connection:
        connection.settimeout(cmi.Call().time_left())


def test_the_fault_layer_needs_its_own_program(tmp_path: Path) -> None:
    """A driver in production ignores the variable."""
    script = "import cmi.faults, sys; sys.exit(cmi.faults.active is not None)"
    environment = {"CAPCMI_FAULTS": str(tmp_path / "faults"), "PYTHONPATH": ":".join(sys.path)}
    assert subprocess.run([sys.executable, "-c", script], env=environment).returncode == 0
    program = tmp_path / "driver.py"
    program.write_text(script)
    command = [sys.executable, "-m", "cmitest", program]
    started = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (started.returncode, started.stderr) == (1, "")
