"""The program of a driver: flags, environment, log."""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
import time
from typing import Any

from .backend import Backend, Info
from .endpoint import Misconfigured, TLSFiles
from .serve import Options, run

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
_FORMATS = ("text", "json")


def main(info: Info, backend: Backend[Any]) -> None:
    """Serves a back end until SIGTERM or SIGINT. Exits with code 1 when it cannot.

    It reads these flags and variables:

        --endpoint                   CMI_ENDPOINT               unix:///PATH, tcp://HOST:PORT or tls://HOST:PORT
        --tls-cert-file              CAPCMI_TLS_CERT_FILE       the certificate for tls://
        --tls-key-file               CAPCMI_TLS_KEY_FILE        its key
        --client-ca-file             CAPCMI_CLIENT_CA_FILE      the authorities of the clients
        --graceful-shutdown-timeout                             how long running calls may take to end
        --logging-format                                        text or json
        --log-level                                             debug, info, warn or error
        --version                                               prints the version

    The type Spec of the back end is a dataclass with the user's fields of the provider spec. A field without a default
    is required. Literal has allowed values; Annotated with Field has a range and other rules. The method `validate`, if
    the class has it, has the rules that types do not express. It raises Invalid or OutOfRange before a create and an
    update. The package reads the field `tags`.
    """
    options = _flags(info)
    try:
        run(info, backend, options)
    except (Misconfigured, TypeError) as error:
        sys.exit(f"{info.name}: {error}")


def _flags(info: Info) -> Options:
    parser = argparse.ArgumentParser(
        description=f"{info.name} {info.version}: a driver for the Common Machine Interface."
    )

    def add(name: str, variable: str, text: str) -> None:
        parser.add_argument(name, default=os.environ.get(variable, ""), help=f"{text}; variable: {variable}")

    add("--endpoint", "CMI_ENDPOINT", "unix:///PATH, tcp://HOST:PORT or tls://HOST:PORT")
    add("--tls-cert-file", "CAPCMI_TLS_CERT_FILE", "the certificate for tls://")
    add("--tls-key-file", "CAPCMI_TLS_KEY_FILE", "the key of the certificate")
    add("--client-ca-file", "CAPCMI_CLIENT_CA_FILE", "the authorities of the clients")
    parser.add_argument(
        "--graceful-shutdown-timeout",
        type=_duration,
        default=Options.shutdown_timeout,
        help="how long running calls may take to end, such as 20s",
    )
    parser.add_argument("--logging-format", choices=_FORMATS, default="text", help="text or json")
    parser.add_argument("--log-level", choices=_LEVELS, default="info", help="debug, info, warn or error")
    parser.add_argument("--version", action="version", version=f"{info.name} {info.version}", help="print the version")
    found = parser.parse_args()
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter(found.logging_format))
    logging.basicConfig(level=_LEVELS[found.log_level], handlers=[handler])
    tls = TLSFiles(found.tls_cert_file, found.tls_key_file, found.client_ca_file)
    return Options(found.endpoint, tls, found.graceful_shutdown_timeout)


def _duration(text: str) -> float:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text} must be a duration, such as 20s")
    return float(match[1]) * _SECONDS[match[2]]


class _Formatter(logging.Formatter):
    """Formats a record as text or JSON. The fields of a record are in its attribute `fields`."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._is_json = form == "json"

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        shown = {
            "time": f"{when}.{int(record.msecs):03}Z",
            "level": record.levelname,
            "msg": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            shown["exception"] = self.formatException(record.exc_info)
        if self._is_json:
            return json.dumps(shown, ensure_ascii=False)
        return " ".join(f"{key}={_quoted(str(value))}" for key, value in shown.items())


def _quoted(value: str) -> str:
    return value if re.fullmatch(r"[^\s\"=]+", value) else json.dumps(value, ensure_ascii=False)
