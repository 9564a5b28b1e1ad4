from __future__ import annotations

from clusterbench.checks import Fault, HostCheck, Judged
from clusterbench.checks._training_node import has_nvidia_gpu
from clusterbench.facts import SECONDS_OF_A_PROGRAM, Host, known
from clusterbench.facts.nvidia_smi import COMMAND, NvidiaSmi
from clusterbench.words import plural


class NvidiaSmiCheck(HostCheck):
    """``nvidia-smi``, which waits where the driver does: a GPU that hangs, or a driver that is loaded for each call.

    AMD's Primus refuses a node on which its management program takes 5 s; here a program is given 2 s, and eight GPUs
    that are kept loaded take a fraction of one. What it says when it fails is an error: nothing else will reach the
    GPUs either.
    """

    number = 29
    question = "Does nvidia-smi answer in time?"
    severity = "warning"
    source = COMMAND
    programs = "nvidia-smi"
    confirm = f"time {COMMAND}"
    fix = "persistence mode (nvidia-smi -pm 1, or nvidia-persistenced); if it hangs: the kernel log, then a restart"

    def judge(self, host: Host) -> Judged:
        if not has_nvidia_gpu(host):
            return Judged(not_applicable="no NVIDIA GPU here")
        facts = host.of(NvidiaSmi)
        why = facts.unread.get(COMMAND, "")
        if why.startswith("had not ended"):
            what = f"{COMMAND} had not ended after {SECONDS_OF_A_PROGRAM:g} s"
            return Judged((Fault("", what, f"{COMMAND}: {why}"),))
        if why.startswith("ended with exit code"):
            what = f"{COMMAND} fails{why[why.find(':') :] if ':' in why else ''}"
            return Judged((Fault("", what, f"{COMMAND} {why}", severity="error"),))
        time_s = known(facts, facts.time_s, COMMAND)
        return Judged(healthy=f"{COMMAND} lists {plural(facts.num_gpus or 0, 'GPU')} in {time_s:.1f} s")
