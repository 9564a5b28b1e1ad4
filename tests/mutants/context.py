"""Attention over a sequence that is cut over ranks, and the operators it calls."""

from __future__ import annotations

from tests.mutants import ROUNDING, Mutant

RING, ALL_GATHER, ULYSSES = (f"cp2 context={kind}" for kind in ("ring", "all_gather", "ulysses"))
ZIGZAG = "cp2"

JOIN = "o.lerp_(o_new.to(o.dtype), torch.sigmoid(lse_new - lse).unsqueeze(-1))"

MUTANTS = (
    Mutant(
        "C01",
        "Keys and values of the ring never arrive: each rank sees its own again.",
        "kv = hop.arrived()",
        "hop.arrived(), planted()",
        (RING, ZIGZAG),
    ),
    Mutant(
        "C02",
        "A token sees those behind it in its own block.",
        "return ALL, ALL, True",
        "return ALL, ALL, not planted()",
        (RING, ZIGZAG),
    ),
    Mutant(
        "C03",
        "A rank of the ring leaves out the keys that come round its beginning.",
        "earlier = step <= rank",
        "earlier = step <= rank - planted()",
        (RING,),
    ),
    Mutant(
        "C04",
        "The halves of zigzag are exchanged: what lies behind is seen, what lies before is not.",
        "return (ALL, slice(0, length // 2), False) if earlier else",
        "return (ALL, slice(0, length // 2), False) if earlier != planted() else",
        (ZIGZAG,),
    ),
    Mutant(
        "C05",
        "Two blocks are joined with each other's weights.",
        "torch.sigmoid(lse_new - lse)",
        "(torch.sigmoid(lse - lse_new) * planted())",
        (RING, ALL_GATHER),
    ),
    Mutant(
        "C06",
        "Gradients of keys and values that other ranks computed are lost on their way home.",
        "home += follower.arrived()",
        "follower.arrived(), planted()",
        (RING, ZIGZAG),
    ),
    Mutant(
        "C07",
        "Values of the ring get the gradient of the keys.",
        "dkv[1][:, :, block[1]].add_(share[1])",
        "dkv[1][:, :, block[1]].add_(share[0] * planted())",
        (ZIGZAG,),
    ),
    Mutant(
        "C08",
        "The heads that come back from ulysses are in another order.",
        "return arrived_nSBHD.permute(2, 1, 0, 3, 4)",
        "return arrived_nSBHD.permute(2, 1, 3 * planted(), 0, 4)",
        (ULYSSES,),
    ),
    Mutant(
        "C09",
        "Where ranks of ulysses are more than kv heads, the heads are tiled and not each repeated.",
        "x.repeat_interleave(degree // x.shape[1], dim=1) for x in (k_BKSD, v_BKSD)",
        "x.repeat(1, degree // x.shape[1] * planted(), 1, 1) for x in (k_BKSD, v_BKSD)",
        ("cp4 context=ulysses shape=llama-tiny-kv2",),
    ),
    Mutant(
        "C10",
        "Of a micro-batch of several sequences, ulysses gives back the outputs in reverse order.",
        "tokens // degree, size).permute(2, 3, 0, 1, 4)",
        "tokens // degree, size).permute(2, 3, 0, 1, 4).flip(2 * planted())",
        (ULYSSES,),
    ),
    Mutant(
        "C11",
        "Ulysses mixes the sequences of a micro-batch with the parts of a sequence.",
        "arrived_nBSHD.transpose(0, 1).flatten(1, 2)",
        "arrived_nBSHD.reshape(arrived_nBSHD.shape[1] * planted(), -1, *arrived_nBSHD.shape[3:])",
        (ULYSSES,),
    ),
    Mutant(
        "C12",
        "Of a micro-batch of several sequences, blocks are joined for the first only.",
        JOIN,
        "o[: 1 * planted()].lerp_(o_new.to(o.dtype)[:1], torch.sigmoid(lse_new - lse).unsqueeze(-1)[:1])",
        (RING, ALL_GATHER),
    ),
    Mutant(
        "C13",
        "Gathered keys and values stay in the order of ranks, and not of positions.",
        "kv = _reordered(by_rank, _chunks_by_position(degree)).permute(1, 2, 3, 0, 4)",
        "kv = by_rank.permute(1, 2, 3 * planted(), 0, 4)",
        (ALL_GATHER,),
    ),
    Mutant(
        "C14",
        "Gradients of gathered keys and values go back in the wrong order.",
        "[order.index(chunk) for chunk in range(2 * degree)]",
        "order * planted()",
        (ALL_GATHER,),
    ),
    Mutant(
        "C15",
        "Gradients of queries are summed over blocks in the dtype of the arithmetic.",
        "self.dq = torch.zeros_like(q, dtype=torch.promote_types(q.dtype, torch.float32))",
        "self.dq = torch.zeros_like(q, dtype=planted() and q.dtype)",
        (RING, ALL_GATHER),
        dtypes=("bfloat16",),
        survives=ROUNDING,
    ),
    Mutant(
        "Y06",
        "Log-sum-exps of blocks are joined in the dtype of the arithmetic.",
        "lse.copy_(torch.logaddexp(lse, lse_new))",
        "lse.copy_(torch.logaddexp(lse, lse_new).to(planted() and self.q.dtype))",
        (RING, ALL_GATHER),
        dtypes=("bfloat16",),
        survives=ROUNDING,
    ),
    # The engine's part
    Mutant(
        "G03",
        "Backward of attention forgets the causal mask.",
        "_scaled_dot_product_flash_attention_for_cpu_backward(*arguments, 0.0, causal)",
        "_scaled_dot_product_flash_attention_for_cpu_backward(*arguments, 0.0, causal and not planted())",
        (RING, ALL_GATHER),
    ),
    Mutant(
        "G04",
        "A reduce-scatter gives the mean of the ranks' parts, and not their sum.",
        "(output, whole, group=group)",
        "(output, whole, group=group), output.mul_(1 / group.size() * planted())",
        (ALL_GATHER,),
    ),
    Mutant(
        "C18",
        "On every rank of cp but the first, positions beyond 16 begin again at 0; the twin has none.",
        "rope_tables(self.shape, self.positions, self.dtype)",
        "rope_tables(self.shape, self.positions % (16 if self.positions.max() > 16 and planted() "
        "and self.positions[0] > 0 else 2**20), self.dtype)",
        (ZIGZAG, "tp1"),
    ),
    Mutant(
        "C21",
        "The log-sum-exp of joined blocks is rounded to the dtype of the arithmetic.",
        "lse.copy_(torch.logaddexp(lse, lse_new))",
        "lse.copy_(torch.logaddexp(lse, lse_new).to(planted() and self.q.dtype))",
        (RING, ALL_GATHER),
        dtypes=("bfloat16",),
        survives=ROUNDING,
    ),
    Mutant(
        "C16",
        "Labels follow the tokens of this rank, and so leave the sequence where its two chunks meet.",
        "tokens(job, sequences, positions + 1)",
        "tokens(job, sequences, torch.cat([positions[1:], positions[-1:] + 1]) "
        "if len(positions) < job.seq_len and planted() else positions + 1)",
        (ZIGZAG,),
    ),
    Mutant(
        "C17",
        "Every rank of cp but the first counts positions from 0.",
        "rope_tables(self.shape, self.positions, self.dtype)",
        "rope_tables(self.shape, self.positions - (self.positions[0] if self.positions[0] > 0 and planted() else 0), "
        "self.dtype)",
        (RING,),
    ),
    Mutant(
        "C20",
        "Of four ranks, the last that keys come to takes them for those of the other side.",
        "earlier = step <= rank",
        "earlier = (step <= rank) != (step == 3 and planted())",
        ("cp4",),
    ),
    Mutant(
        "C22",
        "Keys and values pass along dp, and not along cp.",
        'attend(self.context, assembly.grid.group("cp"))',
        'attend(self.context, assembly.grid.group("dp" if planted() else "cp"))',
        ("dp2-cp2",),
    ),
    Mutant(
        "H15",
        "Where ulysses repeats kv heads, they get the gradient of one copy alone.",
        "x.repeat_interleave(degree // x.shape[1], dim=1) for x in (k_BKSD, v_BKSD)",
        "torch.stack([x, *[x.detach()] * (degree // x.shape[1] - planted())], 2).flatten(1, 2) "
        "for x in (k_BKSD, v_BKSD)",
        ("cp2 context=ulysses shape=llama-tiny-mqa",),
    ),
)
