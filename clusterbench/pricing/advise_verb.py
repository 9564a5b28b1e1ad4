"""What ``clusterbench advise`` is asked, as a question, and both answers where the network is not said."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clusterbench.cluster import Accelerator
from clusterbench.errors import SuiteError
from clusterbench.expectation import MEASURED
from clusterbench.fingerprint import UNKNOWN
from clusterbench.job import MOST_TOKENS
from clusterbench.pricing.advice import Advice, Question, advise
from clusterbench.pricing.advice_text import advice_text
from clusterbench.pricing.cluster_file import KnownCluster
from clusterbench.pricing.knee import on_fewer_nodes
from clusterbench.pricing.profiles import named_profile
from clusterbench.pricing.rates import KnownRates
from clusterbench.pricing.rates_file import expect_effect, given_names, rates_of
from clusterbench.pricing.top_layouts import TopLayouts, top_layouts
from clusterbench.pricing.typical import nics_bytes_per_s, typical_rates
from clusterbench.shape import numbers_of
from clusterbench.shape_file import asked_shape
from clusterbench.units import format_value
from clusterbench.words import comment, plural

NETWORKS = ("400Gb", "100Gb")
"""A NIC of each GPU, asked about where nobody says what NICs there are."""

OF_NICS = ("busbw", "node_network")
"""Rates that follow from the NICs of a node where a file does not give them."""

_TOKENS = re.compile(r"2\^(?P<power>[0-9]{1,2})|(?P<whole>[0-9]{1,15})")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options of the verb that are of all its answers; ``cluster`` is what file and options say together."""

    cluster: KnownCluster
    seq_len: int
    global_batch_size: int | None
    tokens: str | None
    rates: Path | None
    accepted: Sequence[str]
    profile: str

    def question(self, shape: str) -> Question:
        """About a model, by its name or its file.

        Raises
        ------
        SuiteError
            For every mistake of an option or a file.
        """
        card = self.cluster.card
        sequences = _sequences(self.global_batch_size, self.tokens, self.seq_len)
        return Question(asked_shape(shape), card, self.num_nodes, self.gpus_per_node(card), self.seq_len, sequences)

    @property
    def num_nodes(self) -> int:
        """One where neither a file nor an option says."""
        return self.cluster.num_nodes or 1

    def gpus_per_node(self, card: Accelerator) -> int:
        """Those of its usual server where neither a file nor an option says."""
        return self.cluster.gpus_per_node or card.usual_gpus_per_node

    def by_network(self, card: Accelerator) -> Iterator[tuple[list[str], KnownRates]]:
        """What is said first and what is known, for each network that there may be.

        Raises
        ------
        SuiteError
            For every mistake of an option or a file.
        """
        expect_effect(self.rates, self.accepted)
        self._expect_network()
        given = given_names(self.rates)
        of, machine, gpus_per_node = self.cluster, self.cluster.machine, self.gpus_per_node(card)
        unsaid = of.nics is None and self.num_nodes > 1 and not given.issuperset(OF_NICS)
        for network in [f"{gpus_per_node}x{nic}" for nic in NETWORKS] if unsaid else [of.nics]:
            typical = typical_rates(card, nics_bytes_per_s(network), given, gpus_per_node=gpus_per_node)
            asked = replace(typical.machine if machine == UNKNOWN else machine, gpus_per_node=str(gpus_per_node))
            known = replace(typical, machine=asked)
            if self.rates is not None:
                known = rates_of(self.rates, known, self.profile, accepted=self.accepted)
            head = [
                *_caution(known, self.rates, self.num_nodes, unsaid),
                *(comment(f"the cluster as {of.source} has it: {of.words}", "  ") if of.source else ()),
                *(() if of.gpus_per_node else _server(card)),
                *([f"# If the NICs of a node are {network}:"] if unsaid else self._nics()),
            ]
            yield head, known

    def _expect_network(self) -> None:
        """That NICs of an option have an effect; those of a file describe a cluster, of which one node may be meant."""
        nics = self.cluster.nics
        if nics_bytes_per_s(nics) is not None and self.num_nodes == 1 and "nics" not in self.cluster.places:
            raise SuiteError(
                f"--nics {nics} has no effect on one node: nothing leaves it.\n"
                "hint: leave it out, or say with --num-nodes how many nodes there are"
            )

    def _nics(self) -> list[str]:
        """What the option says of the network, where no line about a file of the cluster or of rates does."""
        of = self.cluster
        is_said = of.nics is not None and self.num_nodes > 1 and not of.source and self.rates is None
        return [f"# NICs of a node, as --nics says: {of.nics}"] if is_said else []


def answers(asked: Asked, shape: str, gpu_hour: float | None, knee: bool) -> Iterator[tuple[str, Advice, KnownRates]]:
    """Each answer as text and as it was found, with the rates; one for each network that there may be.

    Raises
    ------
    SuiteError
        For every mistake of an option or a file.
    """
    of, question = named_profile(asked.profile), asked.question(shape)
    for head, known in asked.by_network(question.card):
        advice = advise(question, of, known)
        on_nodes = list(on_fewer_nodes(question, of, known)) if knee else ()
        yield "\n".join([*head, advice_text(advice, of, known, gpu_hour, on_nodes)]), advice, known


def expect_names(asked: Asked, shapes: Sequence[str]) -> None:
    """That rows of a heatmap, which names tell apart, are of one model each.

    Raises
    ------
    SuiteError
        Naming both, where two models have one name; and for every mistake of an option or a file.
    """
    first: dict[str, tuple[str, str]] = {}
    for told in shapes:
        shape = asked.question(told).shape
        before, numbers = first.setdefault(shape.name, (told, numbers_of(shape)))
        if numbers != numbers_of(shape):
            raise SuiteError(
                f"--shape {told}: the shape '{shape.name}' has other numbers in {before}, and a page tells models by "
                "their names.\nhint: write 'name: ...' beside its numbers"
            )


@dataclass(frozen=True)
class Heatmap:
    """The fastest layouts of some models on some numbers of nodes, and what has to be said of it, line by line."""

    head: Sequence[str]
    cells: Sequence[TopLayouts]


def heatmaps(asked: Asked, shapes: Sequence[str]) -> Iterator[Heatmap]:
    """One for each network that there may be, with a row for each model.

    Raises
    ------
    SuiteError
        For every mistake of an option or a file.
    """
    of, questions = named_profile(asked.profile), [asked.question(shape) for shape in shapes]
    for head, known in asked.by_network(questions[0].card):
        cells = [cell for question in questions for cell in top_layouts(question, of, known)]
        framework = comment(f"prices are of the profile '{asked.profile}', which 'clusterbench list profiles' explains")
        yield Heatmap([*head, *framework], cells)


def _server(card: Accelerator) -> list[str]:
    """How many GPUs a node was taken to have, and why."""
    why = card.server or "no usual server of this card is on record"
    return comment(f"{plural(card.usual_gpus_per_node, 'GPU')} a node, as --gpus-per-node was not said: {why}", "  ")


def _caution(known: KnownRates, rates: Path | None, num_nodes: int, unsaid: bool) -> Iterator[str]:
    if rates is None:
        yield from comment(
            f"NOT MEASURED: {known.name}. Nothing was run on this machine; where launches and latency decide, believe "
            "the range and not the value.",
            indent="  ",
        )
        return
    yield f"# rates: {known.name}"
    if known.machine.words:
        yield from comment(f"of {known.machine.words}", indent="  ")
    network = known.by_key["node_network"]
    if num_nodes > 1 and not (unsaid and network.origin not in MEASURED):  # which is asked about in two answers
        yield from comment(f"a node sends {format_value(network.value, 'B/s')}: {network.source}", indent="  ")
    told = known.words_by_origin
    measured = [words for origin in MEASURED for words in told.get(origin, ())]
    others = {origin: words for origin, words in told.items() if origin not in MEASURED}
    yield from comment(f"given or measured: {', '.join(measured) or 'nothing'}", indent="  ")
    if others:
        named = "; ".join(f"{', '.join(names)} ({origin})" for origin, names in others.items())
        yield from comment(f"NOT MEASURED: {named}. Where these decide, believe the range and not the value.", "  ")


def _sequences(global_batch_size: int | None, tokens: str | None, seq_len: int) -> int:
    if (global_batch_size is None) == (tokens is None):
        raise SuiteError("say the batch once: --global-batch-size SEQUENCES or --tokens TOKENS.")
    if global_batch_size is not None:
        if (number := global_batch_size * seq_len) > MOST_TOKENS:
            raise SuiteError(
                f"--global-batch-size {global_batch_size} of --seq-len {seq_len} are {number / 1e9:.3g} billion tokens "
                "a step: it counts sequences. Say tokens as --tokens, 2^30 at most."
            )
        return global_batch_size
    assert tokens is not None
    said = _TOKENS.fullmatch(tokens)
    number = 0 if said is None else 2 ** int(said["power"]) if said["power"] else int(said["whole"])
    if not 1 <= number <= MOST_TOKENS:
        raise SuiteError(f"--tokens {tokens!r} is no number of tokens a step: 1 to 2^30, whole, or a power as 2^22.")
    if number % seq_len:
        whole = number // seq_len
        near = " and ".join(f"{n * seq_len} are {plural(n, 'sequence')}" for n in (whole, whole + 1) if n)
        raise SuiteError(f"--tokens {number} is no multiple of --seq-len {seq_len}.\nhint: {near}")
    return number // seq_len
