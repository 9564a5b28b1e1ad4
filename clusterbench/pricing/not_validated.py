"""What of a priced step was never held against a measurement."""

from __future__ import annotations

from clusterbench.pricing.profiles import PricedJob

MOST_VALIDATED_NODES = 32


def not_validated(priced: PricedJob) -> list[str]:
    """What of a step was never held against a measurement; nothing where all of it was."""
    layout = priced.job.layout
    what: list[str] = []
    if layout.zero > 1:
        what.append(f"ZeRO-{layout.zero}")
    what += [axis.upper() for axis in ("cp", "ep") if layout.uses(axis)]
    if priced.options.get("float8", "none") != "none":
        what.append("FP8")
    if priced.num_nodes > MOST_VALIDATED_NODES:
        what.append(f"more than {MOST_VALIDATED_NODES} nodes")
    return what
