from __future__ import annotations

from clusterbench.checks.gid_index import GidIndex
from tests.facts.machine import healthy, others

PORT = "/sys/class/infiniband/mlx5_3/ports/1"


def hosts(folder, variables=None, conf=""):
    """Three hosts, of which the last has lost one address before the one of RoCE v2."""
    machines = {f"n{number}": others()["roce"] for number in range(3)}
    machines["n2"].without(f"{PORT}/gids/3", f"{PORT}/gid_attrs/types/2")
    machines["n2"].files[f"{PORT}/gid_attrs/types/2"] = "RoCE v2\n"
    for machine in machines.values():
        machine.environment["variables"] = variables or {}
        machine.files["/etc/nccl.conf"] = conf
    return [machine.host(folder, name) for name, machine in machines.items()]


def test_an_index_that_differs_is_found_on_the_odd_host(tmp_path):
    said = GidIndex().judge_all(hosts(tmp_path))
    (fault,) = said["n2"].faults
    assert fault.what == "the index of the RoCE v2 address of mlx5_3 port 1 is 2, and 3 on most hosts"
    assert fault.severity is None
    assert (said["n0"].faults, said["n0"].healthy) == ((), "8 traits as on most hosts")


def test_it_is_an_error_where_one_index_is_set_for_all(tmp_path):
    for name, given in (("a", {"variables": {"NCCL_IB_GID_INDEX": "3"}}), ("b", {"conf": "NCCL_IB_GID_INDEX=3\n"})):
        (fault,) = GidIndex().judge_all(hosts(tmp_path / name, **given))["n2"].faults
        assert fault.what.endswith("and 3 on most hosts; NCCL_IB_GID_INDEX is set")
        assert fault.severity == "error"


def test_infiniband_has_none_to_judge(tmp_path):
    (said,) = GidIndex().judge_all([healthy().host(tmp_path)]).values()
    assert said.not_applicable


def test_without_kinds_of_addresses_there_is_nothing_to_compare(tmp_path):
    bare = others()["roce"]
    bare.files = {path: text for path, text in bare.files.items() if "gid_attrs" not in path}
    (said,) = GidIndex().judge_all([bare.host(tmp_path)]).values()
    assert not said.healthy
