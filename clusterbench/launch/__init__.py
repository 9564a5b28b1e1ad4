"""How a plan becomes processes.

::

    launcher ── starts ──> agent ── before MPI ──> spawner ── starts ──> zygote ── forks ──> worker, one per rank
                             │  \\________________________ orders, phases, records _____________/
                             └── control plane ── head agent: the conductor, which walks through the plan

An agent and its spawner never import torch. A zygote imports it once and never computes. A worker runs the ranks of one
start and is expendable: whatever happens to it, its agent is left to say so.
"""
