"""Secrets in texts, and errors on the wire."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote_plus

import cmi
import pytest
from capcmi.v1 import capcmi_pb2 as ext
from cmi.call import REDACTED, scrubbed
from cmi.v1 import cmi_pb2 as pb
from cmi.wire import Trailers, answer, cut, header_size

SECRET = b'p/w"\xc3\xa9 with spaces\nand a second long line'


@pytest.mark.parametrize(
    "form",
    [
        SECRET.decode(),
        json.dumps(SECRET.decode())[1:-1],
        repr(SECRET)[2:-1],
        quote_plus(SECRET),
        SECRET.hex(),
        base64.b64encode(SECRET).decode(),
        base64.urlsafe_b64encode(SECRET).decode().rstrip("="),
        "and a second long line",
    ],
)
def test_a_secret_is_removed_in_every_encoding(form: str) -> None:
    request = pb.CreateMachineRequest(Secrets={"password": SECRET, "userDataFormat": b"cloud-config"})
    assert scrubbed(f"before {form} after cloud-config", request) == f"before {REDACTED} after cloud-config"


def test_the_longest_of_two_secrets_is_removed_first() -> None:
    request = pb.CreateMachineRequest(Secrets={"a": b"token", "b": b"token-of-b"})
    assert scrubbed("token-of-b and token", request) == f"{REDACTED} and {REDACTED}"


def test_a_secret_is_never_formatted() -> None:
    secret = cmi.Secret(b"hidden")
    boot = cmi.Bootstrap(secret)
    call = cmi.Call(secrets=cmi.Secrets(password=secret))
    shown = f"{secret} {secret!r} {secret!s:>9} {boot} {call} " + "%s %r" % (secret, secret)  # noqa: UP031
    assert "hidden" not in shown
    assert (bytes(secret), secret.decode(), call.secrets.need("password")) == (b"hidden", "hidden", "hidden")


def test_a_missing_secret_is_named() -> None:
    with pytest.raises(cmi.Unauthenticated, match="needs the key token; it has: password"):
        cmi.Secrets(password=cmi.Secret(b"x")).need("token")
    with pytest.raises(cmi.Unauthenticated, match="needs the key token; it has no keys"):
        cmi.Secrets().need("token")
    with pytest.raises(cmi.Unauthenticated, match="the key token of the Secret is empty"):
        cmi.Secrets(token=cmi.Secret(b" \n")).need("token")


def test_a_line_end_behind_a_secret_is_removed() -> None:
    assert cmi.Secrets(token=cmi.Secret(b"a b\r\n")).need("token") == "a b"


def test_a_message_is_cut_between_words() -> None:
    assert cut("one two three", 100) == "one two three"
    assert cut("one two three four", 14) == "one two [...]"
    assert cut("x" * 50, 20) == " [...]"
    assert cut("a\ud800b", 9) == "a?b"
    assert header_size("a%é") == 1 + 3 + 6


def test_the_headers_of_an_error_stay_below_the_limit() -> None:
    error = cmi.Uninitialized("é" * 3000, retry_after=1.5, state=b"s" * 4096)
    addresses = [cmi.Address(cmi.AddressType.INTERNAL_IP, f"10.0.{n}.1") for n in range(200)]
    error.vm = cmi.VM("x" * 512, "n" * 253, zone="z" * 200, addresses=addresses)
    message, metadata = answer(error, error.message)
    sent = dict(metadata)
    size = header_size(message) + sum(
        len(key) + 32 + (len(value) if isinstance(value, str) else (len(value) * 4 + 2) // 3) for key, value in metadata
    )
    assert size <= 8 * 1024 - 384
    assert sent["capcmi-machine-code"] == "Uninitialized"
    assert sent["capcmi-retry-after-ms"] == "1500"
    assert sent["capcmi-last-known-state-bin"] == b"s" * 4096
    response = sent["capcmi-response-bin"]
    assert isinstance(response, bytes)
    assert ext.Machine.FromString(response).provider_id == "x" * 512


@pytest.mark.parametrize("length", [1, 123, 124, 128, 256])
def test_as_many_addresses_are_sent_as_find_room(length: int) -> None:
    def vm(count: int) -> ext.Machine:
        address = ext.MachineAddress(type="INTERNAL_IP", address="a" * length)
        return ext.Machine(provider_id="id", node_name="name", addresses=[address] * count)

    sent = Trailers()
    most = (sent.room - len("capcmi-response-bin") - 32) // 4 * 3
    sent.machine(vm(5000))
    response = dict(sent.metadata)["capcmi-response-bin"]
    assert isinstance(response, bytes)
    kept = len(ext.Machine.FromString(response).addresses)
    assert response == vm(kept).SerializeToString()
    assert len(response) <= most < vm(kept + 1).ByteSize()


def test_an_error_with_a_vm_does_not_claim_that_nothing_began() -> None:
    error = cmi.Uninitialized("a step failed", nothing_begun=True)
    assert ("capcmi-nothing-begun", "true") in answer(error, error.message)[1]
    error.vm = cmi.VM("id", "name")
    assert "capcmi-nothing-begun" not in dict(answer(error, error.message)[1])
