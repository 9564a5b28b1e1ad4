"""What counters of a host do while a case runs, from planted files of /sys."""

import os

import pytest

from clusterbench.facts import Files
from clusterbench.launch import counters
from clusterbench.launch.agent import Agent
from clusterbench.launch.counters import HostCounterReader, growth, read_counters
from clusterbench.launch.messages import CountersGrown, RankExited
from clusterbench.run_folder import RunFolder
from clusterbench.types import HostCounters
from tests.facts.machine import Machine, planted
from tests.launch.test_conductor import case, conduct, done, ready
from tests.launch.test_start import conduct as conduct_for_real
from tests.launch.test_start import drill

PORT = "/sys/class/infiniband/mlx5_0/ports/1"
COUNTERS = {"link_downed": 0, "symbol_error": 3, "port_xmit_packets": 100, "port_rcv_packets": 50, "port_xmit_data": 9}
AER = "Receiver Error 0\nBad TLP 0\nTOTAL_ERR_{} {}"


def machine():
    """One card with its interface, one interface beside it, a container's end, a GPU and an NVMe."""
    return Machine(
        planted(f"{PORT}/counters", COUNTERS)
        | planted(f"{PORT}/hw_counters", {"out_of_sequence": 7, "rx_write_requests": 8, "lifespan": 10})
        | planted("/sys/class/infiniband/mlx5_0/device/net/eth2", {"mtu": 9000})
        | planted("/sys/class/net/eth2", {"carrier_changes": 2, "device/vendor": "0x15b3"})
        | planted("/sys/class/net/eth2/statistics", {"rx_crc_errors": 0, "rx_bytes": 1})
        | planted("/sys/class/net/eth0", {"carrier_changes": 2, "device/vendor": "0x8086"})
        | planted("/sys/class/net/eth0/statistics", {"tx_packets": 5, "rx_packets": 6, "rx_dropped": 7})
        | planted("/sys/class/net/veth1", {"carrier_changes": 40})
        | pci("0000:1b:00.0", "0x030200")
        | pci("0000:c1:00.0", "0x010802")
        | planted("/sys/bus/pci/devices/0000:00:1f.0", {"class": "0x060100"})
    )


def pci(address, code, fatal=0):
    files = {"class": code, "aer_dev_fatal": AER.format("FATAL", fatal), "aer_dev_correctable": "nonsense"}
    return planted(f"/sys/bus/pci/devices/{address}", files)


def read(root, of):
    of.write(root)
    return read_counters(Files(root))


def test_counters_are_read_by_port_interface_and_device(tmp_path):
    assert read(tmp_path, machine()) == {
        # what its interface counts belongs to the port
        "mlx5_0 port 1": {
            "link_downed": 0,
            "symbol_error": 3,
            "packets": 150,
            "out_of_sequence": 7,
            "carrier_changes": 2,
            "rx_crc_errors": 0,
        },
        "interface eth0": {"packets": 11, "carrier_changes": 2},
        "GPU 0000:1b:00.0": {"aer_dev_fatal": 0},
        "PCIe device 0000:c1:00.0": {"aer_dev_fatal": 0},
    }


def test_only_what_grew_is_told_with_how_much_was_read(tmp_path):
    of = machine()
    before = read(tmp_path, of)
    of.files |= planted(f"{PORT}/counters", {"link_downed": 1, "port_xmit_packets": 300}) | pci(
        "0000:1b:00.0", "0x030200", 2
    )
    told = growth(before, read(tmp_path, of), 12.3456)
    assert told.grown == {
        "mlx5_0 port 1": {"link_downed": 1, "packets": 200},
        "GPU 0000:1b:00.0": {"aer_dev_fatal": 2},
    }
    assert told.read == {"port": 1, "interface": 1, "GPU": 1, "PCIe device": 1}
    assert (told.over_s, told.unread) == (12.346, "")


def test_a_counter_that_was_reset_grew_by_what_it_has_since():
    assert growth({"p": {"symbol_error": 9}}, {"p": {"symbol_error": 2}}, 1.0).grown == {"p": {"symbol_error": 2}}


def test_a_card_that_went_away_is_told():
    assert growth({"mlx5_0 port 1": {"symbol_error": 9}}, {}, 1.0) == HostCounters(
        1.0, {}, {"mlx5_0 port 1": {"gone": 1}}
    )


def test_a_counter_that_was_not_there_before_is_not_held_against_nothing():
    assert growth({"p": {"symbol_error": 1}}, {"p": {"symbol_error": 1, "link_downed": 4}}, 1.0).grown == {}


def test_a_host_without_counters_says_so(tmp_path):
    reader = HostCounterReader(tmp_path)
    reader.begin()
    told = reader.end()
    assert told.unread == "this host shows no counters of ports, interfaces or PCIe devices"
    assert not reader.is_open


def test_files_that_do_not_answer_are_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(counters, "SECONDS_OF_A_READING", 0.05)
    (tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters").mkdir(parents=True)
    hanging = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed"
    os.mkfifo(hanging)  # opening it waits for a writer
    reader = HostCounterReader(tmp_path)
    reader.begin()
    first = reader._thread
    assert reader.end().unread == "files of /sys did not answer in 0.05 s"
    reader.begin()
    assert reader._thread is first  # no second one beside the one that hangs
    hanging.write_text("")  # lets it go
    first.join(10)


GROWN = CountersGrown("a", HostCounters(4.0, {"port": 1}, {"mlx5_3 port 1": {"link_downed": 1}}))


def test_what_grew_stands_in_the_record_of_the_case_and_not_of_the_next(tmp_path):
    _, (observation,), _ = conduct(tmp_path, [case()], time=[GROWN, *done()])
    assert observation.counters == {"a": GROWN.counters}
    _, both, _ = conduct(tmp_path / "2", [case("a"), case("b")], start=[GROWN, *ready()])
    assert [[*each.counters] for each in both] == [["a"], []]


def test_a_case_that_failed_says_what_was_counted_meanwhile(tmp_path):
    harmless = CountersGrown("b", HostCounters(4.0, {"port": 1}, {"mlx5_0 port 1": {"symbol_error": 1}}))
    (outcome,), _, _ = conduct(tmp_path, [case()], time=[GROWN, harmless, RankExited(2, "a", -9, "")])
    assert outcome.reason.endswith("(dmesg tells); meanwhile mlx5_3 port 1 on a: the link went down")


class Flapping(HostCounterReader):
    """Its link goes down whenever a case begins."""

    def begin(self):
        super().begin()
        (self.root / PORT.lstrip("/") / "counters/link_downed").write_text("1\n")


@pytest.mark.gloo
@pytest.mark.parametrize("fault", ["none", "segfault"])
def test_an_agent_brackets_each_case(tmp_path, fault):
    machine().write(tmp_path / "root")
    (tmp_path / "agent").mkdir()
    agent = Agent(host="here", scratch=tmp_path / "agent", counters=Flapping(tmp_path / "root"))
    try:
        (outcome,), observations = conduct_for_real(agent, tmp_path, drill(fault))
    finally:
        agent.close()
    if fault == "none":
        assert observations[0].counters["here"].grown == {"mlx5_0 port 1": {"link_downed": 1}}
        assert [seen.counters for seen in RunFolder.open(tmp_path / "run").observations()] == [observations[0].counters]
    else:
        assert outcome.reason.endswith("; meanwhile mlx5_0 port 1 on here: the link went down")
