from __future__ import annotations

from collections.abc import Mapping

from clusterbench.checks import AlikeCheck, Trait
from clusterbench.facts import Host
from clusterbench.facts.infiniband import FOLDER, Infiniband


class Firmware(AlikeCheck):
    """Firmware, model and board of RDMA devices that differ from those of the same name on other hosts."""

    number = 57
    question = "Do RDMA devices of one name have one firmware and model on all hosts?"
    severity = "warning"
    source = "/sys/class/infiniband/*/fw_ver, hca_type, board_id"
    confirm = "ibv_devinfo | grep -E 'hca_id|fw_ver|vendor_part_id|board_id'"
    fix = "update the firmware of the odd ones (mlxfwmanager), or exchange a card that was replaced by another model"

    def traits(self, host: Host) -> Mapping[str, Trait]:
        traits = {}
        for device in host.of(Infiniband).devices:
            for what, file, value in (
                ("firmware", "fw_ver", device.firmware),
                ("model", "hca_type", device.hca_type),
                ("board", "board_id", device.board),
            ):
                if value is not None:
                    path = f"{FOLDER}/{device.name}/{file}"
                    traits[f"the {what} of {device.name}"] = Trait(value, path, device.name)
        return traits
