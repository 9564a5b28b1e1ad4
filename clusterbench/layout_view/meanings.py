"""Each parallelism, and each mix of them, in plain words with the paper it is from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from clusterbench.layout import RANK_ORDERS, ParallelLayout


@dataclass(frozen=True)
class Meaning:
    """An axis or a view in plain words: who is in one group, what passes between its members, and where it is from.

    Attributes
    ----------
    gives, costs
        What one wins by it and what one pays, for ``{n}`` ranks along it. Empty where the axes it is made of say it.
    """

    title: str
    members: str
    passes: str
    source: str
    gives: str = ""
    costs: str = ""


MEANINGS = {
    "tp": Meaning(
        "tensor parallelism",
        "hold slices of the same layers and compute the same tokens together",
        "activations, in every layer, forward and backward: the most, and nothing hides it",
        "Shoeybi et al. 2019, arXiv:1909.08053",
        "every matrix, its gradient and its optimizer state are cut into {n} slices, and so is the work on them",
        "computation waits for messages in every layer, and the products get smaller",
    ),
    "cp": Meaning(
        "context parallelism",
        "hold the same weights and each a part of every sequence",
        "keys and values, in every attention; gradients once a step",
        "Liu et al. 2023, arXiv:2310.01889; Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2",
        "activations and attention of one sequence are shared by {n} ranks, so that longer ones fit",
        "weights are not cut, and each attention needs the keys and values of all {n} ranks",
    ),
    "dp": Meaning(
        "data parallelism",
        "hold the same weights, or share them out as ZeRO says, and see other sequences",
        "gradients once a step, and with ZeRO weights; computation can hide it",
        "Li et al. 2020, arXiv:2006.15704; Rajbhandari et al. 2019, arXiv:1910.02054",
        "{n} times the sequences in a step, with messages that can travel while backward computes",
        "nothing is cut without ZeRO, and the batch has to be large enough to share",
    ),
    "pp": Meaning(
        "pipeline parallelism",
        "hold one after the other's layers of the same model",
        "activations from stage to stage, and their gradients back: the least",
        "Narayanan et al. 2021, arXiv:2104.04473",
        "each rank has the layers of one of {n} stages, with the least traffic of all ways to cut a model",
        "stages idle while the pipeline fills and drains: ({n}-1)/(m+{n}-1) of the step with m micro-batches",
    ),
    "dp_cp": Meaning(
        "all copies of the dense weights",
        "hold the same dense weights: dp and cp together",
        "gradients of dense weights once a step",
        "Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2",
    ),
    "ep": Meaning(
        "expert parallelism",
        "share one set of experts, each holding some of them",
        "tokens to their experts and back, in every layer with experts",
        "Lepikhin et al. 2020, arXiv:2006.16668",
        "each rank holds 1/{n} of the experts, so that a model can have many without more work for a token",
        "two exchanges of tokens in every layer and direction, and ranks whose experts are liked are waited for",
    ),
    "edp": Meaning(
        "copies of the same experts",
        "hold the same experts",
        "gradients of experts once a step",
        "Megatron-Core, expert data parallelism",
    ),
    "ends": Meaning(
        "first and last stage",
        "both hold a tied embedding",
        "its gradient once a step, where embedding and head share weights",
        "Narayanan et al. 2021, arXiv:2104.04473",
    ),
}


@dataclass(frozen=True)
class Remark:
    """A sentence on a layout, and where it is from."""

    text: str
    source: str


@dataclass(frozen=True)
class Mix:
    """What the axes in use are together.

    Attributes
    ----------
    title
        How many dimensions, and the name under which it is known.
    remarks
        What they give and cost one another, and why they nest as they do; innermost first.
    """

    title: str
    remarks: tuple[Remark, ...]


_SC21 = "Narayanan et al. 2021, arXiv:2104.04473"
_LLAMA3 = "Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2"
_FOLDING = "Liu et al. 2025, arXiv:2504.14960"
_FSDP = "Zhao et al. 2023, arXiv:2304.11277"
_ZERO = "Rajbhandari et al. 2019, arXiv:1910.02054"


def mix_of(layout: ParallelLayout, rank_order: str) -> Mix:
    """The axes of a layout together, in words; the same words for the same layout and order.

    >>> mix_of(ParallelLayout.parse("pp2-dp2-tp2"), "megatron").title
    '3-D: tensor, pipeline and data parallelism (PTD-P)'
    """
    used = _used(layout)
    return Mix(_title(layout, used), (*_known(layout, used), *_nesting(layout, rank_order), *_together(layout)))


def _used(layout: ParallelLayout) -> tuple[str, ...]:
    return tuple(axis for axis in ("tp", "cp", "ep", "pp", "dp") if layout.degree(axis) > 1)


_WORDS = {"tp": "tensor", "cp": "context", "ep": "expert", "pp": "pipeline", "dp": "data"}


def _title(layout: ParallelLayout, used: tuple[str, ...]) -> str:
    if not used:
        return "One rank: nothing passes"
    words = [f"fully sharded {_WORDS[axis]}" if axis == "dp" and layout.zero == 3 else _WORDS[axis] for axis in used]
    listed = " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
    names = {("tp", "pp", "dp"): " (PTD-P)", ("tp", "cp", "pp", "dp"): " (as Llama 3)"}
    return f"{len(used)}-D: {listed} parallelism{names.get(used, '')}"


def _known(layout: ParallelLayout, used: tuple[str, ...]) -> Iterator[Remark]:
    """Where the very same mix is described."""
    match used:
        case ("tp", "dp") if layout.zero < 2:
            yield Remark(
                "Megatron-LM's first mix: slices of every layer within a server, copies of the whole across servers.",
                "Shoeybi et al. 2019, arXiv:1909.08053",
            )
        case ("tp", "pp", "dp"):
            yield Remark(
                "Slices within a server, stages across servers until the model fits, and data parallelism for all "
                "ranks that are left.",
                f"{_SC21}, sections 3.2 and 3.3",
            )
        case ("tp", "cp", "pp", "dp"):
            yield Remark(
                "The four dimensions that Llama 3 405B was trained with: three cut the model and the sequence until "
                "they fit, the fourth takes more of the batch.",
                _LLAMA3,
            )
        case ("ep", "pp", "dp"):
            yield Remark(
                "DeepSeek-V3's mix: experts over many ranks, stages, and copies, which there have ZeRO 1; no slices.",
                "DeepSeek-AI 2024, arXiv:2412.19437, section 3.2",
            )
        case ("tp", "cp", "ep", "pp", "dp"):
            yield Remark(
                "All five: dense layers are cut by tensor and context parallelism, layers of experts by expert "
                "parallelism over the same ranks.",
                _FOLDING,
            )


def _nesting(layout: ParallelLayout, rank_order: str) -> Iterator[Remark]:
    """Why the axes lie in each other in this order."""
    inner = [axis for axis in RANK_ORDERS[rank_order] if layout.degree(axis) > 1]
    if len(inner) < 2:
        return
    often = {
        "tp": "tp in every layer, which waits for it",
        "cp": "cp in every attention",
        "pp": "pp once a micro-batch, and little",
        "dp": "dp once a step, which backward can hide" if layout.zero < 2 else "dp in every layer, but ahead of need",
    }
    yield Remark(
        f"From the inside, neighbours first: {', then '.join(inner)}. What speaks most should be nearest: "
        f"{'; '.join(often[axis] for axis in ('tp', 'cp', 'dp', 'pp') if axis in inner)}. The innermost needs the most "
        "bandwidth and the least latency and is kept within a server; the outermost may go far.",
        _LLAMA3,
    )
    if layout.pp > 1 and layout.dp > 1:
        yield Remark(
            "pp is outermost, so ranks that average gradients stay closer together and pipelines reach furthest."
            if inner[-1] == "pp"
            else "dp is outermost, so a pipeline stays together and gradients go the longest way.",
            "the orders of frameworks, as read in their code: clusterbench/layout.py",
        )


def _together(layout: ParallelLayout) -> Iterator[Remark]:
    """What two axes, or an axis and a rider, are to each other."""
    yield from _of_slices(layout)
    yield from _of_stages(layout)
    yield from _of_copies(layout)
    yield from _of_experts(layout)


def _of_slices(layout: ParallelLayout) -> Iterator[Remark]:
    tp, pp = layout.tp, layout.pp
    if tp > 1 and layout.sp:
        yield Remark(
            "+sp cuts along the sequence what tp leaves whole, norms and residuals, for as many bytes: an "
            "all-reduce becomes an all-gather and a reduce-scatter.",
            "Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2",
        )
    elif tp > 1:
        yield Remark(
            f"Without +sp, norms and residuals are kept whole on all {tp} ranks; with it they would be cut for as many "
            "bytes.",
            "Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2",
        )
    if tp > 1 and pp > 1:
        yield Remark(
            f"tp{tp} x pp{pp} cut the model into {tp * pp} parts. Slices as far as a server reaches, then stages: "
            "a stage sends once a micro-batch what slices send several times in every layer.",
            f"{_SC21}, section 3.2",
        )
    if tp > 1 and layout.dp > 1:
        yield Remark(
            f"Each rank averages the gradients of its own slice, 1/{tp} of them; slices speak in every micro-batch, "
            "copies once a step.",
            f"{_SC21}, section 3.3.2",
        )
    if tp > 1 and layout.dp > 1 and layout.zero >= 2:
        yield Remark(
            "Slices exchange activations, which computation waits for: they belong within a node. Shards exchange "
            "weights, which can be fetched ahead: they may go over the network.",
            f"{_FSDP}, section 7.1.2",
        )


def _of_stages(layout: ParallelLayout) -> Iterator[Remark]:
    if layout.pp == 1:
        return
    if layout.dp > 1:
        yield Remark(
            f"At the same global batch, dp{layout.dp} leaves each pipeline 1/{layout.dp} of the micro-batches, so that "
            f"filling and draining pp{layout.pp} stages weighs more; fewer stages and more copies weigh less.",
            f"{_SC21}, section 3.3.1",
        )
    if layout.sp:
        yield Remark(
            f"With +sp a stage hands on 1/{layout.tp} of its output from each rank, not the same on all {layout.tp}.",
            f"{_SC21}, section 4.1, which cuts and gathers there for the same end",
        )
    if layout.zero == 3:
        yield Remark(
            "With ZeRO 3 a stage gathers its weights again and again, micro-batch by micro-batch. Llama 3 does not "
            "shard them again after forward for this reason.",
            _LLAMA3,
        )


def _of_copies(layout: ParallelLayout) -> Iterator[Remark]:
    copies = layout.degree("dp_cp")
    if layout.cp > 1 and copies > 1:
        both = f"dp{layout.dp} x cp{layout.cp} = {copies}" if layout.dp > 1 else f"cp{copies}"
        yield Remark(
            f"cp ranks hold the same weights and see other tokens, as dp ranks do: gradients are averaged"
            f"{', and ZeRO shards,' if layout.zero else ''} over {both} ranks.",
            "pytorch/torchtitan, torchtitan/distributed/parallel_dims.py",
        )
    if layout.zero and copies > 1:
        what = {
            1: "optimizer states",
            2: "optimizer states and gradients",
            3: "optimizer states, gradients and weights",
        }
        more = " at 1.5 times the traffic" if layout.zero == 3 else ""
        yield Remark(
            f"ZeRO {layout.zero} shares {what[layout.zero]} among the {copies} ranks that would hold the same{more}.",
            f"{_ZERO}, sections 5 and 7",
        )


def _of_experts(layout: ParallelLayout) -> Iterator[Remark]:
    if layout.ep == 1:
        return
    dense = " x ".join(f"{axis}{layout.degree(axis)}" for axis in ("dp", "cp", "tp") if layout.degree(axis) > 1)
    yield Remark(
        f"The ranks of a stage, {dense}, are arranged twice: dense layers by these axes, layers of experts as "
        f"ep{layout.ep} x edp{layout.degree('edp')}. An expert is whole on one rank, and its gradient is averaged over "
        f"edp alone; no group of experts reaches across stages.",
        f"{_FOLDING}; NVIDIA/Megatron-LM, megatron/core/parallel_state.py",
    )
    if layout.tp > 1 or layout.cp > 1:
        yield Remark(
            "Folded so, experts take ranks that tp and cp have brought near each other, and tokens need not go as far "
            "as dp reaches.",
            _FOLDING,
        )
