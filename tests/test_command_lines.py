"""The command lines in README, docs and the first help are ones that the programs in them take."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import click
import pytest

from clusterbench.cli import main
from clusterbench.launch.launch_command import LaunchCommand

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
ALLOCATION = {"SLURM_JOB_NODELIST": "a,b", "SLURM_NTASKS": "8"}
MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")

OF_EVERY_MPIRUN = {"-n", "-host", "--hostfile"}
"""Taken by MPICH 5.0 and by Open MPI 5.0; each is followed by its value."""

OF_SCHEDULERS = {
    "srun": {
        "-N",
        "-n",
        "-w",
        "--ntasks-per-node",
        "--nodelist",
        "--gpus-per-task",
        "--het-group",
        "--pty",
        "--overlap",
    },
    "salloc": {"-N", "-n", "--ntasks-per-node"},
    "flux": {"-N", "-n", "--tasks-per-node", "--requires"},
}
OF_PYXIS = {"--container-image", "--container-mounts", "--container-workdir", "--container-mount-home"}
"""Options that the plugin adds to srun. Source: github.com/NVIDIA/pyxis, README."""

FLAGS = {"--container-mount-home", "--pty", "--overlap"}
"""Options without a value."""

CONTAINERS = {"docker", "podman", "apptainer"}
PROGRAMS = {"clusterbench", "mpirun", "mpiexec", "torchrun", "pbsdsh", *OF_SCHEDULERS, *CONTAINERS}


def command_lines():
    """Every command in a block or a span of code, as its words, with where it stands."""
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        spans = re.findall(r"(?<!`)`([^`]+)`(?!`)", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
        for line in [*"\n".join(blocks).splitlines(), *spans]:
            words = shlex.split(line, comments=True) if line.count("'") % 2 == 0 else []
            while words and re.match(r"[A-Z_]+=|exec$", words[0]):
                words = words[1:]
            if words[:1] == ["flux"] and words[1] != "run":
                continue
            if len(words) > 1 and words[0] in PROGRAMS:
                yield pytest.param(words, id=f"{page.name}: {' '.join(words)}"[:100])


OF_HELP = [shlex.split(line) for line in re.findall(r"^ *(clusterbench .*)$", main.help or "", re.MULTILINE)]
LINES = [*command_lines(), *(pytest.param(words, id=f"--help: {' '.join(words)}") for words in OF_HELP)]


def expect_taken(words):
    """Fails where a program of the line does not take what it is given."""
    program, arguments = words[0], words[1:]
    if program == "clusterbench":
        expect_taken_by_clusterbench(arguments)
    elif program in CONTAINERS:
        expect_taken(words[words.index("clusterbench") :])
    elif program == "pbsdsh":
        assert arguments[:2] == ["--", "env"]
        expect_taken([word for word in arguments[2:] if not re.match(r"[A-Z_]+=", word)])
    elif program == "torchrun":
        expect_taken_by_torchrun(arguments)
    else:
        known = OF_SCHEDULERS[program] | OF_PYXIS if program in OF_SCHEDULERS else OF_EVERY_MPIRUN
        if program == "flux":
            assert arguments.pop(0) == "run"
        while arguments and arguments[0].startswith("-"):
            option, has_value, _ = arguments[0].partition("=")
            glued = program in OF_SCHEDULERS and re.fullmatch(r"-[Nn]\d+", option)
            assert (option[:2] if glued else option) in known, f"{program} {option}"
            arguments = arguments[1 if has_value or glued or option in FLAGS else 2 :]
        if len(arguments) > 1:
            expect_taken(arguments)


def expect_taken_by_clusterbench(arguments):
    verb = main.commands[arguments[0]]
    if len(arguments) == 1:  # text that names a verb
        return
    given = verb.make_context(arguments[0], arguments[1:]).params
    if given.get("launch") not in (None, "COMMAND"):
        assert LaunchCommand.parse(given["launch"], ALLOCATION).hosts.keys() >= {"a", "b"}
        expect_taken(shlex.split(given["launch"]))


def expect_taken_by_torchrun(arguments):
    from torch.distributed.run import get_args_parser

    given = get_args_parser().parse_args(arguments)
    expect_taken([given.training_script, *given.training_script_args])


@pytest.mark.parametrize("words", LINES)
def test_a_line_in_the_docs_is_one_that_its_programs_take(words):
    expect_taken(words)


def test_the_lines_that_matter_are_found():
    found = {(words[0], "run" in words) for words in (line.values[0] for line in LINES)}
    programs = ("clusterbench", "mpirun", "srun", "torchrun", "flux", "pbsdsh", "docker")
    assert found >= {(name, True) for name in programs}


OF_MPIRUN = [line for line in LINES if line.values[0][0] == "mpirun" and "clusterbench" in line.values[0]]


@pytest.mark.mpi
@pytest.mark.parametrize("words", OF_MPIRUN)
def test_a_line_of_mpirun_starts_ranks_with_the_mpi_that_readme_installs(words, tmp_path):
    assert MPIRUN, "mpirun is part of the extra 'mpi'"
    (tmp_path / "nodes").write_text("localhost\nlocalhost\n")
    values = {"-n": "2", "-host": "localhost:1,localhost:1", "--hostfile": f"{tmp_path}/nodes"}
    launcher = words[: words.index("clusterbench")]
    here = [values.get(before, word) for before, word in pairwise(launcher)]
    program = [sys.executable, "-c", "import os; print(os.environ['PMI_RANK'])"]
    done = subprocess.run([MPIRUN, *here, *program], capture_output=True, text=True, timeout=60)
    assert sorted("".join(done.stdout.split())) == ["0", "1"], done  # lines of two ranks may mix


@pytest.mark.parametrize("verb", sorted(main.commands))
def test_every_option_says_more_than_its_default(verb):
    options = [each for each in main.commands[verb].params if isinstance(each, click.Option) and not each.hidden]
    said = {each.name: (each.help or "").partition("[default")[0].split() for each in options}
    assert [name for name, words in said.items() if len(words) < 2] == []
