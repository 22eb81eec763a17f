"""Runs the conformance suite of the Common Machine Interface, from pytest or from any other program.

    def test_conformance(tmp_path):
        suite = cmitest.Suite(provider_spec={"size": "small"})
        cmitest.run("driver.py", Backend(tmp_path), suite, environment={"ACME_FOLDER": str(tmp_path)})

`run` starts the program of the driver, so that the suite can kill it, and runs `capcmi conformance` against it with
every hook. The hooks act on the back end that `run` gets. So this back end and the program must share their VMs: by a
folder or by the address of a server that the test starts.

The variable CAPCMI names the program capcmi. Without it, the program is on the PATH.

`python -m cmitest driver.py` starts a driver with the fault layer of the hooks. Its folder is in CAPCMI_FAULTS.
"""

from .hooks import ChangeCounter, SpecReader, Uninitializer, UserDataReader
from .run import run
from .suite import Migration, Suite, Volume

__all__ = [
    "ChangeCounter",
    "Migration",
    "SpecReader",
    "Suite",
    "Uninitializer",
    "UserDataReader",
    "Volume",
    "run",
]
