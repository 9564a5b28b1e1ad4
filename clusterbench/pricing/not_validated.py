"""What of a priced step was never held against a measurement."""

from __future__ import annotations

from clusterbench.pricing.profiles import PricedJob

MOST_VALIDATED_NODES = 32


def not_validated(priced: PricedJob) -> list[str]:
    """What of a step was never held against a measurement; nothing where all of it was."""
    layout = priced.job.layout
    what: list[str] = []
    if layout.zero > 1:
        # FSDP gathers and reduces stages one after the other, so that less is held at once than the formula says
        what.append(f"ZeRO-{layout.zero}" + (" in a pipeline (dry-run tells its memory)" if layout.uses("pp") else ""))
    what += ["HSDP"] * (priced.shard_group_size > 0)
    what += [axis.upper() for axis in ("cp", "ep") if layout.uses(axis)]
    if priced.options.get("float8", "none") != "none":
        what.append("FP8")
    if priced.num_nodes > MOST_VALIDATED_NODES:
        what.append(f"more than {MOST_VALIDATED_NODES} nodes")
    return what
