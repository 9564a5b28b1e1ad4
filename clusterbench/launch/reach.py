"""Whether the hosts of a run reach the head over the network that was chosen, before any case relies on it.

An interface may be up and lead nowhere. Ranks would then wait for each other in every case.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence

from clusterbench.errors import SuiteError
from clusterbench.launch.allocation import Allocation, messages_of
from clusterbench.launch.control import HEAD, HeadPlane
from clusterbench.launch.interfaces import Interface
from clusterbench.launch.messages import AddressTried, TryAddress
from clusterbench.terminal import tell
from clusterbench.words import few

SECONDS_TO_REACH = 20.0
"""For a network until it is taken to lead nowhere: as long as a link may be silent in the middle of a run."""
SECONDS_OF_A_TRY = 3.0
SECONDS_OF_AN_ANSWER = SECONDS_OF_A_TRY + 2.0
SECONDS_BETWEEN_TRIES = 0.5


def why_not_reached(address: str, port: int) -> str:
    """Why no connection to there can be made; empty where one was."""
    try:
        socket.create_connection((address, port), SECONDS_OF_A_TRY).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def reached_interfaces(
    plane: HeadPlane, allocation: Allocation, hosts: Sequence[str], wanted: str | None
) -> dict[str, Interface]:
    """Of each host that takes part, and the head's, the interface of the first network that leads to the head.

    What was passed over is said. Where all lead nowhere it is the first: a link may come back, and cases of one host
    need none.

    Raises
    ------
    SuiteError
        If the hosts share no network, not the one that is wanted, or that one does not lead to the head.
    """
    chosen = first = allocation.interfaces(hosts, wanted)
    others = allocation.first_agents(first)
    head, in_vain = allocation.hosts[HEAD], list[str]()
    while others and (why_not := _unreached(plane, others, address := chosen[head].address)):
        do_not, name = f"{few(list(why_not))} {'does' if len(why_not) == 1 else 'do'} not reach", chosen[head].name
        why = f"within {SECONDS_TO_REACH:g} s: {' or '.join(sorted(set(why_not.values())))}"
        if wanted is not None:
            raise SuiteError(
                f"--interface {wanted}: {do_not} {address} of {head} over it {why}.\nhint: 'ping {address}' on "
                f"{next(iter(why_not))}; without --interface the first network that leads to {head} is taken"
            )
        _warn(f"{do_not} {address} of {head} ({name}) {why}")
        in_vain.append(address)
        try:
            chosen = allocation.interfaces(hosts, None, in_vain)
        except SuiteError:
            _warn(
                f"no network of these hosts leads to {head}: ranks on several hosts will not meet unless that changes"
            )
            return allocation.interfaces(hosts, None)
    if in_vain:
        _warn(f"ranks talk over {chosen[head].name}, {chosen[head].address} of {head}, which all hosts reach")
    return chosen


def _warn(words: str) -> None:
    tell(f"warning: {words}")


def _unreached(plane: HeadPlane, others: Mapping[int, str], address: str) -> dict[str, str]:
    """Of each host that does not reach ``address`` of the head's host, why; of none where an agent is lost."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, 0), family=family, backlog=4096)  # the kernel answers; nobody reads
    except OSError as error:
        return dict.fromkeys(others.values(), f"the head cannot listen there: {error.strerror}")
    with listener:
        port, deadline = listener.getsockname()[1], time.monotonic() + SECONDS_TO_REACH
        left = dict(others)
        while why_not := _tried(plane, left, TryAddress(address, port)):
            if plane.lost():  # which whoever needs that agent will notice
                return {}
            if time.monotonic() > deadline:
                break
            left = {agent: host for agent, host in left.items() if host in why_not}
            time.sleep(SECONDS_BETWEEN_TRIES)
    return why_not


def _tried(plane: HeadPlane, agents: Mapping[int, str], order: TryAddress) -> dict[str, str]:
    """Of each agent's host that did not reach the address, why."""
    for agent in agents:
        plane.send(agent, order)
    answers: dict[int, str] = {}
    for sender, message in messages_of(plane, SECONDS_OF_AN_ANSWER):
        if isinstance(message, AddressTried) and sender in agents and message.port == order.port:
            answers[sender] = message.why_not
        if len(answers) == len(agents):
            break
    silent = "its agent did not answer"
    return {host: why for agent, host in agents.items() if (why := answers.get(agent, silent))}
