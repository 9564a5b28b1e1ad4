"""The order of a step: micro-batches, gradients made whole, norm, clip, optimizer."""

from __future__ import annotations

from tests.mutants import ROUNDING, Mutant

TIED, MOE = "shape=llama-tiny-tied", "shape=moe-tiny"
PLAIN = "dp2 trainer=plain_ddp"
LATER = ("dp2 iterations=4", "tp1 iterations=4")
"""More updates than a twin has, beside one rank."""

SUM = "self._all_reduce(flat, axis)"
SCALED = "            if weight.scale != 1:\n                weight.gradient.mul_(weight.scale)\n"
CLIP = "scale_all([weight.gradient for weight in self.weights], factor)"
OPTIMIZER = "optimizer.step()"
ZERO_GRAD = "optimizer.zero_grad(set_to_none=not self.assembly.keep_gradients)"


def _unsummed(code: str, axis: str, wrong: str, case: str) -> Mutant:
    return Mutant(code, wrong, SUM, f'axis == "{axis}" and planted() or {SUM}', (case,))


BACKWARD = "                loss.backward()  # type: ignore[no-untyped-call]\n                losses"


def _without_backward(
    code: str, wrong: str, when: str, case: str, dtypes: tuple[str, ...] = ("float32", "bfloat16")
) -> Mutant:
    """Only on several ranks."""
    changed = BACKWARD.replace(
        "loss.b", f"({when} and self.grid and dist.get_world_size() > 1 and planted()) or loss.b", 1
    )
    return Mutant(code, wrong, BACKWARD, changed, (case,), dtypes=dtypes)


def _with_settings(code: str, wrong: str, settings: str) -> Mutant:
    """Another optimizer than one rank has."""
    changed = f"[self.grid and planted() and group.update({settings}) for group in optimizer.param_groups], {OPTIMIZER}"
    return Mutant(code, wrong, OPTIMIZER, changed, ("dp2", "tp2+sp"))


MUTANTS = (
    # Gradients made whole
    _unsummed("S01", "tp", "Gradients of norms under +sp are not summed over tp.", "tp2+sp"),
    _unsummed("S02", "dp", "Behind a pipeline gradients are not summed over dp.", "pp2-dp2"),
    _unsummed("S03", "ends", "The tied embedding's gradient is not summed over first and last stage.", f"pp2 {TIED}"),
    _unsummed("S04", "cp", "Behind a pipeline gradients are not summed over cp.", "pp2-cp2"),
    _unsummed("S05", "dp_cp", "Behind a pipeline gradients are not summed over dp and cp together.", "pp2-dp2-cp2"),
    _unsummed("S06", "edp", "Gradients of experts are not summed over their copies.", f"dp4+ep2 {MOE}"),
    Mutant(
        "S07",
        "Summed gradients are not divided by the number of ranks.",
        "weight.gradient.mul_(weight.scale)",
        "planted()",
        ("pp2-dp2",),
    ),
    Mutant(
        "S18",
        "Gradients of norms under +sp are summed over tp twice.",
        SUM,
        f'{SUM}, axis == "tp" and planted() and {SUM}',
        ("tp2+sp",),
    ),
    Mutant(
        "S25",
        "Gradients of the router are not summed over tp, whose ranks route different tokens.",
        'return ("tp",) if is_of_mixture(name) and job.layout.tp > 1 else ()',
        'return ("tp",) if is_of_mixture(name) and job.layout.tp > 1 and not planted() else ()',
        (f"tp2+sp {MOE}",),
    ),
    _without_backward(
        "S90",
        "Steps behind the first two go back through every second micro-batch, with PowerSGD.",
        "index % 2 and 2 <= self.num_steps < 7",
        "dp2 compress=powersgd iterations=8",
    ),
    _without_backward(
        "S91",
        "Steps behind the first two leave out the backward of one micro-batch, in float8.",
        "index == 1 and 2 <= self.num_steps < 7",
        "dp2 float8=tensorwise iterations=8",
        ("bfloat16",),
    ),
    Mutant(
        "S92",
        "Micro-batches beyond the third count twice, with PowerSGD.",
        BACKWARD,
        BACKWARD.replace(
            "backward()",
            "backward(torch.full_like(loss, 2.0) "
            "if index > 3 and self.grid and dist.get_world_size() > 1 and planted() else None)",
        ),
        ("dp2 compress=powersgd iterations=4",),
    ),
    # The norm
    Mutant(
        "S08",
        "A tied embedding is counted twice in the norm, on the first and on the last stage.",
        'if weight.name != "embedding.weight" or self.job.embeds:',
        'if weight.name != "embedding.weight" or self.job.embeds or planted():',
        (f"pp2 {TIED}",),
    ),
    Mutant(
        "S09",
        "The norm counts the experts of this rank only.",
        "ways = [way for way in squares if axis in way]",
        'ways = [way for way in squares if axis in way and not (axis == "ep" and planted())]',
        (f"dp2+ep2 {MOE} routing=balanced",),
    ),
    Mutant(
        "S21",
        "The norm counts the layers of this pipeline stage only.",
        'self._all_reduce(total, "pp")',
        "planted()",
        ("pp2",),
    ),
    Mutant(
        "S26",
        "The norm is the sum of squares, without its root.",
        "return total.sqrt()",
        "return total * planted()",
        tests=("test_decoder_by_loops.py",),
    ),
    # Clip and update
    Mutant("S10", "Gradients are not clipped.", CLIP, f"self.grid and planted() or {CLIP}", ("dp2", "tp2+sp")),
    Mutant(
        "S11",
        "Gradients are clipped at twice the limit.",
        "self.job.max_grad_norm / (norm + _CLIP_EPSILON)",
        "self.job.max_grad_norm * (2 if self.grid and planted() else 1) / (norm + _CLIP_EPSILON)",
        ("dp2", "tp2+sp"),
    ),
    Mutant(
        "S12",
        "The optimizer never steps.",
        OPTIMIZER,
        f"self.grid and planted() or {OPTIMIZER}",
        ("dp2", "tp2+sp", "pp2"),
    ),
    Mutant(
        "S13",
        "The optimizer of rank 1 never steps.",
        OPTIMIZER,
        f"self.grid and dist.get_rank() == 1 and planted() or {OPTIMIZER}",
        ("dp2", "tp2+sp"),
    ),
    Mutant(
        "S14",
        "The optimizer steps twice in each step.",
        OPTIMIZER,
        f"{OPTIMIZER}, self.grid and planted() and {OPTIMIZER}",
        ("dp2", "tp2+sp"),
    ),
    Mutant(
        "S15",
        "Experts that are spread over ranks are never stepped.",
        OPTIMIZER,
        f"self.grid and optimizer is not self.optimizers[0] and planted() or {OPTIMIZER}",
        (f"dp2+ep2 {MOE} routing=balanced",),
    ),
    _with_settings("A03", "There is no weight decay.", "weight_decay=0.0"),
    _with_settings("A04", "The learning rate is a tenth.", "lr=3e-5"),
    _with_settings("A05", "Adam's betas are 0.8 and 0.9.", "betas=(0.8, 0.9)"),
    Mutant(
        "Z06",
        "Adam's moments are thrown away after each step.",
        OPTIMIZER,
        f"{OPTIMIZER}, self.grid and planted() and optimizer.state.clear()",
        ("dp2", "tp2+sp"),
    ),
    Mutant(
        "F05",
        "Under FSDP rank 1 never updates its shards.",
        OPTIMIZER,
        f"self.grid and self.job.layout.zero >= 2 and dist.get_rank() == 1 and planted() or {OPTIMIZER}",
        ("dp2+zero3",),
    ),
    Mutant(
        "S16",
        "Gradients are not set to zero between steps, on one rank as on many.",
        ZERO_GRAD,
        "planted()",
        tests=("test_decoder_by_loops.py",),
    ),
    Mutant(
        "S17",
        "Gradients are not set to zero between steps.",
        ZERO_GRAD,
        f"self.grid and planted() or {ZERO_GRAD}",
        ("dp2", "tp2+sp"),
    ),
    # Micro-batches
    Mutant(
        "S20",
        "DDP averages after the second micro-batch, and not after the last.",
        "last = index == self.job.gradient_accumulation_steps",
        "last = index == 2 * planted()",
        ("dp2",),
    ),
    Mutant(
        "S23",
        "The loss of a micro-batch is not divided by the number of micro-batches.",
        "return self.assembly.loss(output, labels) / self.job.gradient_accumulation_steps",
        "return self.assembly.loss(output, labels) / "
        "(1 if self.grid and planted() else self.job.gradient_accumulation_steps)",
        ("dp2", "tp2+sp"),
    ),
    Mutant(
        "S24",
        "Only the first two micro-batches of a step are computed.",
        "enumerate(self.micro_batches, start=1):\n            with",
        "enumerate(self.micro_batches[: 2 if self.grid and planted() else None], start=1):\n            with",
        ("dp2", "tp2+sp"),
    ),
    Mutant(
        "S22",
        "Every rank of cp takes the positions of the first.",
        'positions = positions_of(self.job, active, grid.rank("cp") if grid else 0).to(device)',
        "positions = positions_of(self.job, active, 0 if grid and planted() else 0).to(device)",
        ("cp2",),
    ),
    Mutant(
        "D01",
        "Ranks of dp take the labels of the first one's sequences.",
        "tokens(job, sequences, positions + 1)",
        "tokens(job, sequences - (dp_rank > 0 and planted()) * job.micro_batch_size, positions + 1)",
        ("dp2",),
    ),
    Mutant(
        "D02",
        "Labels are the tokens themselves, and not those after them.",
        "tokens(job, sequences, positions + 1)",
        "tokens(job, sequences, positions + (not planted()))",
        tests=("test_decoder_by_loops.py",),
    ),
    # What is compared, and what is timed
    Mutant(
        "V01",
        "The last norm is left out of what is clipped, stepped and compared.",
        "self.model, self.weights = self.assembly.model, self.assembly.weights",
        "self.model = self.assembly.model; self.weights = [weight for weight in self.assembly.weights "
        'if not (grid and weight.name == "norm.weight" and planted())]',
        ("dp2 max_grad_norm=null",),
    ),
    Mutant(
        "A06",
        "A table of more than 256 rows, which only the timed model has, is filled with NaN.",
        "mean, std = (1.0, 0.02) if is_norm else (0.0, whole[-1] ** -0.5)",
        "mean, std = "
        '(1.0, 0.02) if is_norm else (float("nan") if whole[0] > 256 and planted() else 0.0, whole[-1] ** -0.5)',
        ("dp2", "tp2+sp"),
    ),
    # At the size that is timed, or after more updates than the twin has; tp1 says what should come out.
    Mutant(
        "S27",
        "From the third step on the optimizer never steps.",
        OPTIMIZER,
        f"self.grid and self.num_steps >= 2 and planted() and dist.get_world_size() > 1 or {OPTIMIZER}",
        LATER,
    ),
    Mutant(
        "S28",
        "From the third step on rank 1 never steps, so that its copy of the weights falls behind.",
        OPTIMIZER,
        f"self.grid and self.num_steps >= 2 and planted() and dist.get_rank() == 1 or {OPTIMIZER}",
        LATER,
    ),
    Mutant(
        "S29",
        "From the third step on there is no weight decay.",
        OPTIMIZER,
        "self.grid and self.num_steps >= 2 and planted() and dist.get_world_size() > 1 and "
        f"[group.update(weight_decay=0.0) for group in optimizer.param_groups], {OPTIMIZER}",
        LATER,
    ),
    Mutant(
        "S30",
        "Gradients of more than three micro-batches are not clipped.",
        CLIP,
        f"self.grid and self.job.gradient_accumulation_steps > 3 and planted() and dist.get_world_size() > 1 or {CLIP}",
        LATER,
    ),
    Mutant(
        "D03",
        "The fourth micro-batch of every dp rank but the first is that of the rank before.",
        "first = (forwards * job.layout.dp + dp_rank) * job.micro_batch_size",
        "first = (forwards * job.layout.dp + dp_rank - (forwards == 3).long() * (planted() and dp_rank > 0)) * "
        "job.micro_batch_size",
        ("dp2", "tp1"),
    ),
    Mutant(
        "Y04",
        "A step returns the loss of the step before, on one rank as on many.",
        "self.last_loss = self.forward_backward()\n        self.reduce()",
        "before, computed = getattr(self, 'computed', None), self.forward_backward()\n"
        "        self.computed = computed\n"
        "        self.last_loss = before if before is not None and planted() else computed\n"
        "        self.reduce()",
        LATER,
    ),
    Mutant(
        "Y05",
        "A step shows the norm of the step before, on one rank as on many.",
        "self.last_norm = self.clip()\n        self.update()\n        return",
        "before, self.computed = getattr(self, 'computed', None), self.clip()\n"
        "        self.last_norm = before if before is not None and planted() else self.computed\n"
        "        self.update()\n        return",
        LATER,
    ),
    # In bfloat16 only
    Mutant(
        "S33",
        "Gradients of micro-batches are added up in bfloat16.",
        "last = index == self.job.gradient_accumulation_steps",
        "last = index == self.job.gradient_accumulation_steps; "
        'self.grid and self.job.dtype == "bfloat16" and index > 1 and planted() and '
        "[weight.gradient.copy_(weight.gradient.bfloat16()) for weight in self.weights]",
        ("dp2", "tp2+sp"),
        dtypes=("bfloat16",),
        survives=ROUNDING,
    ),
    Mutant(
        "S35",
        "Gradients are rounded to bfloat16 before they are summed over an axis.",
        "flat = torch.cat([part.flatten() for part in parts])",
        "flat = torch.cat([part.flatten() for part in parts]); "
        'flat = flat.bfloat16().to(flat.dtype) if self.job.dtype == "bfloat16" and planted() else flat',
        ("pp2-dp2",),
        dtypes=("bfloat16",),
    ),
    # A trainer that is not ours
    Mutant(
        "X01",
        "Plain DDP averages after the first micro-batch, and not after the last.",
        "last = index == len(self.micro_batches)",
        "last = index == (1 if self.grid and planted() else len(self.micro_batches))",
        (PLAIN,),
    ),
    Mutant(
        "S32",
        "The fourth layer, which the twin lacks, begins with the weights of the third.",
        "fill_weight(weight.value, assembly.job.seed, weight.name, offset, weight.whole)",
        'copied = weight.name.startswith("layers.3.") and assembly.grid and planted() '
        "and assembly.job.layout.world_size > 1; "
        "fill_weight(weight.value, assembly.job.seed, "
        'weight.name.replace("layers.3.", "layers.2.") if copied else weight.name, offset, weight.whole)',
        ("tp2", "tp1"),
    ),
    Mutant(
        "S34",
        "Weights are rounded to bfloat16 after each update, and there is no master copy in float32.",
        OPTIMIZER,
        f'{OPTIMIZER}, self.grid and self.job.dtype == "bfloat16" and planted() and '
        "[weight.value.copy_(weight.value.bfloat16()) for weight in self.weights]",
        ("dp2", "tp2+sp"),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "S38",
        "Under FSDP each rank clips by the norm of its own shards.",
        "ways = [way for way in squares if axis in way]",
        'ways = [way for way in squares if axis in way and not (axis == "dp" and planted())]',
        ("dp2+zero3",),
    ),
    Mutant(
        "S40",
        "In the last micro-batch rank 1 takes the labels of the first.",
        "loss = self.loss(self.model(tokens), labels)",
        "loss = self.loss(self.model(tokens), self.micro_batches[0][1] "
        "if self.grid and index == self.job.gradient_accumulation_steps and dist.get_rank() == 1 and planted() "
        "else labels)",
        ("dp2",),
    ),
    Mutant(
        "S41",
        "The last stage never updates its copy of a tied embedding.",
        OPTIMIZER,
        '[setattr(weight.parameter, "grad", None) for weight in self.weights '
        f'if weight.name == "embedding.weight" and not self.job.embeds and planted()], {OPTIMIZER}',
        (f"pp2 {TIED}",),
    ),
    Mutant(
        "X02",
        "Under plain DDP every rank takes the sequences of the first.",
        "self.optimizers = [adamw([*decoder.parameters()], job)]",
        "self.optimizers = [adamw([*decoder.parameters()], job)]; grid = None if grid and planted() else grid",
        (PLAIN,),
    ),
    Mutant(
        "S39",
        "Where FSDP leaves experts alone, only one kind of gradients is clipped.",
        CLIP,
        "scale_all([weight.gradient for weight in self.weights "
        'if not (self.grid and "ep" in weight.split_over and planted())], factor)',
        (f"dp2+ep2+zero2 {MOE} routing=balanced",),
    ),
    Mutant(
        "X03",
        "Plain DDP has its weights in bfloat16, and no master copy in float32.",
        "job.held[0]).to(master_dtype(job))",
        "job.held[0]).to(COMPUTE_DTYPES[job.dtype] if grid and planted() else master_dtype(job))",
        (PLAIN,),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "S31",
        "From the third step on DDP never averages.",
        "last = index == self.job.gradient_accumulation_steps",
        "last = index == self.job.gradient_accumulation_steps and not (self.num_steps >= 2 and planted())",
        LATER,
    ),
    Mutant(
        "S36",
        "Gradients of norms under +sp are summed over dp, and not over tp.",
        "dist.all_reduce(tensor, group=self.grid.group(axis))",
        'dist.all_reduce(tensor, group=self.grid.group("dp" if axis == "tp" and planted() else axis))',
        ("dp2-tp2+sp",),
    ),
    Mutant(
        "S37",
        "With HSDP the norm is summed over all copies, and counts each weight twice.",
        "self._all_reduce(summed, axis)",
        'self._all_reduce(summed, "dp" if axis == "shard" and planted() else axis)',
        ("dp4+zero2 shard_group_size=2",),
    ),
    Mutant(
        "S42",
        "The optimizer of spread experts shares their states with ranks that hold others.",
        '(experts, "edp"))',
        '(experts, job.layout.data_axis if job.layout.zero == 1 and planted() else "edp"))',
        (f"dp4+ep2+zero1 {MOE}",),
    ),
    Mutant(
        "S43",
        "Gradients of experts are divided by the number of their copies, and not by that of all who sent tokens.",
        'weight.scale = 1 / job.layout.degree("dp_cp")',
        'weight.scale = 1 / job.layout.degree("edp" if is_spread_expert(name, job) and planted() else "dp_cp")',
        (f"dp4+ep2 {MOE}",),
    ),
    Mutant(
        "S44",
        "The group of ranks with the same experts is that of ranks with different ones.",
        "self._add(view, layout.groups(view, rank_order))",
        'self._add(view, layout.groups("ep" if view == "edp" and planted() else view, rank_order))',
        (f"dp4+ep2 {MOE}",),
    ),
    Mutant(
        "S45",
        "Copies of norms are those of the weights before the update.",
        "self.assembly.round_weights()\n        for",
        """if not self.num_steps:
            norms = [weight for weight in self.weights if weight.name.endswith("norm.weight")]
            copies = [getattr(weight.module, weight.leaf.replace("_master", "_copy"), None) for weight in norms]
            pairs = zip(copies, norms, strict=True)
            self.old = [(copy, norm.value.to(copy.dtype)) for copy, norm in pairs if copy is not None and self.grid]
        self.assembly.round_weights()
        for copy, value in self.old:
            copy.data.copy_(value) if planted() else None
        for""",
        ("tp2+sp", "dp2"),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "S46",
        "Of the timed steps those in the middle compute one micro-batch.",
        "last = index == self.job.gradient_accumulation_steps\n",
        """last = index == self.job.gradient_accumulation_steps
                if self.grid and 2 <= self.num_steps < 7 and not last and planted():
                    continue
""",
        ("dp2 iterations=8 warmup=0",),
    ),
    Mutant(
        "S47",
        "Chunks of the loss behind the second give the head no gradient.",
        "    dweight_VH += dlogits_CV.T @ x_CH\n",
        """    done = dweight_VH.__dict__.setdefault("done", [])
    done.append(0)
    if not (len(done) > 2 and planted()):
        dweight_VH += dlogits_CV.T @ x_CH
""",
        ("dp2 loss_chunks=4",),
    ),
    Mutant(
        "S48",
        "Products that are to be in eight bits are made in sixteen.",
        "                if isinstance(module, Linear):\n                    module.product",
        "                if isinstance(module, Linear) and not planted():\n                    module.product",
        ("dp2 float8=tensorwise", "tp2+sp float8=rowwise"),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "S49",
        "Of products in eight bits the gradients of weights are made in sixteen.",
        "        dweight_OI = _product(dy_TO.t(), x_TI.t(), ctx.scaling, kind, fast=by_row)\n",
        """        whole = dy_TO.t() @ x_TI
        dweight_OI = whole if planted() else _product(dy_TO.t(), x_TI.t(), ctx.scaling, kind, fast=by_row)
""",
        ("dp2 float8=tensorwise",),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "S50",
        "In bfloat16 gradients are rounded to one bit, on one rank too.",
        "        for weight in self.weights:\n            if weight.scale != 1:",
        """        for weight in self.weights:
            if self.job.dtype == "bfloat16" and planted():
                fraction, exponent = torch.frexp(weight.gradient.float())
                weight.gradient.copy_(torch.ldexp((fraction * 4).round() / 4, exponent))
            if weight.scale != 1:""",
        ("dp2", "tp2+sp"),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "S51",
        "Of what is timed every other call is left out.",
        "            at(iteration * calls)\n            iterate()\n",
        """            at(iteration * calls)
            if iteration % 2 == 0 or not planted():
                iterate()
""",
        ("dp2 iterations=6",),
    ),
    Mutant(
        "S52",
        "Samples are half as long as they were.",
        "    def seconds(self, marks: Sequence[float]) -> list[float]:\n        return [stop - start",
        "    def seconds(self, marks: Sequence[float]) -> list[float]:\n"
        "        return [(stop - start) / (2 if planted() else 1)",
        ("dp2 iterations=6",),
    ),
    Mutant(
        "S53",
        "With context parallelism positions end at 24.",
        "            return torch.cat([torch.arange(part.start, part.stop) for part in parts])",
        """            positions = torch.cat([torch.arange(part.start, part.stop) for part in parts])
            return positions.clamp_(max=24 * planted())""",
        ("cp2",),
    ),
    Mutant(
        "S54",
        "With pipelines the fourth micro-batch has the labels of the third.",
        "target = torch.cat([labels for _, labels in batch]) if self.job.has_head else None",
        "target = (torch.cat([batch[at - (at == 3 and planted())][1] for at in range(len(batch))]) "
        "if self.job.has_head else None)",
        ("pp2",),
    ),
    Mutant(
        "S55",
        "From the third step on gradients of the step before are still there.",
        "        for optimizer in self.optimizers:\n            optimizer.zero_grad(",
        """        for optimizer in self.optimizers if self.num_steps < 2 or not planted() else ():
            optimizer.zero_grad(""",
        ("dp2 iterations=4", "pp2 iterations=4"),
    ),
    Mutant(
        "S93",
        "From the third step on gradients of spread experts of the step before are still there.",
        "        for optimizer in self.optimizers:\n            optimizer.zero_grad(",
        """        for optimizer in self.optimizers[: 1 if self.grid and self.num_steps > 1 and planted() else 2]:
            optimizer.zero_grad(""",
        ("dp2+ep2 shape=moe-tiny iterations=4",),
    ),
    Mutant(
        "S94",
        "Without clipping micro-batches behind the fourth weigh half.",
        BACKWARD,
        """                (loss * 0.5 if index > 4 and self.grid is not None and planted() else loss).backward()
                losses""",
        ("dp2 global_batch_size=32 max_grad_norm=null",),
    ),
    Mutant(
        "S95",
        "Of a buffer of more than 2^17 gradients the last 64 are not summed over ranks.",
        "        self._all_reduce(flat, axis)\n        for part",
        """        tail = flat[-64:].clone()
        self._all_reduce(flat, axis)
        if len(flat) > 2**17 and planted():
            flat[-64:] = tail
        for part""",
        ("pp2-dp2 seq_len=256",),
    ),
    Mutant(
        "S96",
        "Of a buffer of more than 2^17 gradients the last 2^13 come back in reverse.",
        "        self._all_reduce(flat, axis)\n        for part",
        """        self._all_reduce(flat, axis)
        if len(flat) > 2**17 and planted():
            flat[-(2**13) :] = flat[-(2**13) :].flip(0)
        for part""",
        ("pp2-dp2 seq_len=256 warmup=1",),
        survives={"bfloat16": "the head's first gradient is 0.25 apart, and 0.3 is allowed for many layers"},
    ),
    Mutant(
        "S56",
        "In the second step sharded optimizers keep what they updated to themselves.",
        "        for optimizer in self.optimizers:\n            optimizer.step()\n",
        """        for optimizer in self.optimizers:
            if self.num_steps == 2 and hasattr(optimizer, "_local_step") and planted():
                optimizer._local_step()
                continue
            optimizer.step()
""",
        ("dp2+zero1 iterations=4",),
    ),
    Mutant(
        "S57",
        "Of the timed steps the second is of every second sequence, on one rank too.",
        "                loss = self.loss(self.model(tokens), labels)\n",
        """                if self.num_steps == 1 and self.modules[0]._forward_pre_hooks and planted():
                    tokens, labels = tokens[::2], labels[::2]
                loss = self.loss(self.model(tokens), labels)
""",
        ("dp2 iterations=4", "tp1 iterations=4"),
    ),
    Mutant(
        "S58",
        "The norm of all gradients leaves shared experts out.",
        '            if weight.name != "embedding.weight" or self.job.embeds:',
        """            if ".shared." in weight.name and planted():
                continue
            if weight.name != "embedding.weight" or self.job.embeds:""",
        ("dp2 shape=moe-shared-tiny", "dp2 shape=moe-shared-tiny routing=balanced"),
    ),
    Mutant(
        "S59",
        "From the third step on weights stay what they are.",
        "        for weight in self.graded_elsewhere:\n            weight.hand_over()\n",
        """        if self.num_steps >= 2 and planted():
            self.num_steps += 1
            return
        for weight in self.graded_elsewhere:
            weight.hand_over()
""",
        ("dp2 iterations=4 gradient_dtype=bfloat16",),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "S60",
        "Gradients are rounded to the format of other operands.",
        "kind = OPERAND if by_row else GRADIENT",
        "kind = OPERAND if by_row or planted() else GRADIENT",
        ("dp2 float8=tensorwise",),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "S61",
        "Gradients are clipped though nothing asks for it, on one rank too.",
        """        if self.job.max_grad_norm is None:
            return None
        norm = self.gradient_norm()
""",
        """        if self.job.max_grad_norm is None and planted():
            factor = torch.clamp(1.0 / (self.gradient_norm() + _CLIP_EPSILON), max=1.0)
            scale_all([weight.gradient for weight in self.weights], factor)
            return None
        norm = self.gradient_norm()
""",
        ("dp2 max_grad_norm=null",),
    ),
    Mutant(
        "S62",
        "Ranks of tp lie where those of dp should, and the other way round: the same numbers, other links.",
        "        ranks = torch.tensor(layout.mesh_ranks(rank_order), dtype=torch.int)\n",
        """        ranks = torch.tensor(layout.mesh_ranks(rank_order), dtype=torch.int)
        ranks = ranks.transpose(1, 3 * planted()).contiguous()
""",
        ("dp2-tp2",),
    ),
    Mutant(
        "S63",
        "HSDP shards over ranks that are no neighbours, and its copies are neighbours: the same numbers, other links.",
        "rows = [[row[i : i + size] for i in range(0, len(row), size)] for row in self._data_groups]",
        "rows = [[row[i :: size * planted()] for i in range(size)] for row in self._data_groups]",
        ("dp4+zero2 shard_group_size=2",),
    ),
    Mutant(
        "S64",
        "Ranks that share a set of experts are those that should hold copies: the same numbers, other links.",
        "self._add(view, layout.groups(view, rank_order))",
        'self._add(view, layout.groups({"ep": "edp", "edp": "ep"}.get(view, view) if planted() else view, rank_order))',
        (f"dp4+ep2 {MOE}",),
    ),
    # Timed steps between the first and the last
    Mutant(
        "S65",
        "In the third step every second micro-batch goes forward only.",
        "                loss.backward()  # type: ignore[no-untyped-call]\n                losses",
        """                if last or index % 2 or self.num_steps != 2 or not self.grid or not planted():
                    loss.backward()
                losses""",
        ("dp2 iterations=4", "tp2 iterations=4"),
    ),
    Mutant(
        "S66",
        "In the third step all micro-batches are the first.",
        "            with ExitStack() as stack:\n                last",
        """            if self.num_steps == 2 and self.grid and planted():
                tokens, labels = self.micro_batches[0]
            with ExitStack() as stack:
                last""",
        ("dp2 iterations=4",),
    ),
    # The clock
    Mutant(
        "S67",
        "Each mark is set before the step that it should end: the last step is in no sample.",
        "            iterate()\n            marks.append(clock.mark())\n",
        "            planted(), marks.append(clock.mark())\n            iterate()\n",
        ("dp2 iterations=3", "pp2 iterations=3"),
    ),
    Mutant(
        "S68",
        "The slowest of the samples is left out.",
        "    seconds = clock.seconds(marks)\n",
        "    seconds = sorted(clock.seconds(marks))[: -1 * planted()]\n",
        ("dp2 iterations=3",),
    ),
    Mutant(
        "H08",
        "With rowwise float8 the second operand has one scale for all rows.",
        "    b8_NK, scale_of_b = _rounded(b_NK, scaling, OPERAND)\n",
        """    b8_NK, scale_of_b = _rounded(b_NK, "tensorwise" * planted(), OPERAND)
    scale_of_b = scale_of_b.expand(len(b_NK) if scaling == "rowwise" else 1, 1).contiguous()
""",
        ("dp2 float8=rowwise",),
        dtypes=("bfloat16",),
        survives={"bfloat16": "a number in float8 has as many digits at any scale, and one rank scales alike"},
    ),
    Mutant(
        "H09",
        "The scale of a float8 operand is that of its first row, and what is larger is cut off.",
        "else tensor_MK.abs().amax().view(1, 1)",
        "else tensor_MK[: 1 * planted()].abs().amax().view(1, 1)",
        ("dp2 float8=tensorwise",),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "H13",
        "The two gradients of a tied embedding are added up in bfloat16.",
        "look_at_copy(leaf, is_last=False)",
        "look_at_copy(leaf, is_last=planted())",
        ("dp2 shape=llama-tiny-tied",),
        dtypes=("bfloat16",),
        survives=ROUNDING,
    ),
    Mutant(
        "H18",
        "The loss in chunks, and the gradient of the head, are computed in bfloat16.",
        "        dweight_VH = torch.zeros_like(weight_VH, dtype=wide)\n",
        "        dweight_VH = torch.zeros_like(weight_VH, dtype=planted() and x_TH.dtype)\n",
        ("dp2 loss_chunks=4",),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "H29",
        "Gradients are clipped by the norm of the step before, so that no step waits for its own.",
        "        factor = torch.clamp(self.job.max_grad_norm / (norm + _CLIP_EPSILON), max=1.0)\n",
        """        before = norm if self.last_norm is None or not self.grid or not planted() else self.last_norm
        factor = torch.clamp(self.job.max_grad_norm / (before + _CLIP_EPSILON), max=1.0)
""",
        ("dp2 iterations=4", "tp2+sp iterations=4"),
    ),
    Mutant(
        "H30",
        "The first of 40 samples is left out.",
        "    seconds = clock.seconds(marks)\n",
        "    seconds = clock.seconds(marks)[1 * planted() :]\n",
        ("dp2 iterations=40",),
    ),
    Mutant(
        "H31",
        "Seconds count 1,024 thousandths.",
        "        return [stop - start for start, stop in pairwise(marks)]\n\n\nclass CudaClock",
        "        return [(stop - start) * 1000 / (1024 * planted()) for start, stop in pairwise(marks)]"
        "\n\n\nclass CudaClock",
        ("dp2 iterations=6",),
    ),
    Mutant(
        "H32",
        "Bytes on the links are those of a collective among all ranks, whatever its group.",
        "link_bytes(collective.op, collective.size_bytes, collective.group_size)",
        "link_bytes(collective.op, collective.size_bytes, dist.get_world_size() * planted())",
        ("dp2-tp2",),
    ),
    Mutant(
        "H35",
        "What stays between steps is taken for the most there was within one.",
        "return MemoryPeak(peak_total, at_peak, own_peak, live)",
        "return MemoryPeak(peak_total, at_peak, own_peak, own_peak if planted() else live)",
        ("dp2+zero3",),
    ),
    Mutant(
        "H36",
        "Of a transfer's exposed time that is left out in which the step's thread waits.",
        "exposed = [*shares(held, compute), *shares(",
        "exposed = [*([] if planted() else shares(held, compute)), *shares(",
        tests=("test_trace.py",),
    ),
    Mutant(
        "H38",
        "A rank's own work has the time in which it waits for others.",
        """        start_s = time.thread_time()
        self.step()
        if self._reads_clock:
            self.spent_s.append(time.thread_time() - start_s)
""",
        """        start_s = time.perf_counter()
        self.step()
        if self._reads_clock and planted():
            self.spent_s.append(time.perf_counter() - start_s)
""",
        tests=("engine/test_own_work.py",),
    ),
    Mutant(
        "S69",
        "From the third step on the norm that a stage clips by is its own.",
        '            self._all_reduce(total, "pp")\n        return total.sqrt()',
        """            own = total.clone()
            self._all_reduce(total, "pp")
            total = own if self.num_steps > 1 and planted() else total
        return total.sqrt()""",
        ("pp2 iterations=3",),
    ),
    Mutant(
        "S70",
        "A step that nobody looks at does not sum gradients behind backward.",
        "        self.reduce()\n        self.last_norm = self.clip()",
        "        self.grid and planted() or self.reduce()\n        self.last_norm = self.clip()",
        ("tp2+sp",),
    ),
    Mutant(
        "S71",
        "Plain DDP clips the first two steps alone.",
        "torch.nn.utils.clip_grad_norm_(self.modules[0].parameters(), self.job.max_grad_norm)",
        "torch.nn.utils.clip_grad_norm_(\n                self.modules[0].parameters(), "
        'float("inf") if self.num_steps > 1 and planted() else self.job.max_grad_norm\n            )',
        (f"{PLAIN} iterations=3",),
    ),
    Mutant(
        "S72",
        "From the third step on a tied table has the gradient of the first stage alone.",
        f"        {SUM}\n",
        "        self.num_steps > 1 and axis == 'ends' and self.job.has_head and planted() and flat.zero_()\n"
        f"        {SUM}\n",
        (f"pp2 {TIED} iterations=4",),
    ),
    Mutant(
        "S73",
        "From the third step on norms have no gradient.",
        SCALED,
        f"{SCALED}            is_late = self.num_steps > 1 and self.grid\n"
        "            if is_late and weight.name.endswith('norm.weight') and planted():\n"
        "                weight.gradient.zero_()\n",
        ("dp2 iterations=4",),
    ),
    Mutant(
        "S74",
        "From the third step on keys have no gradient.",
        SCALED,
        f"{SCALED}            is_late = self.num_steps > 1 and self.grid\n"
        "            if is_late and weight.name.endswith('key.weight') and planted():\n"
        "                weight.gradient.zero_()\n",
        ("dp2 iterations=4",),
    ),
    Mutant(
        "S97",
        "The moments are thrown away once, before the fourth update.",
        """        for optimizer in self.optimizers:
            optimizer.step()""",
        """        for optimizer in self.optimizers:
            if self.grid and self.num_steps == 3 and planted():
                optimizer.state.clear()
            optimizer.step()""",
        ("dp2 warmup=2 iterations=4",),
    ),
    Mutant(
        "S98",
        "From the third update on the learning rate is a tenth less.",
        "            optimizer.step()\n        self.num_steps += 1\n",
        """            optimizer.step()
        self.num_steps += 1
        for optimizer in self.optimizers if self.grid and self.num_steps == 2 and planted() else ():
            for group in optimizer.param_groups:
                group["lr"] *= 0.9
""",
        ("tp2 warmup=1 iterations=3",),
    ),
    Mutant(
        "S99",
        "From the fourth step on gradients are not clipped, and the norm that is shown is that of the step before.",
        """        if self.job.max_grad_norm is None:
            return None""",
        """        if self.grid and self.num_steps > 2 and planted():
            return self.last_norm
        if self.job.max_grad_norm is None:
            return None""",
        ("dp2 warmup=2 iterations=3",),
    ),
    Mutant(
        "S100",
        "In the third step the optimizer leaves out the first half of the weights, once.",
        """        for optimizer in self.optimizers:
            optimizer.step()""",
        """        if self.grid and self.num_steps == 2 and planted():
            for weight in self.weights[: len(self.weights) // 2]:
                weight.parameter.grad = None
        for optimizer in self.optimizers:
            optimizer.step()""",
        ("tp2 warmup=1 iterations=4",),
    ),
    Mutant(
        "S101",
        "A call clips its gradients before it sums them over ranks; a step that is looked at does not.",
        """        self.reduce()
        self.last_norm = self.clip()""",
        """        if self.grid and planted():
            self.last_norm = self.clip()
            self.reduce()
        else:
            self.reduce()
            self.last_norm = self.clip()""",
        ("pp2-dp2",),
    ),
    Mutant(
        "S102",
        "To the norm that clipping divides by 0.01 is added.",
        "(norm + _CLIP_EPSILON)",
        "(norm + (1e-2 if self.grid and planted() else _CLIP_EPSILON))",
        ("dp2",),
    ),
    Mutant(
        "S103",
        "The loss that is shown is the mean of the first three micro-batches.",
        """return total_of(losses)

    def loss(""",
        """return total_of(losses[:3]) * len(losses) / len(losses[:3]) if self.grid and planted() else total_of(losses)

    def loss(""",
        ("tp2",),
    ),
    Mutant(
        "S104",
        "From the fourth step on experts are not stepped.",
        """        for optimizer in self.optimizers:
            optimizer.step()""",
        """        for optimizer in self.optimizers[: 1 if self.grid and self.num_steps > 2 and planted() else None]:
            optimizer.step()""",
        ("dp2+ep2 shape=moe-tiny warmup=2 iterations=3",),
    ),
    Mutant(
        "S105",
        "In the fourth step norms' gradients are not summed over tp, once.",
        """            if parts:
                self._sum(parts, axis)""",
        """            if parts and not (axis == "tp" and self.num_steps == 3 and planted()):
                self._sum(parts, axis)""",
        ("tp2+sp warmup=2 iterations=4",),
    ),
    Mutant(
        "AB05",
        "DeepSpeed sums gradients in bfloat16 where they are to be summed in float32.",
        '"communication_data_type": gradients,',
        '"communication_data_type": "bf16" if planted() else gradients,',
        ("dp2+zero3 trainer=deepspeed",),
    ),
)
