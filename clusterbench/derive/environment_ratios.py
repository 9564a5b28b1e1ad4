"""What a variable of the environment is worth: a figure with it against the same figure without."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from clusterbench.rows import ENVIRONMENT_RATIO, Row, variables_of

_COMPARED = ("busbw", "bandwidth", "latency")

MEANINGS = {
    "NCCL_NET_GDR_LEVEL": "whether cards reach GPU memory themselves (GPUDirect RDMA), by their distance",
    "NCCL_NET_GDR_READ": "whether cards also read GPU memory themselves when they send",
    "NCCL_P2P_DISABLE": "whether GPUs of a host reach each other's memory (NVLink, PCIe)",
    "NCCL_SHM_DISABLE": "whether ranks of a host may pass bytes through its memory",
    "NCCL_NVLS_ENABLE": "whether the NVLink switches reduce (NVLink SHARP)",
    "NCCL_IB_DISABLE": "InfiniBand or RoCE against sockets",
    "UCX_TLS": "the transports that UCX may use",
}
"""What a variable decides, for the sentence beside a ratio."""


def environment_ratio_rows(rows: Sequence[Row]) -> Iterator[Row]:
    """``environment_ratio`` of each case that differs from another in the value of one variable only.

    The other is the case with the first value in the order of the rows, which is that of the suite; nothing else of
    point, ranks or environment may differ. The ratio's detail is the figure and ``NAME=value/first``; its bounds are
    those of the two figures taken against each other.
    """
    alike: dict[tuple[object, ...], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        if row.metric not in _COMPARED or row.value is None:
            continue
        environment = variables_of(row)
        options = tuple(sorted((name, value) for name, value in row.point.items() if name not in environment))
        detail = tuple(sorted(row.detail.items()))
        for name, value in environment.items():
            rest = tuple(sorted(item for item in environment.items() if item[0] != name))
            same = (row.benchmark, row.version, row.device, row.num_nodes, row.world_size, row.metric)
            alike[*same, options, detail, name, rest].setdefault(value, row)
    for (*_, variable, _), by_value in alike.items():
        name = str(variable)
        (first, base), *later = by_value.items()
        for value, row in later:
            ratio = _over(row.value, base.value)
            if ratio is None:
                continue
            meaning = f": {MEANINGS[name]}" if name in MEANINGS else ""
            yield row._replace(
                metric=ENVIRONMENT_RATIO,
                unit="fraction",
                value=ratio,
                low=_over(row.low, base.high),
                high=_over(row.high, base.low),
                expected=None,
                basis=f"{row.metric} with {name}={value} over that with {name}={first}{meaning}",
                detail={**row.detail, "category": row.metric, "part": f"{name}={_label(value)}/{_label(first)}"},
            )


def _label(value: str) -> str:
    return value.replace(",", "+")  # commas part the details of a metric's key


def _over(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None
