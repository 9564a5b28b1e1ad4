"""Further RDMA cards for a planted host."""

from __future__ import annotations

from tests.facts.healthy.infiniband import address
from tests.facts.machine import Machine, planted


def add_card(
    machine: Machine,
    name: str,
    rate: str = "400 Gb/sec (4X NDR)",
    link_layer: str = "InfiniBand",
    state: str = "4: ACTIVE",
    hca_type: str = "MT4129",
    board: str = "",
) -> None:
    """One more card with one port; ``board`` is another than that of the healthy machine's cards unless given."""
    device = f"/sys/class/infiniband/{name}"
    card = f"/sys/devices/pci00ff:00/{name}"
    machine.links[f"{device}/device"] = f"../../..{card.removeprefix('/sys')}"
    machine.links[f"{card}/driver"] = "../../../bus/pci/drivers/mlx5_core"
    about = {"node_type": "1: CA", "hca_type": hca_type, "board_id": board or f"MT_other_{hca_type}"}
    machine.files |= planted(device, about)
    up = "5: LinkUp" if state.endswith("ACTIVE") else "3: Disabled"
    port = {"state": state, "phys_state": up, "rate": rate, "link_layer": link_layer, "lid": "0x0", "sm_lid": "0x0"}
    machine.files |= planted(f"{device}/ports/1", port)


def add_virtual_functions(machine: Machine, of_each: int = 4, state: str = "1: DOWN") -> None:
    """Those of the healthy machine's eight cards, beside them on the same host."""
    for number in range(8 * of_each):
        name, card = f"mlx5_{8 + number}", number // of_each
        add_card(machine, name, state=state, hca_type="MT4130", board="MT_0000000838")
        machine.links[f"/sys/devices/pci00ff:00/{name}/physfn"] = f"../../pci{card:04x}:00/{address(card)}"
