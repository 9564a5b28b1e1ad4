"""The log of Megatron-LM as a case: one for each run."""

from __future__ import annotations

from typing import ClassVar, Literal

from clusterbench.importing.nccl import Facts
from clusterbench.importing.output import Output, Read
from clusterbench.importing.training_log import read_training
from clusterbench.tools import megatron_log


class MegatronLog(Output):
    """Time and throughput of steps, memory and loss; layout, batch and sequence as far as its arguments say them."""

    tool = "Megatron-LM"
    question = "How fast does Megatron-LM train?"
    device: ClassVar[Literal["cpu", "cuda"]] = "cuda"
    takes = frozenset({"num_ranks", "num_nodes"})

    def holds(self, text: str) -> bool:
        return megatron_log.is_megatron(text)

    def read(self, name: str, text: str, facts: Facts) -> Read:
        return read_training(name, megatron_log.parse(text), facts)
