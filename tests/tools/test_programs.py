"""The figures of each program's text, in base units, and what is refused."""

from pathlib import Path

import pytest

from clusterbench.errors import ToolError
from clusterbench.tools import deepep, fio, gdrcopy, iperf3, nccl_tests, nvbandwidth, nvshmem, perftest, ucx_perftest
from tests.tools import printed

SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"
real = pytest.mark.skipif(not SAMPLES.is_dir(), reason="../shared absent")


def sample(name):
    return (SAMPLES / name).read_text(errors="replace")


def refused(parse, text):
    with pytest.raises(ToolError) as caught:
        parse(text)
    return str(caught.value)


# perftest


def test_perftest_mebibytes_are_read_from_the_header():
    (row,) = perftest.parse(printed.PERFTEST_BANDWIDTH)
    assert row == perftest.Bandwidth(65536, 5000, 23437.50 * 2**20, 23447.50 * 2**20, 375_000.0)


def test_perftest_gigabits_are_read_from_the_header_and_no_peak_is_none():
    (row,) = perftest.parse(printed.PERFTEST_GIGABITS)
    assert row.bytes_per_s == pytest.approx(24.57625e9)
    assert row.peak_bytes_per_s is None


@pytest.mark.parametrize(("average", "rate"), [("0.07", "4.612345"), ("0.00", "0.212345")])
def test_perftest_the_bandwidth_of_small_messages_is_not_two_decimals_of_a_gigabit(average, rate):
    row = f" 2  5000  0.00  {average}  {rate}\n"
    *_, last = perftest.parse(printed.PERFTEST_GIGABITS + row)
    assert last.bytes_per_s == pytest.approx(2 * float(rate) * 1e6)


def test_perftest_both_directions_count_in_bandwidth_and_rate():
    (row,) = perftest.parse(printed.PERFTEST_BIDIRECTIONAL)
    assert (row.bytes_per_s, row.messages_per_s) == (46875 * 2**20, 750_000.0)
    before_2013 = printed.PERFTEST_BIDIRECTIONAL.replace("0.750000", "0.375000")
    assert perftest.parse(before_2013)[0].bytes_per_s == row.bytes_per_s
    message = refused(perftest.parse, printed.PERFTEST_BIDIRECTIONAL.replace("MB/sec", "Gb/sec"))
    assert message.startswith("perftest printed a bandwidth of 5.859e+12 B/s, but 7.5e+05 messages of 65536 bytes")


@pytest.mark.parametrize(
    ("average", "printed_rate", "rate"), [("1800.00", "0.000001", 0.8789), ("900.00", "0.000000", 0.4395)]
)
def test_perftest_the_rate_of_few_large_messages_is_not_rounded(average, printed_rate, rate):
    row = f" 2147483648 5  0.00  {average}  {printed_rate}\n"
    *_, last = perftest.parse(printed.PERFTEST_BANDWIDTH + row)
    assert last.messages_per_s == pytest.approx(rate, rel=1e-3)
    small = " 64 1000  0.00  0.05  0.000900\n"  # of small messages the bandwidth is what is rounded
    assert perftest.parse(printed.PERFTEST_BANDWIDTH + small)[-1].messages_per_s == 900


@pytest.mark.parametrize("text", [printed.PERFTEST_BANDWIDTH, printed.PERFTEST_LATENCY])
def test_perftest_a_last_row_without_an_end_is_read_where_it_is_whole(text):
    table = text.removesuffix(f"{87 * '-'}\n").rstrip()
    assert perftest.parse(table) == perftest.parse(text)
    message = refused(perftest.parse, table[:-1])
    assert message.startswith("perftest's last line has no end, so it may be cut in a number: '")


def test_perftest_latency_has_percentiles_and_no_deviation():
    (row,) = perftest.parse(printed.PERFTEST_LATENCY)
    assert [*vars(row).values()] == pytest.approx([8, 1000, 1.71e-6, 5.2e-6, 1.75e-6, 1.77e-6, 2.1e-6, 4.9e-6])
    assert not any("dev" in name for name in vars(row))


def test_perftest_latency_of_a_test_that_ran_for_a_time_is_a_mean():
    text = " #bytes        #iterations       t_avg[usec]    tps average\n 8  6234567  1.60  312345.00\n"
    assert perftest.parse(text) == (perftest.MeanLatency(8, 6234567, 1.60 / 1e6),)


def test_perftest_a_unit_that_is_not_what_it_says_is_found_by_the_message_rate():
    message = refused(perftest.parse, printed.PERFTEST_BANDWIDTH.replace("average[MiB/sec]", "average[Gb/sec]"))
    assert message == (
        "perftest printed a bandwidth of 2.93e+12 B/s, but 3.75e+05 messages of 65536 bytes a second are 2.458e+10 "
        "B/s: '65536      5000             23447.50            23437.50             0.375000'"
    )


def test_perftest_an_unknown_unit_is_refused():
    text = printed.PERFTEST_BANDWIDTH.replace("MiB/sec", "GB/sec")
    assert refused(perftest.parse, text) == (
        "perftest printed bandwidths in 'GB/sec', which is none of MB/sec, MiB/sec, Gb/sec"
    )


@pytest.mark.parametrize("cell", ["0.00", "-5.00", "nan", "inf", "1e", "2_0"])
def test_perftest_a_bandwidth_that_cannot_be_is_refused(cell):
    text = printed.PERFTEST_BANDWIDTH.replace("23437.50", cell)
    assert refused(perftest.parse, text).startswith(f"perftest printed '{cell}' where a number")


def test_perftest_two_different_rows_of_one_size_are_refused():
    row = " 65536      5000             20000.00            20000.00             0.320000\n"
    message = refused(perftest.parse, printed.PERFTEST_BANDWIDTH + row)
    assert message.startswith("perftest printed two different rows of 65536 bytes: '65536 ")
    assert message.endswith(
        "with --run_infinitely it prints a row of each interval: take -D, which prints one, instead"
    )


def test_perftest_a_median_outside_of_the_extremes_is_refused():
    message = refused(perftest.parse, printed.PERFTEST_LATENCY.replace("1.75 ", "9.75 "))
    assert message.startswith("perftest printed a median that is not between the extremes: '8 ")


@real
def test_perftest_of_a_server_and_a_client_in_one_file():
    (row,) = perftest.parse(sample("perftest_ib_write_bw_loopback_8M.txt"))
    assert (row.size_bytes, row.iterations, row.messages_per_s) == (8388608, 20000, 3007.0)
    assert row.bytes_per_s == 24056.72 * 2**20
    rows = perftest.parse(sample("perftest_ib_write_bw_loopback_all_sizes.txt"))
    assert [row.size_bytes for row in rows] == [2**power for power in range(1, 24)]
    assert (rows[0].bytes_per_s, rows[-1].bytes_per_s) == (5.30 * 2**20, 23240.68 * 2**20)


@real
def test_perftest_json_is_refused_because_it_says_no_unit():
    message = refused(perftest.parse, sample("perftest_ib_write_bw_out_json.json"))
    assert message.startswith("perftest printed no table that can be read: ")


# ucx_perftest


def test_ucx_overall_figures_are_taken_and_its_megabytes_are_mebibytes():
    result = ucx_perftest.parse(printed.UCX)
    assert result == ucx_perftest.UcxResult(1000, 107.25e-6, 108.010e-6, 9258.44 * 2**20, 1 / 108.010e-6)
    assert 2**20 * result.messages_per_s == pytest.approx(result.bytes_per_s, rel=1e-3)


def test_ucx_of_few_large_messages_is_not_rounded_to_none():
    slow = printed.UCX.replace("108.010", "2500000").replace("9258.44", "   1.60").replace("9258", "   0")
    assert ucx_perftest.parse(slow).messages_per_s == 0.4
    assert refused(ucx_perftest.parse, printed.UCX.replace("108.010", "208.010")).startswith(
        "ucx_perftest printed 9258 messages a second, one every 208.01 us: '"
    )


def test_ucx_without_its_last_line_is_refused():
    assert refused(ucx_perftest.parse, printed.UCX[: printed.UCX.index("Final")]).startswith(
        "ucx_perftest printed no final line: '"
    )


# gdrcopy


def test_gdrcopy_megabytes_are_mebibytes():
    assert gdrcopy.parse_copybw(printed.COPYBW) == gdrcopy.CopyBandwidth(65536, 9765.5 * 2**20, 512.25 * 2**20)


def test_gdrcopy_latencies_by_size():
    latency = gdrcopy.parse_copylat(printed.COPYLAT)
    assert latency.write_s == pytest.approx({1: 0.0889e-6, 2: 0.0884e-6, 4: 0.0891e-6})
    assert latency.read_s == pytest.approx({1: 0.91e-6, 2: 1.71e-6, 4: 1.72e-6})


def test_gdrcopy_round_trip():
    assert gdrcopy.parse_pplat(printed.PPLAT) == 1.25e-6


def test_gdrcopy_from_2_6_on_prints_medians_and_the_lowest():
    latency = gdrcopy.parse_copylat(printed.COPYLAT_MEDIANS)
    assert latency.write_s == pytest.approx({1: 0.0889e-6, 2: 0.0884e-6})
    assert latency.read_s == pytest.approx({1: 0.91e-6, 2: 1.71e-6})
    assert gdrcopy.parse_pplat(printed.PPLAT_MEDIAN) == 1.25e-6


def test_gdrcopy_a_median_below_the_lowest_is_refused():
    message = refused(gdrcopy.parse_copylat, printed.COPYLAT_MEDIANS.replace("0.0880", "0.1880"))
    assert message.startswith("gdrcopy_copylat printed a median below the lowest time: 'gdr_copy_to_mapping")
    assert refused(gdrcopy.parse_pplat, printed.PPLAT_MEDIAN.replace("1.05", "2.05")).startswith(
        "gdrcopy_pplat printed a median below the lowest time: 'Round-trip"
    )


def test_gdrcopy_a_bandwidth_printed_twice_is_refused():
    message = refused(gdrcopy.parse_copybw, printed.COPYBW + "write BW: 9.5MB/s\n")
    assert message.startswith("gdrcopy_copybw printed no write and read bandwidth of one size: ")


@real
def test_gdrcopy_of_real_gpus():
    assert gdrcopy.parse_copybw(sample("gdrcopy_copybw_v100.txt")).write_bytes_per_s == 9638.54 * 2**20
    assert gdrcopy.parse_copybw(sample("gdrcopy_copybw_numactl.txt")).read_bytes_per_s == 548.423 * 2**20
    latency = gdrcopy.parse_copylat(sample("gdrcopy_copylat_v100.txt"))
    assert [*latency.write_s] == [*latency.read_s] == [2**power for power in range(25)]
    assert latency.read_s[2**24] == pytest.approx(36758.8342e-6)
    assert gdrcopy.parse_pplat(sample("gdrcopy_pplat.txt")) == pytest.approx(1.08762e-6)


@real
@pytest.mark.parametrize("parse", [gdrcopy.parse_copybw, gdrcopy.parse_copylat, gdrcopy.parse_pplat])
def test_gdrcopy_another_of_its_programs_is_refused(parse):
    assert refused(parse, sample("gdrcopy_apiperf.txt")).startswith("gdrcopy_")


# nvbandwidth


def test_nvbandwidth_cells_that_do_not_apply_are_left_out():
    matrix = nvbandwidth.parse(printed.NVBANDWIDTH)["device_to_device_memcpy_write_ce"]
    assert matrix == nvbandwidth.Matrix("B/s", True, {(0, 1): 276.07e9, (1, 0): 275.5e9})


def test_nvbandwidth_latencies_are_seconds():
    matrix = nvbandwidth.parse(printed.NVBANDWIDTH_LATENCY)["host_device_latency_sm"]
    assert matrix.unit == "s"
    assert matrix.cells == pytest.approx({(0, 0): 772.5e-9, (0, 1): 780.25e-9})


def test_nvbandwidth_a_sum_that_is_not_that_of_its_cells_is_refused():
    assert refused(nvbandwidth.parse, printed.NVBANDWIDTH.replace("276.07", "76.07")) == (
        "nvbandwidth printed a sum that is not that of its cells, 351.57: 'SUM device_to_device_memcpy_write_ce 551.57'"
    )


@pytest.mark.parametrize("cell", ["-75.50", "0.00", "fast"])
def test_nvbandwidth_a_cell_that_cannot_be_is_refused(cell):
    message = refused(nvbandwidth.parse, printed.NVBANDWIDTH.replace("275.50", cell))
    assert message.startswith(f"nvbandwidth printed '{cell}' where a number")


def test_nvbandwidth_a_row_of_totals_has_no_peers():
    text = (
        "Running all_to_one_write_ce.\nmemcpy CE All GPUs -> GPU(column) total bandwidth (GB/s)\n"
        "           0         1\n 0    310.50    311.25\n\nSUM all_to_one_write_ce 621.75\n"
    )
    assert nvbandwidth.parse(text)["all_to_one_write_ce"].cells == {(0, 0): 310.5e9, (0, 1): 311.25e9}


def test_nvbandwidth_three_matrices_of_one_test_have_names_of_their_own():
    matrices = nvbandwidth.parse(printed.NVBANDWIDTH_BOTH_WAYS)
    test = "device_to_device_bidirectional_memcpy_write_ce"
    assert {name: matrix.cells[1, 0] for name, matrix in matrices.items()} == {
        f"{test}_write1": 251.2e9,
        f"{test}_write2": 240e9,
        f"{test}_total": 491.2e9,
    }
    assert refused(nvbandwidth.parse, printed.NVBANDWIDTH_BOTH_WAYS.replace("Write2", "Write1")).startswith(
        "nvbandwidth printed a title that cannot be read: "
    )


def test_nvbandwidth_a_title_that_is_cut_is_refused():
    message = refused(nvbandwidth.parse, printed.NVBANDWIDTH.replace("memcpy CE GPU(row)", "PU(row)"))
    assert message == "nvbandwidth printed a title that cannot be read: 'PU(row) <- GPU(column) bandwidth (GB/s)'"


def test_nvbandwidth_integers_are_numbers():
    text = printed.NVBANDWIDTH.replace("276.07", "276").replace("551.57", "551.50")
    assert nvbandwidth.parse(text)["device_to_device_memcpy_write_ce"].cells[0, 1] == 276e9


def test_nvbandwidth_of_several_nodes_rows_are_processes_and_titles_that_say_cpu_mean_gpus():
    (halves,) = nvbandwidth.parse(printed.NVBANDWIDTH_BISECT).values()
    assert halves == nvbandwidth.Matrix(
        "B/s", True, {(0, 2): 781.21e9, (1, 3): 780.1e9, (2, 0): 781.35e9, (3, 1): 779.98e9}
    )
    matrices = nvbandwidth.parse(printed.NVBANDWIDTH_MULTINODE_BOTH_WAYS)
    test = "multinode_device_to_device_bidirectional_memcpy_write_ce"
    assert [*matrices] == [f"{test}_write1", f"{test}_write2", f"{test}_total"]
    assert {matrix.between_gpus for matrix in matrices.values()} == {True}
    one, each = nvbandwidth.parse(printed.NVBANDWIDTH_ONE_TO_ALL + printed.NVBANDWIDTH_ALL_TO_ALL).values()
    assert (one.cells, each.cells) == ({(0, 0): 350.1e9, (0, 1): 351.2e9}, {(0, 0): 402.5e9})


def test_nvbandwidth_of_more_than_ten_processes_pads_their_numbers():
    pairs = [(gpu, (gpu + 6) % 12) for gpu in range(12)]
    rows = "\n".join(f"{gpu:2}->{peer:2}{700 + gpu:10.2f}" for gpu, peer in pairs)
    text = f"Running multinode_bisect_write_ce.\nBisect benchmarking, simultaneous write CE BW\n{0:16}\n{rows}\n\n"
    assert [*nvbandwidth.parse(text)["multinode_bisect_write_ce"].cells] == pairs
    cut = text[: text.index(" 7->")]
    assert refused(nvbandwidth.parse, cut).startswith("nvbandwidth printed halves that are cut, or not each GPU")


@real
def test_nvbandwidth_of_real_gpus():
    (matrix,) = nvbandwidth.parse(sample("nvbandwidth_readme_d2d_write.txt")).values()
    assert (len(matrix.cells), matrix.cells[0, 1], matrix.cells[7, 6]) == (56, 276.07e9, 276.45e9)
    matrices = nvbandwidth.parse(sample("nvbandwidth_superbench.txt"))
    assert len(matrices) == 15
    assert matrices["host_to_device_memcpy_ce"].cells[1, 2] == 312.11e9
    assert matrices["host_device_latency_sm"].cells[0, 0] == pytest.approx(772.58e-9)


# nccl-tests


def test_nccl_tests_both_placements_are_figures_of_their_own():
    table = nccl_tests.parse(printed.NCCL_TESTS)
    (row,) = table.rows
    assert (row.size_bytes, row.count, table.out_of_bounds) == (2**20, 2**18, 0)
    assert row.out_of_place == nccl_tests.Placement(41.25e-6, 25.42e9, 44.48e9, 0)
    assert row.in_place == nccl_tests.Placement(40.75e-6, 25.73e9, 45.03e9, 0)


def test_nccl_tests_blank_columns_before_the_time_shift_nothing():
    empty, row = nccl_tests.parse(printed.NCCL_ALLTOALL).rows
    assert (empty.size_bytes, empty.out_of_place.busbw) == (0, 0.0)
    assert row.out_of_place == nccl_tests.Placement(pytest.approx(87.42e-6), 11.99e9, 10.5e9, None)


def test_nccl_tests_columns_of_single_iterations_shift_nothing():
    (row,) = nccl_tests.parse(printed.NCCL_PER_ITERATION).rows
    assert row.in_place == nccl_tests.Placement(40.75e-6, 25.73e9, 45.03e9, 0)


def test_nccl_tests_a_row_of_which_a_half_is_blank_is_refused_in_plain_words():
    (line,) = (line for line in printed.NCCL_TESTS.splitlines() if line.strip().startswith("1048576"))
    *before, time_s, algbw, busbw, wrong = line.split()
    half = " ".join((*before[:5], time_s, algbw, busbw, wrong))
    message = refused(nccl_tests.parse, printed.NCCL_TESTS.replace(line, half))
    assert message.startswith(
        "nccl-tests printed a row with figures of one placement alone, as the replay of a trace does, and here both "
        "are read: run the collective's own program, such as all_reduce_perf: '1048576 "
    )


def test_nccl_tests_a_verdict_of_failure_is_told():
    text = printed.NCCL_TESTS.replace(": 0 OK", ": 2 FAILED").replace("44.48       0", "44.48      37")
    table = nccl_tests.parse(text)
    assert (table.out_of_bounds, table.rows[0].out_of_place.wrong) == (2, 37)


def test_nccl_tests_a_verdict_that_contradicts_itself_is_refused():
    message = refused(nccl_tests.parse, printed.NCCL_TESTS.replace(": 0 OK", ": 2 OK"))
    assert message == "nccl-tests printed a verdict that cannot be read: '# Out of bounds values : 2 OK'"


def test_nccl_tests_a_table_without_its_end_is_refused():
    text = printed.NCCL_TESTS[: printed.NCCL_TESTS.index("# Out")]
    assert refused(nccl_tests.parse, text).startswith("nccl-tests did not finish its table: ")


def test_nccl_tests_an_algbw_that_is_not_size_over_time_is_refused():
    message = refused(nccl_tests.parse, printed.NCCL_TESTS.replace("   25.42", "  254.20"))
    assert message.startswith("nccl-tests printed a row whose algbw is not its size over its time: '1048576 ")


def test_nccl_tests_another_unit_is_refused():
    message = refused(nccl_tests.parse, printed.NCCL_TESTS.replace("(us)", "(ms)"))
    assert message.startswith("nccl-tests printed units that are not known: ")


@real
@pytest.mark.parametrize(
    ("kind", "last_s", "last_busbw"),
    [
        ("allreduce", 63959e-6, 235.03e9),
        ("allgather", 32669e-6, 230.07e9),
        ("alltoall", 33234e-6, 226.16e9),
        ("broadcast", 36599e-6, 234.70e9),
        ("reduce", 37539e-6, 228.83e9),
        ("reducescatter", 32502e-6, 231.25e9),
    ],
)
def test_nccl_tests_of_real_gpus(kind, last_s, last_busbw):
    table = nccl_tests.parse(sample(f"nccl_tests_{kind}_superbench.txt"))
    last = table.rows[-1]
    assert last.size_bytes == 8589934592
    assert last.in_place.time_s == pytest.approx(last_s)
    assert last.in_place.busbw == pytest.approx(last_busbw)
    assert len(table.rows) == 34


@real
def test_nccl_tests_of_two_nodes():
    table = nccl_tests.parse(sample("nccl_tests_2_17_a100_2node_abridged.txt"))
    assert [row.out_of_place.busbw for row in table.rows] == [184.92e9, 187.18e9, 188.39e9, 189.60e9]


# NVSHMEM


def test_nvshmem_figures_by_who_issues():
    figures = nvshmem.parse(printed.NVSHMEM)
    assert [(figure.scope, figure.size_bytes, figure.value, figure.unit) for figure in figures] == [
        ("thread", 1024, pytest.approx(4.25e-6), "s"),
        ("warp", 1024, pytest.approx(3.5e-6), "s"),
        ("block", 1024, pytest.approx(3.75e-6), "s"),
    ]


def test_nvshmem_bandwidths_are_of_1e9():
    line = "&&&& PERF shmem_put_bw_uni___None___size__65536___BW 24.500000 +GB/sec\n"
    (figure,) = nvshmem.parse(line)
    assert (figure.job, figure.scope, figure.value, figure.unit) == ("shmem_put_bw_uni", "none", 24.5e9, "B/s")


@pytest.mark.parametrize("unit", ["MMPS", "MOPS"])
def test_nvshmem_counts_messages_in_millions(unit):
    (figure,) = nvshmem.parse(f"&&&& PERF shmem_p_bw___Thread___size__8___msg_rate 2.500000 +{unit}\n")
    assert (figure.value, figure.unit) == (2.5e6, "1/s")


def test_nvshmem_an_unknown_unit_and_a_figure_printed_twice_are_refused():
    line = "&&&& PERF shmem_put_bw___None___size__8___BW 1.5 +GiB/sec\n"
    assert refused(nvshmem.parse, line) == f"NVSHMEM's perftest printed a line that cannot be read: {line.strip()!r}"
    twice = line.replace("GiB", "GB") * 2
    assert refused(nvshmem.parse, twice).startswith("NVSHMEM's perftest printed one figure twice: ")


# DeepEP


def test_deepep_best_between_nodes():
    dispatch, bf16, combine = deepep.parse_best(printed.DEEPEP_INTERNODE)
    assert dispatch == deepep.BestOfTuning("dispatch_fp8", 1375e-6, 43.75e9, 142.5e9)
    assert (bf16.part, bf16.time_s) == ("dispatch_bf16", 2625e-6)
    assert combine == deepep.BestOfTuning("combine", 2700e-6, 43.25e9, 141.5e9)


def test_deepep_best_within_a_node_has_no_rdma():
    assert deepep.parse_best(printed.DEEPEP_INTRANODE) == (
        deepep.BestOfTuning("dispatch_fp8", None, None, 153.25e9),
        deepep.BestOfTuning("dispatch_bf16", None, None, 155.5e9),
        deepep.BestOfTuning("combine", None, None, 158.75e9),
    )


def test_deepep_low_latency_by_rank():
    first, second = deepep.parse_low_latency(printed.DEEPEP_LOW_LATENCY)
    assert (first.rank, second.rank) == (0, 1)
    assert (second.whole_s, second.whole_min_s, second.whole_max_s) == pytest.approx((435e-6, 412e-6, 950.5e-6))
    assert (second.dispatch_s, second.combine_bytes_per_s) == pytest.approx((157.25e-6, 54.75e9))


def test_deepep_a_rank_without_its_second_line_is_refused():
    lines = printed.DEEPEP_LOW_LATENCY.splitlines(keepends=True)
    message = refused(deepep.parse_low_latency, "".join(lines[:4]))
    assert message.startswith("DeepEP's test printed no whole figures of every rank: ")


@real
def test_deepep_of_two_real_nodes():
    best = {
        best_of_part.part: best_of_part
        for best_of_part in deepep.parse_best(sample("deepep_internode_2node_with_nccl_info.txt"))
    }
    assert best["dispatch_fp8"] == deepep.BestOfTuning("dispatch_fp8", 1379e-6, 43.77e9, 142.88e9)
    assert best["dispatch_bf16"].nvl_bytes_per_s == 145.23e9
    assert best["combine"] == deepep.BestOfTuning("combine", 2700e-6, 43.36e9, 141.52e9)


# iperf3 and fio


def test_iperf3_bits_become_bytes_and_the_receiver_counts():
    assert iperf3.parse(printed.IPERF3) == iperf3.IperfResult(1e9, 2.0, 1, 7, 450e-6)


def test_iperf3_the_round_trip_is_the_mean_over_streams():
    stream = printed.IPERF3[printed.IPERF3.index('{\n\t\t\t\t"sender"') : printed.IPERF3.index("],")]
    text = printed.IPERF3.replace(stream, f"{stream},{stream.replace('450', '650')}")
    assert iperf3.parse(text) == iperf3.IperfResult(1e9, 2.0, 2, 7, pytest.approx(550e-6))


def test_iperf3_without_retransmits_says_none():
    text = printed.IPERF3.replace('"retransmits":\t7\n', '"something":\t7\n').replace('"mean_rtt":\t450', '"x":\t1')
    result = iperf3.parse(text)
    assert (result.retransmits, result.round_trip_s) == (None, None)


def test_iperf3_its_error_is_quoted():
    assert refused(iperf3.parse, '{\n\t"error":\t"unable to connect to server"\n}\n') == (
        "iperf3 reports: unable to connect to server"
    )


def test_iperf3_a_rate_that_is_not_bytes_over_seconds_is_refused():
    message = refused(
        iperf3.parse, printed.IPERF3.replace('"bits_per_second":\t8000000000', '"bits_per_second":\t800000')
    )
    assert message == "iperf3 printed 2e+09 bytes in 2 s and a rate of 100000 B/s"


def test_fio_rates_are_bytes_and_latencies_nanoseconds():
    assert fio.parse(printed.FIO, "read") == fio.FioResult(
        1048576000.0, 1000.0, 2097152000, pytest.approx(990e-6), pytest.approx(950.272e-6), pytest.approx(1531.904e-6)
    )


def test_fio_a_direction_that_moved_nothing_is_refused():
    assert refused(lambda text: fio.parse(text, "write"), printed.FIO) == "fio moved nothing by write"


def test_fio_the_error_of_a_job_is_refused():
    text = printed.FIO.replace('"error" : 0', '"error" : 28')
    assert refused(lambda text: fio.parse(text, "read"), text) == "fio reports error 28"


def test_fio_a_rate_in_another_unit_is_refused():
    text = printed.FIO.replace('"bw_bytes" : 1048576000', '"bw_bytes" : 1024000')
    assert refused(lambda text: fio.parse(text, "read"), text) == (
        "fio printed 2.09715e+09 bytes in 2 s and a rate of 1.024e+06 B/s"
    )


def test_fio_warnings_around_the_document_are_passed_over():
    text = f"fio: this platform does not support process shared mutexes\n{printed.FIO}fio: done\n"
    assert fio.parse(text, "read") == fio.parse(printed.FIO, "read")
