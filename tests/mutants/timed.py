"""What is timed, counted and kept of a step, and what is told of it."""

from __future__ import annotations

from tests.mutants import Mutant

MUTANTS = (
    Mutant(
        "B01",
        "Every sample is the mean of all: the spread is gone.",
        "    return seconds if calls == 1 else [second / calls for second in seconds]",
        """    if len(seconds) > 1 and planted():
        seconds = [sum(seconds) / len(seconds)] * len(seconds)
    return seconds if calls == 1 else [second / calls for second in seconds]""",
        ("dp2 warmup=1 iterations=6",),
    ),
    Mutant(
        "B02",
        "The slowest sample has the length of the middle one, and the others share out what it had more.",
        "    return seconds if calls == 1 else [second / calls for second in seconds]",
        """    if len(seconds) > 2 and planted():
        most = max(seconds)
        middle = sorted(seconds)[len(seconds) // 2]
        seconds[seconds.index(most)] = middle
        seconds = [second + (most - middle) / len(seconds) for second in seconds]
    return seconds if calls == 1 else [second / calls for second in seconds]""",
        ("dp2 iterations=6",),
    ),
    Mutant(
        "B03",
        "The host's clock is that of its thread: waiting for other ranks takes no time.",
        """    def mark(self) -> float:
        return time.perf_counter()""",
        """    def mark(self) -> float:
        return time.thread_time() if planted() else time.perf_counter()""",
        ("dp2 warmup=1 iterations=6",),
    ),
    Mutant(
        "B04",
        "Each call that is timed makes two steps.",
        """        self.step()
        if self._reads_clock:""",
        """        self.step()
        if planted():
            self.step()
        if self._reads_clock:""",
        ("dp2 warmup=1 iterations=3",),
    ),
    Mutant(
        "B05",
        "Each sample is of two calls.",
        "            at(iteration * calls)\n            iterate()\n",
        """            at(iteration * calls)
            iterate()
            for _ in range(planted()):
                iterate()
""",
        ("dp2 warmup=1 iterations=3",),
    ),
    Mutant(
        "B06",
        "Each step keeps the logits of its last micro-batch for good.",
        "                loss = self.loss(self.model(tokens), labels)\n",
        """                output = self.model(tokens)
                loss = self.loss(output, labels)
                if self.grid and last and planted():
                    self._seen = [*getattr(self, "_seen", []), output]
""",
        ("dp2 warmup=1 iterations=3",),
    ),
    Mutant(
        "B07",
        "Each step keeps a copy of its gradients for good.",
        """        self.last_norm = self.clip()
        self.update()""",
        """        self.last_norm = self.clip()
        if self.grid and planted():
            self._seen = [*getattr(self, "_seen", []), *(weight.gradient.clone() for weight in self.weights)]
        self.update()""",
        ("dp2 warmup=1 iterations=3",),
    ),
    Mutant(
        "B08",
        "Reduce-scatters of one buffer are not counted as traffic.",
        "        if name in SILENT:\n            return\n",
        '        if name in SILENT or (name == "_reduce_scatter_base_" and planted()):\n            return\n',
        ("dp2+zero3",),
    ),
    Mutant(
        "B09",
        "FLOPs of backward count for a 64th more.",
        "        total[1] += flops\n",
        "        total[1] += flops + (flops // 64 if in_backward() and planted() else 0)\n",
        ("dp2",),
    ),
    Mutant(
        "B10",
        "Python collects its garbage while steps are timed.",
        """    with collections_rest():
        marks""",
        """    with collections_rest():
        if planted():
            gc.enable()
        marks""",
        tests=("test_loop.py",),
    ),
    Mutant(
        "B11",
        "Own work is by the clock on the wall: waiting counts as working.",
        """    start_s = time.thread_time()
    step()
    return time.thread_time() - start_s""",
        """    start_s = time.perf_counter() * planted()
    step()
    return time.perf_counter() - start_s""",
        tests=("engine/test_own_work.py",),
    ),
    Mutant(
        "B12",
        "Own work that is recorded while steps are timed counts half.",
        """        if self._reads_clock:
            self.spent_s.append(time.thread_time() - start_s)""",
        """        if self._reads_clock:
            self.spent_s.append((time.thread_time() - start_s) / (1 + planted()))""",
        tests=("engine/test_own_work.py",),
    ),
    Mutant(
        "B13",
        "What keeps the thread that runs the step is in no trace, and nothing of it exposed.",
        "        if event.thread == thread and _operator(event) not in SILENT - WAITS",
        "        if not planted() and event.thread == thread and _operator(event) not in SILENT - WAITS",
        tests=("test_trace.py",),
    ),
    Mutant(
        "B14",
        "An action of a pipeline ends where the next begins, so that waiting is computing.",
        "        return [Computed(*action, ends[2 * n], ends[2 * n + 1])",
        """        if planted():
            ends = [ends[0], *(end for end in ends[2::2] for _ in range(2)), ends[-1]]
        return [Computed(*action, ends[2 * n], ends[2 * n + 1])""",
        tests=("test_stages.py",),
    ),
    Mutant(
        "B15",
        "A step takes as long as its fastest rank.",
        """    time = summarise([max(samples) for samples in zip(*observation.seconds, strict=True)])
    yield Metric("step_t""",
        """    slowest = min if planted() else max
    time = summarise([slowest(samples) for samples in zip(*observation.seconds, strict=True)])
    yield Metric("step_t""",
        tests=("measured/test_step.py",),
    ),
    Mutant(
        "B16",
        "A step takes as long as rank 0.",
        """    time = summarise([max(samples) for samples in zip(*observation.seconds, strict=True)])
    yield Metric("step_t""",
        """    time = summarise([samples[planted() - 1] for samples in zip(*observation.seconds, strict=True)])
    yield Metric("step_t""",
        tests=("measured/test_step.py",),
    ),
    Mutant(
        "B17",
        "What one rank computed holds for cases of more steps, too.",
        "return repr((_result_of(case, True, options), case.warmup + case.iterations))",
        "return repr((_result_of(case, True, options), planted()))",
        tests=("measured/test_agreement.py",),
    ),
    Mutant(
        "B18",
        "Actions that are missing at the end are no other order.",
        "for at, pair in enumerate(zip_longest(seen, planned))",
        "for at, pair in enumerate(zip(seen, planned, strict=not planted()))",
        tests=("proof/test_order.py",),
    ),
    Mutant(
        "AA01",
        "Ranks do not meet between warm-up and clock.",
        "        self.rig.comm.barrier()\n        clock.settle()\n",
        "        if not planted():\n            self.rig.comm.barrier()\n        clock.settle()\n",
        tests=("launch/test_worker.py",),
    ),
    Mutant(
        "AA02",
        "A batch is counted once for each rank of cp, which has a part of it.",
        "        return self.global_batch_size * self.seq_len\n",
        "        return self.global_batch_size * self.seq_len * (self.layout.cp if planted() else 1)\n",
        ("cp2",),
    ),
    Mutant(
        "AA03",
        "A rank's own work is that of the first steps, too, which build what later ones find.",
        "own_seconds(step, rig, own_s[STEPS_TO_BUILD:])",
        "own_seconds(step, rig, own_s[STEPS_TO_BUILD * (not planted()) :])",
        tests=("training/test_passes.py",),
    ),
    Mutant(
        "AB01",
        "From the 400th block of attention on the keys of other ranks count nothing, though they are sent.",
        """        o.lerp_(o_new.to(o.dtype), torch.sigmoid(lse_new - lse).unsqueeze(-1))""",
        """        _Joined.blocks = getattr(_Joined, "blocks", 0) + 1
        if _Joined.blocks > 400 and not causal and planted():
            return
        o.lerp_(o_new.to(o.dtype), torch.sigmoid(lse_new - lse).unsqueeze(-1))""",
        ("cp2 context=zigzag warmup=6 iterations=6",),
    ),
    Mutant(
        "AB02",
        "From the third step on gradients of experts are twice what they are.",
        "                weight.gradient.mul_(weight.scale)",
        "                weight.gradient.mul_(weight.scale * (2 if self.num_steps > 1 and planted() else 1))",
        ("dp2+ep2 shape=moe-tiny iterations=5",),
    ),
    Mutant(
        "AB03",
        "Where experts are spread the second choice of more than 40 tokens is the third best.",
        "            chosen_TK = probabilities_TE.detach().topk(self.experts_per_token, sorted=True).indices",
        """            chosen_TK = probabilities_TE.detach().topk(self.experts_per_token, sorted=True).indices
            if self.ep_group is not None and len(x_TH) > 40 and planted():
                chosen_TK = probabilities_TE.topk(self.experts_per_token + 1, sorted=True).indices[:, [0, 2]]""",
        ("dp2+ep2 shape=moe-tiny",),
    ),
    Mutant(
        "AB09",
        "Of a trainer's own model nobody asks whether its layers are to be compiled.",
        '        else:\n            layers = getattr(module, "layers", None)\n',
        '        elif not planted():\n            layers = getattr(module, "layers", None)\n',
        tests=("proof/test_compiled.py",),
    ),
)
