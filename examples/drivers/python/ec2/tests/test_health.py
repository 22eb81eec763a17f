"""The driver needs a file with the authorities that it trusts for EC2."""

from __future__ import annotations

from pathlib import Path

import cmi
import pytest

from ec2driver.backend import EC2, Settings


def test_without_authorities_of_its_own_it_is_ready() -> None:
    EC2(Settings()).probe(cmi.Call())


@pytest.mark.parametrize("content", ["", "a page of a proxy", "-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_authorities_that_are_none_are_named(tmp_path: Path, content: str) -> None:
    """CMI-75, CMI-77"""
    file = tmp_path / "authorities.pem"
    file.write_text(content)
    with pytest.raises(cmi.Forbidden) as failed:
        EC2(Settings(authorities=str(file))).probe(cmi.Call())
    assert f"AWS_CA_BUNDLE {file}" in failed.value.message
