import pytest
import torch

from clusterbench.engine.rig import DTYPES, Rig
from clusterbench.errors import WrongResult


def rig(rank=0, world_size=1):
    device = torch.device("cpu")
    return Rig(rank=rank, world_size=world_size, local_rank=rank, host="gpu-06", device=device)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("world_size", [1, 3, 512])
def test_addends_of_all_ranks_sum_up_exactly_in_every_dtype(dtype, world_size):
    total = torch.zeros(1000, dtype=DTYPES[dtype])
    for rank in range(world_size):
        mine, whole = rig(rank, world_size).addends(1000, dtype)
        total += mine
    assert total.equal(whole)
    assert int((whole == 0).sum()) == 0


def test_every_lost_or_doubled_contribution_shows():
    parts = [rig(rank, 4).addends(100, "bfloat16") for rank in range(4)]
    whole = parts[0][1]
    for rank in range(4):
        lost = sum(mine for other, (mine, _) in enumerate(parts) if other != rank)
        assert int((lost != whole).sum()) == 25
        doubled = sum(mine for mine, _ in parts) + parts[rank][0]
        assert int((doubled != whole).sum()) == 25


def test_wrong_elements_are_counted_and_the_first_is_located():
    got = torch.full((1000,), 2080.0)
    got[100:137] = 0.0
    with pytest.raises(WrongResult) as caught:
        rig(41, 64).expect_equal("all_reduce", got, torch.tensor([2080.0]))
    assert str(caught.value) == (
        "all_reduce gave wrong results on rank 41 (host gpu-06): 37 of 1000 elements differ. "
        "First at index 100: got 0.0, expected 2080.0."
    )


def test_not_a_number_is_never_right():
    nan = torch.tensor([float("nan")])
    with pytest.raises(WrongResult):
        rig().expect_equal("all_reduce", nan, nan)
