"""Expert parallelism: the experts of every layer spread over ranks, to which tokens travel and return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Self, cast

from clusterbench.job import TrainingJob
from clusterbench.job.experts import INDEX_BYTES, UNEVEN, even_tokens, expert_weight_shapes
from clusterbench.layout import ParallelLayout
from clusterbench.options import option
from clusterbench.parallel import RESULT, SENT, Parallelism, Slack, Traffic, Twin
from clusterbench.parallel._words import AFTER_BACKWARD, Meaning, PhaseWords, Remark, in_layers
from clusterbench.shape import SHAPES, ModelShape
from clusterbench.units import quotient
from clusterbench.words import Word

if TYPE_CHECKING:
    from clusterbench.model.assembly import Assembly
    from clusterbench.model.experts import MixtureOfExperts

TOKENWISE = (f"{RESULT}{SENT}rows", "layer.feed_forward.input", "layer.router.", "layer.experts.", "layer.shared.")
"""Activations of a mixture of experts of which sequence parallelism leaves a rank its own tokens' part."""


GROUPED_BYTES = 16
"""Rows of what ``torch.nn.functional.grouped_mm`` multiplies begin at multiples of so many."""

FOLDING = "Liu et al. 2025, arXiv:2504.14960"


@dataclass(frozen=True, kw_only=True)
class ExpertParallel(Parallelism):
    """Spreads the experts of each layer over ranks that see different tokens (all-to-all, grouped products).

    Notes
    -----
    ``ep`` is a second view of the ranks of a pipeline stage, so a rank's tokens are those that dp, cp and sp leave it.
    An expert is whole on one rank of ``ep``, and the ranks of ``edp`` hold copies of it. No token is dropped.

    With ``real`` routing the number of rows a rank gets depends on data: the host waits for it once per layer, and
    bytes and memory are known for an even load only. ``balanced`` is what published benchmarks of such models force:
    an upper bound of what training reaches.

    With ``expert_overlap`` each micro-batch goes through a layer's experts in two halves, of which one travels while
    the other is computed, in forward and in backward. It costs products half as large, and what attention does is not
    overlapped.

    Source
    ------
    Lepikhin et al. 2020, arXiv:2006.16668 (all-to-all). Gale et al. 2022, arXiv:2211.15841 (no token dropped). Fedus et
    al. 2021, arXiv:2101.03961, section 2.2 (load-balancing loss). DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.1
    (overlap of two parts of a batch).
    """

    phase: ClassVar[str] = "expert"
    axis: ClassVar[str] = "ep"
    meanings: ClassVar[Mapping[str, Meaning]] = {
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
    }
    glossary: ClassVar[tuple[Word, ...]] = (
        Word(
            "EP",
            "Expert parallelism: the experts of a layer lie on different ranks, and tokens travel to their experts and "
            "back. Lepikhin et al., arXiv:2006.16668.",
            r"ep\d*|EP\d+",
        ),
        Word(
            "EDP",
            "Expert data parallelism: the ranks that hold copies of the same experts and average their gradients.",
            r"edp\d*|EDP\d+",
        ),
        Word("MoE", "Mixture of experts: layers of which a router picks a few parts for each token.", "moe"),
    )
    changes_model: ClassVar[bool] = True

    routing: str = option(
        "real",
        "real: tokens go where the router sends them; balanced: every expert gets as many, weighted by the router",
        choices=("real", "balanced"),
        label="{} routing",
    )
    expert_overlap: bool = option(
        False,
        "compute one half of a micro-batch in the experts while the other travels (ep)",
        label="overlap",
        alters="nothing",
    )
    aux_loss: float = option(0.0, "coefficient of the load-balancing loss of each layer with experts", minimum=0.0)

    @property
    def routes(self) -> bool:
        return self.routing == "real"

    def needs_data(self, job: TrainingJob) -> str:
        if job.shape.has_experts and self.routes:
            return "routing real sends what the router decides, which takes data; routing balanced can be dry-run"
        return ""

    def active(self, layout: ParallelLayout) -> bool:
        # Whether there are experts, the shape says; without, nothing here does anything.
        return True

    def concerned(self, layout: ParallelLayout, shape: ModelShape) -> bool:
        return layout.spreads_experts or shape.has_experts or self._asks_for_experts() is not None

    def _asks_for_experts(self) -> str | None:
        if self.routing != "real":
            return f"routing is {self.routing}"
        return f"aux_loss is {self.aux_loss:g}" if self.aux_loss else None

    def objection(self, job: TrainingJob) -> str | None:
        shape, layout = job.shape, job.layout
        if not shape.has_experts:
            asked = f"+ep{layout.ep} spreads experts" if layout.spreads_experts else self._asks_for_experts()
            with_experts = ", ".join(sorted(name for name, other in SHAPES.items() if other.has_experts))
            return f"{asked}, but {shape.name} has none; shapes with experts are {with_experts}" if asked else None
        if shape.num_experts % layout.ep:
            share = f"{shape.num_experts} / {layout.ep} = {quotient(shape.num_experts, layout.ep)}"
            return f"ep{layout.ep} does not divide the {shape.num_experts} experts of {shape.name}: {share}"
        if layout.tp > 1 and not layout.sp:
            return (
                f"with experts, tp{layout.tp} needs +sp: each of {layout.tp} ranks would send the same tokens to them"
            )
        if (unfit := _unfit_channels(job)) is not None:
            return unfit
        if self.expert_overlap and layout.shards_gradients and layout.spreads_experts and layout.degree("edp") > 1:
            return (
                f"expert_overlap computes in two halves, and with +zero{layout.zero} experts on "
                f"{layout.degree('edp')} ranks would be gathered for each; +zero1 keeps them"
            )
        if self.routing == "balanced" and job.residual_tokens % (even_tokens(shape) * self.parts(job)):
            rows = job.residual_tokens * shape.experts_per_token
            each = f"{rows} rows over {shape.num_experts} experts"
            if self.parts(job) > 1:
                each = f"two halves of {each}"
            return (
                "balanced routing does not come out even: micro_batch_size and seq_len give a rank "
                f"{job.residual_tokens} tokens, which are {each}; a multiple of "
                f"{even_tokens(shape) * self.parts(job)} tokens would"
            )
        return None

    def parts(self, job: TrainingJob) -> int:
        return 2 if self.expert_overlap and job.layout.spreads_experts else 1

    def routed_by_place(self) -> Self:
        return replace(self, routing=UNEVEN if self.routes else self.routing)

    def twin(self, job: TrainingJob) -> Twin:
        if not job.shape.has_experts or self.routing == "real":
            return Twin()
        # Routing that goes by a token's place among those of its rank sends it where one rank with all tokens would if
        # each piece of a sequence on one rank is even: half a piece of cp, of which zig-zag gives a rank two. Uneven
        # routing takes two rounds.
        layout, rounds = job.layout, 2 if self.routing == UNEVEN else 1
        pieces = (2 * layout.cp if layout.cp > 1 else 1) * layout.sequence_parts
        return Twin(seq_unit=rounds * even_tokens(job.shape) * pieces)

    def weight(self, name: str, size: tuple[int, ...], job: TrainingJob) -> tuple[int, ...]:
        return (size[0] // job.layout.ep, *size[1:]) if is_expert(name) else size

    def splits(self, name: str, job: TrainingJob) -> tuple[str, ...]:
        return ("ep",) if is_expert(name) and job.layout.spreads_experts else ()

    def sums(self, name: str, job: TrainingJob) -> tuple[str, ...]:
        if is_expert(name) and job.layout.spreads_experts:
            # FSDP sums what it shards
            return ("edp",) if job.layout.degree("edp") > 1 and not job.layout.shards_gradients else ()
        # Whole on every rank of tp, each of which has seen its own tokens only.
        return ("tp",) if is_of_mixture(name) and job.layout.tp > 1 else ()

    def activations(self, held: dict[str, float], job: TrainingJob) -> dict[str, float]:
        if not job.shape.has_experts:
            return held
        ep, tp = job.layout.ep, job.layout.tp
        if job.layout.spreads_experts:  # as they came there, and as they came back
            held = held | {f"{RESULT}{SENT}rows": held["layer.experts.input"] + held["layer.experts.output"]}
        return {name: size / _ranks_sharing(name, ep, tp) for name, size in held.items()}

    def slack(self, job: TrainingJob) -> Iterable[Slack]:
        if job.shape.has_experts and job.layout.spreads_experts and job.device == "cpu":
            rows = job.residual_tokens * job.shape.experts_per_token
            yield Slack(float(rows * job.shape.hidden_size * job.compute_bytes), "a message that Gloo lets go late")

    def traffic(self, job: TrainingJob) -> Iterable[Traffic]:
        yield from self.forward_traffic(job)
        if job.shape.has_experts and job.layout.spreads_experts:
            yield self._rows_there_and_back(job, "backward_ep")

    def forward_traffic(self, job: TrainingJob) -> Iterable[Traffic]:
        """What the forwards of one step send; full recomputation sends it again.

        Calls are exact. Bytes of rows are those of an even load: exact for balanced routing.
        """
        if not job.shape.has_experts:
            return
        forwards, counts = passes(job), job.shape.num_experts * INDEX_BYTES
        if job.layout.spreads_experts:
            if self.routing != "balanced":  # how many rows there will be
                size_bytes = forwards * self.parts(job) * counts
                yield Traffic("ep", "all_to_all", forwards, size_bytes, during="forward_ep")
            yield self._rows_there_and_back(job, "forward_ep")
        if self.aux_loss:
            for axis in _token_axes(job.layout):
                yield Traffic(axis, "all_reduce", forwards, forwards * counts, during="forward_ep")

    def _rows_there_and_back(self, job: TrainingJob, during: str) -> Traffic:
        rows = job.residual_tokens * job.shape.experts_per_token
        size_bytes = rows * job.shape.hidden_size * job.compute_bytes
        calls = 2 * self.parts(job) * passes(job)
        return Traffic("ep", "all_to_all", calls, 2 * passes(job) * size_bytes, during=during)

    def traffic_basis(self, job: TrainingJob) -> dict[str, str]:
        if not job.layout.spreads_experts or self.routing == "balanced":
            return {}
        return {"ep": "bytes of an even load; the router decides how many rows each rank really gets"}

    def phases(self, layout: ParallelLayout, each: str) -> Iterable[PhaseWords]:
        yield PhaseWords(
            "forward_ep",
            "Forward: tokens go to their experts and back",
            in_layers(each),
            "Each rank sends every token to the ranks that hold the experts its router chose, and gets the results",
            flow="all",
        )
        yield PhaseWords(
            "backward_ep",
            "Backward: gradients of tokens go to the experts and back",
            in_layers(each),
            "The way of the tokens, once more",
            flow="all",
        )
        yield PhaseWords(
            "sum_edp",
            "Gradients of experts are averaged",
            AFTER_BACKWARD,
            "Ranks with the same experts have seen other tokens",
        )

    def remarks(self, layout: ParallelLayout) -> Iterable[Remark]:
        if not layout.spreads_experts:
            return
        dense = " x ".join(f"{axis}{layout.degree(axis)}" for axis in ("dp", "cp", "tp") if layout.degree(axis) > 1)
        yield Remark(
            f"The ranks of a stage, {dense}, are arranged twice: dense layers by these axes, layers of experts as "
            f"ep{layout.ep} x edp{layout.degree('edp')}. An expert is whole on one rank, and its gradient is averaged "
            "over edp alone; no group of experts reaches across stages.",
            f"{FOLDING}; NVIDIA/Megatron-LM, megatron/core/parallel_state.py",
        )
        if layout.tp > 1 or layout.cp > 1:
            yield Remark(
                "Folded so, experts take ranks that tp and cp have brought near each other, and tokens need not go as "
                "far as dp reaches.",
                FOLDING,
            )

    def apply(self, assembly: Assembly) -> None:
        job = assembly.job
        if not job.shape.has_experts:
            return
        for layer in assembly.layers():
            experts = cast("MixtureOfExperts", layer.feed_forward)
            experts.routing = self.routing
            experts.aux_loss = self.aux_loss
            # As the loss is divided; but over cp, which averages gradients, the ranks' tokens make up one such loss.
            experts.aux_scale = job.layout.cp / job.gradient_accumulation_steps
            experts.token_groups = tuple(assembly.grid.group(axis) for axis in _token_axes(job.layout))
            if job.layout.spreads_experts:
                experts.ep_group = assembly.grid.group("ep")
                experts.overlap = self.expert_overlap
        if job.layout.spreads_experts:
            names = [name for name in expert_weight_shapes(job.shape) if is_expert(name)]
            for index in job.layers:
                for name in names:
                    assembly.cut(f"layers.{index}.{name}", 0, "ep")


def _unfit_channels(job: TrainingJob) -> str | None:
    """Why torch cannot multiply the rows of all experts at once; in float64 each expert's are multiplied alone."""
    shape, multiple = job.shape, GROUPED_BYTES // job.compute_bytes
    for name in ("hidden_size", "ffn_hidden_size"):
        number = getattr(shape, name)
        if job.dtype != "float64" and number % multiple:
            return (
                f"torch's grouped products take channels in multiples of {multiple} ({GROUPED_BYTES} bytes) in "
                f"{job.dtype}, and {name} of {shape.name} is {number}"
            )
    return None


def passes(job: TrainingJob) -> int:
    """How often a rank goes forward through a layer in one step."""
    return job.num_layers * job.gradient_accumulation_steps


def is_expert(name: str) -> bool:
    """Whether a weight is that of routed experts, which stand one below the other."""
    return ".feed_forward.experts." in f".{name}"


def is_of_mixture(name: str) -> bool:
    """Whether a weight belongs to a mixture of experts: router, experts, shared experts."""
    whole = f".{name}"
    return is_expert(name) or ".feed_forward.router." in whole or ".feed_forward.shared." in whole


@cache  # a plan asks for every name ten thousand times
def _ranks_sharing(name: str, ep: int, tp: int) -> int:
    """Among how many ranks an entry of :func:`clusterbench.job.activations` is cut."""
    if name == "layer.expert_counts":
        return ep
    return tp if name.startswith(TOKENWISE) else 1


def _token_axes(layout: ParallelLayout) -> tuple[str, ...]:
    """Axes over which the tokens of one micro-batch are spread."""
    return tuple(axis for axis in ("cp", "tp") if layout.degree(axis) > 1 and (axis == "cp" or layout.sp))
