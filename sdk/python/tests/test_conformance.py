"""The kit under the conformance suite."""

from __future__ import annotations

from pathlib import Path

import cmitest
import pytest

from everything import Everything
from rest import Rest
from rest_cloud import rest_cloud

pytestmark = pytest.mark.conformance
HERE = Path(__file__).parent


def volume(id: str) -> cmitest.Volume:
    return cmitest.Volume({"csi": {"driver": "everything.example.com", "volumeHandle": id}}, id)


def test_every_call_in_coroutines_keeps_every_rule(tmp_path: Path) -> None:
    suite = cmitest.Suite(
        provider_spec={"size": "small"},
        secrets={"token": "the-right-token"},
        bad_secrets=[{}, {"token": "the-wrong-token"}],
        restricted_secrets={"token": "the-token-without-rights"},
        incompatible_change={"size": "large"},
        quota_breaking_spec={"diskGB": 999},
        full_failure_domain="full",
        static_addresses={"first": "10.0.1.1", "prefix": 16, "gateway": "10.0.0.1"},
        hot_updates=[{"labels": {"purpose": "a"}}, {"tags": {"team": "b"}}],
        own_volumes=[volume("one"), volume("two")],
        foreign_volumes=[{"csi": {"driver": "csi.example.com", "volumeHandle": "other"}}],
        migration=cmitest.Migration(
            "example.com",
            "EverythingClass",
            machine_class={"spec": {"size": "large"}},
            expected={"metadata": {"name": "kept"}, "provider": "everything", "providerSpec": {"size": "large"}},
            broken=[{"spec": {"size": "huge"}}],
        ),
        longest_name=253,
        many_machines=60,
    )
    environment = {"EVERYTHING_FOLDER": str(tmp_path)}
    report = cmitest.run(HERE / "everything.py", Everything(tmp_path), suite, environment=environment)
    assert [case["name"] for case in report["cases"] if case["verdict"] != "passed"] == []


def test_threads_keep_the_rules_of_a_slow_limited_lagging_platform() -> None:
    suite = cmitest.Suite(
        provider_spec={"size": "small"},
        secrets={"token": "the-right-token"},
        bad_secrets=[{}, {"token": "the-wrong-token"}],
        restricted_secrets={"token": "the-token-without-rights"},
        incompatible_change={"size": "large"},
        quota_breaking_spec={"size": "xlarge"},
        longest_name=253,
        many_machines=45,
    )
    with rest_cloud() as api:
        cmitest.run(HERE / "rest.py", Rest(api), suite, environment={"REST_API": api})


def test_a_broken_driver_fails_the_test(tmp_path: Path) -> None:
    """Its VMs never fit their spec, so a repeated create fails."""
    program = tmp_path / "broken.py"
    program.write_text(
        f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(HERE)!r})
import cmi
from everything import INFO, Everything

class Broken(Everything):
    def match(self, call, vm, spec):
        return "it never fits"

cmi.main(INFO, Broken(Path({str(tmp_path)!r})))
"""
    )
    suite = cmitest.Suite(
        provider_spec={"size": "small"},
        secrets={"token": "the-right-token"},
        only=["create-makes-a-vm", "create-again"],
    )
    with pytest.raises(AssertionError, match=r"\n  create-again: CreateMachine "):
        cmitest.run(program, Everything(tmp_path), suite)
