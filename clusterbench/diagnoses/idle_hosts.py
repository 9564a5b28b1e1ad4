from __future__ import annotations

from clusterbench.cases import Reading
from clusterbench.diagnoses import Answer, Diagnosis, NotJudged
from clusterbench.words import few, plural


class IdleHosts(Diagnosis):
    """Hosts of the allocation on which no case ran.

    What it looks for
    -----------------
    Hosts beyond the largest number of nodes that any case of the suite took. Nothing is said against them: they are not
    judged, and neither is the machine of which they are a part.

    Why it matters
    --------------
    A suite that asks for one node or two leaves the others idle. What it finds in order is in order on those it used;
    the slow GPU or link that stops the job of next week may be on one of the rest.

    How to confirm
    --------------
    hosts.json names the hosts of each case. 'clusterbench plan' shows on how many nodes each will run.

    What usually fixes it
    ---------------------
    'all_nodes: true' in the suite, which then runs on all of them as well, as suites/acceptance.yaml and
    suites/fabric.yaml do. Where the others were not meant, '--num-nodes' takes the first ones alone.
    """

    def answer(self, reading: Reading) -> Answer:
        cluster = reading.plan.cluster
        used = {host for history in reading.histories for seen in history.observations for host in seen.hosts}
        most = max((case.num_nodes for case in reading.plan.cases), default=0)
        if not reading.ran_here or not used or most >= cluster.num_nodes:
            return Answer()
        idle = tuple(host for host in cluster.hosts[most:] if host not in used)
        if not idle:
            return Answer()
        what = f"{len(idle)} of {plural(cluster.num_nodes, 'host')}: {few(idle)}"
        why = f"the suite takes {plural(most, 'node')}, and no case ran there"
        return Answer(not_judged=(NotJudged(what, why, "'all_nodes: true' in the suite", idle),))
