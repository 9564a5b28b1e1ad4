from __future__ import annotations

import pytest

from tests.tools import printed


def cards(**rates):
    """A table of each card, in MiB/s."""
    text = printed.PERFTEST_BANDWIDTH
    return "".join(
        text.replace("mlx5_9", card).replace("23437.50", f"{rate:.2f}").replace("0.375000", f"{rate / 62500:.6f}")
        for card, rate in rates.items()
    )


SLOW = cards(mlx5_0=46000, mlx5_1=46100, mlx5_2=23000, mlx5_3=46050)
FAILED = " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\n scnt=128, ccnt=0\n"
FOR_A_TIME = """\
                    RDMA_Write Latency Test
 #bytes        #iterations       t_avg[usec]    tps average
 8             6234567            1.60           312345.00
"""


def test_a_card_that_is_far_slower_than_the_others_is_found(examined):
    examination, kind = examined(SLOW)
    (found,) = examination.found
    assert (kind, found.name, found.where) == ("perftest", "slow_card", "mlx5_2")
    assert found.what == "moves 24.1 GB/s in messages of 65536 bytes, the median card 48.3 GB/s"
    assert examined(cards(mlx5_0=46000, mlx5_1=46100, mlx5_2=45000))[0].word == "HEALTHY"


@pytest.mark.parametrize("text", [SLOW + cards(mlx5_2=46000), cards(mlx5_2=46000) + SLOW])
def test_of_two_runs_of_a_card_the_slower_counts(examined, text):
    assert [found.where for found in examined(text)[0].found] == ["mlx5_2"]


def test_cards_that_are_alike_without_relaxed_ordering_are_not_judged(examined):
    off = cards(mlx5_0=23000, mlx5_1=23100, mlx5_2=23000).replace(" Mtu ", " PCIe relax order: OFF\n Mtu ")
    examination, _ = examined(off)
    assert (examination.found, examination.word) == ((), "NOT JUDGED")
    assert examination.not_judged[0].why.startswith("mlx5_0, mlx5_1, mlx5_2 ran without PCIe relaxed ordering (OFF)")
    assert examined(off.replace("OFF\n Mtu", "ON\n Mtu"))[0].word == "HEALTHY"


@pytest.mark.parametrize(
    "text", [printed.PERFTEST_BANDWIDTH, printed.PERFTEST_GIGABITS, printed.PERFTEST_LATENCY, FOR_A_TIME]
)
def test_one_card_alone_has_no_peer(examined, text):
    examination, _ = examined(text)
    assert (examination.found, examination.word) == ((), "NOT JUDGED")
    assert examination.healthy[0].what == "1 table without a transfer that failed"


def test_a_transfer_that_failed_is_found(examined):
    (found,) = examined(printed.PERFTEST_BANDWIDTH[:700] + FAILED)[0].found
    assert found.what == "a transfer ended with an error, status 12 of ibv_wc_status"


def test_a_test_that_did_not_start_is_no_fault_of_a_host(examined):
    said = "                    RDMA_Write BW Test\nCouldn't connect to cb02:18515\nUnable to open file descriptor\n"
    examination, _ = examined(said)
    assert examination.not_judged[0].why == "the test did not run: Couldn't connect to cb02:18515"


def test_an_error_in_a_real_text_is_found(examined, sample):
    text = sample("perftest_ib_write_bw_loopback_8M.txt")
    assert [found.name for found in examined(text + FAILED)[0].found] == ["rdma_transfer"]


def test_memory_that_cannot_be_registered_is_found(examined):
    """linux-rdma/perftest, pull request 21: with --use_cuda and no peer memory the program ends before its table."""
    said = "creating CUDA Ctx\nCouldn't allocate MR\nfailed to create mr\n Couldn't create IB resources\n"
    examination, kind = examined(said)
    (found,) = examination.found
    assert (kind, found.name, found.severity) == ("perftest", "memory_not_registered", "error")
    assert found.evidence == "said.txt:2: Couldn't allocate MR"


@pytest.mark.parametrize("said", [" Unable to Connect the HCA's through the link", "IB device mlx5_9 not found"])
def test_a_test_that_did_not_run_is_known_and_not_judged(examined, said):
    examination, kind = examined(f"{said}\n")
    assert (kind, examination.word) == ("perftest", "NOT JUDGED")
    assert examination.not_judged[0].why == f"the test did not run: {said.strip()}"
