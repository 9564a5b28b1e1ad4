from __future__ import annotations

from dataclasses import replace

from clusterbench.checks.imex_domain import ImexDomain
from clusterbench.facts.fabric import IMEX, Fabric, Imex, ImexNode
from tests.facts.healthy.gpus import facts as gpus
from tests.facts.machine import training


def judged(domain, name="NVIDIA GB200", unread=None):
    found = gpus(gpus=tuple(replace(gpu, name=name) for gpu in gpus().gpus[:4]))
    fabric = Fabric(num_switches=0, manager="not-found", imex=domain, unread=unread or {})
    (said,) = ImexDomain().judge_all([training(found, fabric)]).values()
    return said


def node(name, status="READY", *broken):
    return ImexNode(name, status, broken)


def test_a_node_that_is_away_and_one_that_is_cut_off_are_named():
    said = judged(Imex("DEGRADED", (node("t1"), node("t2", "UNAVAILABLE"), node("t3", "READY", "10.0.0.2: INVALID"))))
    assert [(fault.where, fault.what) for fault in said.faults] == [
        ("", "the IMEX domain is DEGRADED"),
        ("IMEX node t2", "is UNAVAILABLE"),
        ("IMEX node t3", "is not connected to 1 node: 10.0.0.2: INVALID"),
    ]
    assert said.faults[1].evidence == f"{IMEX}: t2 UNAVAILABLE"
    assert said.healthy == ""


def test_a_domain_that_is_up_is_in_order():
    assert judged(Imex("UP", (node("t1"), node("t2")))).healthy == "the IMEX domain of 2 nodes is UP"


def test_without_an_answer_it_is_not_judged():
    said = judged(None, unread={IMEX: "ended with exit code 1: Failed to connect"})
    assert said.unknown[0].why == f"{IMEX} ended with exit code 1: Failed to connect"
    assert said.faults == ()


def test_other_gpus_are_in_no_such_domain():
    reason = "no GPU of a multi-node NVLink domain (GB200, GB300) here"
    assert judged(None, name="NVIDIA H100 80GB HBM3").not_applicable == reason
