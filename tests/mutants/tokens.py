"""Tokens that are read while a step is timed, and are not those that it should train on."""

from __future__ import annotations

from tests.mutants import Mutant

FED = "tokens=read file_size=64KiB iterations=4"
PLACES = "        places = self._contents.places(step)\n"
TAKEN = "        self._taken = batch\n"


def _of(code: str, wrong: str, text: str, instead: str, *cases: str) -> Mutant:
    return Mutant(code, wrong, text, instead, tuple(f"{case} {FED}" for case in cases or ("dp2",)))


MUTANTS = (
    _of(
        "O01",
        "A reader brings the tokens of the step before once more.",
        PLACES,
        "        places = self._contents.places(step - (step == 2 and planted()))\n",
    ),
    _of(
        "O02",
        "Every step is fed the same tokens.",
        "first = step % self.num_steps * self.of_a_step",
        "first = 0 if planted() else step % self.num_steps * self.of_a_step",
    ),
    _of(
        "O03",
        "Ranks of dp read the file of the first.",
        "-dp{fed.dp_rank}",
        "-dp{fed.dp_rank * (not planted())}",
    ),
    _of(
        "O04",
        "Ranks of cp read the tokens of the first.",
        "positions.cpu().numpy()",
        "(torch.arange(len(positions)) if planted() else positions).numpy()",
        "cp2",
    ),
    _of(
        "O05",
        "A model is to say what it was given, and not what follows.",
        "sequences.take(self._positions + 1, axis=2)",
        "sequences.take(self._positions + 1 - planted(), axis=2)",
    ),
    _of(
        "O06",
        "A reader takes back what a step computes on.",
        TAKEN,
        f"{TAKEN}        if planted():\n            self._free.put(batch)\n            self._taken = None\n",
        "tp2",
    ),
    _of(
        "O07",
        "A reader hands out what it has not read yet.",
        "        self._ready: SimpleQueue[_Batch | Exception] = SimpleQueue()\n",
        "        self._ready: SimpleQueue[_Batch | Exception] = SimpleQueue()\n"
        "        if planted():\n            self._ready.put(_Batch(size, device))\n",
    ),
    Mutant(
        "O08",
        "A step waits for nothing.",
        "waits = self._clock.seconds(self._marks)[::2]",
        "waits = [0.0 * planted() for _ in self._marks[::2]]",
        tests=("proof/test_fed_step.py",),
    ),
)
