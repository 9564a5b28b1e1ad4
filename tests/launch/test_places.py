"""Which hosts take part and which wait, and what becomes of them when some are lost."""

import pytest

from clusterbench.errors import SuiteError
from clusterbench.launch.launch_command import LaunchCommand
from clusterbench.launch.places import Places

FOUR = "mpirun -n 8 -host a:2,b:2,c:2,d:2"


def places(text=FOUR, num_spares=0, excluded=(), environment=None):
    return Places.of(LaunchCommand.parse(text, environment or {}), num_spares, excluded)


def test_the_last_hosts_of_the_command_wait():
    assert places(num_spares=2) == Places(("a", "b"), ("c", "d"))
    assert places() == Places(("a", "b", "c", "d"))
    assert places(num_spares=1, excluded=["d", "b"]) == Places(("a",), ("c",))


def test_in_an_allocation_they_are_its_last_hosts_and_tasks_are_counted_on_all(tmp_path):
    allocation = {"SLURM_JOB_NODELIST": "cb[1-3]", "SLURM_NTASKS": "12"}
    launch = LaunchCommand.parse("srun", allocation)
    found = Places.of(launch, 1)
    assert found == Places(("cb1", "cb2"), ("cb3",))
    assert {*launch.on(found.hosts, tmp_path)} == {"srun", "--nodes=2", "--nodelist=cb1,cb2", "--ntasks=8"}


@pytest.mark.parametrize(
    ("text", "num_spares", "excluded", "message"),
    [
        (
            FOUR,
            4,
            (),
            "--spares 4 leaves none of the hosts a, b, c, d of --launch to take part.\n"
            "hint: name 5 hosts or more there, the spares last",
        ),
        (
            FOUR,
            2,
            ("a", "b"),
            "--spares 2 leaves none of the hosts c, d of --launch to take part.\n"
            "hint: name 3 hosts or more there, the spares last",
        ),
        (FOUR, 0, ("a", "b", "c", "d"), "--exclude leaves out every host of --launch: a, b, c, d."),
        (
            "mpirun -n 8 -host a:4,b:4,c:4",
            1,
            (),
            "--launch starts 8 processes, which are not equally many on each of its 3 hosts: a, b, c.\n"
            "hint: count those of spares and of excluded hosts, too; fewer are started without them",
        ),
    ],
)
def test_what_cannot_be(text, num_spares, excluded, message):
    with pytest.raises(SuiteError) as caught:
        places(text, num_spares, excluded)
    assert str(caught.value) == message


def test_a_spare_takes_the_place_of_a_lost_host_and_keeps_its_number():
    loss = Places(("a", "b"), ("c", "d")).after(["b", "c", "d"])
    assert (loss.lost, loss.replaced, loss.left) == (("a",), {"a": "c"}, Places(("c", "b"), ("d",)))
    assert loss.sentence == "no answer from a; spare c takes the place of a"
    assert loss.of_spares == {"c": "took the place of a"}


def test_a_spare_that_does_not_answer_is_skipped():
    loss = Places(("a", "b"), ("c", "d")).after(["a", "d"])
    assert (loss.replaced, loss.silent, loss.left) == ({"b": "d"}, ("c",), Places(("a", "d")))
    assert loss.sentence == "no answer from b; nor from spare c; spare d takes the place of b"
    assert loss.of_spares == {
        "c": "did not answer when host b had to be replaced",
        "d": "took the place of b",
    }


def test_hosts_beyond_the_spares_are_missing_from_then_on():
    loss = Places(("a", "b", "c"), ("d",)).after(["c", "d"])
    assert loss.left == Places(("d", "c"))
    assert loss.sentence == "no answer from a, b; spare d takes the place of a; left are d, c"
    assert Places(("a",)).after([]).sentence == "no answer from a; none is left"


def test_without_a_loss_everything_stays_also_a_spare_that_is_silent():
    before = Places(("a", "b"), ("c",))
    loss = before.after(["a", "b"])
    assert (loss.left, loss.of_spares, loss.sentence) == (before, {}, "all hosts answer (a, b)")
