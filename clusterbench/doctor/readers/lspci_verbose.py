"""``lspci -vvv``: PCIe devices with their links and what is above them."""

from __future__ import annotations

from collections.abc import Sequence

from clusterbench.doctor import Found, Healthy, NotJudged
from clusterbench.doctor.said import HostText, Said
from clusterbench.tools import lspci
from clusterbench.words import plural

_REDIRECTS = {"SrcValid", "ReqRedir", "CmpltRedir"}


class LspciVerbose(HostText):
    """Access control on bridges above GPUs and cards, narrow and slow links, and devices that fell off the bus."""

    kind = "lspci -vvv"

    def holds(self, text: str) -> bool:
        return lspci.is_lspci(text)

    def read(self, text: str, name: str) -> Said:
        devices = lspci.parse(text)
        ends = [device for device in devices if device.is_gpu or device.is_rdma]
        bridges = [device for device in devices if any(device.is_above(end) for end in ends)]
        found, healthy, unknown = [], [], []
        for bridge in bridges:
            if on := sorted(_REDIRECTS & {*(bridge.acs or ())}):
                what = "sends traffic between devices up to the CPU: access control services (ACS) are on"
                what += "; right in a VM only"
                said = f"{name}: ACSCtl: {' '.join(f'{each}+' for each in on)}"
                confirm, fix = "lspci -vvv | grep ACSCtl", "turn ACS off in the BIOS, or with setpci after every boot"
                found.append(Found("acs", "warning", (name,), f"bridge {bridge.address}", what, said, confirm, fix))
        for device in devices:
            if "(rev ff)" in device.name:
                what = "answers nothing but ones (revision ff): it fell off the bus"
                said = f"{name}: {device.address} {device.kind}: {device.name}"
                fix = "Xids in the kernel's log say when; power the host off and on; if it comes back, replace the card"
                check = "gpu_lost" if device.is_gpu else "device_lost"
                found.append(Found(check, "error", (name,), device.address, what, said, "lspci -vv; nvidia-smi", fix))
        for end in ends:
            if end.is_narrow:
                could = "could have more lanes" if end.most_width is None else f"could be x{end.most_width}"
                what, said = f"its PCIe link is x{end.width}, and {could}", f"{name}: LnkSta: Width x{end.width}"
                fix = "reseat the card; look at riser, cable and the slot's bifurcation"
                found.append(
                    Found("pcie_width", "error", (name,), end.address, what, said, "lspci -vv | grep LnkSta", fix)
                )
        if any(bridge.acs is not None for bridge in bridges):
            if not any(each.name == "acs" for each in found):
                what = f"{plural(len(bridges), 'bridge')} above GPUs and network cards redirect nothing (ACS off)"
                healthy.append(Healthy("acs", (name,), what))
        else:
            why = "no bridge above GPUs and network cards shows ACSCtl"
            unknown.append(NotJudged("acs", (name,), why, "lspci -vvv as root, of the whole host"))
        if ends and all(end.is_narrow is False for end in ends):
            healthy.append(
                Healthy("pcie_width", (name,), f"{plural(len(ends), 'GPU or card', 'GPUs and cards')} at full width")
            )
        speeds = _card_speeds(devices, name)
        return Said(
            found=(*found, *speeds.found),
            healthy=(*healthy, *speeds.healthy),
            not_judged=(*unknown, *speeds.not_judged),
            hosts=(name,),
        )


def _card_speeds(devices: Sequence[lspci.PciDevice], name: str) -> Said:
    """Network cards keep their PCIe link's speed while idle, as GPUs do not; a slot may be slower than the card."""
    found, unknown, well = [], [], 0
    for card in devices:
        speed, most = card.gigatransfers_per_s, card.most_gigatransfers_per_s
        if not card.is_rdma or speed is None or most is None:
            continue
        slot = next((each.most_gigatransfers_per_s for each in devices if each.is_slot_of(card)), None)
        could = min(most, slot or most)
        if speed >= could:
            well += 1
        elif slot is None:
            why = f"{card.address} runs at {speed:g} GT/s of its {most:g} GT/s, and its slot is not in the text"
            unknown.append(NotJudged("nic_pcie", (name,), why, "lspci -vvv of the whole host"))
        else:
            what = f"its PCIe link runs at {speed:g} GT/s, and card and slot could at {could:g} GT/s"
            said, confirm = f"{name}: LnkSta: Speed {speed:g}GT/s", "lspci -vv | grep LnkSta"
            fix = "reseat the card, its riser or cable; set the slot's speed in the BIOS"
            found.append(Found("nic_pcie", "error", (name,), card.address, what, said, confirm, fix))
    cards = plural(well, "network card")
    healthy = (Healthy("nic_pcie", (name,), f"{cards} at the PCIe speed of card and slot"),) if well else ()
    return Said(found=tuple(found), healthy=healthy, not_judged=tuple(unknown))
