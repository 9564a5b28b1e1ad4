import pytest
import torch

from clusterbench.engine.rig import DTYPES, LARGEST_EXACT, Rig, from_place
from clusterbench.errors import WrongResult
from tests.ranks import run_ranks


def rig(rank=0, world_size=1):
    device = torch.device("cpu")
    return Rig(rank=rank, world_size=world_size, local_rank=rank, host="gpu-06", device=device)


REDUCE = {
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
    "product": torch.mul,
}


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize(
    ("op", "world_size"), [*((op, world_size) for op in REDUCE for world_size in (1, 3, 8)), ("sum", 300)]
)
def test_operands_of_all_ranks_reduce_exactly_in_every_dtype(op, dtype, world_size):
    here = rig()
    total, expected = here.operands(op, dtype, 0, world_size)
    for rank in range(1, world_size):
        mine, whole = here.operands(op, dtype, rank, world_size)
        total = REDUCE[op](total, mine)
        assert total.dtype == DTYPES[dtype]
        assert whole.equal(expected)
    assert total.equal(expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("world_size", [1, 2, 8, 64])
def test_an_average_over_a_power_of_two_is_exact(dtype, world_size):
    parts = [rig().operands("avg", dtype, rank, world_size) for rank in range(world_size)]
    total = sum(mine / world_size for mine, _ in parts)  # as NCCL does, which scales before it adds
    assert total.equal(parts[0][1])


@pytest.mark.parametrize(("op", "numel"), [("sum", 1), ("product", 1), ("max", 4), ("min", 4)])
def test_every_lost_or_doubled_contribution_shows(op, numel):
    parts = [rig().operands(op, "bfloat16", rank, 4) for rank in range(4)]
    whole = parts[0][1][:numel]
    for lost in range(4):
        kept = [mine[:numel] for rank, (mine, _) in enumerate(parts) if rank != lost]
        reduced = kept[0]
        for mine in kept[1:]:
            reduced = REDUCE[op](reduced, mine)
        assert int((reduced != whole).sum()) >= 1
    if op == "sum":
        doubled = sum(mine[:numel] for mine, _ in parts) + parts[2][0][:numel]
        assert int((doubled != whole).sum()) == numel


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_blocks_are_exact_and_no_two_are_alike(dtype):
    tiles = [rig().block(dtype, number) for number in range(300)]
    assert all(tile.dtype == DTYPES[dtype] for tile in tiles)
    assert max(float(tile.max()) for tile in tiles) <= 112 <= LARGEST_EXACT.get(dtype, 2**53)
    assert len({tuple(tile[:8].tolist()) for tile in tiles}) == 300
    assert len({float(tile[0]) for tile in tiles[:64]}) == 64  # of 8 ranks even blocks of one element


def test_what_is_written_is_what_is_expected_over_any_pieces():
    here = rig()
    pieces = [(5, here.block("int32", 3)), (0, here.block("int32", 4)), (1500, here.block("int32", 5))]
    array = here.empty(1505, "int32")
    here.write(array, pieces)
    assert here.expect("gather", array, pieces) == {"wrong_elements": 0.0}
    assert array[5:].equal(here.block("int32", 5).repeat(3)[:1500])


def test_a_tile_goes_on_from_any_place():
    here = rig()
    tile, whole = here.block("int32", 9), here.empty(2000, "int32")
    here.write(whole, [(2000, tile)])
    assert here.expect("reduce_scatter", whole[777:], [(1223, from_place(tile, 777))]) == {"wrong_elements": 0.0}


def test_wrong_elements_of_all_pieces_are_counted_and_the_first_is_located(monkeypatch):
    monkeypatch.setattr("clusterbench.engine.rig._COMPARED_AT_ONCE", 600)  # so that there are several stretches
    here = rig(3, 8)
    pieces = [(1000, here.block("int32", 1)), (1000, here.block("int32", 2))]
    array = here.empty(2000, "int32")
    here.write(array, pieces)
    array[990:1010] = 127
    with pytest.raises(WrongResult) as caught:
        here.expect("gather", array, pieces)
    expected = int(here.block("int32", 1)[990 % 521])
    assert str(caught.value) == (
        "gather gave wrong results on rank 3 (host gpu-06): 20 of 2000 elements differ. "
        f"First at index 990: got 127, expected {expected}."
    )
    assert caught.value.evidence == {"wrong_elements": 20.0}


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


def test_the_groups_of_a_layout_are_made_once_for_cases_that_share_it(monkeypatch):
    from clusterbench.layout import ParallelLayout

    made = []
    monkeypatch.setattr("clusterbench.engine.rig.Grid", lambda *arguments: made.append(arguments) or object())
    here = rig()
    for text, order in (("tp2", "megatron"), ("tp2", "megatron"), ("tp2", "llama3"), ("dp2", "llama3")):
        here.build_grid(ParallelLayout.parse(text), order)
    assert [(str(layout), order) for layout, order, _ in made] == [
        ("tp2", "megatron"),
        ("tp2", "llama3"),
        ("dp2", "llama3"),
    ]


def _groups_and_counts():
    import torch.distributed as dist

    here = rig(dist.get_rank(), 4)
    groups = [[0, 2], [3]]
    mine = here.group_of(groups)
    before = here.count("rounds")
    here.comm.barrier()
    after = here.count("rounds", 1)
    here.comm.barrier()
    members = None if mine is None else [mine.global_rank(rank) for rank in range(mine.world_size)]
    return members, here.group_of(groups) is mine, before, after, here.count("rounds"), here.count("other")


@pytest.mark.gloo
def test_ranks_form_groups_once_and_count_together():
    members, is_same, before, after, whole, other = zip(*run_ranks(4, _groups_and_counts), strict=True)
    assert members == ([0, 2], None, [0, 2], [3])
    assert is_same == (True,) * 4
    assert before == other == (0,) * 4
    assert sorted(after) == [1, 2, 3, 4]
    assert whole == (4,) * 4
