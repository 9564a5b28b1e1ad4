import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbench.facts import Files
from clusterbench.facts.pcie import CONFIG, FOLDER, Pcie, access_control, payloads, relaxed_ordering
from tests.facts.healthy.pcie import config
from tests.facts.machine import healthy


def test_gpus_cards_and_the_bridges_above_are_read(tmp_path):
    facts = healthy().host(tmp_path).of(Pcie)
    kinds = [device.kind for device in facts.devices]
    assert {kind: kinds.count(kind) for kind in kinds} == {"nic": 8, "bridge": 8, "gpu": 8}
    gpu = next(device for device in facts.devices if device.address == "0000:4b:01.0")
    assert (gpu.above, gpu.gigatransfers_per_s, gpu.width) == ("0000:43:01.0", 32.0, 16)
    assert (gpu.correctable, gpu.nonfatal, gpu.fatal) == (0, 0, 0)
    assert (gpu.relaxed_ordering, gpu.acs) == (True, ())
    assert (gpu.payload_bytes, gpu.most_payload_bytes) == (256, 256)
    assert facts.uptime_s == 86_400.25


def test_without_root_a_configuration_is_not_known(tmp_path):
    machine = healthy()
    for path in machine.files:
        if path.endswith("/config"):
            machine.files[path] = config(whole=False)
    facts = machine.host(tmp_path).of(Pcie)
    assert {(device.relaxed_ordering, device.acs) for device in facts.devices} == {(None, None)}
    assert facts.unread[CONFIG] == "may be read by root only"


def test_without_a_bus_there_are_no_devices_to_speak_of(tmp_path):
    facts = Pcie.read(Files(tmp_path))
    assert facts.devices is None
    assert facts.unread[FOLDER] == "is not there"


def test_bits_are_found_at_the_end_of_their_lists():
    assert relaxed_ordering(config()) is True
    assert relaxed_ordering(config(relaxed_ordering=False)) is False
    assert payloads(config(payload=0, most_payload=5)) == (128, 4096)
    assert payloads(config(payload=6, most_payload=7)) == (None, None)
    assert payloads(config(whole=False)) == (None, None)
    assert access_control(config(acs=0b0011101)) == ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")


@pytest.mark.parametrize("place", [0x40, 0x60, 0x3C, 0xFF, 0x04])
def test_a_list_that_loops_or_leaves_the_space_ends(place):
    looped = bytearray(config())
    looped[0x60], looped[0x41] = 0x05, place
    assert relaxed_ordering(bytes(looped)) is None
    looped[0x100:0x104] = (0x100 << 20 | 0x01).to_bytes(4, "little")
    assert access_control(bytes(looped)) == ()


@given(st.binary(max_size=600), st.binary(max_size=600))
def test_any_bytes_have_an_end(start, extended):
    space = start.ljust(256, b"\x10") + extended
    assert relaxed_ordering(space) in (True, False, None)
    assert {*payloads(space)} <= {None, *(128 << power for power in range(6))}
    assert access_control(space) is None or isinstance(access_control(space), tuple)
