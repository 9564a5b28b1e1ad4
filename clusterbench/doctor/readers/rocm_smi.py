"""``rocm-smi`` (its table, ``--showrasinfo``, ``--showxgmierr``, JSON): errors and power limits of AMD's GPUs."""

from __future__ import annotations

from clusterbench.doctor import NotJudged
from clusterbench.doctor.readers import _amd_gpus
from clusterbench.doctor.said import HostText, Said
from clusterbench.errors import ToolError
from clusterbench.tools import amd_smi


class RocmSmi(HostText):
    """Each GPU by what the text says of it: its table says power limits, and nothing of errors."""

    kind = "rocm-smi"

    def holds(self, text: str) -> bool:
        return amd_smi.is_rocm_smi(text)

    def read(self, text: str, name: str) -> Said:
        try:
            return _amd_gpus.judged(amd_smi.parse_rocm(text), name)
        except ToolError as error:
            part = NotJudged("uncorrectable_ecc", (name,), str(error), "the whole output")
            return Said(not_judged=(part,), hosts=(name,))
