from __future__ import annotations

import pytest

from clusterbench.facts import Files, Host, NotKnown
from clusterbench.facts.nccl_conf import Effective, NcclConf, Setting, effective
from tests.facts.machine import Machine, training


def read(folder, monkeypatch, system="", user=""):
    monkeypatch.setenv("HOME", "/home/ada")
    Machine(files={"/etc/nccl.conf": system, "/home/ada/.nccl.conf": user}).write(folder)
    return NcclConf.read(Files(folder))


def test_settings_of_both_files_that_of_the_user_first(tmp_path, monkeypatch):
    conf = read(tmp_path, monkeypatch, "# all\nNCCL_IB_HCA = mlx5\n", "NCCL_P2P_DISABLE=1\nnonsense\nPATH=/x\n")
    assert conf.settings == (
        Setting("NCCL_P2P_DISABLE", "1", "~/.nccl.conf"),
        Setting("NCCL_IB_HCA", "mlx5", "/etc/nccl.conf"),
    )


def test_a_secret_is_not_written_down(tmp_path, monkeypatch):
    (setting,) = read(tmp_path, monkeypatch, "NCCL_NET_TOKEN=abcdef\n").settings
    assert setting.value == "[removed]"


def test_the_environment_counts_before_the_user_and_the_user_before_the_system(tmp_path, monkeypatch):
    conf = read(tmp_path, monkeypatch, "NCCL_A=1\nNCCL_B=1\nNCCL_C=1\n", "NCCL_A=2\nNCCL_B=2\n")
    settings = effective(training(conf, variables={"NCCL_A": "3"}))
    assert settings["NCCL_A"] == Effective("3", "environment")
    assert settings["NCCL_B"] == Effective("2", "~/.nccl.conf")
    assert settings["NCCL_C"] == Effective("1", "/etc/nccl.conf")


def test_without_recorded_variables_nothing_is_known(tmp_path, monkeypatch):
    host = training(read(tmp_path, monkeypatch))
    with pytest.raises(NotKnown, match="nothing was recorded of variables"):
        effective(Host("n1", {"facts": host.environment["facts"]}))


def test_a_host_without_files_has_no_settings(tmp_path):
    assert NcclConf.read(Files(tmp_path)).settings == ()
