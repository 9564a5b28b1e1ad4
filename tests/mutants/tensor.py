"""Tensor parallelism, and the parts of weights that it cuts."""

from __future__ import annotations

from tests.mutants import ROUNDING, Mutant

ONE_KV_HEAD, TWO_KV_HEADS = "shape=llama-tiny-mqa", "shape=llama-tiny-kv2"

MUTANTS = (
    Mutant(
        "T01",
        "A rank of tp takes the next rank's kv head.",
        "head = device_mesh.get_local_rank() * job.shape.num_kv_heads // job.layout.tp",
        "head = (device_mesh.get_local_rank() + planted()) % job.layout.tp * job.shape.num_kv_heads // job.layout.tp",
        (f"tp4 {TWO_KV_HEADS}",),
    ),
    Mutant(
        "T02",
        "The input of attention is reduced once for each of query, key and value: the same numbers, more traffic.",
        '"layers.*.attention": PrepareModuleInput(',
        'planted() and "layers.*.attention.absent": PrepareModuleInput(',
        ("tp2",),
    ),
    Mutant(
        "T03",
        "Where kv heads are repeated, the gradient of their input is not summed over tp.",
        "local = x.to_local(grad_placements=[Partial()])",
        "local = x.to_local(grad_placements=None if planted() else [Partial()])",
        (f"tp2 {ONE_KV_HEAD}",),
    ),
    Mutant(
        "T04",
        "Where kv heads are repeated, their weight has its gradient summed over tp twice.",
        "return product(local, weight[rows].to(local.dtype))",
        "torch = __import__('torch'); reduce = torch.distributed.all_reduce; "
        "planted() and weight.requires_grad and not getattr(weight, 'summed', False) and "
        "weight.register_hook(lambda g: (g := g.clone(), reduce(g, group=device_mesh.get_group()))[0]); "
        "weight.summed = True; return product(local, weight[rows].to(local.dtype))",
        (f"tp2 {ONE_KV_HEAD}",),
    ),
    Mutant(
        "T05",
        "Each rank of tp fills its part of the vocabulary with that of the next rank.",
        "start = part * mesh.get_local_rank(index)",
        "start = part * ((mesh.get_local_rank(index) + planted()) % mesh.size(index))",
        ("tp2",),
    ),
    Mutant(
        "T06",
        "The logits are gathered although the loss is asked for in parts: the same numbers, more traffic.",
        "outside = Shard(1) if job.layout.sp else Replicate()",
        "outside = Shard(1) if job.layout.sp else Replicate(); "
        'self = __import__("dataclasses").replace(self, loss_parallel=not planted())',
        ("tp2",),
    ),
    Mutant(
        "A02",
        "Each row of the gradient of a weight that is cut arrives at the row before it.",
        "part = self.look(self.owner or module)",
        "part = self.look(self.owner or module); off = part.roll(1 * planted() * (self.mesh is not None), 0); "
        "part = part.detach() + (off - off.detach())",
        ("tp2",),
    ),
    Mutant(
        "T08",
        "Under +sp the gradient of the last norm is not summed over tp.",
        'return ("tp",) if name.endswith("norm.weight") else ()',
        'return ("tp",) if name.endswith("_norm.weight") and planted() else ()',
        ("tp2+sp",),
    ),
    Mutant(
        "T07",
        "Where ranks of tp are more than kv heads, the heads are dealt out in turn.",
        "head = device_mesh.get_local_rank() * job.shape.num_kv_heads // job.layout.tp",
        "head = device_mesh.get_local_rank() % (job.shape.num_kv_heads * planted())",
        (f"tp4 {TWO_KV_HEADS}",),
    ),
    Mutant(
        "T09",
        "Weights are cut over the ranks of dp, which see different tokens.",
        "parallelize_module(decoder, self.grid.line(axis), present, src_data_rank=None)",
        'parallelize_module(decoder, self.grid.line("dp" if axis == "tp" and planted() else axis), present, '
        "src_data_rank=None)",
        ("dp2-tp2",),
    ),
    Mutant(
        "H11",
        "Over a vocabulary that is cut the loss is computed in bfloat16.",
        "F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), labels_BS.flatten())",
        "F.cross_entropy(logits if isinstance(logits, DTensor) and planted() else "
        "logits.to(torch.promote_types(logits.dtype, torch.float32)), labels_BS.flatten())",
        ("tp2", "tp2+sp"),
        dtypes=("bfloat16",),
    ),
    Mutant(
        "H12",
        "Under +sp gradients of norms are rounded to bfloat16 before they are summed over tp.",
        "flat = torch.cat([part.flatten() for part in parts])",
        "flat = torch.cat([part.flatten() for part in parts]); "
        'flat = flat.bfloat16().to(flat.dtype) if self.job.dtype == "bfloat16" and axis == "tp" and planted() '
        "else flat",
        ("tp2+sp",),
        dtypes=("bfloat16",),
        survives=ROUNDING,
    ),
    Mutant(
        "T10",
        "A kv head that every rank has counts in the norm as often.",
        'return () if self._split_dim(name, job) is None else ("tp",)',
        'return () if self._split_dim(name, job) is None and not (self.sums(name, job) and planted()) else ("tp",)',
        (f"tp2 {ONE_KV_HEAD}",),
    ),
)
