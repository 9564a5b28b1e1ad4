from __future__ import annotations

import pytest

PROCESSOR = """\
Handle 0x0010, DMI type 4, 48 bytes
Processor Information
\tSocket Designation: CPU{socket}
\tStatus: {status}

"""
MODULE = """\
Handle 0x11{number:02d}, DMI type 17, 84 bytes
Memory Device
\tTotal Width: 80 bits
\tSize: {size}
\tLocator: {locator}
\tBank Locator: {bank}
\tType: DDR5
\tSpeed: 4800 MT/s
\tConfigured Memory Speed: {speed} MT/s

"""
EMPTY = """\
Handle 0x12{number:02d}, DMI type 17, 84 bytes
Memory Device
\tSize: No Module Installed
\tLocator: {locator}
\tBank Locator: NO DIMM
\tType: Unknown
\tSpeed: Unknown

"""


def host(locators, empty=(), speeds=None, sizes=None, status="Populated, Enabled", head="# dmidecode 3.3\n\n"):
    parts = [head, *(PROCESSOR.format(socket=socket, status=status) for socket in (1, 2))]
    for number, locator in enumerate(locators):
        speed, size = (speeds or {}).get(locator, 4800), (sizes or {}).get(locator, "64 GB")
        kind = EMPTY if locator in empty else MODULE
        parts.append(kind.format(number=number, locator=locator, speed=speed, size=size, bank="Not Specified"))
    return "".join(parts)


SLOTS = [f"P{socket}-DIMM{channel}1" for socket in (1, 2) for channel in "ABCD"]
MISSING = host(SLOTS, empty={"P2-DIMMC1"})


def test_modules_that_are_alike_are_in_order(examined):
    examination, kind = examined(host(SLOTS))
    assert (kind, examination.word) == ("dmidecode", "HEALTHY")
    assert examination.healthy[0].what == "8 memory modules of 64 GiB, as fast and as many on every socket"


def test_a_text_that_lost_its_blanks_is_read(examined):
    (found,) = examined(MISSING.replace("\t", ""))[0].found
    assert (found.where, found.what[:9]) == ("P2-DIMMC1", "is empty:")


@pytest.mark.parametrize(
    ("text", "name", "where", "what"),
    [
        (MISSING, "memory_modules", "P2-DIMMC1", "is empty: socket 2 has 3 memory modules, and another 4"),
        (host(SLOTS, speeds={"P1-DIMMB1": 4400}), "memory_speed", "P1-DIMMB1", "runs at 4400 MT/s, and others at 4800"),
        (
            host(SLOTS, sizes={"P1-DIMMB1": "32 GB"}),
            "memory_modules",
            "P1-DIMMB1",
            "holds 32 GiB, and the module at its place on another socket 64 GiB",
        ),
    ],
)
def test_a_module_that_is_not_as_its_siblings_is_found(examined, text, name, where, what):
    (found,) = examined(text)[0].found
    assert (found.name, found.severity, found.where, found.what) == (name, "warning", where, what)
    assert found.evidence.startswith("said.txt:")


def test_a_processor_that_the_firmware_switched_off_is_found(examined):
    examination, _ = examined(host(SLOTS, status="Populated, Disabled By BIOS (POST Error)"))
    assert examination.found[0].where == "Processor Information CPU1"
    assert examination.found[0].severity == "error"


@pytest.mark.parametrize(
    ("one", "other"), [("A{}", "B{}"), ("CPU1_DIMM_{}", "CPU2_DIMM_{}"), ("PROC 1 DIMM {}", "PROC 2 DIMM {}")]
)
def test_slots_of_other_boards_are_compared_by_socket(examined, one, other):
    slots = [name.format(number) for name in (one, other) for number in (1, 2, 3)]
    (found,) = examined(host(slots, empty={other.format(2)}))[0].found
    assert found.where == other.format(2)


def test_modules_that_all_run_below_what_they_can_are_a_note(examined):
    examination, _ = examined(host(SLOTS, speeds=dict.fromkeys(SLOTS, 4400)))
    assert [(found.severity, found.what) for found in examination.found] == [
        ("note", "all modules run at 4400 MT/s, and could at 4800")
    ]
    assert examination.word == "HEALTHY"


def test_empty_slots_whose_sockets_are_not_named_are_not_judged(examined):
    examination, _ = examined(host([f"DIMM {number}" for number in range(8)], empty={"DIMM 3"}))
    assert (examination.found, examination.word) == ((), "NOT JUDGED")


def test_a_socket_without_a_processor_has_no_modules_and_no_fault(examined):
    assert examined(host(SLOTS, empty={slot for slot in SLOTS if "P2" in slot}))[0].found == ()


def test_modules_of_a_virtual_machine_are_not_judged(examined):
    said = "# dmidecode 3.3\nSystem Information\n\tManufacturer: QEMU\n\n"
    assert examined(host(SLOTS, empty={"P2-DIMMC1"}, head=said))[0].word == "NOT JUDGED"


def test_a_module_that_is_taken_out_of_a_real_text_is_found(examined, sample):
    text = sample("dmidecode_v100.txt")
    assert examined(text)[0].word == "HEALTHY"
    lines = text.split("\n")
    at = next(number for number, line in enumerate(lines) if "Locator: P2-DIMME1" in line)
    lines[at - 3] = "\tSize: No Module Installed"
    (found,) = examined("\n".join(lines))[0].found
    assert (found.where, found.evidence) == ("P2-DIMME1", f"said.txt:{at + 1}: Locator: P2-DIMME1")
    slow = text.replace("Configured Clock Speed: 2400 MT/s", "Configured Clock Speed: 2133 MT/s", 1)
    assert [found.where for found in examined(slow)[0].found] == ["P1-DIMMA1"]
