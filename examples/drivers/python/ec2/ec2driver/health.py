"""Whether the driver has what it needs of its own. EC2 itself is not asked: that takes credentials."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from .contract import Code, Failure


@dataclass(frozen=True)
class Health:
    """What can be missing, and may come or go while the process runs."""

    # AWS_CA_BUNDLE: the authorities by which EC2 is known, where they are not the usual ones.
    authorities: Path | None = None

    def is_ready(self) -> bool:
        """Not as long as a file is still to come, such as one that another controller writes into a volume."""
        if self.authorities is None:
            return True
        try:
            # As each connection to EC2 does.
            ssl.create_default_context(cafile=self.authorities)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise Failure(
                Code.FAILED_PRECONDITION, f"AWS_CA_BUNDLE {self.authorities} can't be used: {error}"
            ) from error
        return True
