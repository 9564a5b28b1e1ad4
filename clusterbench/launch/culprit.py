"""Which rank the trouble of a case began with, and not with its victims: pure functions of events."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from clusterbench.engine.telemetry import GpuSample
from clusterbench.launch.control import CLOSED, SAID_NOTHING, STOOD_STILL, TOOK_NOTHING
from clusterbench.launch.members import Member
from clusterbench.launch.messages import (
    LostAgent,
    LostStore,
    LostZygote,
    RankExited,
    RankFailed,
    RankPlace,
    RasTold,
)
from clusterbench.launch.mpi_cases import in_agents, unended_mpirun
from clusterbench.launch.ranks import name_ranks
from clusterbench.launch.ras import SECONDS_APART
from clusterbench.types import PHASES, Blame, Case, Status
from clusterbench.words import few, listed

_PEER_LOST = re.compile(
    r"closed by peer|reset by peer|Broken pipe|Timed out waiting|remote process exited|unhandled system error"
    r"|Connection refused|wait timeout|clients joined"
)
"""What a rank raises because *another* one is gone. Source: Gloo and c10d, measured with torch 2.13."""

_MEETING = "device"
"""What ranks have reached while they meet."""

_NO_SUCH_LENGTH = "bad_alloc"
"""What a rank raises that meets others and reads a length which none of them wrote: it needs next to no memory then."""

_WAITING = re.compile(
    r"/torch/distributed/|/torch/autograd/graph\.py|/engine/communicator\.py|/torch/cuda/(__init__|streams)\.py"
)
"""Code in which a rank stands that waits for others: collectives, also those that backward issues."""

_VICTIM = 6

BadEvent = RankFailed | RankExited | LostZygote | LostStore | LostAgent
"""An event after which a case cannot be finished."""


@dataclass(frozen=True)
class Heard:
    """Whom the head hears.

    Attributes
    ----------
    own
        The head's host.
    hosts
        Those whose agents still speak, the head's among them.
    num_hosts
        Of the run, with those that a case does not use.
    links_down
        Interfaces of the head's host that were up when the run began.
    gone
        Addresses beside the run's that answered the head's host when the run began, where none of them does now.
    """

    own: str
    hosts: Collection[str]
    num_hosts: int
    links_down: Sequence[str] = ()
    gone: Sequence[str] = ()


@dataclass(frozen=True)
class Trouble(Exception):
    """Why a case ended before its time; ``rank`` and ``host`` name the culprit where there is one.

    ``blame`` is unknown where the ranks only say that they lost or wait for each other.
    """

    status: Status
    reason: str
    phase: str = ""
    rank: int | None = None
    host: str = ""
    log: str = ""
    evidence: Sequence[Mapping[str, float]] = ()
    blame: Blame = "unknown"

    @property
    def is_disturbance(self) -> bool:
        """Whether ranks could not meet and none is at fault: their ports are open then, without authentication."""
        return self.blame == "unknown" and self.phase == _MEETING


def is_victim(event: BadEvent) -> bool:
    """Whether a rank only reports that a peer is gone."""
    return _suspicion(event)[0] == _VICTIM


def says_that_a_peer_is_gone(reason: str) -> bool:
    """Whether what a rank raised is the loss of another one."""
    return _PEER_LOST.search(reason) is not None


def _suspicion(event: BadEvent) -> tuple[int, int]:
    """Smaller is more suspect; a rank that only reports the loss of a peer comes last."""
    match event:
        case LostAgent() | LostZygote() | LostStore():
            return 0, -1
        case RankExited():
            return (1 if event.code < 0 else 2), event.rank
        case RankFailed(status="failed"):
            return (_VICTIM if says_that_a_peer_is_gone(event.reason) else 4), event.rank
        case RankFailed(status="out_of_memory"):
            return (_VICTIM if event.phase == _MEETING and _NO_SUCH_LENGTH in event.reason else 3), event.rank
        case RankFailed():
            return 5, event.rank


def named(
    events: Sequence[BadEvent],
    places: Mapping[int, RankPlace],
    members: Sequence[Member],
    lost: Mapping[int, str],
    heard: Heard,
) -> Trouble:
    """The trouble that began with the most suspect of some events.

    Parameters
    ----------
    places
        How far each rank got, as far as their agents answer.
    lost
        All agents that are lost by now, each with the reason: a switch takes many, one by one.
    """
    worst = min(events, key=_suspicion)
    match worst:
        case LostAgent():
            why = {event.agent: event.why for event in events if isinstance(event, LostAgent)}
            return _lost_agents({**why, **lost}, members, places, heard)
        case LostZygote():
            return Trouble("failed", worst.reason, host=worst.host, phase="spawned", blame="process")
        case LostStore():
            phase = min((place.phase for place in places.values()), key=PHASES.index, default="spawned")
            return Trouble("failed", worst.reason, host=worst.host, phase=phase, blame="process")
        case RankExited():
            return _exited(worst, places.get(worst.rank))
        case RankFailed():
            return _failed(worst, [event for event in events if isinstance(event, RankFailed)], places, members)


def _exited(event: RankExited, place: RankPlace | None) -> Trouble:
    phase = place.phase if place else ""
    where = f"rank {event.rank} (host {event.host})"
    if limit := event.memory_limit_bytes:
        what = f"was killed by the kernel for want of memory: processes there may use {limit / 2**30:.2f} GiB"
        status: Status = "out_of_memory"
    else:
        status, what = "failed", death(event.code, phase)
    return Trouble(status, f"{where} {what}", phase, event.rank, event.host, _log(place), blame="process")


def death(code: int, phase: str = "") -> str:
    """How a process ended, from its exit code (negative: a signal), behind its name.

    >>> death(7, "warm")
    "ended by itself with exit code 7 after the phase 'warm'"
    """
    where = f" after the phase '{phase}'" if phase else ""
    if code >= 0:
        return f"ended by itself with exit code {code}{where}"
    name = signal.Signals(-code).name if -code in signal.valid_signals() else "a signal"
    why = ": by someone, by the batch system, or by the kernel for want of memory (dmesg tells)" if code == -9 else ""
    return f"was killed by signal {-code} ({name}){where}{why}"


def _failed(
    worst: RankFailed, failures: Sequence[RankFailed], places: Mapping[int, RankPlace], members: Sequence[Member]
) -> Trouble:
    alike = [event for event in failures if event.status == worst.status and event.reason]
    same = sorted({event.rank for event in alike if _suspicion(event)[0] == _suspicion(worst)[0]} - {worst.rank})
    likewise = "likewise" if worst.status == "skipped" else "failed alike"
    also = f" ({name_ranks(same)} {likewise})" if same else ""
    who = "" if worst.status == "wrong" else f"rank {worst.rank} (host {worst.host}): "
    evidence = [event.evidence for event in sorted(alike, key=lambda event: event.rank)]
    return Trouble(
        "failed" if is_victim(worst) else worst.status,
        f"{who}{worst.reason}{also}",
        worst.phase,
        worst.rank,
        worst.host,
        _log(places.get(worst.rank)),
        evidence if any(evidence) else (),
        _blame_of_failure(worst, {worst.host, *(event.host for event in alike if event.rank in same)}, members),
    )


def _blame_of_failure(worst: RankFailed, hosts: Collection[str], members: Sequence[Member]) -> Blame:
    """``hosts`` are those of the ranks that failed alike: where these are all of several, it is none of them."""
    if is_victim(worst):
        return "unknown"
    return "program" if len(hosts) > 1 and {member.host for member in members} <= {*hosts} else "process"


def blame_of_loss(why: Collection[str], lost: Collection[str], heard: Heard) -> Blame:
    """A connection is closed by the far end; silence may be the near one's, where nobody else is heard."""
    silent = [reason for reason in why if reason.startswith((SAID_NOTHING, TOOK_NOTHING))]
    if any(reason not in (CLOSED, *silent) for reason in why):
        return "process"  # its agent is there, and can do no more, or has said what no agent says
    return "link" if silent and len({*heard.hosts} - {*lost}) < 2 else "host"


def lost_link(heard: Heard) -> str:
    """What shows that it is the head's own link that is gone; empty where nothing does."""
    if heard.links_down:
        return f"{listed('interface', heard.links_down)} of {heard.own} went down since the run began"
    if heard.gone:
        does = "does" if len(heard.gone) == 1 else "do"
        return f"{few(heard.gone)}, which answered {heard.own} when the run began, {does} not any more"
    return ""


def own_link(heard: Heard) -> str:
    """What it says of the head's own link that no other host is heard, as the end of a sentence that names these.

    Of two hosts one is silent, and neither is likelier to have lost its link; nothing is said then.
    """
    if shown := lost_link(heard):
        return f"; no other host is heard, and {shown}: it is the link of the head's own, {heard.own}"
    if heard.num_hosts > 2:
        return f"; no other host is heard either, so it may be the link of the head's own, {heard.own}"
    return ""


def _lost_agents(
    why: Mapping[int, str],
    members: Sequence[Member],
    places: Mapping[int, RankPlace],
    heard: Heard,
) -> Trouble:
    """Phase is the least advanced of the ranks that are left: the lost ones cannot be asked any more.

    Where none speaks any more but the head's own host, that one is named if its link is gone. Otherwise, of several
    that fall silent none is named: the link of the head's own is the likelier cause. A head that stood still was left
    by the others, and is named itself.
    """
    lost = [member for member in members if member.agent in why]
    ranks = [member.first_rank + slot for member in lost for slot in range(len(member.local_ranks))]
    hosts = list(dict.fromkeys(member.host for member in lost))
    whose = "the agent" if len(lost) == 1 else "each agent"
    phase = min((place.phase for place in places.values()), key=PHASES.index, default="spawned")
    reason = (
        f"{name_ranks(ranks)} ({listed('host', hosts)}) {'was' if len(ranks) == 1 else 'were'} lost: {whose} there "
        f"{' or '.join(sorted(set(why.values())))}"
    )
    if own_fault := next((each for each in why.values() if each.startswith(STOOD_STILL)), None):
        left = f"the agent of the head (host {heard.own}) {own_fault}"
        return Trouble("failed", left, phase, host=heard.own, blame="process")
    blame = blame_of_loss(why.values(), hosts, heard)
    if blame == "link" and (own := own_link(heard)):
        return Trouble("failed", reason + own, phase, host=heard.own if lost_link(heard) else "", blame=blame)
    return Trouble("failed", reason, phase, ranks[0], hosts[0], blame=blame)


def late(
    case: Case,
    limit_s: float,
    places: Mapping[int, RankPlace],
    inside_mpi: Sequence[Member],
    silent: Sequence[Member],
    patience_s: float,
    gpu_of: Mapping[int, str],
) -> Trouble:
    """Names the ranks that are behind when a case's time is over; the others wait for them and are not to blame.

    Parameters
    ----------
    inside_mpi
        The agents that are ranks of a case of MPI; none for other cases.
    silent
        The agents with ranks in the case that did not answer within ``patience_s`` when asked how far these got.
    gpu_of
        What the GPU of each rank was last seen doing, as the end of the sentence.
    """
    stopped = f"stopped after {limit_s:g} s"
    if not places:
        return Trouble("timeout", f"{stopped}, and no agent answers any more")
    if silent:  # the others wait for their ranks
        phase = min((place.phase for place in places.values()), key=PHASES.index)
        who = not_answering(silent, len(places), patience_s)
        first_silent = silent[0]
        return Trouble(
            "timeout", f"{stopped}: {who}", phase, first_silent.first_rank, first_silent.host, blame="process"
        )
    first = places[min(places)]
    if in_agents(case) and not inside_mpi and first.phase == "prepared":
        reason = f"{stopped}: {unended_mpirun(first.host, case.world_size)}"
        return Trouble("timeout", reason, first.phase, host=first.host, log=_log(first))
    ranks = behind(places)
    first = places[ranks[0]]
    who = f"{name_ranks(ranks)} ({listed('host', sorted({places[rank].host for rank in ranks}))})"
    have, waiting = "has" if len(ranks) == 1 else "have", case.world_size - len(ranks)
    others = f"; the other {waiting} ranks wait for {'it' if len(ranks) == 1 else 'them'}" if waiting > 1 else ""
    others = "; the other rank waits for it" if waiting == 1 else others
    reason = f"{stopped}: {who} {have} {standing(first)}{others}{gpu_of.get(first.rank, '')}"
    if len(ranks) == case.world_size > 1:  # each may be the one, as may what lies between two of them
        if len({place.host for place in places.values()}) == 1 and all(place.state == "T" for place in places.values()):
            return Trouble("timeout", reason, first.phase, host=first.host, log=_log(first), blame="process")
        return Trouble("timeout", reason, first.phase, log=_log(first), blame="unknown")
    return Trouble("timeout", reason, first.phase, first.rank, first.host, _log(first), blame="process")


def behind(places: Mapping[int, RankPlace]) -> list[int]:
    """The ranks the others wait for: the least advanced, and among equals those that are stopped or busy elsewhere.

    Where all of the least advanced only wait, for a collective that ranks of a GPU may have left behind them long ago,
    it is a rank that is stopped or gone, however far it got.
    """
    least = min(_progress(place) for place in places.values())
    last = [rank for rank, place in sorted(places.items()) if _progress(place) == least]
    still = halted(places)
    if halted_last := [rank for rank in last if rank in still]:
        return halted_last
    elsewhere = [rank for rank in last if not any(_WAITING.search(frame) for frame in places[rank].stack)]
    return elsewhere or still or last


def halted(places: Mapping[int, RankPlace]) -> list[int]:
    """The ranks whose process is stopped, or gone."""
    return [rank for rank, place in sorted(places.items()) if place.state in ("T", "t", "Z", "")]


def late_by_silence(limit_s: float, places: Mapping[int, RankPlace], silent: Sequence[Member]) -> Trouble:
    """Names the host whose agent gave no sign when a case's time was over, and was heard again before it was lost."""
    hosts = list(dict.fromkeys(member.host for member in silent))
    agents = "the agent" if len(hosts) == 1 else "the agents"
    reason = f"stopped after {limit_s:g} s: {agents} on {listed('host', hosts)} gave no sign then, and came back later"
    phase = min((place.phase for place in places.values()), key=PHASES.index, default="spawned")
    if len(hosts) > 1:  # what they share may be at fault, as the head's own link
        return Trouble("timeout", reason, phase)
    return Trouble("timeout", reason, phase, silent[0].first_rank, hosts[0], blame="process")


def _progress(place: RankPlace) -> tuple[int, int]:
    return PHASES.index(place.phase), place.iteration


def standing(place: RankPlace) -> str:
    """How far a rank got, as the end of a sentence that begins with "has"."""
    what = f"not left the phase after '{place.phase}'"
    if place.iteration >= 0:
        kind = "warm-up iteration" if place.phase == "checked" else "iteration"
        what = f"not finished {kind} {place.iteration + 1}"
    if place.state == "T":
        which = "its process" if place.phase != PHASES[0] else "its process, or one that starts it,"
        return f"{what}: {which} is stopped (SIGSTOP)"
    if not place.can_begin:
        return (
            f"not begun: torch is still being imported on {place.host}. From a slow file system, or one that was not "
            "read before, that takes minutes, once: later cases find it done, and a larger time_limit_s waits longer"
        )
    frame = place.stack[0] if place.stack else ""
    place_in_code = re.match(r'File "(.*)", line (\d+)(?: in (.*))?', frame)
    return (
        f"{what}, in {place_in_code[3]} ({Path(place_in_code[1]).name}:{place_in_code[2]})" if place_in_code else what
    )


def not_answering(members: Sequence[Member], others: int, seconds: float) -> str:
    """Whose ranks are not heard of any more, and how many wait for them.

    >>> not_answering([Member(1, "cb2", 2, (0, 1))], 2, 5.0)
    'ranks 2-3 (host cb2) do not answer within 5 s, stopped or gone without a word; 2 other ranks wait for them'
    """
    ranks = [member.first_rank + slot for member in members for slot in range(len(member.local_ranks))]
    do, them = ("does", "it") if len(ranks) == 1 else ("do", "them")
    waiting = "1 other rank waits" if others == 1 else f"{others} other ranks wait"
    return (
        f"{name_ranks(ranks)} ({listed('host', list(dict.fromkeys(member.host for member in members)))}) {do} not "
        f"answer within {seconds:g} s, stopped or gone without a word; {waiting} for {them}"
    )


def with_ras(trouble: Trouble, told: RasTold | None, places: Mapping[int, RankPlace]) -> Trouble:
    """The same with what NCCL says of its ranks, which names one where it is the only one that lags behind all others.

    Ranks of a communicator of all ranks have the numbers of the case; of any other they do not.
    """
    if told is None or told.stall is None:
        why = "nothing came back in time" if told is None else told.why_not
        return replace(trouble, reason=f"{trouble.reason}; NCCL was asked what its ranks do, in vain: {why}")
    reason, lag = trouble.reason + told.stall.in_words(SECONDS_APART), told.stall.lag
    is_one = lag is not None and lag.num_behind == 1 and lag.size == len(places)
    place = places.get(lag.behind[0].rank) if lag is not None and is_one else None
    if trouble.rank is not None or place is None:
        return replace(trouble, reason=reason)
    return replace(trouble, reason=reason, rank=place.rank, host=place.host, log=_log(place), blame="process")


BUSY, LITTLE_POWER = 0.95, 1 / 3
"""Utilisation and share of its power limit, from and below which a GPU looks as if it spins in a kernel that waits.

Source: NCCL issue 2428, a hang with every GPU at 100 % utilisation and little power. The share is ours: what computes
or reads memory without pause draws more.
"""


def gpus_in_words(
    members: Sequence[Member],
    samples: Mapping[str, Mapping[int, GpuSample]],
    only_with_errors: bool = False,
    limits_w: Mapping[tuple[str, int], float] = MappingProxyType({}),
    ranks_per_gpu: int = 1,
) -> dict[int, str]:
    """What the GPU of each rank was last seen doing: a kernel that hangs looks unlike a host that does nothing.

    Parameters
    ----------
    samples
        The last of each GPU, by host and number.
    limits_w
        Power limits by host and GPU, as far as they are known.
    """
    words = {}
    for member in members:
        gpus = samples.get(member.host, {})
        for slot, local_rank in enumerate(member.local_ranks):
            if (gpu := gpus.get(member.gpu_of(local_rank, ranks_per_gpu))) and gpu.error:
                words[member.first_rank + slot] = f"; NVML says of its GPU {gpu.index}: {gpu.error}"
            elif gpu and not only_with_errors:
                power = "unknown power" if gpu.power_w is None else f"{gpu.power_w:.0f} W"
                busy = "" if gpu.utilization is None else f" and was busy {100 * gpu.utilization:.0f} % of the time"
                spins = _spins(gpu, limits_w.get((member.host, gpu.index)))
                words[member.first_rank + slot] = f"; its GPU {gpu.index} drew {power}{busy}{spins}"
    return words


def _spins(gpu: GpuSample, limit_w: float | None) -> str:
    """Empty where it does not, or its limit is not known."""
    if limit_w is None or gpu.power_w is None or gpu.utilization is None:
        return ""
    if gpu.utilization < BUSY or gpu.power_w >= LITTLE_POWER * limit_w:
        return ""
    return f", little of its limit of {limit_w:.0f} W: it looks as if it spins in a kernel that waits"


def _log(place: RankPlace | None) -> str:
    """The path of a rank's log within the run's folder."""
    return f"logs/{Path(place.log).name}" if place and place.log else ""
