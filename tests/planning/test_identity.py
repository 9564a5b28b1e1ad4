"""Cases of the suites that come with it keep their names and hashes, by which --resume and compare find them again."""

from __future__ import annotations

import hashlib

import pytest

from clusterbench.cluster import Cluster
from clusterbench.planning import make_plan
from clusterbench.suite import load_suite
from tests.test_suites import SUITES

RECORDED = {
    "acceptance": ((56, "cdbdf55b041ba5ae"), (176, "e779b0e0bc103fde")),
    "calibrate": ((31, "2ce1f2108c209f21"), (82, "7dedf9381ed2cf6f")),
    "compression": ((13, "18e5ce76ead593c0"), (40, "886e546d0f7b8eae")),
    "compute": ((15, "a70a90e17facf8c4"), (353, "e6b53a2030b3c781")),
    "cp_scale": ((9, "86fc6b14c2cdcecc"), (52, "a0abce5de5b9b046")),
    "embedding": ((18, "f14edfb0cf12a899"), (46, "d6561b1d50a6d5a0")),
    "ep_scale": ((22, "7321ff9a28bb3252"), (32, "29ed7acd1e23a809")),
    "engines": ((18, "198a8255d3bb99ad"), (18, "03906a52062a5578")),
    "fabric": ((104, "3c30ecd7cda8a624"), (239, "ce43ffc29c5aa61f")),
    "faults": ((29, "097cde0d8dd68c9a"), (29, "b1de0d316a6545e9")),
    "gpu_direct": ((33, "ed852b21670526e2"), (352, "c3e83d0687356031")),
    "input_pipeline": ((2, "44bae490bee04127"), (2, "eaea1f014f9d2687")),
    "layouts_5d": ((32, "1ea55dcadcfe7e01"), (32, "0b6668efc2125298")),
    "links": ((6, "72dc61632a3e6db2"), (11, "f9cbfe92c8018e7b")),
    "memory_savings": ((22, "cd7f69a023895787"), (88, "c45a3d9dd10cfcbe")),
    "mpi": ((34, "2a60ddd218eb42f4"), (223, "f44ec6f9e33f156c")),
    "nccl_collectives": ((119, "ad5ab2a33330aa3f"), (1139, "7824e19c9c1fba33")),
    "nccl_tuning": ((30, "1dfb03917bf3b195"), (308, "b9b2ad8074aaea04")),
    "one_gpu": ((15, "bdd20a1ff6ec2987"), (20, "1cbec27d58ec23a4")),
    "one_gpu_ceilings": ((3, "70f10efbc881f48b"), (13, "31545f2cfad49d7d")),
    "one_gpu_fake": ((4, "c62b7d840f782287"), (6, "6b04070e9c13d3b1")),
    "one_gpu_memory": ((3, "a833320a297fa6fe"), (18, "94c26346d89a4746")),
    "one_gpu_ranks": ((18, "37ebc4102c66bf72"), (33, "bd3e55b45145ea27")),
    "one_gpu_smoke": ((28, "7b267f3fc907e1f6"), (70, "c40551bc8018e3b7")),
    "pp_schedules": ((16, "c85a2678ef4317e2"), (48, "0fdbed3fba14b860")),
    "pp_vs_zero3": ((8, "da226a6de6830fd2"), (32, "75b1d00a9cd7e682")),
    "rank_order": ((4, "80224cb7f736d30a"), (12, "bad503538c76a107")),
    "rdma": ((23, "9d1b0f5d9dd7dbb0"), (145, "998e9ab1dcb6d2ea")),
    "recompute": ((9, "9db2fe6a7766df94"), (32, "e2ed8e291574b057")),
    "sp_scale": ((8, "e0b94f07db57c0a1"), (24, "ecc0bd1284f8476d")),
    "storage": ((16, "19131e6e865e6d29"), (19, "d68fab1159a5bb47")),
    "top_configs": ((40, "855e0994d6d899e8"), (383, "0b213d8f6e9cd39a")),
    "tp_scale": ((8, "5d9599bcd0428e39"), (22, "7e794d7fc336cc0c")),
    "zero_stages": ((10, "94b130041adf8b9d"), (32, "809f829b35bbeeb5")),
}
"""Of each suite, on CPU ranks and on nodes of 8 H100: how many cases, and a digest of their names and hashes.

Those of commit f044351; of one_gpu*, calibrate, acceptance, links, rank_order, nccl_tuning, engines, input_pipeline,
embedding and compression as they came later; of rdma since nccl_tests works the bandwidths of small calls out from size
and time, which cannot be compared with the two decimals that it printed. A suite that is changed on purpose gets new
ones; a change of the code alone must not. It may make a case of what was refused: top_configs got pp8 of the 28 layers
of llama-3b, when layers no longer had to come out even.
"""

ON_ONE_NODE = ("faults", "top_configs")  # many cases
H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_names_and_hashes_are_those_of_earlier_versions(path) -> None:
    suite = load_suite(path)
    on_gpus = Cluster(1 if path.stem in ON_ONE_NODE else 2, 8, "cuda", H100)
    seen = []
    for cluster in (Cluster(1, suite.cpu.num_ranks or 2, "cpu"), on_gpus):
        cases = make_plan(suite, cluster).cases
        text = "".join(sorted(f"{case.id} {case.hash}\n" for case in cases))
        seen.append((len(cases), hashlib.sha256(text.encode()).hexdigest()[:16]))
    assert tuple(seen) == RECORDED[path.stem]
