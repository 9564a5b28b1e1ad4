"""How updated weights are rounded where they are kept in bfloat16."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from clusterbench.job import TrainingJob
from clusterbench.layout import ParallelLayout
from clusterbench.options import option
from clusterbench.parallel import Parallelism
from clusterbench.shape import ModelShape

if TYPE_CHECKING:
    from torch import Tensor

    from clusterbench.model.assembly import Assembly
    from clusterbench.model.stochastic_rounding import WherePart


@dataclass(frozen=True, kw_only=True)
class UpdateRounding(Parallelism):
    """Rounds each updated weight up or down by chance, so that the mean is what the update should have made of it.

    An update is often smaller than half the distance of two numbers in bfloat16, and is lost where it is rounded to
    nearest. The random bits follow from seed, weight, element and update: copies stay copies, and every layout rounds
    as one rank does. Moments are rounded to nearest: with betas of 0.9 and 0.95 each update changes them by more than
    their rounding.

    Source
    ------
    Zamirai et al. 2020, arXiv:2010.06192.
    """

    phase: ClassVar[str] = "replicate"
    changes_model: ClassVar[bool] = True

    update_rounding: str = option(
        "nearest",
        "of weights that are kept in bfloat16, after each update: nearest, or stochastic, which loses none in the mean",
        choices=("nearest", "stochastic"),
        label="{} rounding",
        alters="update",
        is_later=True,
    )

    def active(self, layout: ParallelLayout) -> bool:
        return self.update_rounding != "nearest"

    def concerned(self, layout: ParallelLayout, shape: ModelShape) -> bool:
        return True

    def objection(self, job: TrainingJob) -> str | None:
        if job.master_bytes != 2:
            kept = {4: "float32", 8: "float64"}[job.master_bytes]
            return (
                f"update_rounding {self.update_rounding} rounds weights in bfloat16 (precision pure_bfloat16), and "
                f"precision {job.precision} in {job.dtype} keeps them in {kept}"
            )
        return None

    @property
    def rounds_by_chance(self) -> bool:
        return self.update_rounding == "stochastic"

    def hides_total(self, job: TrainingJob) -> str:
        return "update_rounding stochastic makes random bits of a block of elements at once, which can be the peak"

    def exact(self) -> Self:
        return replace(self, update_rounding="nearest")

    def apply(self, assembly: Assembly) -> None:
        from clusterbench.model.stochastic_rounding import StochasticRounding, WherePart

        def find_parts() -> Mapping[Tensor, WherePart]:
            return {
                weight.parameter: WherePart(weight.name, [part.start for part in weight.place])
                for weight in assembly.weights
            }

        assembly.rounding = StochasticRounding(assembly.job.seed, find_parts)
