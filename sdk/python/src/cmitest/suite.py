"""The settings of the conformance suite."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Volume:
    """A volume of the back end."""

    spec: Mapping[str, Any]
    """Its PersistentVolumeSpec."""
    id: str
    """The id that `volume_id` returns."""


@dataclass(frozen=True)
class Migration:
    """A machine class of the platform's own kind, and the class that `migrate` makes of it."""

    api_group: str
    kind: str
    machine_class: Any
    expected: Any
    """The result for a class with `metadata: {name: kept}`."""
    broken: Sequence[Any] = ()
    """Classes that cannot be converted."""

    def settings(self) -> dict[str, Any]:
        """Returns the settings in the form of the configuration file."""
        return {
            "apiGroup": self.api_group,
            "kind": self.kind,
            "class": self.machine_class,
            "expected": self.expected,
            "broken": list(self.broken),
        }


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Describes a back end to the conformance suite.

    The fields are settings of `capcmi conformance`; its documentation explains them. A change is a JSON merge patch on
    provider_spec.
    """

    provider_spec: Mapping[str, Any]
    """The smallest spec that creates a VM. The only required field."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """The credentials of every call, at least 12 bytes each."""
    public_secret_keys: Sequence[str] = ()
    """The keys of values that are not secret."""
    bad_secrets: Sequence[Mapping[str, str]] = ()
    """Missing or wrong credentials. Each must be UNAUTHENTICATED."""
    restricted_secrets: Mapping[str, str] = field(default_factory=dict)
    """Valid credentials without rights."""
    invalid_specs: Sequence[Any] = ()
    """Changes that make the spec invalid. `run` adds those that follow from the type of the spec."""
    out_of_range_specs: Sequence[Any] = ()
    """Changes that ask for a size that does not exist. `run` adds those above a `max` of the spec."""
    quota_breaking_spec: Any = None
    """A change that exceeds a quota."""
    full_failure_domain: str = ""
    """A failure domain without room for provider_spec, while the others have room."""
    incompatible_change: Any = None
    """A change that describes another VM."""
    static_addresses: Mapping[str, Any] = field(default_factory=dict)
    """Free addresses, for a spec that takes static addresses: the `first` of five, `prefix`, `gateway`, `network`."""
    hot_updates: Sequence[Any] = ()
    """Changes that `update` can make."""
    own_volumes: Sequence[Volume] = ()
    """PersistentVolumeSpecs of the back end, with the ids that `volume_id` returns."""
    foreign_volumes: Sequence[Any] = ()
    """PersistentVolumeSpecs of others."""
    migration: Migration | None = None
    """A sample class for `migrate`."""
    unique_names: bool = False
    """Whether the back end allows one VM for each name."""
    longest_name: int = 63
    """The longest name of a machine."""
    many_machines: int = 25
    """The number of VMs in a long list: more than a page of the back end."""
    parallel: int = 8
    """The number of parallel cases."""
    call_seconds: float = 300
    """How long a call may take."""
    shut_down_seconds: float = 300
    """How long a guest may take to stop."""
    require: str = "full"
    """The required verdict: `cmi.v1`, `basic` or `full`."""
    only: Sequence[str] = ()
    """Selects cases or rules by name. Empty: all."""

    def configuration(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the file that capcmi reads, without hooks and logs."""
        elsewhere = {"own_volumes", "foreign_volumes", "require", "only"}
        made: dict[str, Any] = {
            re.sub(r"_(.)", lambda match: match[1].upper(), each.name): getattr(self, each.name)
            for each in fields(self)
            if each.name not in elsewhere and getattr(self, each.name)
        }
        made["noCredentials"] = not self.secrets
        made["mandatoryFields"] = [f"/{name}" for name in schema.get("required", ())]
        properties = schema["properties"].items()
        wrong = [{name: 7 if rules.get("type") == "string" else "a text"} for name, rules in properties if rules]
        made["invalidSpecs"] = [*self.invalid_specs, {"no-such-field": 1}, *wrong]
        above = [{name: rules["maximum"] + 1} for name, rules in properties if "maximum" in rules]
        made["outOfRangeSpecs"] = [*self.out_of_range_specs, *above]
        if self.migration:
            made["migration"] = self.migration.settings()
        if self.own_volumes or self.foreign_volumes:
            own = [{"spec": volume.spec, "volumeId": volume.id} for volume in self.own_volumes]
            made["persistentVolumes"] = {"own": own, "foreign": list(self.foreign_volumes)}
        return made
