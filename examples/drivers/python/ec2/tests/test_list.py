"""The VMs of a cluster, whole and in pages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from cloud import Cloud
from faults import Calls, Fault
from plugin import Plugin


def test_all_vms_are_listed_also_in_pages(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    """DRV-34, DRV-35: all pages, each VM once, and the filter is EC2's."""
    made = {}
    for number in range(12):
        spec = cloud.spec(cluster, identity=f"uid-{number}")
        made[plugin.CreateMachine(MachineName=f"m-{number}", ProviderSpec=spec).response.ProviderID] = f"m-{number}"
    assert dict(plugin.ListMachines(ProviderSpec=spec).response.MachineList) == made
    seen: list[tuple[str, str]] = []
    token, pages = "", 0
    while True:
        page = plugin.ListMachinesPaged(provider_spec=spec, page_size=5, page_token=token).response
        seen += [(each.provider_id, each.machine_name) for each in page.machines]
        token, pages = page.next_page_token, pages + 1
        assert len(token) <= 1024
        if not token:
            break
    assert pages == 3
    assert sorted(seen) == sorted(made.items())


def test_a_page_tells_whose_each_vm_is_and_since_when(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    """The list has the VM's tags, not the request's: they identify an orphan."""
    before = datetime.now(UTC) - timedelta(seconds=1)
    assert plugin.CreateMachine(MachineName="m", ProviderSpec=cloud.spec(cluster, identity="uid-1")).code == "OK"
    listed = plugin.ListMachinesPaged(provider_spec=cloud.spec(cluster, identity="uid-2")).response.machines
    assert [(each.cluster_id, each.machine_id) for each in listed] == [(cluster, "uid-1")]
    assert before <= listed[0].created_at.ToDatetime(UTC) <= datetime.now(UTC)


def paged(plugin: Plugin, spec: bytes, size: int) -> Iterator[list[str]]:
    """The pages of a list, by machine names."""
    token = ""
    while True:
        page = plugin.ListMachinesPaged(provider_spec=spec, page_size=size, page_token=token).response
        yield [each.machine_name for each in page.machines]
        token = page.next_page_token
        assert len(token) <= 1024
        if not token:
            return


@pytest.mark.parametrize("size", [1, 2, 4, 7])
def test_a_page_is_as_large_as_it_may_be(plugin: Plugin, cloud: Cloud, cluster: str, size: int) -> None:
    """EC2's own have five at least."""
    names = [f"m-{number}" for number in range(7)]
    for name in names:
        cloud.plant(cluster, name, "uid-1")
    pages = list(paged(plugin, cloud.spec(cluster), size))
    assert max(len(page) for page in pages) == size
    assert sorted(name for page in pages for name in page) == names


def test_a_vm_that_goes_between_two_pages_hides_no_other(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    """DRV-34: the client treats a VM that is not in the list as gone."""
    planted = {f"m-{number}": cloud.plant(cluster, f"m-{number}", "uid-1") for number in range(7)}
    pages = paged(plugin, cloud.spec(cluster), 2)
    seen = next(pages)
    cloud.ec2.terminate_instances(InstanceIds=[planted[seen[0]]])
    for page in pages:
        seen += page
    assert sorted(seen) == sorted(planted)


def test_a_page_token_that_is_made_up_is_refused(plugin: Plugin, cloud: Cloud, cluster: str) -> None:
    for token in ("made-up", "0123456789abcdef.made-up"):
        answer = plugin.ListMachinesPaged(provider_spec=cloud.spec(cluster), page_token=token)
        assert answer.code == "INVALID_ARGUMENT"


def test_a_list_whose_second_page_fails_fails(plugin: Plugin, cloud: Cloud, cluster: str, calls: Calls) -> None:
    """DRV-37: half a list would be taken for the whole."""
    for number in range(6):
        cloud.plant(cluster, f"m-{number}", f"uid-{number}")
    spec = cloud.spec(cluster)
    page = plugin.ListMachinesPaged(provider_spec=spec, page_size=5).response
    calls.faults.append(Fault("DescribeInstances", "ServiceUnavailable", http_status=503))
    rest = plugin.ListMachinesPaged(provider_spec=spec, page_size=5, page_token=page.next_page_token)
    assert rest.code == "UNAVAILABLE"
