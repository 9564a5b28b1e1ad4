"""STREAM as cases: one for each kernel."""

from __future__ import annotations

from typing import Any

from clusterbench.importing.nccl import Facts
from clusterbench.importing.output import Output, Read
from clusterbench.importing.records import ImportedCase
from clusterbench.tools import stream


class StreamKernels(Output):
    """The best rate of each kernel, which is what STREAM prints: the first of its times is never counted."""

    tool = "STREAM"
    question = "How fast is this host's memory, by STREAM?"

    def holds(self, text: str) -> bool:
        return stream.is_stream(text)

    def read(self, name: str, text: str, facts: Facts) -> Read:
        said = stream.parse(text)
        shared: dict[str, Any] = {"array_elements": said.num_elements}
        if said.num_threads is not None:
            shared["threads"] = said.num_threads
        return Read(
            [
                ImportedCase(
                    where=f"{name}:{kernel.line}",
                    point={"kernel": kernel.name, **shared},
                    world_size=1,
                    num_nodes=1,
                    figures={"bandwidth": kernel.bytes_per_s},
                    time_s=kernel.best_s,
                )
                for kernel in said.kernels
            ]
        )
