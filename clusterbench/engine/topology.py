"""How the devices of this host are joined, from nvidia-smi."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from clusterbench.engine.tool import find_tool, run_tool
from clusterbench.errors import NotHere, ToolError
from clusterbench.tools import nvidia_nvlink, nvidia_topo
from clusterbench.tools.host_links import HostTopology

Answer = TypeVar("Answer")


def host_topology() -> HostTopology:
    """What nvidia-smi says of this host; where it cannot be asked, why."""
    matrix, no_matrix = _answer(lambda: nvidia_topo.parse(_printed("topo", "-m")))
    gpus, no_nvlinks = _answer(lambda: nvidia_nvlink.parse(_printed("nvlink", "-s")))
    return HostTopology(matrix, {str(gpu.gpu): gpu.num_active for gpu in gpus or ()}, no_matrix, no_nvlinks)


def _printed(*words: str) -> str:
    return run_tool([find_tool("nvidia-smi", "it comes with NVIDIA's driver"), *words], timeout_s=30).text


def _answer(look: Callable[[], Answer]) -> tuple[Answer | None, str]:
    """What ``look`` sees, or why it sees nothing."""
    try:
        return look(), ""
    except (NotHere, ToolError) as error:
        return None, str(error).splitlines()[0]
