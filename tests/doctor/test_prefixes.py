"""Whatever launchers and log collectors put before each line, every reader says the same as without it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from clusterbench.doctor.logs import READERS, examine_logs
from clusterbench.doctor.said import File
from clusterbench.tools._prefix import unwrapped
from tests.doctor import test_logs as said
from tests.doctor import test_torch_log
from tests.doctor.readers import (
    test_amd_smi,
    test_dcgmi_diag,
    test_dcgmi_health,
    test_dcgmi_nvlink,
    test_deepep,
    test_dmidecode,
    test_ethtool_module,
    test_ethtool_settings,
    test_ethtool_stats,
    test_gdrcopy,
    test_gpu_burn,
    test_gpu_copy,
    test_gpu_fryer,
    test_iblinkinfo,
    test_ibnetdiscover,
    test_ibqueryerrors,
    test_lscpu,
    test_lspci_acs,
    test_lspci_list,
    test_lstopo,
    test_mlc,
    test_mlxlink,
    test_nccl_tests,
    test_numactl,
    test_nvbandwidth,
    test_nvidia_p2p,
    test_nvidia_topo,
    test_nvlink_errors,
    test_perfquery,
    test_perftest,
    test_rocm_smi,
    test_show_gids,
)
from tests.share import some_of
from tests.tools.test_nccl_log import WHOLE

PREFIXES = {
    "Markdown's code": "    ",
    "a quoted answer": "> > ",
    "a terminal's frame": "│ ",
    "a quoted answer of Ray": "> (RayTrainWorker pid=1019, ip=10.0.0.1) ",
    "CloudWatch": "  | 2026-03-02T14:10:00.208-07:00 | ",
    "Ray": "(RayTrainWorker pid=1019, ip=10.0.0.1) ",
    "Ray, a rank": "\x1b[36m(RayWorkerWrapper rank=3 pid=1019)\x1b[0m ",
    "Ray, without a name": "(pid=1019, ip=10.0.0.1) ",
    "SkyPilot": "(worker1, rank=1, pid=1019, ip=10.0.0.1) ",
    "SkyPilot, one node": "(my-task, pid=1019) ",
    "TorchX": "trainer/0 ",
    "kubectl": "[pod/w-0/main] ",
    "kubetail": "[llm-worker-0] ",
    "kubectl with times": "2026-03-02T14:10:00.123456789Z ",
    "containerd": "2026-03-02T14:10:00.123456789Z stderr F ",
    "Docker Compose": "node0-1  | ",
    "Docker's services": "train_worker.1.q9x0v3@cb17    | ",
    "ISO time": "2026-03-02T14:10:00+01:00 ",
    "iperf3 --timestamps": "Mon Mar  2 14:10:00 2026 ",
    "an offset behind a space": "2026-03-02 14:10:00.123 +08:00 ",
    "syslog": "Mar  2 14:10:00 cb17 python[123]: ",
    "rsyslog": "2026-03-02T14:10:00.123456+00:00 cb17 python[123]: ",
    "journalctl -o short-iso": "2026-03-02T14:10:00+0000 cb17 python[123]: ",
    "journalctl -o short-precise": "Mar 02 14:10:00.123456 cb17 python[123]: ",
    "journalctl in German": "Mär 02 14:10:00 cb17 python[123]: ",
    "journalctl in French": "févr. 02 14:10:00 cb17 python[123]: ",
    "journalctl -o short-full in German": "Mo 2026-03-02 14:10:00 CET cb17 python[123]: ",
    "journalctl -o short-full": "Mon 2026-03-02 14:10:00 CET cb17 python[123]: ",
    "journalctl -o with-unit": "Mon 2026-03-02 14:10:00 CET cb17 train@1.service/python[123]: ",
    "syslog with its priority": "<13>Mar  2 14:10:00 cb17 python[123]: ",
    "syslog of RFC 5424": "<13>1 2026-03-02T14:10:00.123Z cb17 python 123 - - ",
    "ts": "Mar 02 14:10:00 ",
    "pdsh": "cb17: ",
    "pdsh with a domain": "cb17.cluster.local: ",
    "pdsh and torchrun": "cb17: [rank3]: ",
    "Python's logging": "2026-03-02 14:10:00,123 - root - INFO - ",
    "Python's logging, unconfigured": "INFO:root:",
    "DeepSpeed": "[2026-03-02 14:10:00,123] [INFO] [launch.py:347] ",
    "Python's logging, the name in brackets": "2026-03-02 14:10:00,123 INFO [train] ",
    "Python's logging, the level in brackets": "[2026-03-02 14:10:00,123][INFO] ",
    "Python's logging, the level behind the name": "2026-03-02 14:10:00,123 train INFO ",
    "Python's logging, colons": "2026-03-02 14:10:00,123:INFO:",
    "Python's logging, the name behind the level": "2026-03-02 14:10:00,123 INFO train.loop: ",
    "Python's logging, the name behind brackets": "2026-03-02 14:10:00,123 [INFO] train.loop: ",
    "Python's logging, the level first": "[INFO] 2026-03-02 14:10:00,123: ",
    "Jenkins": "14:10:00  ",
    "a clock in brackets": "[14:10:00] ",
    "a clock with a fraction": "14:10:00.123 ",
    "GitLab": "2026-03-02T14:10:00.123456Z 01O ",
    "a tab behind the time": "2026-03-02T14:10:00.123Z\t",
    "Flask": "[2026-03-02 14:10:00,123] INFO in train: ",
    "rich": "[03/02/26 14:10:00] INFO     ",
    "glog": "I0302 14:10:00.123456 140123 train.py:12] ",
    "Go": "2026/03/02 14:10:00 ",
    "Transformers' examples": "03/02/2026 14:10:00 - INFO - __main__ - ",
    "Lightning": "[rank: 3] ",
    "NeMo": "[NeMo I 2026-03-02 14:10:00 train:12] ",
    "stern": "llm-worker-0 main ",
    "Hydra": "[2026-03-02 14:10:00,123][root][INFO] - ",
    "loguru": "2026-03-02 14:10:00.123 | INFO     | __main__:run:12 - ",
    "mpirun": "[1,0]<stdout>:",
    "mpirun of Open MPI 5": "[prterun-n1-2@1,0]<stdout>: ",
    "mpirun of SageMaker": "[1,mpirank:0,algo-1]<stdout>:",
    "mpirun of MPICH": "[0] ",
    "srun": " 0: ",
    "torchrun": "[default0]:",
}
TEXTS = {
    "a kernel's log": said.XID,
    "NCCL's log": WHOLE + said.WHOLE_WITH_A_FAULT,
    "PyTorch's log": test_torch_log.TIMEOUTS,
    "the fabric manager's log": said.FABRIC.format(
        level="ERROR", text=said.SWITCH.format(word="non-fatal", code=12028)
    ),
    "ibstat": said.IBSTAT.format(state="Down", physical="Polling"),
    "ibstatus": said.IBSTATUS.format(state="1: DOWN", physical="3: Disabled"),
    "nvidia-smi -q": said.SMI.replace("Current                   : 16x", "Current                   : 8x"),
    "lspci -vvv": said.LSPCI.format(acs="+", width=8),
    "p2pBandwidthLatencyTest": said.P2P.format(there="5.32", weak="22.10"),
    "nvidia-smi": said.TABLE,
    "nvidia-smi nvlink -s": said.NVLINK.format(name="H100", first="25 GB/s", second="<inactive>"),
    "ibv_devinfo": said.DEVINFO.format(state="PORT_DOWN (1)"),
    "mlxlink": test_mlxlink.UNSOUND,
    "show_gids": test_show_gids.LOST,
    "mlc": test_mlc.SLOW,
    "lscpu": test_lscpu.OFFLINE,
    "dmidecode": test_dmidecode.MISSING,
    "iblinkinfo": test_iblinkinfo.NARROW,
    "ibnetdiscover": test_ibnetdiscover.NARROW,
    "lspci": test_lspci_list.GONE,
    "lspci -vvv | grep ACSCtl": test_lspci_acs.ON * 3,
    "gdrcopy": test_gdrcopy.NO_DRIVER,
    "perftest": test_perftest.SLOW,
    "nccl-tests": test_nccl_tests.WRONG,
    "DeepEP's test": test_deepep.SLOW,
    "nvidia-smi topo -m": test_nvidia_topo.WORSE,
    "nvidia-smi topo -p2p": test_nvidia_p2p.REFUSED,
    "gpu_copy of SuperBench": test_gpu_copy.SLOW,
    "nvbandwidth": test_nvbandwidth.SLOW,
    "lstopo": test_lstopo.LESS,
    "numactl --hardware": test_numactl.HARDWARE.format(memory=0),
    "dcgmi diag": test_dcgmi_diag.FAILED,
    "dcgmi health -c": test_dcgmi_health.FAILURE,
    "perfquery": test_perfquery.DISCARDS,
    "ethtool -m": test_ethtool_module.HOT,
    "ethtool NIC": test_ethtool_settings.SLOW,
    "nvidia-smi nvlink -e": test_nvlink_errors.RETRAINED,
    "dcgmi nvlink -s": test_dcgmi_nvlink.DOWN,
    "amd-smi": test_amd_smi.ILL,
    "rocm-smi": test_rocm_smi.CAPPED,
    "gpu-burn": test_gpu_burn.FAULTY,
    "gpu-fryer": test_gpu_fryer.SLOW,
    "ethtool -S": test_ethtool_stats.DAMAGED,
    "ibqueryerrors": test_ibqueryerrors.FOUND,
}


def told(tmp_path, text):
    """What is found, without whose it is."""
    (tmp_path / "said.txt").write_text(text)
    examination, taken = examine_logs([tmp_path / "said.txt"])
    return [replace(found, hosts=(), what="", evidence="") for found in examination.found], taken


@pytest.mark.parametrize(("prefix", "kind"), some_of([*product(PREFIXES, TEXTS)], ", ".join))
def test_what_stands_before_its_lines_changes_nothing(tmp_path, kind, prefix):
    text = TEXTS[kind]
    found, taken = told(tmp_path, text)
    assert found
    assert taken == [f"{tmp_path / 'said.txt'}: {kind}"]
    assert told(tmp_path, "".join(f"{PREFIXES[prefix]}{line}\n" for line in text.splitlines())) == (found, taken)


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("damage", ["\ufeff{}", "{}\n\n", "\n{}"])
def test_nor_do_a_mark_of_byte_order_and_empty_lines(tmp_path, kind, damage):
    assert told(tmp_path, damage.format(TEXTS[kind])) == told(tmp_path, TEXTS[kind])
    assert told(tmp_path, TEXTS[kind].replace("\n", "\r\n")) == told(tmp_path, TEXTS[kind])


@pytest.mark.parametrize("kind", TEXTS)
def test_nor_do_the_blanks_of_web_pages(tmp_path, kind):
    assert told(tmp_path, TEXTS[kind].replace("  ", "\xa0 ")) == told(tmp_path, TEXTS[kind])


def test_every_reader_is_tried():
    assert {*TEXTS} == {reader.kind for reader in READERS}


@pytest.mark.parametrize("kind", sorted({*TEXTS} - {"NCCL's log"}))
@pytest.mark.parametrize("prefix", ["{}: ", "[pod/{}/main] ", "{}  | ", "Mar  2 14:10:00 {} python[7]: "])
def test_lines_of_hosts_that_alternate_are_told_apart(tmp_path, kind, prefix):
    text = TEXTS[kind]
    both = (prefix.format(host) + line for line in text.splitlines() for host in ("cb01", "cb02"))
    (tmp_path / "both.txt").write_text("".join(f"{line}\n" for line in both))
    examination, _ = examine_logs([tmp_path / "both.txt"])
    assert examination.hosts == ("cb01", "cb02")
    assert {host for found in examination.found for host in found.hosts} == {"cb01", "cb02"}


def test_ranks_are_told_apart_only_where_there_are_several():
    named = File.of("x.txt", "0: a\n1: b\n")
    assert [*named.by_host] == ["x.txt rank 0", "x.txt rank 1", "x.txt"]
    assert [*File.of("x.txt", "0: a\n0: b\n").by_host] == ["x.txt"]


def test_a_part_of_a_host_in_brackets_is_no_pod():
    assert {line.origin for line in unwrapped("[gpu-0] a\n[gpu-1] b\n")} == {""}
    assert {line.origin for line in unwrapped("[llm-0] a\n[llm-1] b")} == {"llm-0", "llm-1"}


XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("ahead", "time"),
    [
        ("{}: [   10.000000] ", "10.000000 s after boot"),
        ("Mar  2 14:10:00 {} kernel: [   10.000000] ", "Mar  2 14:10:00"),
        ("2026-03-02T14:10:00+0100 {} kernel: ", "2026-03-02T14:10:00"),
    ],
)
def test_a_kernel_log_of_several_hosts_is_judged_host_by_host(tmp_path, ahead, time):
    (tmp_path / "dmesg.txt").write_text("".join(f"{ahead.format(host)}{XID}\n" for host in ("cb01", "cb02", "cb02")))
    examination, _ = examine_logs([tmp_path / "dmesg.txt"])
    first, second = examination.found
    assert (first.hosts, second.hosts) == (("cb01",), ("cb02",))
    assert f"once, {time}" in first.what
    assert f"2 times, last {time}" in second.what
    assert (first.evidence, second.evidence) == (f"dmesg.txt:1: {XID}", f"dmesg.txt:2: {XID}")


def test_a_folder_is_a_host_where_files_of_several_have_one_name(tmp_path):
    """``cb0*/ibstat.txt cb0*/dmesg.txt``: what is said of a host is said of it in all of its files."""
    files = [tmp_path / host / "logs" / name for name in ("ibstat.txt", "dmesg.txt") for host in ("cb01", "cb02")]
    texts = {"ibstat.txt": said.IBSTAT.format(state="Active", physical="LinkUp"), "dmesg.txt": said.XID}
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(texts[file.name] if "cb02" in file.parts else said.IBSTAT.format(state="Down", physical="x"))
    examination, _ = examine_logs(files)
    assert examination.hosts == ("cb01", "cb02")
    assert {(found.name, found.hosts) for found in examination.found} == {("port_state", ("cb01",)), ("xid", ("cb02",))}
    (xid,) = (found for found in examination.found if found.name == "xid")
    assert xid.evidence.startswith(f"{tmp_path}/cb02/logs/dmesg.txt:1: NVRM: Xid")


def test_a_file_that_shares_no_name_is_called_as_it_is(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(said.XID)
    examination, _ = examine_logs([tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "a.txt"])
    assert examination.hosts == ("a.txt", "b.txt")
    assert [found.hosts for found in examination.found] == [("a.txt", "b.txt")]


@pytest.mark.parametrize("name", ["RuntimeError", "torch.AcceleratorError", "UserWarning", "KeyboardInterrupt"])
def test_the_name_of_an_exception_is_no_host(tmp_path, name):
    (tmp_path / "job.txt").write_text(f"{name}: CUDA error: uncorrectable ECC error encountered\n")
    examination, _ = examine_logs([tmp_path / "job.txt"])
    assert examination.hosts == ("job.txt",)
    assert examination.found[0].evidence.startswith(f"job.txt:1: {name}: CUDA error")


def test_a_number_alone_is_the_hosts_line_where_others_name_that_host():
    """The head of nvbandwidth's matrix of one GPU; a counter is the program's own word."""
    lines = (*("cb17: Running",) * 8, "cb17:            0", "cb17:  0     55.63", "rx: 12")
    said = [(line.origin, line.text) for line in unwrapped("\n".join(lines))]
    assert said[8:] == [("cb17", "           0"), ("cb17", " 0     55.63"), ("", "rx: 12")]


def test_a_line_that_ray_says_was_repeated_is_read_and_the_others_are_missed(tmp_path):
    """Source: Ray 2.9's default, RAY_DEDUP_LOGS=1, which writes the mark behind the line."""
    hint = " (Ray deduplicates logs by default. Set RAY_DEDUP_LOGS=0 to disable log deduplication, or see https://x.)"
    lines = [f"\x1b[36m(Worker pid=7, ip=10.0.0.1)\x1b[0m {line}" for line in WHOLE.splitlines()]
    marks = [
        f"{line}\x1b[32m [repeated 7x across cluster]{hint if not number else ''}\x1b[0m"
        for number, line in enumerate(lines)
    ]
    (tmp_path / "bare.txt").write_text(WHOLE)
    (tmp_path / "ray.txt").write_text("".join(f"{line}\n" for line in marks))
    bare, _ = examine_logs([tmp_path / "bare.txt"])
    examination, _ = examine_logs([tmp_path / "ray.txt"])
    assert [found.what for found in examination.found] == [found.what for found in bare.found]
    assert [healthy.what for healthy in examination.healthy] == [healthy.what for healthy in bare.healthy]
    why = f"Ray left out {7 * len(lines):,} lines that other workers wrote, as like others"
    assert why in {part.why for part in examination.not_judged}


def test_two_words_and_a_colon_in_a_few_lines_are_no_host_and_its_program():
    # NVIDIA/gdrcopy, gdrcopy_copybw behind the times of a container's log.
    said = ["GPU id:0; name: Tesla V100-SXM2-32GB; Bus id: 0000:06:00"] * 8 + ["testing size: 131072"]
    lines = unwrapped("".join(f"2026-03-02T14:10:00+00:00 {line}\n" for line in said))
    assert [(line.origin, line.text) for line in lines[:-1]] == [("", line) for line in said]
