"""The process: reads its environment, serves, and ends when it is asked to."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from . import services
from .driver import Driver, Settings
from .health import Health

# The provider makes up to 32 calls at a time: there have to be threads left that answer probes.
_THREADS = 64
# PersistentVolume specs are the largest of what is received.
_MOST_RECEIVED = 20 * 1024 * 1024
_GRACE_SECONDS = 30
_STOP = {signal.SIGINT, signal.SIGTERM}
_TLS_FILES = ("EC2_DRIVER_TLS_CERT_FILE", "EC2_DRIVER_TLS_KEY_FILE", "EC2_DRIVER_TLS_CLIENT_CA_FILE")


class Misconfigured(Exception):
    """What in the environment can't be used."""


def settings(environment: Mapping[str, str]) -> Settings:
    """How the driver is to behave."""

    def seconds(name: str, default: float) -> float:
        text = environment.get(name, "")
        try:
            value = float(text or default)
        except ValueError:
            value = -1.0
        if not 0 <= value <= 3600:
            raise Misconfigured(f"{name} is {text!r}; it has to be a number of seconds from 0 to 3600")
        return value

    return Settings(
        region=environment.get("AWS_REGION") or None,
        consistency_window=seconds("EC2_DRIVER_CONSISTENCY_WINDOW_SECONDS", Settings.consistency_window),
        wait_timeout=seconds("EC2_DRIVER_WAIT_TIMEOUT_SECONDS", Settings.wait_timeout),
    )


def health(environment: Mapping[str, str]) -> Health:
    """What the process can't do without."""
    bundle = environment.get("AWS_CA_BUNDLE")
    return Health(Path(bundle) if bundle else None)


def listen(server: grpc.Server, environment: Mapping[str, str]) -> None:
    """Binds what CMI_ENDPOINT says."""
    endpoint = environment.get("CMI_ENDPOINT", "")
    scheme, _, address = endpoint.partition("://")
    try:
        match (scheme.lower(), bool(address)):
            case ("tcp", True):
                server.add_insecure_port(address)
            case ("unix", True):
                server.add_insecure_port(f"unix:{address}")
            case ("tls", True):
                server.add_secure_port(address, _credentials(_tls_files(environment)))
            case _:
                raise Misconfigured(
                    f"CMI_ENDPOINT is {endpoint!r}; it has to be unix:///PATH, tcp://HOST:PORT or tls://HOST:PORT"
                )
    except (OSError, RuntimeError) as error:
        raise Misconfigured(f"CMI_ENDPOINT {endpoint} can't be served: {error}") from error


def _tls_files(environment: Mapping[str, str]) -> list[Path]:
    missing = [name for name in _TLS_FILES if not environment.get(name)]
    if missing:
        raise Misconfigured(f"CMI_ENDPOINT with tls:// needs {' and '.join(missing)}")
    return [Path(environment[name]) for name in _TLS_FILES]


def _credentials(files: list[Path]) -> grpc.ServerCredentials:
    """Read again for every connection: certificates are renewed while the process runs."""

    def configuration() -> grpc.ServerCertificateConfiguration:
        certificate, key, client_ca = (file.read_bytes() for file in files)
        return grpc.ssl_server_certificate_configuration([(key, certificate)], client_ca)

    return grpc.dynamic_ssl_server_credentials(configuration(), configuration, require_client_authentication=True)


def main() -> int:
    """Runs until SIGTERM; calls that run then may end."""
    logging.basicConfig(
        stream=sys.stderr,
        level=os.environ.get("LOG_LEVEL", "INFO").upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    # botocore logs requests with their user data when it is asked to log all there is.
    logging.getLogger("botocore").setLevel(logging.WARNING)
    # Blocked before there are threads that a signal could be sent to.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)
    server = grpc.server(
        ThreadPoolExecutor(_THREADS),
        options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", _MOST_RECEIVED)],
    )
    try:
        services.add_to(server, Driver(settings(os.environ)), health(os.environ))
        listen(server, os.environ)
    except Misconfigured as error:
        print(f"ec2driver: {error}", file=sys.stderr)
        return 2
    server.start()
    logging.getLogger("ec2driver").info("serving at %s", os.environ["CMI_ENDPOINT"])
    signal.sigwait(_STOP)
    server.stop(_GRACE_SECONDS).wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
