"""How the devices of this host are joined, from nvidia-smi."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from clusterbench.engine.tool import find_tool, run_tool
from clusterbench.errors import NotHere, ToolError
from clusterbench.tools import nvidia_nvlink, nvidia_topo


def node_topology() -> Mapping[str, Any]:
    """``matrix``, as :class:`clusterbench.tools.nvidia_topo.Topology` has it, and ``nvlinks``, active ones by GPU.

    What is not known is left out, and ``no_matrix`` or ``no_nvlinks`` says why.
    """

    def printed(*words: str) -> str:
        return run_tool([find_tool("nvidia-smi", "it comes with NVIDIA's driver"), *words], timeout_s=30).text

    topology: dict[str, Any] = {}
    parts: dict[str, Callable[[], Any]] = {
        "matrix": lambda: asdict(nvidia_topo.parse(printed("topo", "-m"))),
        "nvlinks": lambda: {str(gpu.gpu): gpu.num_active for gpu in nvidia_nvlink.parse(printed("nvlink", "-s"))},
    }
    for name, look in parts.items():
        try:
            topology[name] = look()
        except (NotHere, ToolError) as error:
            topology[f"no_{name}"] = str(error).splitlines()[0]
    return topology
