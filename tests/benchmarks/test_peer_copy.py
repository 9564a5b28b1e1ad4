import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from clusterbench.benchmarks.peer_copy import PeerCopy
from clusterbench.cases.matrices import matrices
from clusterbench.cluster import Cluster
from clusterbench.diagnoses.slow_link import SlowLink
from clusterbench.engine import nvlink
from clusterbench.engine.nvlink import NvLinkList
from clusterbench.engine.rig import Rig
from clusterbench.errors import NotHere, WrongResult
from clusterbench.rows import Row
from clusterbench.run_folder.passes import as_json
from clusterbench.tools.host_links import NVLINK, NvLink, NvLinkReadings
from clusterbench.types import SAMPLES, Case, Observation, Place
from tests.report.synthetic import case as planted_case
from tests.report.synthetic import observation, outcome, reading

H100 = "NVIDIA H100 80GB HBM3"


def point(gpus, **options):
    (only,) = PeerCopy(**{"size": 4096, "pair_iterations": 2, "pair_warmup": 1, **options}).points(
        Place(Cluster(1, gpus, "cuda", H100), 1)
    )
    return only


def rig():
    """Rank 0 of 2 on a node of two GPUs, with nobody to wait for."""
    made = Rig(rank=0, world_size=2, local_rank=0, host="here", device=torch.device("cuda", 0))
    made.comm = SimpleNamespace(all_reduce=lambda tensor: None)
    return made


def test_without_a_gpu_it_is_skipped_with_a_sentence():
    on_cpu = Rig(rank=3, world_size=4, local_rank=3, host="here", device=torch.device("cpu"))
    with pytest.raises(NotHere) as caught:
        PeerCopy.prepare(on_cpu, point(4))
    assert str(caught.value) == "peer copies are between GPUs, and rank 3 on here is a CPU rank"


def test_a_process_that_sees_its_own_gpu_only_says_what_to_do(two_gpus):
    with pytest.raises(NotHere) as caught:
        PeerCopy.prepare(rig(), point(8))
    assert str(caught.value) == (
        "peer copies need one process that sees all 8 GPUs of its node, but rank 0 on here sees 2.\n"
        "hint: start the ranks without binding each to its GPU"
    )


def test_every_pair_is_copied_directly_and_through_the_host(two_gpus):
    step = PeerCopy.prepare(rig(), point(2))
    assert step.check() == {"wrong_elements": 0.0}
    step.run()
    figures = step.passes[SAMPLES]()
    assert sorted(figures) == sorted(
        [
            "local_copy_bandwidth[source=0:0]",
            "local_copy_bandwidth[source=0:1]",
            *(
                f"{name}[category={way},part=0:{target},source=0:{source}]"
                for name, way in (("copy_bandwidth", "peer"), ("copy_bandwidth", "host"), ("copy_latency", "peer"))
                for source, target in ((0, 1), (1, 0))
            ),
            "copy_bandwidth_both[category=peer,part=0:1,source=0:0]",
            "copy_bandwidth_both[category=host,part=0:1,source=0:0]",
            "peer_pairs[source=0]",
        ]
    )
    assert figures["peer_pairs[source=0]"] == [2.0]
    assert all(len(values) == 2 for key, values in figures.items() if "bandwidth" in key)


def test_figures_count_the_copies_that_are_timed(two_gpus, monkeypatch):
    """Four copies of 4,096 B in half a second: 32,768 B/s, twice that where each byte counts twice; 100 small ones."""
    from clusterbench.benchmarks.peer_copy import _Gpus

    made, timed, real_copy = [], [], torch.Tensor.copy_

    def copy(target, source, non_blocking=False):
        made.append(source.nbytes)
        return real_copy(target, source)

    def seconds(self, of_a_sample):
        made.clear()
        of_a_sample()
        timed.append([*made])
        return [0.5, 0.25]

    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    monkeypatch.setattr(_Gpus, "_seconds", seconds)
    step = PeerCopy.prepare(rig(), point(2))
    step.check()
    figures = step.passes[SAMPLES]()
    pair = [[4096] * 4, [4096] * 8, [8] * 100]  # directly, through the host, small
    assert timed == [[4096] * 4] * 2 + pair * 2 + [[4096] * 8, [4096] * 16]
    rates = {key.partition("[")[0]: values for key, values in figures.items()}
    assert rates["local_copy_bandwidth"] == rates["copy_bandwidth_both"] == [65536.0, 131072.0]
    assert rates["copy_bandwidth"] == [32768.0, 65536.0]
    assert rates["copy_latency"] == [0.005, 0.0025]
    assert figures["copy_bandwidth_both[category=host,part=0:1,source=0:0]"] == rates["copy_bandwidth_both"]
    assert figures["copy_bandwidth_both[category=peer,part=0:1,source=0:0]"] == rates["copy_bandwidth_both"]


@pytest.mark.parametrize("words", [1, 2**19, 2**19 + 1, 9 * 2**19])
def test_a_staged_copy_is_whole_whatever_its_size(two_gpus, words):
    assert PeerCopy.prepare(rig(), point(2, size=8 * words)).check() == {"wrong_elements": 0.0}


def test_a_copy_that_arrives_wrong_is_told_with_its_gpus(two_gpus, monkeypatch):
    from clusterbench.benchmarks.peer_copy import _Gpus

    real = _Gpus.direct

    def broken(self, source, target):
        real(self, source, target)
        if (source, target) == (1, 0):
            self.received[target][3] += 1

    monkeypatch.setattr(_Gpus, "direct", broken)
    with pytest.raises(WrongResult) as caught:
        PeerCopy.prepare(rig(), point(2)).check()
    assert str(caught.value) == (
        "the copy from GPU 1 to GPU 0 gave wrong results on rank 0 (host here): 1 of 512 elements differ. "
        "First at index 3: got 507, expected 506."
    )


def test_copies_that_do_less_while_they_are_timed_are_found_behind_the_clock(two_gpus, copies_less):
    step = PeerCopy.prepare(rig(), point(2))
    step.check()
    copies_less()
    step.run()
    copies_less(is_whole=True)
    with pytest.raises(WrongResult, match="the last copy from GPU 0 to GPU 1 gave wrong results on rank 0"):
        step.confirm(True)
    step.run()
    assert step.confirm(True) == {"wrong_elements": 0.0}


@pytest.mark.parametrize("way", ["direct", "staged", "small", "local"])
def test_every_figure_of_a_pair_is_proven_by_what_its_copies_left(two_gpus, monkeypatch, way):
    from clusterbench.benchmarks.peer_copy import _Gpus

    step = PeerCopy.prepare(rig(), point(2))
    step.check()
    real = getattr(_Gpus, way)

    def of_another(self, *ends):
        real(self, *(1 - end if isinstance(end, int) else end for end in ends))

    for instead in (lambda self, *ends: None, of_another):
        monkeypatch.setattr(_Gpus, way, instead)
        with pytest.raises(WrongResult, match=r"the copy from GPU 0 to GPU [01] gave wrong results on rank 0"):
            step.passes[SAMPLES]()


def readings(monkeypatch, *moments):
    """What the driver says of one GPU's two links, reading after reading."""
    left = [
        NvLinkList(NvLink(0, link, is_up, "4.0", {"replay": count}) for link, is_up, count in links)
        for links in moments
    ]
    monkeypatch.setattr(nvlink, "read_links", lambda: left.pop(0))


def seen_of(step, hosts=("gpu-01",)):
    """What a diagnosis gets of the passes."""
    planned = planted_case("copies", 2)
    observed = observation(planned, hosts=hosts)
    figures = step.passes[SAMPLES]()
    passes = {SAMPLES: [figures, {}], NVLINK.name: [json.loads(json.dumps(step.passes[NVLINK.name]())), {}]}
    return figures, reading((outcome(planned), Observation(**{**vars(observed), "passes": passes})), cases=[planned])


def test_links_that_stay_up_and_count_nothing_are_silent(two_gpus, monkeypatch):
    readings(monkeypatch, *[[(0, True, 5), (1, True, 0)]] * 3)
    figures, read = seen_of(PeerCopy.prepare(rig(), point(2)))
    assert figures["nvlink_active[source=0:0]"] == [2.0]
    assert figures["nvlink_errors[category=replay,source=0:0]"] == [0.0]
    assert SlowLink().findings(read) == []


def test_a_counter_that_grows_and_a_link_that_goes_down_are_found(two_gpus, monkeypatch):
    first, middle, last = [(0, True, 5), (1, True, 0)], [(0, True, 9), (1, False, 0)], [(0, True, 9), (1, True, 0)]
    readings(monkeypatch, first, middle, last)
    figures, read = seen_of(PeerCopy.prepare(rig(), point(2)))
    assert figures["nvlink_errors[category=replay,source=0:0]"] == [4.0]
    assert [
        (finding.where, finding.what, finding.severity, finding.evidence) for finding in SlowLink().findings(read)
    ] == [
        (
            "host gpu-01, GPU 0, NVLink 0",
            "error counters grew while it was used",
            "warning",
            "planted/1n2/copies: replay +4",
        ),
        ("host gpu-01, GPU 0, NVLink 1", "the link went down while it was used", "error", "planted/1n2/copies"),
    ]


def test_a_gpu_with_fewer_links_than_its_neighbour_is_found(two_gpus, monkeypatch):
    links = [NvLink(gpu, link, (gpu, link) != (1, 2), "4.0") for gpu in range(2) for link in range(4)]
    monkeypatch.setattr(nvlink, "read_links", lambda: NvLinkList(links))
    figures, read = seen_of(PeerCopy.prepare(rig(), point(2)))
    assert [figures[f"nvlink_active[source=0:{gpu}]"] for gpu in range(2)] == [[4.0], [3.0]]
    assert [(finding.where, finding.what, finding.evidence) for finding in SlowLink().findings(read)] == [
        (
            "host gpu-01, GPU 1",
            "1 of its 4 NVLinks is down",
            "planted/1n2/copies: 3 are up, on other GPUs of this host 4",
        )
    ]


def test_a_gpu_with_fewer_links_is_found_once_however_many_cases_read_them():
    """'links' reads them with each number of hosts: a host had the same GPU twice among what was found on it."""
    up = [NvLink(gpu, link, (gpu, link) != (1, 2), "4.0") for gpu in range(2) for link in range(4)]
    fewer = [replace(link, is_active=link.is_active and link.link > 0) if link.gpu else link for link in up]
    cases = [planted_case("copies", 2), planted_case("again", 2)]
    records = [
        (outcome(case), replace(observation(case), passes={NVLINK.name: [as_json(NvLinkReadings(links)), {}]}))
        for case, links in zip(cases, (up, fewer), strict=True)
    ]
    (finding,) = SlowLink().findings(reading(*records, cases=cases))
    assert (finding.where, finding.what) == ("host laptop, GPU 1", "2 of its 4 NVLinks are down")
    assert finding.evidence == "planted/1n2/copies, planted/1n2/again: 2 are up, on other GPUs of this host 4"


def test_a_damaged_record_of_links_is_named():
    planned = planted_case("copies", 2)
    links = [{"gpu": 0, "link": 0, "is_active": "yes"}]
    damaged = replace(observation(planned), passes={NVLINK.name: [{}, {"before": links}]})
    with pytest.raises(ValueError, match="the record 'nvlink' of rank 1 is not what a rank leaves: in 'before'"):
        list(PeerCopy.derive(planned, damaged, Place(Cluster(1, 2, "cuda", H100), 1)))
    (reading_of_damaged,) = [reading((outcome(planned), damaged), cases=[planned])]
    assert SlowLink().findings(reading_of_damaged) == []


def rows(samples, hosts, gpus=2):
    case = Case("copies", "peer_copy", 1, point(gpus), "cuda", len(hosts), gpus * len(hosts), 1, 0, 60.0)
    observation = Observation("copies", case.hash, 0, 1, hosts, [[0.1]] * case.world_size, passes={SAMPLES: samples})
    about = ("run", "copies", "peer_copy", 1, "ok", case.point, len(hosts), case.world_size, " ".join(hosts), "cuda")
    return [
        Row(
            *about,
            metric.name,
            metric.unit,
            metric.value,
            metric.low,
            metric.high,
            metric.iterations,
            detail=metric.detail,
        )
        for metric in PeerCopy.derive(case, observation, Place(Cluster(len(hosts), gpus, "cuda", H100), len(hosts)))
    ]


def test_gpus_are_named_by_their_host_and_each_category_has_its_median():
    samples = [
        {
            "copy_bandwidth[category=peer,part=0:1,source=0:0]": [300e9],
            "copy_bandwidth[category=peer,part=0:0,source=0:1]": [200e9],
            "local_copy_bandwidth[source=0:0]": [2e12],
        },
        {},
        {"copy_bandwidth[category=host,part=1:1,source=1:0]": [20e9], "peer_pairs[source=1]": [0.0]},
        {},
    ]
    derived = rows(samples, ("gpu-01", "gpu-02"))
    assert [(row.metric, *row.detail.values(), row.value) for row in derived[1:]] == [
        ("median_bandwidth", "peer", 250e9),
        ("median_bandwidth", "local", 2e12),
        ("median_bandwidth", "host", 20e9),
        ("copy_bandwidth", "peer", "gpu-01:1", "gpu-01:0", 300e9),
        ("copy_bandwidth", "peer", "gpu-01:0", "gpu-01:1", 200e9),
        ("local_copy_bandwidth", "gpu-01:0", 2e12),
        ("copy_bandwidth", "host", "gpu-02:1", "gpu-02:0", 20e9),
        ("peer_pairs", "gpu-02", 0.0),
    ]
    assert [matrix.names for matrix in matrices(derived)] == [("gpu-01:0", "gpu-01:1"), ("gpu-02:0", "gpu-02:1")]


def test_a_slow_pair_of_eight_gpus_is_named():
    samples = {
        f"copy_bandwidth[category=peer,part=0:{b},source=0:{a}]": [100e9 if {a, b} == {2, 5} else 380e9]
        for a in range(8)
        for b in range(8)
        if a != b
    }
    (finding,) = SlowLink().findings(
        reading(cases=[planted_case("a")], rows=rows([samples, *([{}] * 7)], ("gpu-01",), gpus=8))
    )
    assert finding.where == "gpu-01:2 <-> gpu-01:5"
    assert finding.what == "the link carries 26 % of what the median link does"
    assert finding.evidence == "copies: measured 100.0 GB/s, median 380.0 GB/s over 56 cells"


def test_expectations_are_upper_bounds_with_their_source():
    place = Place(Cluster(1, 8, "cuda", H100), 1)
    (only,) = PeerCopy().points(place)
    expected = PeerCopy().predict(only, place)
    assert {key: figure.value for key, figure in expected.items()} == {
        "median_bandwidth[category=peer]": 450e9,
        "median_bandwidth[category=host]": 63e9,
        "median_bandwidth[category=local]": 3.35e12,
    }
    assert all("an upper bound: NVIDIA H100 datasheet" in figure.basis for figure in expected.values())


def test_one_gpu_alone_expects_nothing_of_links():
    place = Place(Cluster(1, 1, "cuda", H100), 1)
    (only,) = PeerCopy().points(place)
    assert list(PeerCopy().predict(only, place)) == ["median_bandwidth[category=local]"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_what_is_staged_through_the_host_arrives_whole():
    from clusterbench.benchmarks.peer_copy import _Gpus

    gpus = _Gpus(rig(), point(1, size=2**26 + 8))
    gpus.sent[0].copy_(gpus._message(0, 0, 0))
    gpus.received[0].zero_()
    gpus.settle()
    gpus.staged(gpus.rings[0], 0, 0)
    gpus.settle()
    assert torch.equal(gpus.received[0], gpus.sent[0])
    figures = gpus.figures()
    assert figures["local_copy_bandwidth[source=0:0]"][0] > 1e9
    assert [len(links) for links in (gpus.nvlinks.during, gpus.nvlinks.after)] == [len(gpus.nvlinks.before)] * 2
