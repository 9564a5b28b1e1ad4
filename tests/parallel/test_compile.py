"""Compiled layers compute what plain ones do, and are refused where torch cannot compile them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from typing import Any, ClassVar

import pytest
import torch

from clusterbench.engine import compat
from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.parallel import Parallelism, active_in, from_options
from clusterbench.parallel.compile import Compile
from clusterbench.parallel.context import ContextParallel
from clusterbench.parallel.pipeline import Pipeline
from clusterbench.parallel.recompute import Recompute
from clusterbench.training.assemble import assemble
from tests.ranks import run_ranks
from tests.share import some_of
from tests.training.jobs import Case, Together, make_job, make_rig, name_of, parity_of

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++, with which torch compiles on a CPU")


CHOICES = ("none", "selective", "full")
COMPILED = {"compile": True}
MOE = {"shape": "moe-shared-tiny"}

CASES: list[Case] = [
    ("tp1", COMPILED, {"dtype": "bfloat16"}),
    ("dp2+ep2", {**COMPILED, "routing": "real"}, {**MOE, "dtype": "bfloat16"}),
    ("tp2+sp", {**COMPILED, "recompute": "selective"}, {"dtype": "bfloat16"}),
]
TRACED: list[Case] = [
    *(("tp1", {**COMPILED, "recompute": recompute}, {"dtype": "bfloat16"}) for recompute in ("selective", "full")),
    ("tp1", {**COMPILED, "recompute": "full"}, {**MOE, "dtype": "float32"}),
    ("dp2+zero3", {**COMPILED, "recompute": "full"}, {"dtype": "bfloat16"}),
    ("pp2", {**COMPILED, "recompute": "selective"}, {"dtype": "float32"}),
    ("cp2", {**COMPILED, "recompute": "full", "context": "ring"}, {"dtype": "bfloat16"}),
    ("cp2", {**COMPILED, "recompute": "selective", "context": "all_gather"}, {"dtype": "bfloat16"}),
    ("tp2", COMPILED, {"dtype": "bfloat16"}),
    ("tp2+sp", {**COMPILED, "recompute": "full"}, {"shape": "llama-tiny-mqa", "dtype": "float32"}),
    ("dp2-tp2+sp+zero3", COMPILED, {"dtype": "bfloat16"}),
    ("dp2-tp2+sp+ep2", COMPILED, {**MOE, "dtype": "bfloat16"}),
    ("pp2-tp2", COMPILED, {"dtype": "bfloat16"}),
    ("cp2-tp2+sp", {**COMPILED, "context": "ring"}, {"dtype": "bfloat16"}),
]
"""Whether these are traced in one piece. What Inductor makes of one piece is torch's affair, and takes g++ a minute for
each; that it is right says the parity of those that are compiled below.
"""


def compiled(layout: str, options: dict[str, Any], changes: dict[str, Any]) -> Any:
    """What the confirmation says of a compiled step, or why it is wrong."""
    return confirmation_of(layout, options, changes)


@contextmanager
def no_code() -> Iterator[None]:
    """Meanwhile graphs, forward and backward, run operator by operator and no code is made of them."""
    from torch import nn
    from torch._dynamo.backends.registry import lookup_backend
    from torch._dynamo.utils import counters

    def run_operators(graph: Any, inputs: Any) -> Any:
        counters["inductor"]["instead of code"] += 1  # as Inductor counts what it makes
        return lookup_backend("aot_eager")(graph, inputs)

    compile_module = nn.Module.compile
    nn.Module.compile = partialmethod(compile_module, backend=run_operators)  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        nn.Module.compile = compile_module  # type: ignore[method-assign]


def traced(layout: str, options: dict[str, Any], changes: dict[str, Any]) -> Any:
    """The same of graphs that are run and not made code of."""
    with no_code():
        return confirmation_of(layout, options, changes)


def compiled_but(left: int, layout: str, options: dict[str, Any], changes: dict[str, Any]) -> Any:
    """The same where Dynamo leaves so many layers alone."""
    import torch

    apply = Compile.apply

    def apply_to_others(self: Compile, assembly: Any) -> None:
        apply(self, assembly)
        for layer in [*assembly.layers()][:left]:
            layer._compiled_call_impl = torch._dynamo.disable(layer._call_impl)

    Compile.apply = apply_to_others  # type: ignore[method-assign]
    return traced(layout, options, changes)


def compiled_at_most(most: int, layout: str, options: dict[str, Any], changes: dict[str, Any]) -> Any:
    """The same where no more than so many layers are handed to torch."""
    from clusterbench.engine import compat

    compile_module, handed = compat.compile_module, list[Any]()

    def compile_some(module: Any, sends_in_products: bool) -> None:
        if len(handed) < most:
            handed.append(module)
            compile_module(module, sends_in_products)

    compat.compile_module = compile_some
    return confirmation_of(layout, options, changes)


def compiled_once(layout: str, options: dict[str, Any], changes: dict[str, Any]) -> str:
    """The same of layers that are not alike, where the compiler gives up after one."""
    import torch._dynamo.config
    from torch._dynamo.exc import FailOnRecompileLimitHit

    from clusterbench.model.decoder import Layer

    apply = Compile.apply

    def apply_to_others(self: Compile, assembly: Any) -> None:
        apply(self, assembly)
        for layer in assembly.layers():
            layer.__class__ = type("Layer", (Layer,), {})

    Compile.apply = apply_to_others  # type: ignore[method-assign]
    torch._dynamo.config.recompile_limit = 1
    try:
        return str(traced(layout, options, changes))
    except FailOnRecompileLimitHit:
        return "gave up"


def without_a_sum(layout: str, options: dict[str, Any], changes: dict[str, Any]) -> Any:
    """The evidence where each rank keeps its own part of the gradient of what enters a region."""
    import torch.distributed.tensor.parallel as styles
    from torch.distributed.tensor import DTensor, Partial

    class Unsummed(styles.PrepareModuleInput):
        def _prepare_input_arg(self, given: Any, mesh: Any, layout: Any, desired: Any) -> Any:
            if layout is None:
                return given
            return DTensor.from_local(given, mesh, (layout,), run_check=False, grad_placements=(Partial(),))

    styles.PrepareModuleInput = Unsummed  # type: ignore[misc]
    with no_code():
        return parity_of(layout, options, changes)


def passed(layout: str, options: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Of the passes of a compiled step: what was counted and expected, and whether the layers are still compiled."""
    from clusterbench.engine.compat import plain_calls
    from clusterbench.engine.flops import FlopCounter
    from clusterbench.engine.traffic import TrafficCounter
    from clusterbench.training import passes
    from clusterbench.training.step import TrainingStep
    from tests.training.jobs import expected

    class Counter(TrafficCounter):
        names: ClassVar[set[str]] = set()

        def saw(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
            self.names.add(str(func))
            super().saw(func, args, kwargs, result)

    job = make_job(layout, **changes)
    rig, every = make_rig(job.layout), from_options(options)
    step = TrainingStep(job, every, rig.grid, rig.device)
    passes._memory_of(step, rig, {})
    counter = Counter(rig.grid.names())
    flops = FlopCounter()
    passes._traffic_of(step, counter, flops)
    counted = {key: (total.count, total.size_bytes) for key, total in counter.totals().items()}

    def plain() -> int:
        return sum(map(plain_calls, step.assembly.layers()))

    before = plain()
    step()
    return {
        "counted": counted,
        "expected": expected(job, every, rig.grid.rank("pp")),
        "products": {name for name in Counter.names if name.startswith("aten.mm")},
        "flops": sum(executed.flops for executed in flops.executed()),
        "plain": plain() - before,
    }


def compiled_while_attention_is_watched(layout: str, options: dict[str, Any], changes: dict[str, Any]) -> Any:
    """Functions compiled until a step was through, and until its attention was watched; and seconds of that."""
    from clusterbench.model.context_attention import watch_attention
    from clusterbench.training.step import TrainingStep

    job = make_job(layout, **changes)
    rig = make_rig(job.layout)
    with no_code():
        step = TrainingStep(job, from_options(options), rig.grid, rig.device)
        step()
        before = compat.compiler_counts()
        spent_s = watch_attention(step, rig.device)
    return before, compat.compiler_counts(), spent_s


def confirmation_of(layout: str, options: dict[str, Any], changes: dict[str, Any]) -> Any:
    from clusterbench.errors import WrongResult
    from clusterbench.proof.timed_step import TimedStep
    from clusterbench.training.step import TrainingStep

    job = make_job(layout, **changes)
    rig, every = make_rig(job.layout), from_options(options)
    timed = TimedStep(TrainingStep(job, every, rig.grid, rig.device), active=active_in(job.layout, every))
    try:
        timed()
        timed()
        return timed.confirm(rig, is_first=True)
    except WrongResult as error:
        return str(error)


of_ranks = Together(compiled, CASES, at_once=3)  # each is compiled, for up to a minute where others use the cores
SOME_TRACED = some_of(TRACED, name_of)
of_traced = Together(traced, SOME_TRACED)


@pytest.mark.gloo
@needs_compiler
@pytest.mark.parametrize("case", [*CASES, *SOME_TRACED], ids=name_of)
def test_layers_are_compiled_in_one_piece(case: Case) -> None:
    for confirmed in (of_traced if case in TRACED else of_ranks)(case):
        assert confirmed["compiled_frames"] >= 1
        assert confirmed["graph_breaks"] == 0


@pytest.mark.gloo
@needs_compiler
def test_a_step_is_wrong_of_which_nothing_was_compiled() -> None:
    options = {**COMPILED, "recompute": "full"}
    assert run_ranks(1, compiled_but, 4, "tp1", options, {"dtype": "float32"}, timeout_s=300) == [
        "tp1 was to be compiled, and nothing was on rank 0: torch.compile left every layer as it is. The time is that "
        "of a plain step."
    ]


@pytest.mark.gloo
@needs_compiler
def test_a_step_is_wrong_of_which_a_layer_was_left_as_it_is() -> None:
    (said,) = run_ranks(1, compiled_but, 1, "tp1", COMPILED, {"dtype": "float32"}, timeout_s=300)
    assert said == (
        "tp1 was to be compiled, and on rank 0 not all was: what was to be compiled of its layers ran 4 times as it "
        "is. The time is partly that of a plain step."
    )


@pytest.mark.gloo
@needs_compiler
@pytest.mark.parametrize(("most", "words"), [(0, "nothing was on rank 0"), (1, "ran 12 times as it is")])
def test_a_step_is_wrong_of_which_layers_were_never_to_be_compiled(most: int, words: str) -> None:
    (said,) = run_ranks(1, compiled_at_most, most, "tp1", COMPILED, {"dtype": "float32"}, timeout_s=300)
    assert said.startswith("tp1 was to be compiled, and ")
    assert words in said


@pytest.mark.gloo
@needs_compiler
def test_a_compiler_that_gives_up_on_a_layer_stops_the_step() -> None:
    (said,) = run_ranks(1, compiled_once, "tp1", COMPILED, {"dtype": "float32"}, timeout_s=300)
    assert said == "gave up"


@pytest.mark.gloo
@needs_compiler
def test_a_sum_that_is_missing_in_backward_of_compiled_layers_is_found() -> None:
    for said in run_ranks(2, without_a_sum, "tp2", COMPILED, {"dtype": "float32"}, timeout_s=300):
        assert said.startswith("tp2 does not compute what one rank computes: the gradient of")


@pytest.mark.matrix
@pytest.mark.gloo
@needs_compiler
@pytest.mark.parametrize(
    ("layout", "options", "changes"),
    [
        ("tp2", {}, {}),
        ("tp2+sp", {"recompute": "full"}, {}),
        ("tp2+sp", {"recompute": "selective"}, {}),
        ("dp2+zero3", {}, {}),
        ("tp2+sp", {}, MOE),  # attention alone is compiled, with the hooks that gather what enters it
        ("cp2-tp2+sp", {"context": "ring"}, {}),  # so is the feed-forward
    ],
)
def test_passes_count_what_compiled_layers_send_and_leave_them_compiled(
    layout: str, options: dict[str, Any], changes: dict[str, Any]
) -> None:
    num_ranks = ParallelLayout.parse(layout).world_size
    options, changes = {**COMPILED, **options}, {"dtype": "float32", **changes}
    for found in run_ranks(num_ranks, passed, layout, options, changes, timeout_s=300):
        assert found["counted"] == found["expected"]
        assert "aten.mm.out" in found["products"], "the layers whose collectives were counted were not compiled"
        assert found["flops"] > 0
        assert found["plain"] == 0, "the layers of the pass after it are not compiled"


@pytest.mark.gloo
@needs_compiler
def test_watching_attention_compiles_nothing_however_often_it_is_called() -> None:
    options = {**COMPILED, "context": "all_gather"}
    changes = {"dtype": "float32", "global_batch_size": 8, "micro_batch_size": 1}
    for before, after, spent_s in run_ranks(2, compiled_while_attention_is_watched, "cp2", options, changes):
        assert before[0] >= 1
        assert after == before
        assert spent_s > 0


@pytest.mark.matrix
@pytest.mark.gloo
@needs_compiler
@pytest.mark.parametrize("recompute", CHOICES)
def test_a_compiled_step_equals_a_plain_one(recompute: str) -> None:
    options = {**COMPILED, "recompute": recompute}
    evidence = run_ranks(1, parity_of, "tp1", options, {"dtype": "float32"}, timeout_s=300)[0]
    assert evidence["parity_gradients"] < 1e-5


@pytest.mark.matrix
@pytest.mark.gloo
@needs_compiler
@pytest.mark.parametrize(
    ("layout", "changes"),
    [("tp1", MOE), ("dp2", {}), ("tp2", {}), ("tp2+sp", {"shape": "llama-tiny-mqa"})],
    ids=["experts", "several buckets of DDP", "tp", "tp with repeated kv heads"],
)
def test_compiled_steps_of_other_kinds_equal_plain_ones(layout: str, changes: dict[str, Any]) -> None:
    world_size = ParallelLayout.parse(layout).world_size
    for evidence in run_ranks(world_size, parity_of, layout, COMPILED, {**changes, "dtype": "float32"}, timeout_s=300):
        assert evidence["parity_gradients"] < 1e-5


def test_what_cannot_be_compiled_is_said() -> None:
    assert Compile(compile=True).objection(make_job("tp2")) is None
    clash = Compile(compile=True).clash(make_job("pp2"), [Pipeline(schedule="zbv")])
    assert clash == "compile and zbv: it splits backward, which compiled layers have in one piece"
    assert Compile(compile=True).clash(make_job("pp2"), [Pipeline(schedule="1f1b")]) is None


@pytest.mark.parametrize(
    ("job", "others", "parts"),
    [
        (make_job("tp1", **MOE), [], "experts"),
        (make_job("cp2"), [ContextParallel(context="zigzag")], "context zigzag"),
    ],
)
def test_results_within_compiled_parts_are_not_kept(job: TrainingJob, others: list[Parallelism], parts: str) -> None:
    assert Compile(compile=True).clash(job, [*others, Recompute(recompute="selective")]) == (
        f"compile and recompute selective with {parts}: layers are then compiled in parts, of which single results "
        "cannot be kept; recompute full can be compiled"
    )
    assert Compile(compile=True).clash(job, [*others, Recompute(recompute="full")]) is None


@pytest.mark.parametrize(("version", "works"), [("2.11.0+cu130", False), ("2.12.1", False), ("2.13.0+cpu", True)])
def test_float64_is_left_as_it_is_where_torch_cannot_compile_it(monkeypatch: Any, version: str, works: bool) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(compat, "set_up_compiler", lambda: None)
    for dtype in ("float64", "float32"):
        compiled: list[torch.nn.Module] = []
        monkeypatch.setattr(compat, "compile_module", lambda module, _, compiled=compiled: compiled.append(module))
        assemble(make_job(dtype=dtype), [Compile(compile=True)], None, torch.arange(16), torch.device("cpu"))
        assert bool(compiled) == (works or dtype == "float32")
