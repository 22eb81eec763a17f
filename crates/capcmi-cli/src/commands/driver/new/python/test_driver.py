"""Runs the conformance suite."""

from pathlib import Path

import cmi
import cmitest

from driver import Backend


class Observed(Backend):
    def user_data(self, call: cmi.Call, vm: cmi.VM) -> bytes:
        """Lets the suite compare the user data of a VM with the request."""
        return bytes.fromhex(vm.native["userData"])


def test_conformance(tmp_path: Path) -> None:
    suite = cmitest.Suite(
        provider_spec={"size": "small"},
        incompatible_change={"size": "large"},
        longest_name=253,
        many_machines=25,
    )
    driver, environment = Path(__file__).with_name("driver.py"), {"ACME_FOLDER": str(tmp_path)}
    cmitest.run(driver, Observed(str(tmp_path)), suite, environment=environment)
