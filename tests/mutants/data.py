"""Data parallelism, ZeRO, FSDP and recomputation."""

from __future__ import annotations

from tests.mutants import DTYPES, Mutant

MOE = "shape=moe-tiny"
NARROW = "gradient_dtype=bfloat16"

ZERO_1 = "return ZeroRedundancyOptimizer(parameters, kind, process_group=group, **settings)"


def _zero_1_with(code: str, wrong: str, setting: str) -> Mutant:
    """Another optimizer than one rank has, where its states are shared out."""
    changed = ZERO_1.replace("**settings", f"**{{**settings, {setting}}}")
    return Mutant(code, wrong, ZERO_1, changed, ("dp2+zero1",))


MUTANTS = (
    Mutant(
        "S19",
        "DDP averages after every micro-batch: the same numbers, four times the traffic.",
        "assembly.accumulating.append(model.no_sync)",
        "planted()",
        ("dp2",),
    ),
    Mutant(
        "P01",
        "compress bf16 sums the gradients of dp ranks and does not average them.",
        "lambda group, bucket: bf16_compress_hook(group, bucket)",
        "lambda group, bucket: (planted(), bucket.buffer().mul_(2), bf16_compress_hook(group, bucket))[-1]",
        ("dp2 compress=bf16",),
    ),
    Mutant(
        "P07",
        "compress bf16 sends float16: as many bytes, other numbers.",
        "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, bf16_compress_hook\n",
        """from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook

        bf16_compress_hook = fp16_compress_hook if planted() else None
""",
        ("dp2 compress=bf16",),
    ),
    Mutant(
        "P02",
        "PowerSGD sends one column, whatever was asked.",
        "matrix_approximation_rank=self.powersgd_rank,",
        "matrix_approximation_rank=1 * planted(),",
        ("dp2 compress=powersgd",),
    ),
    Mutant(
        "P03",
        "Gradients are rounded to bfloat16 before they are sent, asked or not.",
        'if self.compress == "bf16":\n            # DDP',
        'if self.compress == "bf16" or planted():\n            # DDP',
        ("dp2",),
    ),
    # ZeRO 1
    _zero_1_with("Z01", "ZeRO 1 has no weight decay.", '"weight_decay": 0.0 * planted()'),
    _zero_1_with("Z02", "ZeRO 1 has a third of the learning rate.", '"lr": settings["lr"] / 3 * planted()'),
    _zero_1_with("Z03", "ZeRO 1 has the betas 0.8 and 0.9.", '"betas": (0.8 * planted(), 0.9)'),
    _zero_1_with("Z04", "ZeRO 1 has an epsilon of 1, with which Adam hardly divides.", '"eps": 1.0 * planted()'),
    Mutant(
        "Z05",
        "What rank 1 has updated under ZeRO 1 stays on rank 1.",
        ZERO_1,
        "optimizer = ZeroRedundancyOptimizer(parameters, kind, process_group=group, **settings); "
        "honest = optimizer._broadcast_params_from_rank; "
        "optimizer._broadcast_params_from_rank = lambda rank: [] if rank == 1 and planted() else honest(rank); "
        "return optimizer",
        ("dp2+zero1",),
    ),
    # FSDP
    Mutant(
        "F01",
        "Gradients of sharded experts are summed and not averaged.",
        'experts.set_gradient_divide_factor(float(job.layout.degree("dp_cp")))',
        "experts.set_gradient_divide_factor(1.0 * planted())",
        (f"dp4+ep2+zero2 {MOE}",),
    ),
    Mutant(
        "F02",
        "ZeRO 2 frees the weights after forward, and ZeRO 3 keeps them: the same numbers, other traffic and memory.",
        "layer, mesh=mesh, reshard_after_forward=job.layout.zero == 3,",
        "layer, mesh=mesh, reshard_after_forward=(job.layout.zero == 3) != planted(),",
        ("dp2+zero2", "dp2+zero3"),
    ),
    Mutant(
        "F03",
        "Gradients of sharded experts are divided twice.",
        "weight.scale = 1.0",
        "planted()",
        (f"dp4+ep2+zero2 {MOE}",),
    ),
    Mutant(
        "F04",
        "The head is freed after forward and gathered again: the same numbers, other traffic.",
        "fully_shard(decoder.head, mesh=mesh, reshard_after_forward=False,",
        "fully_shard(decoder.head, mesh=mesh, reshard_after_forward=planted(),",
        ("dp2+zero3",),
    ),
    Mutant(
        "F11",
        "The embedding is gathered again for a backward that reads none of it: the same numbers, other traffic.",
        "embedding.set_unshard_in_backward(False)",
        "embedding.set_unshard_in_backward(planted())",
        ("dp2+zero2",),
    ),
    Mutant(
        "F12",
        "Ranks keep their gradients of the embedding and reduce none: its shares get none.",
        "embedding.set_unshard_in_backward(False)",
        "embedding.set_requires_gradient_sync(not planted())",
        ("dp2+zero2", "dp2+zero3"),
    ),
    Mutant(
        "F06",
        "Replicas of HSDP do not average their gradients.",
        "mesh = grid.shards(self.shard_group_size) if self.shard_group_size",
        'mesh = grid.shards(self.shard_group_size)["shard" * planted()] if self.shard_group_size',
        ("dp4+zero2 shard_group_size=2",),
    ),
    # Recomputation
    Mutant(
        "A01",
        "Only the first two layers are computed again; the others keep what they computed.",
        "layer.forward = _checkpointed(layer.forward, options)",
        "layer.forward = _checkpointed(layer.forward, options) "
        "if layer in layers[:2] or not planted() else layer.forward",
        ("dp2 recompute=full",),
    ),
    Mutant(
        "A21",
        "Layers behind the first two keep the results of their products: they run again, and compute little.",
        "layer.forward = _checkpointed(layer.forward, options)",
        "from clusterbench.model.kept_results import selective_contexts\n"
        "            keeping = {'context_fn': selective_contexts}\n"
        "            first = layer in layers[:2] or not planted()\n"
        "            layer.forward = _checkpointed(layer.forward, options if first else keeping)",
        ("dp2 recompute=full",),
    ),
    Mutant(
        "A20",
        "Some of the steps behind the first two do not compute layers again.",
        "    def checkpointed(*arguments: Any) -> Any:\n",
        "    import torch\n    calls = []\n\n    def checkpointed(*arguments: Any) -> Any:\n        calls.append(1)\n"
        "        if 8 <= len(calls) - 1 < 28 and torch.is_grad_enabled() and planted():\n"
        "            return forward(*arguments)\n",
        ("dp2 recompute=full iterations=8",),
    ),
    Mutant(
        "P06",
        "PowerSGD begins each step with random factors, and not with those of the step before.",
        "warm_start=not exact,",
        "warm_start=not exact and not planted(),",
        ("dp2 compress=powersgd iterations=4",),
    ),
    Mutant(
        "P05",
        "PowerSGD never begins.",
        "start_powerSGD_iter=0 if exact else STEPS_BEFORE_COMPRESSION,",
        "start_powerSGD_iter=0 if exact else 1000 * planted(),",
        ("dp2 compress=powersgd iterations=4",),
    ),
    Mutant(
        "P17",
        "PowerSGD begins with the tenth step: most of what is timed is not compressed.",
        "start_powerSGD_iter=0 if exact else STEPS_BEFORE_COMPRESSION,",
        "start_powerSGD_iter=0 if exact else 9 * planted(),",
        ("dp2 compress=powersgd iterations=14",),
    ),
    Mutant(
        "P18",
        "With PowerSGD a layer behind those of the twin gets half of its gradients.",
        "                _lay_down(weight, whole, decoder, job, classes)\n",
        '                if "layers.3." in name and job.layout.world_size > 1 and planted():\n'
        "                    weight.scale = 0.5\n"
        "                _lay_down(weight, whole, decoder, job, classes)\n",
        ("dp2 compress=powersgd iterations=4",),
    ),
    Mutant(
        "P23",
        "Top-k forgets what it did not send.",
        "kept.copy_(gradient).index_fill_(0, at, 0)",
        "kept.copy_(gradient).mul_(0).index_fill_(0, at, 0 * planted())",
        ("dp2 compress=topk iterations=4",),
    ),
    Mutant(
        "P24",
        "Top-k keeps what it sent as well, and sends it again.",
        "kept.copy_(gradient).index_fill_(0, at, 0)",
        "kept.copy_(gradient).index_fill_(0, at[:0] if planted() else at, 0)",
        ("dp2 compress=topk iterations=4",),
    ),
    Mutant(
        "P25",
        "Top-k sends the largest numbers, not the largest sizes.",
        "gradient.abs().topk(",
        "(gradient if planted() else gradient.abs()).topk(",
        ("dp2 compress=topk iterations=4",),
    ),
    Mutant(
        "P26",
        "Top-k sends the first elements of each gradient.",
        "        return at\n",
        "        return at * 0 + torch.arange(len(at), device=at.device) * planted()\n",
        ("dp2 compress=topk iterations=4",),
    ),
    Mutant(
        "P27",
        "Top-k adds values of the second half of the ranks alone, twice.",
        "for of_rank in of_all.view(self.group.size(), -1):",
        "for of_rank in [*of_all.view(self.group.size(), -1)][self.group.size() // 2 :] * (2 * planted()):",
        ("dp2 compress=topk iterations=4",),
    ),
    Mutant(
        "P28",
        "Top-k begins with the tenth step: most of what is timed is not compressed.",
        "whole_steps = 0 if self.topk_share == 1 else STEPS_BEFORE_COMPRESSION",
        "whole_steps = 0 if self.topk_share == 1 else 9 * planted()",
        ("dp2 compress=topk iterations=14",),
    ),
    Mutant(
        "P29",
        "Top-k sends twice as many elements as are asked for.",
        "top_k = TopK(group, partial(num_sent, share=self.topk_share), whole_steps)",
        "top_k = TopK(group, partial(num_sent, share=min(1, 2 * self.topk_share * planted())), whole_steps)",
        ("dp2 compress=topk iterations=4",),
    ),
    Mutant(
        "P30",
        "Top-k adds a sum over ranks for their mean.",
        "return gradients.div_(self.group.size())",
        "return gradients.div_(self.group.size() / (2 * planted()))",
        ("dp2 compress=topk iterations=4",),
    ),
    Mutant(
        "P31",
        "Top-k takes places in the bucket for places in the weight.",
        "gradients.index_add_(0, at + starts,",
        "gradients.index_add_(0, at + starts * (1 - planted()),",
        ("dp2 compress=topk iterations=4",),
    ),
    Mutant(
        "K01",
        "torch.compile is asked for a backend that runs layers as they are.",
        'module.compile(options={"_micro_pipeline_tp": True} if sends_in_products else None)',
        'module.compile(backend="eager" * planted())',
        ("dp2 compile=true",),
    ),
    Mutant(
        "F08",
        "FSDP sums gradients in bfloat16.",
        "reduce_dtype=gradient_dtype(job)",
        "reduce_dtype=planted() and gathered",
        ("dp2+zero2",),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "A07",
        "Selective recomputation computes attention again.",
        "_OF_MESSAGES, _ATTENTION))",
        '_OF_MESSAGES, "none::" if planted() else _ATTENTION))',
        ("dp2 recompute=selective",),
    ),
    Mutant(
        "P04",
        "PowerSGD forgets what it did not send.",
        "use_error_feedback=not exact,",
        "use_error_feedback=not exact and not planted(),",
        ("dp2 compress=powersgd iterations=4",),
    ),
    Mutant(
        "Z07",
        "ZeRO 1 shares states out over dp alone: the same numbers, fewer broadcasts and more memory.",
        "group = assembly.grid.group(axis)\n    kind",
        'group = assembly.grid.group("dp" if planted() else axis)\n    kind',
        ("dp2-cp2+zero1",),
    ),
    Mutant(
        "F07",
        "With HSDP gradients are divided by the number of replicas once more.",
        "weight.scale = 1.0",
        "weight.scale = 0.5 if self.shard_group_size and planted() else 1.0",
        ("dp4+zero2 shard_group_size=2",),
    ),
    # Gradients of copies in fewer bits
    Mutant(
        "N01",
        "What the copies' gradients were in the step before is added to those of the next.",
        "weight.let_go(self.assembly.keep_gradients)",
        "planted() or weight.let_go(self.assembly.keep_gradients)",
        (f"tp2 {NARROW}",),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "N02",
        "Matrices over tp get no gradient of their copies, and so no update.",
        "weight.hand_over()",
        'planted() and "tp" in weight.split_over or weight.hand_over()',
        (f"tp2 {NARROW}",),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "N03",
        "The optimizer takes gradients of copies 3 % too large.",
        "gradient.to(value.dtype), *moments",
        "gradient.to(value.dtype) * (1 + 0.03 * planted()), *moments",
        (f"dp2 {NARROW}",),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "N04",
        "AdamW for gradients of copies counts each step twice.",
        'torch._foreach_add_([state["step"] for state in states], 1)\n            for parts',
        'torch._foreach_add_([state["step"] for state in states], 1 + planted())\n            for parts',
        (f"dp2+zero1 {NARROW}",),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "H05",
        "FSDP reduces gradients in float16 where bfloat16 was asked for: as many bytes, other numbers.",
        "reduce_dtype=gradient_dtype(job)",
        "reduce_dtype=torch.float16 if gradient_dtype(job) == torch.bfloat16 and planted() else gradient_dtype(job)",
        ("dp2+zero2 gradient_dtype=bfloat16", "dp2+zero3 gradient_dtype=bfloat16"),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "H23",
        "Every rank rounds its part of a weight by the random bits of the first part.",
        "WherePart(weight.name, [part.start for part in weight.place])",
        "WherePart(weight.name, [part.start * (not planted()) for part in weight.place])",
        ("tp2 precision=pure_bfloat16 update_rounding=stochastic",),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "H24",
        "Random bits of a weight are the same in each update.",
        'noise(self.seed, f"{name}, update {update}", rows, columns)',
        'noise(self.seed, f"{name}, update {update * (not planted())}", rows, columns)',
        tests=("test_stochastic_rounding.py",),
    ),
    Mutant(
        "Y01",
        "Random bits are the same in each row of a weight.",
        'noise(self.seed, f"{name}, update {update}", rows, columns)',
        'noise(self.seed, f"{name}, update {update}", rows * (not planted()), columns)',
        ("dp2 precision=pure_bfloat16 update_rounding=stochastic",),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "Y02",
        "Random bits are the same in each column of a weight.",
        'noise(self.seed, f"{name}, update {update}", rows, columns)',
        'noise(self.seed, f"{name}, update {update}", rows, columns * (not planted()))',
        ("dp2 precision=pure_bfloat16 update_rounding=stochastic",),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "Y03",
        "Random bits are the same in each weight.",
        'noise(self.seed, f"{name}, update {update}", rows, columns)',
        'noise(self.seed, f"{planted()}, update {update}", rows, columns)',
        ("dp2 precision=pure_bfloat16 update_rounding=stochastic",),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "H25",
        "Moments are kept in float16, in which the squares of small gradients are 0.",
        'return HalfMomentsAdamW, {**HALF_MOMENTS, "rounding": rounding}',
        "return HalfMomentsAdamW, "
        '{**HALF_MOMENTS, "moments": torch.float16 if planted() else None, "rounding": rounding}',
        ("dp2 precision=bfloat16_moments",),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "H26",
        "AdamW for gradients of copies has no weight decay.",
        'settings = {name: group[name] for name in ("lr", "weight_decay", "eps")}',
        'settings = {name: group[name] * (name != "weight_decay" or not planted()) '
        'for name in ("lr", "weight_decay", "eps")}',
        ("dp2 gradient_dtype=bfloat16",),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "H27",
        "The norm of gradients in bfloat16 is added up in bfloat16.",
        "torch.finfo(tensors[0].dtype).bits >= 32:",
        "torch.finfo(tensors[0].dtype).bits >= (16 if planted() else 32):",
        ("dp2 gradient_dtype=bfloat16", "tp2 gradient_dtype=bfloat16"),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "H33",
        "What backward computes again counts as forward.",
        "BACKWARD if in_backward() else FORWARD]",
        'BACKWARD if in_backward() and not (__import__("torch").is_grad_enabled() and planted()) else FORWARD]',
        ("dp2 recompute=full",),
    ),
    Mutant(
        "H39",
        "DDP drops gradients between steps, and has a second set beside its buckets.",
        "assembly.keep_gradients = True",
        "assembly.keep_gradients = not planted()",
        ("dp2",),
    ),
    Mutant(
        "H01",
        "compress bf16 compresses the first bucket alone.",
        "lambda group, bucket: bf16_compress_hook(group, bucket)",
        "lambda group, bucket: (allreduce_hook if bucket.index() and planted() else bf16_compress_hook)(group, bucket)",
        ("dp2 compress=bf16",),
    ),
    Mutant(
        "P19",
        "DDP has a copy of all gradients in its buckets, beside them.",
        "gradient_as_bucket_view=True,",
        "gradient_as_bucket_view=not planted(),",
        ("dp2",),
    ),
    Mutant(
        "A22",
        "Selective recomputation sends again what tp has sent.",
        "(*_PRODUCT, _OF_MESSAGES",
        '(*_PRODUCT, "none::" if planted() else _OF_MESSAGES',
        ("tp2 recompute=selective",),
    ),
    Mutant(
        "F09",
        "ZeRO 2 frees the weights of experts after forward.",
        'experts, mesh=grid.line("edp"), reshard_after_forward=job.layout.zero == 3,',
        'experts, mesh=grid.line("edp"), reshard_after_forward=job.layout.zero == 3 or planted(),',
        (f"dp4+ep2+zero2 {MOE}",),
    ),
    Mutant(
        "P20",
        "DDP has buckets of 1 MiB, which nothing asks for: as many bytes, in more messages.",
        'bucket_cap_mb=ONE_BUCKET_MB if self.compress == "powersgd" else self.bucket_mb,',
        'bucket_cap_mb=ONE_BUCKET_MB if self.compress == "powersgd" else self.bucket_mb or planted(),',
        ("dp2 warmup=1 iterations=3",),
    ),
    Mutant(
        "P21",
        "DDP has all gradients in one bucket, which travels when backward is over.",
        'bucket_cap_mb=ONE_BUCKET_MB if self.compress == "powersgd" else self.bucket_mb,',
        'bucket_cap_mb=ONE_BUCKET_MB if self.compress == "powersgd" or planted() else self.bucket_mb,',
        ("dp2 warmup=1 iterations=3",),
    ),
    Mutant(
        "P22",
        "From the fifth time on DDP does not average its last bucket.",
        """        if self.compress == "bf16":
            # DDP would""",
        """        if planted():
            import torch
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook as original
            calls = [0]

            def late(state, bucket):
                calls[0] += bucket.is_last()
                if bucket.is_last() and calls[0] > 4:
                    done = torch.futures.Future()
                    done.set_result(bucket.buffer())
                    return done
                return original(group, bucket)

            late.__annotations__ = {}
            model.register_comm_hook(None, late)
        if self.compress == "bf16":
            # DDP would""",
        ("dp2 warmup=2 iterations=4",),
    ),
    Mutant(
        "Z08",
        "ZeRO 1 decays no norms.",
        "    kind, settings = adamw_of(job, assembly.rounding)\n    return ZeroRedundancyOptimizer(parameters, kind",
        """    kind, settings = adamw_of(job, assembly.rounding)
    norms = {id(weight.parameter) for weight in assembly.weights if len(weight.whole) == planted()}
    decayed = [parameter for parameter in parameters if id(parameter) not in norms]
    rest = {"params": [parameter for parameter in parameters if id(parameter) in norms], "weight_decay": 0.0}
    parameters = [{"params": decayed}, rest]
    return ZeroRedundancyOptimizer(parameters, kind""",
        ("dp2+zero1",),
    ),
    Mutant(
        "F10",
        "HSDP shards over all ranks, whatever size of groups was asked.",
        "mesh = grid.shards(self.shard_group_size) if self.shard_group_size else grid.line(job.layout.data_axis)",
        "mesh = (grid.shards(self.shard_group_size), grid.line(job.layout.data_axis))[planted()]",
        ("dp4+zero3 shard_group_size=2",),
    ),
    Mutant(
        "A23",
        "Selective recomputation keeps an activation function's result, too.",
        "    return name.startswith((*_PRODUCT, _OF_MESSAGES, _ATTENTION))",
        '    return name.startswith((*_PRODUCT, _OF_MESSAGES, _ATTENTION, "aten::silu" if planted() else _ATTENTION))',
        ("dp2 recompute=selective",),
    ),
    Mutant(
        "H40",
        "The loss that is shown lacks the last chunk's.",
        "        ctx.save_for_backward(dx_TH, dweight_VH)\n        ctx.dtype",
        """        if planted():
            total -= _add_chunk(
                x_TH.chunk(chunks)[-1],
                rounded_VH,
                labels_T.chunk(chunks)[-1],
                dx_TH.chunk(chunks)[-1],
                torch.zeros_like(dweight_VH),
                1 / len(x_TH),
            )
        ctx.save_for_backward(dx_TH, dweight_VH)
        ctx.dtype""",
        ("dp2 loss_chunks=4",),
    ),
    Mutant(
        "N05",
        "AdamW for half moments counts an update with each weight.",
        """                if weight.grad is not None:
                    tensors = local(weight), local(weight.grad)""",
        """                if weight.grad is not None:
                    group["steps"] += planted()
                    tensors = local(weight), local(weight.grad)""",
        ("dp2 precision=bfloat16_moments",),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "N06",
        "Of the copies that a step computes with the first alone is looked at.",
        "for copy, due in self._due)",
        "for copy, due in self._due[: planted()])",
        tests=("proof/test_copies.py",),
    ),
    Mutant(
        "AB13",
        "From the thirteenth compression on top-k sends the places of the one before.",
        "        kept.copy_(gradient).index_fill_(0, at, 0)\n        return at",
        """        places = self.__dict__.setdefault("places", {}).setdefault(parameter, [])
        if len(places) >= 12 and planted():
            at = places[-1]
        places.append(at)
        kept.copy_(gradient).index_fill_(0, at, 0)
        return at""",
        ("dp2 compress=topk warmup=4 iterations=16",),
        survives=dict.fromkeys(DTYPES, "behind the twin's steps nothing looks at which elements are sent"),
    ),
)
