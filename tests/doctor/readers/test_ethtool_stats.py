from __future__ import annotations

import pytest

# isc-projects/ethq, issue 8: a ConnectX-4 Lx with the driver of Linux 4.15.
MLX5 = """\
# ethtool -S ens3f0np0
NIC statistics:
     rx_packets: 845320277
     rx_bytes: 2195783498134
     rx_csum_none: 49455
     rx_packets_phy: 845715962
     rx_crc_errors_phy: {crc}
     rx_in_range_len_errors_phy: 0
     rx_symbol_err_phy: 0
     rx_discards_phy: {discards}
     tx_errors_phy: 0
     link_down_events_phy: {downs}
     rx_pcs_symbol_err_phy: {symbols}
     tx_pause_storm_error_events: {storms}
     module_high_temp: {hot}
     rx_prio0_bytes: 2205100000000
     rx_prio0_packets: 845715962
     tx_prio0_bytes: 2655285206479
     tx_prio0_packets: 896117891
     rx_prio0_pause: 0
     tx_prio0_pause: 0
     module_unplug: 0
     module_bus_stuck: 0
     ch0_events: 1
"""
ZERO = dict.fromkeys(("crc", "discards", "downs", "symbols", "storms", "hot"), 0)


def mlx5(**counts):
    return MLX5.format(**(ZERO | counts))


DAMAGED = mlx5(crc=9000)


def test_damaged_packets_are_found_by_their_share(examined):
    examination, kind = examined(DAMAGED)
    (found,) = examination.found
    assert (kind, found.name, found.severity, found.where) == (
        "ethtool -S",
        "ethernet_errors",
        "warning",
        "ens3f0np0",
    )
    assert found.what == "9,000 damaged packets (rx_crc_errors_phy), 1.1e-05 of those that it received"
    assert found.evidence == "said.txt:7: rx_crc_errors_phy: 9000"
    assert [found.severity for found in examined(mlx5(crc=80))[0].found] == ["note"]


def test_counters_that_lost_their_blanks_are_no_hosts(examined):
    said = "NIC statistics:\nport_rx_packets: 1653\nport_tx_packets: 17\nport_rx_bad: 40\nrx_unicast: 1146\n"
    (found,) = examined(said)[0].found
    assert found.what == "40 damaged packets (port_rx_bad), 2.4e-02 of those that it received"


def test_none_damaged_is_in_order(examined):
    examination, _ = examined(mlx5(downs=1))
    assert (examination.found, examination.word) == ((), "HEALTHY")
    assert examination.healthy[0].what == "ens3f0np0: 845,715,962 packets received, none damaged"


@pytest.mark.parametrize(
    ("counts", "severity", "what"),
    [
        (
            {"symbols": 5000},
            "warning",
            "5,000 damaged packets (rx_pcs_symbol_err_phy), 5.9e-06 of those that it received",
        ),
        ({"downs": 3}, "note", "its link went down 3 times"),
        ({"downs": 30}, "warning", "its link went down 30 times"),
        ({"discards": 900_000}, "warning", "900,000 packets found no receive buffer (rx_discards_phy), of 845,715,962"),
        ({"storms": 2}, "warning", "was paused too long 2 times, until it stopped pausing: packets were lost"),
        ({"hot": 1}, "warning", "its module reported high temp 1 times"),
    ],
)
def test_what_else_mlx5_counts(examined, counts, severity, what):
    (found,) = examined(mlx5(**counts))[0].found
    assert (found.severity, found.what) == (severity, what)


def test_packets_that_the_kernel_had_no_buffer_for_are_a_share_of_those_that_it_received(examined):
    said = mlx5().replace("     rx_csum_none", "     rx_out_of_buffer: 9000000\n     rx_csum_none")
    (found,) = examined(said)[0].found
    assert found.severity == "warning"
    assert found.what == "9,000,000 packets found no receive buffer (rx_out_of_buffer), of 845,320,277"
    assert examined(said.replace("9000000", "9000"))[0].word == "HEALTHY"


@pytest.mark.parametrize(
    ("pauses", "severity"), [(8_900_000, None), (8_970_000, "note"), (89_000_000, "note"), (89_700_000, "warning")]
)
def test_pauses_are_held_against_the_packets_that_they_stop(examined, pauses, severity):
    examination, _ = examined(mlx5().replace("rx_prio0_pause: 0", f"rx_prio0_pause: {pauses}"))
    assert [found.severity for found in examination.found] == ([severity] if severity else [])
    assert all(found.what.startswith(f"was told to pause {pauses:,} times, ") for found in examination.found)
    assert examination.word == ("SUSPECT" if severity == "warning" else "HEALTHY")


def test_pauses_of_a_text_that_does_not_count_what_rdma_sent_are_not_judged(examined):
    """``tx_packets`` counts those of the kernel alone."""
    said = mlx5().replace("rx_prio0_pause: 0", "rx_prio3_pause: 98765432")
    (unknown,) = examined(said)[0].not_judged
    assert unknown.why == "rx_prio3_pause counts 98,765,432 pauses, and nothing says of how many packets"


def test_queues_are_summed_and_many_packets_without_a_buffer_are_found(examined):
    # Counters of bnx2x, isc-projects/ethq, issue 6; the discards are ours.
    text = (
        "NIC statistics:\n     [0]: rx_ucast_packets: 194386668\n     [0]: rx_discards: 9000000\n"
        "     [1]: rx_ucast_packets: 79657418\n     [1]: rx_discards: 0\n     rx_fcs_errors: 0\n"
    )
    (found,) = examined(text)[0].found
    assert found.what == "9,000,000 packets found no receive buffer (rx_discards), of 274,044,086"
    assert found.severity == "warning"


def test_the_clouds_limit_is_a_note_and_a_driver_without_known_counters_not_judged(examined):
    # aws/eks-node-monitoring-agent, monitors/networking/testdata/ethtool-ens5.txt.
    text = "NIC statistics:\n     tx_timeout: 0\n     bw_in_allowance_exceeded: 11072\n     queue_0_rx_cnt: 6869920\n"
    examination, _ = examined(text)
    assert [(found.severity, found.what) for found in examination.found] == [
        ("note", "the cloud's limit of this instance held back 11,072 packets (bw_in_allowance_exceeded)")
    ]
    assert examination.word == "NOT JUDGED"


def test_an_interface_that_received_nothing_is_not_judged(examined):
    text = mlx5().replace("845320277", "0").replace("845715962", "0")
    assert examined(text)[0].not_judged[0].why == "ens3f0np0 has received nothing, or does not say how much"


def test_interfaces_of_one_text_are_told_apart(examined):
    examination, _ = examined(DAMAGED + mlx5().replace("ens3f0np0", "ens4"))
    assert [found.where for found in examination.found] == ["ens3f0np0"]
    assert examination.healthy[0].what.startswith("ens4: ")
