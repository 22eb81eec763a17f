"""Opens the endpoint."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

log = logging.getLogger("cmi")


class Misconfigured(Exception):
    """The process cannot serve with its settings."""


@dataclass(frozen=True)
class TLSFiles:
    """PEM files for an endpoint with TLS. They are read again for each connection.

    Both sides show a certificate: a client that may call uses the rights of the driver.
    """

    certificate: str = ""
    """The certificate of the driver."""
    key: str = ""
    """Its key."""
    client_ca: str = ""
    """The authorities of the clients that may call."""

    def credentials(self) -> grpc.ServerCredentials:
        """Returns credentials for a server. Unusable files end the driver now, instead of each connection later."""
        if not (self.certificate and self.key and self.client_ca):
            raise Misconfigured("an endpoint with tls:// needs --tls-cert-file, --tls-key-file and --client-ca-file")
        try:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.client_ca)
            context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            files = f"{self.certificate}, {self.key} and {self.client_ca}"
            raise Misconfigured(f"cannot use the files {files} for TLS: {error}") from error
        return grpc.dynamic_ssl_server_credentials(self._read(), self._read, require_client_authentication=True)

    def _read(self) -> Any:
        certificate, key, authority = (Path(file).read_bytes() for file in (self.certificate, self.key, self.client_ca))
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)


def listen(server: grpc.aio.Server, endpoint: str, tls: TLSFiles) -> None:
    """Opens the endpoint.

    Raises:
        Misconfigured: The endpoint cannot be used.
    """
    scheme, _, rest = endpoint.partition("://")
    try:
        if scheme == "unix":
            path = _unix_path(rest)
            _remove_stale(path)
            with _private_files():
                server.add_insecure_port(f"unix:{path}")
        elif scheme == "tcp" and rest:
            if not _is_loopback(rest):
                log.warning("the endpoint has no TLS and is not on loopback: others can read credentials")
            server.add_insecure_port(rest)
        elif scheme == "tls" and rest:
            server.add_secure_port(rest, tls.credentials())
        else:
            raise Misconfigured(
                f'the endpoint "{endpoint}" must be unix:///PATH, tcp://HOST:PORT or tls://HOST:PORT; set CMI_ENDPOINT'
            )
    except (OSError, RuntimeError) as error:
        raise Misconfigured(f"cannot listen on {endpoint}: {str(error).partition(';')[0]}") from error


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _unix_path(rest: str) -> Path:
    if not rest.startswith("/"):
        raise Misconfigured(f"the endpoint unix://{rest} needs an absolute path, such as unix:///run/driver.sock")
    path = Path(rest)
    if not path.parent.is_dir():
        raise Misconfigured(f"cannot listen on unix://{rest}: there is no folder {path.parent}")
    return path


def _remove_stale(path: Path) -> None:
    """Removes the socket of a killed process. It keeps a socket that a process listens on, and any other file."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise Misconfigured(f"{path} exists and is not a socket: remove it, or choose another endpoint")
    with socket.socket(socket.AF_UNIX) as client:
        found = client.connect_ex(str(path))
    if found == 0:
        raise Misconfigured(f"another process listens on {path}")
    if found != errno.ECONNREFUSED:
        raise Misconfigured(f"cannot tell whether a process listens on {path}: {os.strerror(found)}")
    path.unlink()


@contextmanager
def _private_files() -> Iterator[None]:
    """Makes files that only this user may open, from their first moment."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)
