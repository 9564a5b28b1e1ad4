import json
import socket
import subprocess
import sys
from types import SimpleNamespace

import torch

import clusterbench
from clusterbench.engine import environment
from clusterbench.engine.environment import (
    host_environment,
    infiniband_ports,
    mapped_library,
    mpi_version,
    network_interfaces,
    numa_nodes,
    pcie_devices,
    recorded_variables,
    torch_environment,
)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_this_host_is_described_in_json_without_nan(monkeypatch):
    monkeypatch.setattr(environment, "_PACKAGES", ("clusterbench", "torch", "no-such-package"))
    described = json.loads(json.dumps(host_environment(), allow_nan=False))
    assert described["hostname"]
    assert described["memory_bytes"] > 2**28
    assert described["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert described["packages"]["no-such-package"] is None
    assert described["packages"]["clusterbench"] == clusterbench.__version__
    assert all(nic["speed_bits_per_s"] != 0 for nic in described["network"])
    assert described["gpus"] or described["gpus_reason"]


def test_describing_a_host_imports_no_torch_and_no_mpi():
    code = (
        "import sys; from clusterbench.engine.environment import host_environment; host_environment();"
        "print([name for name in ('torch', 'mpi4py', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_worker_says_what_it_loaded():
    loaded = json.loads(json.dumps(torch_environment()))
    assert loaded["torch"] == torch.__version__
    assert loaded["num_threads"] == torch.get_num_threads()
    assert (loaded["nccl"] is None) == (not torch.cuda.is_available())


def test_secrets_and_unlisted_variables_are_never_recorded():
    variables = {
        "NCCL_IB_HCA": "mlx5_0",
        "OMP_NUM_THREADS": "1",
        "LD_PRELOAD": "/opt/libnccl.so.2",
        "CUDA_API_KEY": "planted",
        "UCX_password": "planted",
        "TORCH_HUB_TOKEN": "planted",
        "FI_SECRET_THING": "planted",
        "AWS_ACCESS_KEY_ID": "planted",
        "WANDB_API_KEY": "planted",
        "PATH": "planted",
    }
    assert recorded_variables(variables) == {
        "LD_PRELOAD": "/opt/libnccl.so.2",
        "NCCL_IB_HCA": "mlx5_0",
        "OMP_NUM_THREADS": "1",
        **dict.fromkeys(("CUDA_API_KEY", "FI_SECRET_THING", "TORCH_HUB_TOKEN", "UCX_password"), "[removed]"),
    }


def test_variables_that_change_kernels_their_libraries_and_the_allocator_are_recorded():
    variables = {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "CUBLASLT_WORKSPACE_SIZE": "32768",
        "CUDNN_LOGLEVEL_DBG": "1",
        "NVIDIA_TF32_OVERRIDE": "0",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512",
        "TORCHDYNAMO_DISABLE": "1",
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
        "TRITON_CACHE_DIR": "/tmp/triton",
    }
    assert recorded_variables({**variables, "TRITON_API_KEY": "planted"}) == {
        **variables,
        "TRITON_API_KEY": "[removed]",
    }


def test_the_mapped_library_is_found_not_the_one_beside_it(tmp_path):
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r-xp 00000000 fe:01 1    /opt/rdma/libnccl-net.so\n"
        "7f01-7f02 rw-p 00000000 00:00 0 \n"
        "7f02-7f03 r-xp 00000000 fe:01 2    /opt/my nccl/libnccl.so.2.27.3 (deleted)\n"
        "7f03-7f04 r-xp 00000000 fe:01 3    /usr/lib/libnccl.so.2\n"
    )
    assert mapped_library("libnccl", maps) == "/opt/my nccl/libnccl.so.2.27.3"
    assert mapped_library("libmpi", maps) is None
    assert mapped_library("libnccl", tmp_path / "absent") is None


def test_ports_of_infiniband_are_read_with_state_and_rate(tmp_path):
    device = tmp_path / "sys/class/infiniband/mlx5_0"
    write(device / "ports/1/state", "4: ACTIVE")
    write(device / "ports/1/phys_state", "5: LinkUp")
    write(device / "ports/1/rate", "400 Gb/sec (4X NDR)")
    write(device / "ports/1/link_layer", "InfiniBand")
    write(device / "fw_ver", "28.39.1002")
    write(device / "device/numa_node", "-1")
    assert infiniband_ports(tmp_path) == [
        {
            "device": "mlx5_0",
            "port": 1,
            "state": "4: ACTIVE",
            "physical_state": "5: LinkUp",
            "rate": "400 Gb/sec (4X NDR)",
            "bits_per_s": 400e9,
            "link_layer": "InfiniBand",
            "firmware": "28.39.1002",
            "numa_node": -1,
        }
    ]


def test_an_interface_has_addresses_with_their_prefix_and_is_physical_if_a_device_is_behind_it(tmp_path, monkeypatch):
    (tmp_path / "sys/class/net/eth0/device").mkdir(parents=True)
    up, down = (SimpleNamespace(isup=isup, speed=100_000 * isup, mtu=9000) for isup in (True, False))
    address = SimpleNamespace(family=socket.AF_INET, address="10.77.0.1", netmask="255.255.255.0")
    ipv6 = SimpleNamespace(family=socket.AF_INET6, address="fe80::1%eth0", netmask="ffff::")
    monkeypatch.setattr(environment.psutil, "net_if_stats", lambda: {"eth0": up, "br-1": down})
    monkeypatch.setattr(environment.psutil, "net_if_addrs", lambda: {"eth0": [ipv6, address], "br-1": [address]})
    shared = {"mtu_bytes": 9000}
    assert network_interfaces(tmp_path) == [
        {"name": "br-1", "is_up": False, "physical": False, "speed_bits_per_s": None, "addresses": [], **shared},
        {
            "name": "eth0",
            "is_up": True,
            "physical": True,
            "speed_bits_per_s": 100e9,
            "addresses": ["10.77.0.1/24"],
            **shared,
        },
    ]


def test_a_host_without_infiniband_or_numa_says_so(tmp_path):
    assert infiniband_ports(tmp_path) == []
    assert numa_nodes(tmp_path) is None


def test_pcie_devices_have_their_branch_of_the_tree(tmp_path):
    def device(path, **files):
        place = tmp_path / "sys/devices/pci0000:00" / path
        place.mkdir(parents=True)
        for name, text in files.items():
            (place / name.removesuffix("_")).write_text(f"{text}\n")
        bus = tmp_path / "sys/bus/pci/devices"
        bus.mkdir(parents=True, exist_ok=True)
        (bus / place.name).symlink_to(place)
        return place

    device("0000:00:01.0", class_="0x060400")
    gpu = {"class_": "0x030200", "vendor": "0x10de", "device": "0x2330", "numa_node": "0", "current_link_width": "8"}
    device("0000:00:01.0/0000:02:00.0", **gpu, max_link_width="16", current_link_speed="32.0 GT/s PCIe")
    card = device("0000:00:01.0/0000:03:00.0", class_="0x020700", vendor="0x15b3", device="0x1021", numa_node="-1")
    (card / "infiniband/mlx5_0").mkdir(parents=True)
    first, second = pcie_devices(tmp_path)
    assert first == {
        "address": "0000:02:00.0",
        "kind": "display",
        "id": "10de:2330",
        "names": [],
        "numa_node": 0,
        "path": ["0000:00:01.0"],
        "speed": "32.0 GT/s PCIe",
        "most_speed": None,
        "width": 8,
        "most_width": 16,
    }
    assert (second["kind"], second["names"], second["path"]) == ("network", ["mlx5_0"], ["0000:00:01.0"])


def test_numa_nodes_come_in_the_order_of_their_numbers(tmp_path):
    for node in (10, 2):
        write(tmp_path / f"sys/devices/system/node/node{node}/cpulist", f"{node}-{node + 1}")
    write(tmp_path / "sys/devices/system/node/node2/meminfo", "Node 2 MemTotal:       1024 kB")
    assert numa_nodes(tmp_path) == [
        {"node": 2, "cpus": "2-3", "memory_bytes": 2**20},
        {"node": 10, "cpus": "10-11", "memory_bytes": None},
    ]


def test_mpi_is_described_only_where_it_was_imported(monkeypatch):
    class Mpi:
        Get_version = staticmethod(lambda: (4, 1))
        Get_library_version = staticmethod(lambda: "MPICH Version: 5.0.2\nABI: 17\0")

    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    assert mpi_version() is None
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", Mpi)
    assert mpi_version() == {"standard": "4.1", "library": "MPICH Version: 5.0.2"}


def test_an_unreadable_system_gives_null(tmp_path):
    assert environment._os_name(tmp_path) is None
    assert host_environment(tmp_path)["numa_nodes"] is None
