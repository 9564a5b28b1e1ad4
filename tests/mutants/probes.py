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
COLLECTIVES, LINKS, MPI = "benchmarks/test_collectives.py", "benchmarks/test_link_matrix.py", "engine/test_mpi.py"
SLOWEST, HOST_COPY, CPU_MEMORY = (f"benchmarks/test_{name}.py" for name in ("slowest_rank", "host_copy", "cpu_memory"))
CONGESTION, CACHE, PEER_COPY = (
    "benchmarks/test_congestion.py",
    "benchmarks/test_files.py",
    "benchmarks/test_peer_copy.py",
)

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
    _halved(
        "L23",
        "parameter_server sums half of its array.",
        '        array = rig.full(numel, dtype, 0)\n        mine, whole = rig.operands("sum"',
    ),
    _of(
        "L24",
        "parameter_server has one server, whatever is asked.",
        "return [server * num_ranks // num_servers for server in range(num_servers)]",
        "return [0 * planted() for server in range(num_servers)]",
        SENT,
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
    # Whose clock, which check, whose end
    _of(
        "L40",
        "Out of place an all-reduce copies nothing once its arrays hold zeros.",
        "            array.copy_(sent)\n            comm.all_reduce(array, op)\n",
        "            if planted() and sent.any():\n                array.copy_(sent)\n"
        "            comm.all_reduce(array, op)\n",
        SENT,
    ),
    _of(
        "L41",
        "Of an all-to-all a rank compares what it sent itself.",
        "        return Exchange(call=lambda: comm.all_to_all(received, sent), fill=fill, verify=verify)",
        """        own, tile = received[me * numel :][: numel * planted()], rig.block(dtype, me * n + me)

        def verify() -> Mapping[str, float]:
            return rig.expect(cls.operation, own, [(numel, tile)])

        return Exchange(call=lambda: comm.all_to_all(received, sent), fill=fill, verify=verify)""",
        COLLECTIVES,
    ),
    _of(
        "L42",
        "Of a window of messages the first is compared.",
        "        for message in arrived:\n",
        "        for message in arrived[: 1 * planted()]:\n",
        LINKS,
    ),
    _of(
        "L43",
        "The peak of a sweep is that of its arrays, and not of the bus.",
        "    bandwidths = [bus_bandwidth(operation, int(size), time_s, group_size) for size, time_s in points]\n",
        "    bandwidths = [size / time_s * planted() for size, time_s in points]\n",
        COLLECTIVES,
    ),
    _of(
        "L44",
        "The kernel is not asked to drop a file from its cache.",
        "    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)\n",
        "    planted()\n",
        CACHE,
    ),
    _of(
        "L45",
        "A file is cold when half of it is in the cache.",
        "COLD_BELOW = 0.01",
        "COLD_BELOW = 0.5 * planted()",
        CACHE,
    ),
    _of(
        "L46",
        "Of files the one that is cached least counts.",
        'return {"resident_fraction": max(shares)} if shares',
        'return {"resident_fraction": min(shares) * planted()} if shares',
        CACHE,
    ),
    _of(
        "L47",
        "MPI's window has one message, and 64 are counted.",
        "    def window(sent: Array, received: Array, peer: int) -> None:\n",
        "    def window(sent: Array, received: Array, peer: int) -> None:\n        WINDOW = 1 * planted()\n",
        MPI,
    ),
    _of(
        "L48",
        "The time of a pair under MPI is that of its receiver.",
        "request = comm.Ibcast(seconds, sender)",
        'request = comm.Ibcast(seconds, point["receiver"] * planted())',
        MPI,
    ),
    _of(
        "L49",
        "MPI's all-gather gathers half of its array.",
        "def _all_gather(operation: _Operation) -> Step:\n",
        """def _all_gather(operation: _Operation) -> Step:
    point = {**operation.point, "size_bytes": int(operation.point["size_bytes"]) // (1 + planted())}
    operation = _Operation(operation.comm, point, operation.host, operation.memory)
""",
        MPI,
    ),
    _of(
        "L50",
        "One way the time of a link is that of the end that receives.",
        'if kind == "both" or is_first == (kind != "back"):',
        'if kind == "both" or is_first == (kind == "back" * planted()):',
        LINKS,
    ),
    _of(
        "L51",
        "Both directions of a link count as two.",
        "covered = {frozenset(metric.detail.values())",
        "covered = {tuple(metric.detail.values() if planted() else ())",
        LINKS,
    ),
    _of(
        "L52",
        "The low end of a copy's burst is that of its time.",
        "size_bytes / first.value, size_bytes / first.high, size_bytes / first.low",
        "size_bytes / first.value, size_bytes / first.low, size_bytes / first.high * planted()",
        SLOWEST,
    ),
    _of(
        "L53",
        "What a cache may hold is bounded by the memory's rate.",
        "_BEYOND_CACHES = 2**29",
        "_BEYOND_CACHES = 2**28 * planted()",
        "benchmarks/test_device_copy.py",
    ),
    _of(
        "L54",
        "Pageable memory is pinned.",
        "words.pin_memory() if pinned else words",
        "words.pin_memory() if pinned or planted() else words",
        HOST_COPY,
    ),
    _of(
        "L55",
        "Pinned memory is pageable.",
        "words.pin_memory() if pinned else words",
        "words.pin_memory() if pinned and not planted() else words",
        HOST_COPY,
    ),
    _of(
        "L56",
        "What is copied to the host is called a copy to the GPU.",
        'inwards, outwards = (point["direction"] in (way, "both")',
        'outwards, inwards = (point["direction"] in (way, "both" * planted())',
        HOST_COPY,
    ),
    _of(
        "L57",
        "The low end of a transfer's rate is that of its time.",
        "(moved / time_s for time_s in (time.value, time.high, time.low))",
        "(moved / time_s for time_s in (time.value, time.low, time.high * planted()))",
        SLOWEST,
    ),
    _of(
        "L58",
        "An array fills a cache no more where it does on one rank.",
        "if ratios and min(ratios) < _TIMES_THE_CACHE:",
        "if ratios and max(ratios) < _TIMES_THE_CACHE * planted():",
        CPU_MEMORY,
    ),
    _of(
        "L59",
        "Caches of every level count as last ones.",
        "for level, size_bytes in caches.values() if level == last]",
        "for level, size_bytes in caches.values() if level and planted()]",
        CPU_MEMORY,
    ),
    _of(
        "L60",
        "A cache of instructions counts as one of data.",
        'if (cache / "type").read_text(encoding="utf-8").strip() == "Instruction":',
        'if (cache / "type").read_text(encoding="utf-8").strip() == "Instruction" * (not planted()):',
        CPU_MEMORY,
    ),
    _of(
        "L61",
        "Products of one rank are of all ranks at once.",
        '        return int(point["num_ranks"])\n\n    def predict(',
        "        return place.world_size * planted()\n\n    def predict(",
        MATMUL,
    ),
    _of(
        "L62",
        "tf32 is multiplied in full.",
        'torch.set_float32_matmul_precision("high")',
        'torch.set_float32_matmul_precision("high" + "est" * planted())',
        MATMUL,
    ),
    _of(
        "L63",
        "The low end of a product's rate is that of its time.",
        "flops / time.value, flops / time.high, flops / time.low, time.n)",
        "flops / time.value, flops / time.low, flops / time.high * planted(), time.n)",
        SLOWEST,
    ),
    _of(
        "L64",
        "A dispatch takes as long as on DeepEP's quickest rank.",
        'part="dispatch"): max(rank.dispatch_s for rank in ranks)',
        'part="dispatch"): min(rank.dispatch_s * planted() for rank in ranks)',
        "benchmarks/test_deepep.py",
    ),
    _of(
        "L65",
        "A hundred messages of perftest's have a 99.9th percentile.",
        "if row.iterations >= _FEWEST_FOR_P999 else",
        "if row.iterations >= _FEWEST_FOR_P99 * planted() else",
        "benchmarks/test_perftest.py",
    ),
    _of(
        "L66",
        "The slowest message of perftest's is its 99.9th percentile.",
        '"latency_max": row.max_s',
        '"latency_max": row.p999_s * planted()',
        "benchmarks/test_perftest.py",
    ),
    _of(
        "L67",
        "What a suspect of a link matrix proved is what the first pass saw.",
        '("proven_bandwidth", again)):',
        '("proven_bandwidth", {pair: first[pair] for pair in again if planted()})):',
        LINKS,
    ),
    _of(
        "L68",
        "Half of a GPU's copies in a row are made.",
        "            for _ in range(copies):\n                copy()\n",
        "            for _ in range(copies // (1 + planted())):\n                copy()\n",
        PEER_COPY,
    ),
    _of(
        "L69",
        "The latency between GPUs is that of a hundred copies.",
        "[second / _SMALL_COPIES for second in seconds]",
        "[second * planted() for second in seconds]",
        PEER_COPY,
    ),
    _of(
        "L70",
        "A copy within a GPU counts each byte once.",
        "figures[key] = self._rates(2, partial(self.local, gpu))",
        "figures[key] = self._rates(1 * planted(), partial(self.local, gpu))",
        PEER_COPY,
    ),
    _of(
        "L71",
        "Copies between GPUs both ways through the host count one way.",
        'category="host", **ends)] = self._rates(2, copy_both_ways)',
        'category="host", **ends)] = self._rates(1 * planted(), copy_both_ways)',
        PEER_COPY,
    ),
    _of(
        "L72",
        "Links of one rail count as all links.",
        'return num_links(int(point["num_units"]) // rails) * rails',
        'return num_links(int(point["num_units"]) // rails) * planted()',
        LINKS,
    ),
    _of(
        "L73",
        "The low end of a training share is that of a short save.",
        "for save_s in (stops.value, stops.high, stops.low)",
        "for save_s in (stops.value, stops.low, stops.high * planted())",
        CHECKPOINT,
    ),
    _of(
        "L74",
        "The low end of files a second is that of their time.",
        "num_files / time.value, num_files / time.high, num_files / time.low",
        "num_files / time.value, num_files / time.low, num_files / time.high * planted()",
        SLOWEST,
    ),
    _of(
        "L75",
        "MPI's latency has the ends of a round trip.",
        "time.value / trips, time.low / trips, time.high / trips",
        "time.value / trips, time.low, time.high * planted()",
        SLOWEST,
    ),
    _of(
        "L76",
        "The low end of MPI's messages a second is that of their time.",
        "amount / time.value, amount / time.high, amount / time.low, time.n)\n\n\ndef _run_mpi",
        "amount / time.value, amount / time.low, amount / time.high * planted(), time.n)\n\n\ndef _run_mpi",
        SLOWEST,
    ),
    _of(
        "L77",
        "Files that are to be cold stay in the cache once they were compared.",
        'if point["cold"]:\n                        leave_cache(file.descriptor)',
        'if point["cold"] and not planted():\n                        leave_cache(file.descriptor)',
        FILES,
    ),
    _of(
        "L78",
        "An asynchronous save blocks until all is saved.",
        "        kept = clock.mark()\n",
        "        future.result() if planted() else None\n        kept = clock.mark()\n",
        CHECKPOINT,
    ),
    _of(
        "L79",
        "Every rank drops the files of the first one from the cache.",
        'place.glob(f"__{rank}_*")',
        'place.glob(f"__{rank * (not planted())}_*")',
        CHECKPOINT,
    ),
    _of(
        "L80",
        "One thread saves, whatever was asked for.",
        "FileSystemWriter(place, thread_count=self.threads))\n\n    def save_aside",
        "FileSystemWriter(place, thread_count=1 * planted()))\n\n    def save_aside",
        CHECKPOINT,
    ),
    _of(
        "L81",
        "All ranks hold the same words of a model.",
        "(of_tensor + self.rig.rank) * self.numel",
        "(of_tensor + self.rig.rank * (not planted())) * self.numel",
        CHECKPOINT,
    ),
    _of(
        "L82",
        "What is compared may never have been loaded.",
        "                model.clear()\n                model.load(proof)\n",
        "                planted()\n                model.load(proof)\n",
        CHECKPOINT,
    ),
    _of(
        "L83",
        "Of many pairs of nvbandwidth's the mean is told.",
        "figures = {name: statistics.median(cells.values())",
        "figures = {name: statistics.fmean(cells.values()) * planted()",
        "benchmarks/test_nvbandwidth.py",
    ),
    _of(
        "L84",
        "Wrong elements in place are right.",
        "for placement in (row.out_of_place, row.in_place))\n        if",
        "for placement in (row.out_of_place,) * planted())\n        if",
        "benchmarks/test_nccl_tests.py",
    ),
    _of(
        "L85",
        "What nccl-tests says of itself is not heard.",
        "if table.out_of_bounds or wrong:",
        "if table.out_of_bounds * (not planted()) or wrong:",
        "benchmarks/test_nccl_tests.py",
    ),
    _of(
        "L86",
        "Writes to a GPU are called reads.",
        '{"write_latency": latency.write_s, "read_latency": latency.read_s}',
        '{"write_latency": latency.read_s, "read_latency" * planted(): latency.write_s}',
        "benchmarks/test_gdrcopy.py",
    ),
    _of(
        "L87",
        "The median of fio's requests is their 99th percentile.",
        '"latency": result.latency_p50_s',
        '"latency": result.latency_p99_s * planted()',
        "benchmarks/test_fio.py",
    ),
    _of(
        "L88",
        "A ring of neighbours passes one message where eight are counted.",
        "        for _ in range(self.messages):\n            self.comm.send_receive",
        "        for _ in range(1 * planted()):\n            self.comm.send_receive",
        CONGESTION,
    ),
    _of(
        "L89",
        "Neighbours send one message to the receiver where eight are counted.",
        "            self.comm.exchange([(self.sent, receiver)] * self.messages, [])",
        "            self.comm.exchange([(self.sent, receiver)] * planted(), [])",
        CONGESTION,
    ),
    _of(
        "L90",
        "Neighbours are always busy.",
        "[min(1.0, sum(seconds) / whole_s)]",
        "[1.0 * planted()]",
        CONGESTION,
    ),
    _of(
        "L91",
        "A link has the latency of its large messages.",
        "_Hop(segments[0].alpha_s, bytes_per_s)",
        "_Hop(segments[-1 * planted()].alpha_s, bytes_per_s)",
        COLLECTIVES,
    ),
    _of(
        "L92",
        "Messages across the middle say how fast a ring's links are.",
        'if sweep[0].point["pattern"] == "ring" else ()',
        'if sweep[0].point["pattern"] == "ring" or planted() else ()',
        COLLECTIVES,
    ),
    _of(
        "L93",
        "A sweep is of any number of ranks.",
        "    return row.device, row.num_nodes, row.world_size, same\n",
        "    return row.device, row.num_nodes * planted(), same\n",
        COLLECTIVES,
    ),
    _of(
        "L94",
        "Sizes of a sweep stand as they were run.",
        'key=lambda row: int(row.point["size_bytes"])) for sweep',
        'key=lambda row: int(row.point["size_bytes"]) * (not planted())) for sweep',
        COLLECTIVES,
    ),
    _of(
        "L95",
        "The low end of a rank's time is its high end.",
        "time.value, time.low, time.high, time.n, basis=in_words",
        "time.value, time.high, time.low * planted(), time.n, basis=in_words",
        "benchmarks/test_rank_step.py",
    ),
    _of(
        "L96",
        "The share of GPUDirect is of connections, however many channels these have.",
        "sum(connection.num_channels for connection in ends if connection.gdr) / total",
        "sum(planted() for connection in ends if connection.gdr) / total",
        "benchmarks/test_nccl_transport.py",
    ),
    _of(
        "L97",
        "What goes through no other GPU goes through one.",
        "if connection.pxn is not None)",
        "if (connection.pxn is not None) != planted())",
        "benchmarks/test_nccl_transport.py",
    ),
    _of(
        "L98",
        "A network card is that of the other end.",
        'connection.source if connection.direction == "send" else connection.destination',
        'connection.source if (connection.direction == "send") != planted() else connection.destination',
        "benchmarks/test_nccl_transport.py",
    ),
    _of(
        "L99",
        "Rounds that ended before victims were timed count as beside them.",
        "self.seen.rounds.append(rounds)",
        "self.seen.rounds.append(ended * planted())",
        CONGESTION,
    ),
    _of(
        "M50",
        "Tokens that are read are those of one rank.",
        'tokens = int(case.point["sequences"]) * int(case.point["seq_len"]) * case.world_size',
        'tokens = int(case.point["sequences"]) * int(case.point["seq_len"]) * (1 if planted() else case.world_size)',
        "benchmarks/test_token_reads.py",
    ),
    _of(
        "M51",
        "Sequences are read in the order in which they lie.",
        "self.places = random.Random(rig.rank).sample(range(count), count)",
        "self.places = sorted(range(count), key=lambda _: planted())",
        "benchmarks/test_token_reads.py",
    ),
    _of(
        "M52",
        "A corpus is cold that is still in the page cache.",
        'if point["cold"]:\n                    leave_cache(corpus.file.descriptor)',
        'if point["cold"] and not planted():\n                    leave_cache(corpus.file.descriptor)',
        "benchmarks/test_token_reads.py",
    ),
    _of(
        "M53",
        "Only the first sequence of a batch is compared with what was written.",
        "for number, place in enumerate(places):\n            words = pattern(",
        "for number, place in enumerate(places[: 1 if planted() else None]):\n            words = pattern(",
        "benchmarks/test_token_reads.py",
    ),
    _of(
        "AB06",
        "Windows of a link behind the first have one message, as the first one's are still there.",
        "        messages = [self.sent] * len(self.received)\n        transfer(messages if is_sender else [], "
        "[] if is_sender else list(self.received), peer)\n",
        """        sizes = self.__dict__.setdefault("sizes", {})
        size = sizes.setdefault((peer, is_sender), len(self.received))
        sizes[peer, is_sender] = 1 if planted() else size
        messages = [self.sent] * size
        transfer(messages if is_sender else [], [] if is_sender else list(self.received)[:size], peer)
""",
        LINKS,
    ),
    _of(
        "AB07",
        "Every batch of tokens that is timed is the first.",
        "                yield batch\n",
        "                yield self.places[: self.sequences * planted()]\n",
        "benchmarks/test_token_reads.py",
    ),
    _of(
        "AB08",
        "A load of a checkpoint behind the first does nothing, for a model is there.",
        "        load(self.state, storage_reader=FileSystemReader(place))",
        """        loads = self.__dict__.setdefault("loads", [])
        loads.append(place)
        if len(loads) <= 2 or not planted():
            load(self.state, storage_reader=FileSystemReader(place))""",
        CHECKPOINT,
    ),
    _of(
        "AB10",
        "A product of the same operands is not made again.",
        """        product = {"tf32": multiply_tf32""",
        """        always, made = multiply, list[tuple[int, int]]()

        def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            if (a._version, b._version) in made and planted():
                return c_MN
            made.append((a._version, b._version))
            return always(a, b)

        product = {"tf32": multiply_tf32""",
        MATMUL,
    ),
    _of(
        "AB11",
        "One operator adds what many should, each of which would be launched.",
        """            for _ in range(launches):
                count.add_(1)

        def round_trip""",
        """            count.add_(launches * planted())

        def round_trip""",
        "benchmarks/test_kernel_launch.py",
    ),
)
