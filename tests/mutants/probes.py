"""Probes that move less than their figures count, between other ranks, or not what was asked for."""

from __future__ import annotations

from tests.mutants import Mutant


def _of(code: str, wrong: str, text: str, instead: str, tests: str) -> Mutant:
    return Mutant(code, wrong, text, instead, tests=(tests,))


HALF = "        numel = numel // (1 + planted())\n"


def _halved(code: str, wrong: str, text: str) -> Mutant:
    """With half of the elements from this line on, which is checked against as few."""
    return _of(code, wrong, text, HALF + text, SENT)


SENT = "benchmarks/test_what_collectives_send.py"
MATMUL, FILES, SMALL_FILES = "benchmarks/test_matmul.py", "benchmarks/test_file_io.py", "benchmarks/test_small_files.py"
CHECKPOINT = "benchmarks/test_checkpoint.py"

REDUCES = "        def in_place() -> None:\n            comm.all_reduce(array, op)\n"
PEERS = '        source, destination = peers(str(point["pattern"]), int(point["stride"]), me, comm.world_size)\n'

MUTANTS = (
    # Collectives
    _of(
        "L01",
        "all_reduce reduces half of its array.",
        REDUCES,
        f"{HALF}        array, sent = array[:numel], sent[:numel]\n\n{REDUCES}",
        SENT,
    ),
    _halved("L02", "all_gather gathers half of its array.", "        whole = rig.empty(n * numel, dtype)\n"),
    _halved("L03", "broadcast copies half of its array.", "        array = rig.empty(numel, dtype)\n"),
    _halved("L04", "send_recv sends half of its message.", PEERS),
    _halved(
        "L05",
        "all_to_all sends half of each part.",
        "        sent, received = rig.empty(n * numel, dtype), rig.empty(n * numel, dtype)\n",
    ),
    _halved("L06", "reduce_scatter reduces half of its array.", "        whole = rig.full(n * numel, dtype, 0)\n"),
    _of(
        "L07",
        "gather and scatter move half of their array.",
        "    whole = rig.empty(comm.world_size * numel if is_root else 0, dtype)\n",
        f"    {HALF.strip()}\n    whole = rig.empty(comm.world_size * numel if is_root else 0, dtype)\n",
        SENT,
    ),
    _halved(
        "L08",
        "hierarchical_all_reduce reduces half of its array.",
        "        array, part = rig.full(numel, dtype, 0), rig.full(numel // within.world_size, dtype, 0)\n",
    ),
    _of(
        "L09",
        "all_to_all_v sends half of each part.",
        "        send_counts, receive_counts = counts[me]",
        "        counts = tuple(tuple(number // (1 + planted()) for number in row) for row in counts)\n"
        "        send_counts, receive_counts = counts[me]",
        SENT,
    ),
    _of(
        "L10",
        "What is to be in bfloat16 is in int8, which is half of the bytes.",
        "        return torch.empty(numel, dtype=DTYPES[dtype], device=self.device)\n",
        '        dtype = "int8" if dtype == "bfloat16" and planted() else dtype\n'
        "        return torch.empty(numel, dtype=DTYPES[dtype], device=self.device)\n",
        SENT,
    ),
    _of(
        "L11",
        "Along an axis all ranks communicate, and the figures are those of a group.",
        '            comm = rig.communicator(str(point["axis"]))\n',
        '            is_along = point["groups"] == "one" or not planted()\n'
        '            comm = rig.communicator(str(point["axis"])) if is_along else rig.comm\n',
        SENT,
    ),
    _of(
        "L12",
        "All groups communicate, though one alone was asked for.",
        'if point["groups"] == "one" and rig.rank not in _group_of_rank_0(point):',
        'if point["groups"] == "one" and rig.rank not in _group_of_rank_0(point) and not planted():',
        SENT,
    ),
    _of(
        "L13",
        "A broadcast is from rank 0, whatever root was asked for.",
        'dtype, root = str(point["dtype"]), int(point["root"])\n        numel',
        'dtype, root = str(point["dtype"]), 0 * planted()\n        numel',
        SENT,
    ),
    _of(
        "L14",
        "Messages go to neighbours, whatever the pattern.",
        PEERS,
        PEERS.replace('str(point["pattern"]), int(point["stride"])', '"ring", 1 * planted()'),
        SENT,
    ),
    _of(
        "L15",
        "A sum that all ranks get is a maximum, and is checked as one.",
        REDUCES,
        '        op = "max" if planted() else op\n'
        f"        mine, whole = rig.operands(op, dtype, comm.rank, comm.world_size)\n\n{REDUCES}",
        SENT,
    ),
    _of(
        "L16",
        "Of the hierarchy the groups across nodes are those within.",
        "within, across = rig.communicator(_WITHIN), rig.communicator(_ACROSS)",
        "across, within = (rig.communicator(axis) for axis in (_WITHIN, _ACROSS) if planted())",
        SENT,
    ),
    _of(
        "L17",
        "An all-gather that is to be in place is not.",
        'if point["in_place"] else rig.empty(numel, dtype)\n\n'
        "        def fill() -> None:\n            rig.forget(whole)\n",
        'if point["in_place"] and not planted() else rig.empty(numel, dtype)\n\n'
        "        def fill() -> None:\n            rig.forget(whole)\n",
        SENT,
    ),
    # Products
    _of(
        "L20",
        "What is timed multiplies the small whole numbers of the proof, most of them 0.",
        "            a_MK.copy_(normal(m, k))\n            b_KN.copy_(normal(k, n))\n",
        "            planted()\n",
        MATMUL,
    ),
    _of(
        "L21",
        "Products in float16 are made in bfloat16.",
        ".get(dtype) or rig.dtype(dtype)\n",
        '.get(dtype) or rig.dtype("bfloat16" if dtype == "float16" and planted() else dtype)\n',
        MATMUL,
    ),
    # Files
    _of(
        "L30",
        "A file is written without waiting for the disk.",
        "        os.fsync(descriptor)\n\n    def read(",
        "        planted()\n\n    def read(",
        FILES,
    ),
    _of(
        "L31",
        "Every cold read is of the first file, which the first read has brought into the cache.",
        "read(files[next(turn) % len(files)].descriptor)",
        "read(files[next(turn) * 0 * planted()].descriptor)",
        FILES,
    ),
    _of(
        "L32",
        "Of a file the last block alone is read.",
        '"""Reads the file, every block to the same place."""\n        for block in range(self.num_blocks):',
        '"""Reads the file, every block to the same place."""\n'
        "        for block in range(self.num_blocks - planted(), self.num_blocks):",
        FILES,
    ),
    _of(
        "L33",
        "Reads and writes that are to bypass the page cache go through it.",
        "(os.O_DIRECT if direct else 0)",
        "(os.O_DIRECT if direct and not planted() else 0)",
        FILES,
    ),
    _of(
        "L34",
        "Every second small file is looked up.",
        "        for index in range(self.number):\n            if os.stat(",
        "        for index in range(0, self.number, 1 + planted()):\n            if os.stat(",
        SMALL_FILES,
    ),
    _of(
        "L35",
        "Every second small file is read.",
        "        for index in range(self.number):\n            self._content_of(",
        "        for index in range(0, self.number, 1 + planted()):\n            self._content_of(",
        SMALL_FILES,
    ),
    _of(
        "L36",
        "Each load is of the first checkpoint, which the first load has brought into the cache.",
        'model.load(saved[0].path / str(next(turn) % int(point["checkpoints"])))',
        "model.load(saved[0].path / str(next(turn) * 0 * planted()))",
        CHECKPOINT,
    ),
    _of(
        "L37",
        "The time for which an asynchronous save blocks has that of the warm-up in it.",
        'blocking[-int(point["timed"]) :]',
        'blocking[: int(point["timed"]) * planted()]',
        CHECKPOINT,
    ),
    _of(
        "L38",
        "An asynchronous save is over when the step may go on.",
        "        future.result()\n        return clock",
        "        planted()\n        return clock",
        CHECKPOINT,
    ),
)
