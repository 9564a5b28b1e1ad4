"""A checkout that stands beside an installed package is planned, launched and measured by itself alone."""

import json
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import clusterbench
from clusterbench import own_copy
from clusterbench.launch.executions import left_to_do
from clusterbench.run_folder import RunFolder

SUITE = "suite: s\nbenchmarks: [{benchmark: fault_drill, iterations: 4}]\ncpu: {num_ranks: 2}\n"
CHECK = 'return {"wrong_elements": 0.0}'


@pytest.fixture
def checkout(tmp_path):
    """Another copy of the package than the one that is installed, whose proof says so."""
    folder = tmp_path / "checkout"
    shutil.copytree(own_copy.FOLDER, folder / "clusterbench", ignore=shutil.ignore_patterns("__pycache__"))
    rig = folder / "clusterbench/engine/rig.py"
    source = rig.read_text()
    assert source.count(CHECK) == 1
    rig.write_text(source.replace(CHECK, 'return {"wrong_elements": 0.0, "of_the_checkout": 1.0}'))
    (folder / "suite.yaml").write_text(SUITE)
    return folder


def run(folder, *arguments):
    command = [sys.executable, "-m", "clusterbench", "run", "suite.yaml", "--out", "run", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250, check=False)


@pytest.mark.gloo
def test_workers_measure_the_checkout_and_not_what_is_installed(checkout):
    done = run(checkout)
    assert done.returncode == 0, done.stderr
    (observation,) = RunFolder.open(checkout / "run").observations()
    assert list(observation.evidence) == [{"wrong_elements": 0.0, "of_the_checkout": 1.0}] * 2


@pytest.mark.gloo
def test_a_source_that_is_edited_while_the_run_starts_is_refused_with_the_place(checkout):
    # What stands in the agent as it began is not what the zygote imports.
    agent = checkout / "clusterbench/launch/agent.py"
    edit = "Path(__file__).with_name('worker.py').open('a').write('# edited\\n')"
    source = agent.read_text()
    begin = "        self._start_spawner()\n\n"
    assert source.count(begin) == 1
    agent.write_text(source.replace(begin, f"        {edit}\n{begin}"))
    done = run(checkout)
    assert done.returncode == 1
    (outcome,) = RunFolder.open(checkout / "run").outcomes()
    place = checkout / "clusterbench"
    assert outcome.status == "failed"
    assert f"workers on host {outcome.host} would run another copy of clusterbench than its agent" in outcome.reason
    assert outcome.reason.count(str(place)) == 2
    left = [execution.case.id for execution in left_to_do(RunFolder.open(checkout / "run").plan(), [outcome])]
    assert left == [case.id for case in RunFolder.open(checkout / "run").plan().cases]  # as a host's loss, and not run
    assert "stopped before the end: host" in done.stderr


def test_a_module_of_this_copy_is_run_though_another_is_found_first(checkout):
    code = "import json, sys, clusterbench; print(json.dumps([clusterbench.__file__, *sys.argv[1:]]))"
    (checkout / "clusterbench/said.py").write_text(code)
    program = (
        "import subprocess; from clusterbench import own_copy;"
        "print(subprocess.check_output(own_copy.command('clusterbench.said', 'one', 'two'), cwd='/', text=True))"
    )
    said = subprocess.check_output([sys.executable, "-c", program], cwd=checkout, text=True)
    assert json.loads(said) == [str(checkout / "clusterbench/__init__.py"), "one", "two"]


def test_nothing_beside_the_package_shadows_a_module(checkout):
    (checkout / "json.py").write_text("raise SystemExit('shadowed')")
    command = [sys.executable, "-P", str(checkout / "clusterbench/own_copy.py"), "clusterbench.launch.channel"]
    subprocess.run(command, cwd=checkout, check=True)


def test_the_digest_follows_what_is_in_the_sources(checkout):
    program = "from clusterbench import own_copy; print(own_copy.digest())"

    def digest():
        return subprocess.check_output([sys.executable, "-c", program], cwd=checkout, text=True).strip()

    first = digest()
    assert first != own_copy.digest()
    elsewhere = Path(shutil.move(checkout / "clusterbench/launch/store.py", checkout / "store.py"))
    assert digest() != first
    shutil.move(elsewhere, checkout / "clusterbench/launch/store.py")
    assert digest() == first


def test_the_command_line_is_a_module_of_the_package(tmp_path):
    done = subprocess.run([sys.executable, "-m", "clusterbench", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: python -m clusterbench")


@pytest.mark.parametrize(
    ("project", "version"),
    [
        ('[project]\nname = "clusterbench"\nversion = "3.2.1"\n', "3.2.1"),
        ('[project]\nname = "another"\nversion = "3.2.1"\n', "unknown"),
        ("[project\n", "unknown"),
        ("", "unknown"),
        (None, "unknown"),
    ],
)
def test_a_checkout_that_is_not_installed_has_the_version_it_says(project, version, tmp_path, monkeypatch):
    """As on a machine that somebody lends for half an hour: pages show a version, and must not fail for want of one."""

    def not_installed(name):
        raise metadata.PackageNotFoundError(name)

    if project is not None:
        (tmp_path / "pyproject.toml").write_text(project)
    monkeypatch.setattr(metadata, "version", not_installed)
    monkeypatch.setattr(own_copy, "FOLDER", tmp_path / "clusterbench")
    assert clusterbench.__version__ == version
