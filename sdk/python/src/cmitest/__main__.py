"""Starts the program of a driver with the fault layer: `python -m cmitest driver.py`."""

import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

from cmi import faults

from .run import PARENT_VARIABLE


def main() -> None:
    """Runs the program in this process."""
    if len(sys.argv) < 2 or not os.environ.get("CAPCMI_FAULTS"):
        sys.exit("usage: CAPCMI_FAULTS=FOLDER python -m cmitest PROGRAM [ARGUMENT…]")
    faults.active = faults.Folder(Path(os.environ["CAPCMI_FAULTS"]))
    faults.active.make()
    if parent := os.environ.get(PARENT_VARIABLE):
        threading.Thread(target=_end_with, args=(int(parent),), daemon=True).start()
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


def _end_with(parent: int) -> None:
    """Ends this process after its parent: a test that was killed leaves no driver behind."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
