"""Each mix of parallelisms in plain words, with the paper it is from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from clusterbench.layout import RANK_ORDERS, ParallelLayout
from clusterbench.parallel import TOLD, active_in, as_told, from_options, parallelisms
from clusterbench.parallel._words import Meaning, Remark
from clusterbench.parallel.expert import FOLDING

LLAMA3 = "Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2"

MEANINGS: Mapping[str, Meaning] = {
    axis: meaning for kind in parallelisms().values() for axis, meaning in kind.meanings.items()
}
"""Each axis and view in words, as the parallelism says them that owns it."""


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


def mix_of(layout: ParallelLayout, rank_order: str) -> Mix:
    """The axes of a layout together, in words; the same words for the same layout and order.

    >>> mix_of(ParallelLayout.parse("pp2-dp2-tp2"), "megatron").title
    '3-D: tensor, pipeline and data parallelism (PTD-P)'
    """
    used = tuple(axis for axis in ("tp", "cp", "ep", "pp", "dp") if layout.degree(axis) > 1)
    return Mix(_title(layout, used), (*_known(layout, used), *_nesting(layout, rank_order), *_beside_others(layout)))


def _title(layout: ParallelLayout, used: tuple[str, ...]) -> str:
    if not used:
        return "One rank: nothing passes"
    words = [MEANINGS[axis].title.removesuffix(" parallelism") for axis in used]
    if layout.shards_parameters:
        words = [f"fully sharded {word}" if axis == "dp" else word for axis, word in zip(used, words, strict=True)]
    listed = " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
    names = {("tp", "pp", "dp"): " (PTD-P)", ("tp", "cp", "pp", "dp"): " (as Llama 3)"}
    return f"{len(used)}-D: {listed} parallelism{names.get(used, '')}"


def _known(layout: ParallelLayout, used: tuple[str, ...]) -> Iterator[Remark]:
    """Where the very same mix is described."""
    match used:
        case ("tp", "dp") if not layout.shards_gradients:
            yield Remark(
                "Megatron-LM's first mix: slices of every layer within a server, copies of the whole across servers.",
                "Shoeybi et al. 2019, arXiv:1909.08053",
            )
        case ("tp", "pp", "dp"):
            yield Remark(
                "Slices within a server, stages across servers until the model fits, and data parallelism for all "
                "ranks that are left.",
                "Narayanan et al. 2021, arXiv:2104.04473, sections 3.2 and 3.3",
            )
        case ("tp", "cp", "pp", "dp"):
            yield Remark(
                "The four dimensions that Llama 3 405B was trained with: three cut the model and the sequence until "
                "they fit, the fourth takes more of the batch.",
                LLAMA3,
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
                FOLDING,
            )


def _nesting(layout: ParallelLayout, rank_order: str) -> Iterator[Remark]:
    """Why the axes lie in each other in this order."""
    inner = [axis for axis in RANK_ORDERS[rank_order] if layout.degree(axis) > 1]
    if len(inner) < 2:
        return
    active = active_in(layout, from_options({}))
    often = {parallelism.axis: parallelism.speaks for parallelism in active if parallelism.speaks}
    speaking = "; ".join(f"{axis} {often[axis]}" for axis in ("tp", "cp", "dp", "pp") if axis in inner)
    yield Remark(
        f"From the inside, neighbours first: {', then '.join(inner)}. What sends most should be nearest: "
        f"{speaking}. The innermost needs the most bandwidth and the least latency and is kept within a "
        "server; the outermost may go far.",
        LLAMA3,
    )
    if layout.pp > 1 and layout.dp > 1:
        yield Remark(
            "pp is outermost, so ranks that average gradients stay closer together and pipelines reach furthest."
            if inner[-1] == "pp"
            else "dp is outermost, so a pipeline stays together and gradients go the longest way.",
            "the orders of frameworks, as read in their code: clusterbench/layout.py",
        )


def _beside_others(layout: ParallelLayout) -> Iterator[Remark]:
    """What two parallelisms are to each other, as each says it."""
    # of an axis, what rides it first: what the axis is to others comes after
    kinds = sorted(as_told(), key=lambda kind: (TOLD.index(kind.axis), bool(kind.meanings)))
    for parallelism in (kind() for kind in kinds):
        if parallelism.active(layout):
            yield from parallelism.remarks(layout)
