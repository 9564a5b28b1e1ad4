"""gpu-burn: GPUs that computed wrong, whose test died, or that are far slower than the others."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.tools import gpu_burn
from clusterbench.tools.gpu_burn import GpuBurn
from clusterbench.words import plural

_NAME = "burn_in"
_SLOW, _FEWEST = 0.9, 3
_CONFIRM = "gpu_burn 300; nvidia-smi -q -d ECC,ROW_REMAPPER,PERFORMANCE; dmesg | grep -i xid"


class GpuBurnOutput(HostText):
    """Its own verdict of each GPU, and each rate against the median of the host's GPUs.

    It compares products with the first one on the same GPU, so a GPU that is wrong alike each time passes.
    """

    kind = "gpu-burn"

    def holds(self, text: str) -> bool:
        return gpu_burn.is_gpu_burn(text)

    def read(self, text: str, name: str) -> Said:
        said = gpu_burn.parse(text)
        found = tuple(_found(said, name))
        bad = {each.where for each in found}
        well = [gpu for gpu, is_faulty in said.faulty.items() if not is_faulty and f"GPU {gpu}" not in bad]
        unknown: tuple[NotJudged, ...] = ()
        if said.num_tested is None or len(said.faulty) < said.num_tested:
            why = "the text ends before the verdict of each GPU"
            unknown = (NotJudged(_NAME, (name,), why, "a run that ends, with its last lines"),)
        what = f"{plural(len(well), 'GPU')} computed alike all the time"
        healthy = (Healthy(_NAME, (name,), what),) if well else ()
        return Said(found=found, healthy=healthy, not_judged=unknown, hosts=(name,))


def _found(said: GpuBurn, name: str) -> Iterator[Found]:
    for gpu in sorted({*said.faulty, *said.errors}):
        number = said.errors.get(gpu, 0)
        if not (said.faulty.get(gpu) or number or gpu in said.died):
            continue
        what = f"up to {number:,} elements of its products were unlike" if number else "gpu-burn calls it faulty"
        what = "its test died" + (f", and {what}" if number else "") if gpu in said.died else what
        line = f"GPU {gpu}: FAULTY" if said.faulty.get(gpu) else "errors: "
        fix = "drain the host; Xids and ECC errors say which part; reset the GPU and burn again; if it fails again, RMA"
        yield Found(_NAME, "error", (name,), f"GPU {gpu}", what, f"{name}: {line}", _CONFIRM, fix)
    rates = said.flops_per_s
    if len(rates) < _FEWEST:
        return
    usual = median(rates.values())
    for gpu, rate in rates.items():
        if rate < _SLOW * usual and not said.faulty.get(gpu):
            what = f"computes {rate / 1e12:.1f} TFLOP/s, the median GPU {usual / 1e12:.1f} TFLOP/s"
            fix = "power limit, cooling and clocks: nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE while it works"
            evidence = f"{name}: {rate / 1e9:.0f} Gflop/s"
            yield Found(_NAME, "warning", (name,), f"GPU {gpu}", what, evidence, _CONFIRM, fix)
