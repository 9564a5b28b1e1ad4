"""How slow copies of GPUs are confirmed, and what mends them."""

from __future__ import annotations

OF_PAIRS = "nvidia-smi topo -m; nvidia-smi nvlink -s", "NVLink's state; ACS and IOMMU off for bare metal"
OF_HOST = (
    "nvidia-smi -q | grep -A8 'GPU Link Info'; lspci -vv | grep LnkSta",
    "reseat the card; look at riser and slot",
)
