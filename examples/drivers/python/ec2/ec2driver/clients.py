"""From secrets to clients of EC2."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Any

import boto3
import cmi
from botocore.config import Config

from .errors import told

ACCESS_KEY_ID = "accessKeyId"
SECRET_ACCESS_KEY = "secretAccessKey"
SESSION_TOKEN = "sessionToken"

# Few retries here: the provider tries again too, with a back-off that knows of the other machines.
_CONFIG = Config(connect_timeout=5, read_timeout=30, retries={"mode": "standard", "total_max_attempts": 2})


class Clients:
    """One client per region and credentials: making one takes longer than most calls do."""

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._made: OrderedDict[bytes, Any] = OrderedDict()

    def ec2(self, region: str, secrets: cmi.Secrets) -> Any:
        """The client for these credentials. Those of the process or its instance are never used instead."""
        try:
            key_id, secret = (secrets[key].decode().strip() for key in (ACCESS_KEY_ID, SECRET_ACCESS_KEY))
            token = secrets.get(SESSION_TOKEN, cmi.Secret()).decode().strip() or None
        except (KeyError, UnicodeDecodeError):
            key_id = secret = ""
        if not key_id or not secret:
            raise cmi.Unauthenticated(f"the secret needs the keys {ACCESS_KEY_ID} and {SECRET_ACCESS_KEY}, both texts")
        # By digest, so that no secret is kept longer than the client that has it.
        key = hashlib.sha256("\0".join((region, key_id, secret, token or "")).encode()).digest()
        with self._lock, told("making a client of EC2"):
            client = self._made.pop(key, None) or boto3.Session(key_id, secret, token, region).client(
                "ec2", config=_CONFIG
            )
            self._made[key] = client
            while len(self._made) > self._most:
                self._made.popitem(last=False)
        return client
