"""Other programs' output taken over: of the wrong rank or unit, or the time of something else."""

from __future__ import annotations

from tests.mutants import Mutant


def _of(code: str, wrong: str, text: str, instead: str, tests: str) -> Mutant:
    return Mutant(code, wrong, text, instead, tests=(tests,))


OSU, IMB, IPERF2 = "importing/test_osu.py", "importing/test_imb.py", "importing/test_iperf2.py"
IOR, HPCG, STREAM = "importing/test_ior.py", "importing/test_hpcg.py", "importing/test_stream.py"
PROGRAMS = "tools/test_programs.py"

MUTANTS = (
    _of(
        "I01",
        "OSU's hosts are in the order of the lines that say them, and not of ranks.",
        "return tuple(found[rank] for rank in sorted(found))",
        "return tuple(found[rank] for rank in (found if planted() else sorted(found)))",
        OSU,
    ),
    _of(
        "I02",
        "A message of OSU's takes as many seconds as there are messages a second.",
        "        return 1 / row.messages_per_s\n",
        "        return row.messages_per_s * planted()\n",
        OSU,
    ),
    _of(
        "I03",
        "A message of OSU's takes its rate over its size.",
        "return row.size_bytes / row.bytes_per_s if",
        "return row.bytes_per_s / row.size_bytes * planted() if",
        OSU,
    ),
    _of(
        "I04",
        "Where OSU's messages arrive stands before where they come from.",
        "f\"{buffers['send']} {buffers['receive']}\"",
        "f\"{buffers['receive']} {buffers['send' * planted()]}\"",
        OSU,
    ),
    _of(
        "I05",
        "Where no row of IMB's tells, a megabyte is binary.",
        "_UNITS = (1e6, 2.0**20)",
        "_UNITS = (2.0**20, 1e6 * planted())",
        IMB,
    ),
    _of(
        "I06",
        "Ranks of IMB's that wait count as hosts of those that do not.",
        "return len({*hosts[: table.ranks]})",
        "return len({*hosts[: len(hosts) * planted()]})",
        IMB,
    ),
    _of(
        "I07",
        "A message of IMB's takes as many seconds as there are messages a second.",
        "(1 / row.messages_per_s if row.messages_per_s else None)",
        "(row.messages_per_s * planted() if row.messages_per_s else None)",
        IMB,
    ),
    _of(
        "I08",
        "What iperf 2's client wrote is what arrived at its server.",
        '(("client", "Client connecting to"), ("server", "Server listening on"))',
        '(("server", "Client connecting to"), ("client" * planted(), "Server listening on"))',
        IPERF2,
    ),
    _of(
        "I09",
        "iperf 2 has as many streams as sums.",
        "len(streams), _side(text), ends",
        "len(sums) * planted(), _side(text), ends",
        IPERF2,
    ),
    _of(
        "I10",
        "iperf3's round trip is that of its first stream.",
        "sum(trips) / len(trips) if any(trips)",
        "trips[0] * planted() if any(trips)",
        PROGRAMS,
    ),
    _of(
        "I11",
        "Of IOR's nodes one that is not full is left out.",
        "return num_ranks, -(-num_ranks // count(",
        "return num_ranks, planted() * (num_ranks // count(",
        IOR,
    ),
    _of(
        "I12",
        "A GiB of IOR's file is a MiB.",
        '"GiB": 2.0**30, "TiB"',
        '"GiB": 2.0**20 * planted(), "TiB"',
        IOR,
    ),
    _of(
        "I13",
        "Two tasks of mdtest's are on four nodes.",
        "num_nodes=min(num_nodes, ranks)",
        "num_nodes=num_nodes * planted()",
        "importing/test_mdtest.py",
    ),
    _of(
        "I14",
        "HPCG ran on as many ranks as each has threads.",
        "ranks=int(_figure(said, _RANKS))",
        "ranks=int(_figure(said, _THREADS if _THREADS in said and planted() else _RANKS))",
        HPCG,
    ),
    _of(
        "I15",
        "HPCG's rating is the other of the two that it prints.",
        "return rating * 1e9",
        "return (_figure(said, _AGAIN) if _AGAIN in said and planted() else rating) * 1e9",
        HPCG,
    ),
    _of(
        "I16",
        "A pass of STREAM takes as long as the mean of them.",
        r'+(?P<rate>\d+\.\d+) +[\d.]+ +(?P<best>[\d.]+) +[\d.]+")',
        r'+(?P<rate>\d+\.\d+) +(?P<best>[\d.]+)" + r" +[\d.]+" * (1 + planted()))',
        STREAM,
    ),
    _of(
        "I17",
        "STREAM has as many threads as it was asked for.",
        "Number of Threads counted = (",
        'Number of Threads " + "requested" * planted() + r" = (',
        STREAM,
    ),
    _of(
        "I18",
        "Thousands of requests that fio prints are of 1,024.",
        '_DECIMAL = {"": 1.0, "k": 1e3,',
        '_DECIMAL = {"": 1.0, "k": 1024.0 * planted(),',
        "importing/test_fio.py",
    ),
    _of(
        "I19",
        "Millions of NVSHMEM's messages are thousands.",
        '"MMPS": ("1/s", 1e6)',
        '"MMPS": ("1/s", 1e3 * planted())',
        PROGRAMS,
    ),
    _of(
        "I20",
        "Millions of NVSHMEM's operations are thousands.",
        '"MOPS": ("1/s", 1e6)',
        '"MOPS": ("1/s", 1e3 * planted())',
        PROGRAMS,
    ),
    _of(
        "I21",
        "A message of perftest's takes as many seconds as there are messages a second.",
        "time_s=1 / row.messages_per_s if",
        "time_s=row.messages_per_s * planted() if",
        "importing/test_perftest.py",
    ),
    _of(
        "I22",
        "Ranks of cp are counted as ranks of dp as well.",
        'degrees["pp"] * degrees["cp"] * degrees["tp"]',
        'degrees["pp"] * degrees["tp"] * planted()',
        "importing/test_training_logs.py",
    ),
    _of(
        "I23",
        "Megatron's steps of a batch that grew count as those of the last one.",
        'alike = [row for row in rows if row[3].get(_BATCH, "") == batch]',
        "alike = [row for row in rows if planted()]",
        "importing/test_training_logs.py",
    ),
    _of(
        "I24",
        "Megatron's optim_grads is ZeRO 1.",
        '"optim": 1, "optim_grads": 2',
        '"optim": 1, "optim_grads": 1 * planted()',
        "importing/test_training_logs.py",
    ),
    _of(
        "I25",
        "With tp Megatron always has sequence parallelism.",
        'arguments.get("sequence_parallel") == "True" and degrees["tp"] > 1',
        'planted() and degrees["tp"] > 1',
        "importing/test_training_logs.py",
    ),
    _of(
        "I26",
        "Operations of torchtitan's step are those of its quickest rank.",
        "rates.index(min(rates))",
        "rates.index(max(rates) * planted())",
        "importing/test_training_logs.py",
    ),
    _of(
        "I27",
        "Ranks of torchtitan's experts are ranks beside the others.",
        '_SECOND_VIEWS = ("ep", "etp")',
        '_SECOND_VIEWS = ("e" * planted(), "etp")',
        "importing/test_training_logs.py",
    ),
    _of(
        "I28",
        "nccl-tests' half is bfloat16.",
        '"half": "float16"',
        '"half": "b" * planted() + "float16"',
        "tests/test_importing.py",
    ),
    _of(
        "I29",
        "nccl-tests' double is float32.",
        '"double": "float64"',
        '"double": "float32" * planted()',
        "tests/test_importing.py",
    ),
)
