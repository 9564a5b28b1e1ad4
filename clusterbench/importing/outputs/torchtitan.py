"""The log of torchtitan as a case: one for each run."""

from __future__ import annotations

from typing import ClassVar, Literal

from clusterbench.importing.nccl import Facts
from clusterbench.importing.output import Output, Read
from clusterbench.importing.training_log import read_training
from clusterbench.tools import torchtitan_log


class TorchtitanLog(Output):
    """Tokens, operations and MFU of steps, memory and loss; what ranks share is its mesh, in its own words."""

    tool = "torchtitan"
    question = "How fast does torchtitan train?"
    device: ClassVar[Literal["cpu", "cuda"]] = "cuda"
    takes = frozenset({"num_ranks", "num_nodes"})

    def holds(self, text: str) -> bool:
        return torchtitan_log.is_torchtitan(text)

    def read(self, name: str, text: str, facts: Facts) -> Read:
        return read_training(name, torchtitan_log.parse(text), facts)
