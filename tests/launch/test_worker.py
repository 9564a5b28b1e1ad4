"""What a worker on a GPU sets before CUDA is touched, unless the suite or the user has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clusterbench.launch.worker import ALLOCATOR, _Worker

LEGACY = "PYTORCH_CUDA_ALLOC_CONF"


@pytest.fixture(autouse=True)
def variables(monkeypatch: Any) -> None:
    monkeypatch.delenv(ALLOCATOR, raising=False)
    monkeypatch.delenv(LEGACY, raising=False)


@pytest.fixture
def threads(monkeypatch: Any) -> list[int]:
    """Of a host with 16 usable cores and 4 GPUs."""
    given: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))
    return given


def worker_of(ranks_per_gpu: int = 1, environment: Mapping[str, str] | None = None) -> _Worker:
    worker = _Worker.__new__(_Worker)
    worker.start = SimpleNamespace(ranks_per_gpu=ranks_per_gpu, environment=environment or {})  # type: ignore[assignment]
    return worker


def test_the_allocators_segments_grow(monkeypatch: Any) -> None:
    monkeypatch.setenv(ALLOCATOR, "")
    monkeypatch.delenv(ALLOCATOR)
    worker_of().have_growing_segments()
    assert os.environ[ALLOCATOR] == "expandable_segments:True"


@pytest.mark.parametrize("name", [ALLOCATOR, LEGACY])
def test_the_users_settings_of_the_allocator_stand(monkeypatch: Any, name: str) -> None:
    monkeypatch.setenv(name, "max_split_size_mb:512")
    worker_of().have_growing_segments()
    assert {key: os.environ.get(key) for key in (ALLOCATOR, LEGACY)} == {
        ALLOCATOR: None,
        LEGACY: None,
        name: "max_split_size_mb:512",
    }


@pytest.mark.parametrize(("ranks_per_gpu", "each"), [(1, 4), (2, 2), (8, 1)])
def test_ranks_on_gpus_share_the_cores_of_their_host(threads: list[int], ranks_per_gpu: int, each: int) -> None:
    worker_of(ranks_per_gpu).share_cores()
    assert threads == [each]


def test_the_suites_number_of_threads_stands(threads: list[int]) -> None:
    worker_of(environment={"OMP_NUM_THREADS": "3"}).share_cores()
    assert threads == []
