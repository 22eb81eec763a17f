"""The process: reads its environment, and serves until it is asked to end."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

import cmi

from .backend import EC2, Settings


def info(settings: Settings) -> cmi.Info:
    """Describes the driver."""
    return cmi.Info("ec2.capcmi.io", "0.1.0", consistency_window=settings.consistency_window)


def settings(environment: Mapping[str, str]) -> Settings:
    """Returns how the driver behaves."""

    def seconds(name: str, default: float) -> float:
        text = environment.get(name, "")
        try:
            value = float(text or default)
        except ValueError:
            value = -1.0
        if not 0 <= value <= 3600:
            sys.exit(f"ec2.capcmi.io: {name} is {text!r}; it must be a number of seconds from 0 to 3600")
        return value

    return Settings(
        region=environment.get("AWS_REGION") or None,
        authorities=environment.get("AWS_CA_BUNDLE") or None,
        consistency_window=seconds("EC2_DRIVER_CONSISTENCY_WINDOW_SECONDS", Settings.consistency_window),
        wait_timeout=seconds("EC2_DRIVER_WAIT_TIMEOUT_SECONDS", Settings.wait_timeout),
    )


def main() -> None:
    """Serves EC2."""
    # botocore logs requests with their user data at the level debug.
    logging.getLogger("botocore").setLevel(logging.WARNING)
    chosen = settings(os.environ)
    cmi.main(info(chosen), EC2(chosen))


if __name__ == "__main__":
    main()
