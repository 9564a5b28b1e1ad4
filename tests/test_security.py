"""What a run folder, a suite or a log says is never executed, and what this machine keeps secret is never written."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from clusterbench.report import render_report
from clusterbench.run_folder import RunFolder
from clusterbench.run_folder.bundle import open_bundle, write_bundle
from clusterbench.types import Case, Refusal
from tests.report.synthetic import case, observation, outcome, plant, write_run
from tests.run_folder.test_redaction import SECRETS as LEAKS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "clusterbench"

# Nothing is executed that was read

MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
CALLS = {
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen", "subprocess.getoutput"),
    *("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "torch.load", "numpy.load", "np.load"),
    *("subprocess.getstatusoutput", "pandas.read_pickle"),
}
OBJECT_COLLECTIVES = re.compile(r"\.(\w+_object(_list)?|\w*object_list)$")
"""torch's pickle what they carry: ``broadcast_object_list``, ``all_gather_object``, ``send_object_list`` and so on."""

JUSTIFIED: dict[str, str] = {}
"""``file: what`` that is used all the same, and the reason why nobody can reach it with words of their own."""


def dangerous(path: Path) -> Iterator[str]:
    """Names of what is called or imported in a file and can execute what it is given."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in names if name.split(".")[0] in MODULES or name in CALLS)
            yield from (name for name in names if OBJECT_COLLECTIVES.search(name))
        elif isinstance(node, ast.Attribute) and OBJECT_COLLECTIVES.search(ast.unparse(node)):
            yield ast.unparse(node)
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in CALLS:
                yield called
            yield from ("shell=True" for keyword in node.keywords if keyword.arg == "shell")


def test_nothing_that_was_read_is_executed() -> None:
    files = [*PACKAGE.rglob("*.py")]
    assert len(files) > 100
    assert {f"{path.relative_to(PACKAGE)}: {name}" for path in files for name in dangerous(path)} == JUSTIFIED.keys()


def test_what_is_dangerous_is_found(tmp_path: Path) -> None:
    lines = (
        "import pickle, torch.distributed as dist\nfrom torch.distributed import all_gather_object\n"
        "eval('1')\ntorch.load('x')\nyaml.load('x')\nsubprocess.run('ls', shell=True)\n"
        "dist.broadcast_object_list([])\nmodel.eval()\nre.compile('x')\n"
    )
    (tmp_path / "x.py").write_text(lines)
    assert sorted(dangerous(tmp_path / "x.py")) == sorted(
        [
            "pickle",
            "torch.distributed.all_gather_object",
            "eval",
            "torch.load",
            "yaml.load",
            "shell=True",
            "dist.broadcast_object_list",
        ]
    )


# Nothing secret is written

SECRETS = {
    "HF_TOKEN": "hf_planted0secret1",
    "AWS_SECRET_ACCESS_KEY": "planted0aws/secret+2",
    "NCCL_API_KEY": "planted0nccl0secret3",
    "SLURM_JWT": "eyJplanted0jwt0secret4",
    "CLUSTERBENCH_SECRET": "planted0own0secret5planted0own0secret5",
    "WANDB_API_KEY": "planted0wandb0secret6",
    "TORCH_PASSWORD": "planted0torch0secret7",
    "UCX_CREDENTIALS": "planted0ucx0secret8",
    "UCX_PWD": "planted0ucx0secret9",
    "NCCL_NET_AUTH": "planted0auth0secret10",
    "FI_BEARER": "planted0bearer0secret11",
    "TORCH_COOKIE": "planted0cookie0secret12",
    "OMP_JWT": "planted0jwt0secret13",
    "CUDA_LICENSE": "q7Zk2VbX9tLm4RwS8pNc",
}
ADDRESS = "planted0address0secret14"

SUITE = """
suite: secrets
question: Does anything leak?
benchmarks:
  - benchmark: fault_drill
    fault: [none, raise, segfault]
    iterations: 5
    warmup: 1
    time_limit_s: 20
    environment: {NCCL_DEBUG: INFO, TORCH_DISTRIBUTED_DEBUG: DETAIL, WANDB_API_KEY: from environment}
cpu: {num_ranks: 2}
"""


@pytest.mark.gloo
def test_no_secret_of_the_environment_is_in_the_run_folder_even_when_workers_crash(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE)
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "clusterbench.cli", "run", str(tmp_path / "suite.yaml"), "--out", str(folder)]
    # The user's own variables travel to the workers, who must not write them down.
    environment = {**os.environ, **SECRETS, "TORCH_HOME": f"https://user:{ADDRESS}@host/x"}
    done = subprocess.run([*command, "--device", "cpu"], cwd=ROOT, env=environment, capture_output=True, timeout=120)
    assert done.returncode == 1, done.stderr.decode()
    assert [outcome.status for outcome in RunFolder.open(folder).outcomes()] == ["ok", "failed", "failed"]
    written = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert any("logs" in path.parts and text for path, text in written.items())
    leaks = {
        f"{name} in {path.relative_to(folder)}"
        for name, secret in {**SECRETS, "TORCH_HOME": ADDRESS}.items()
        for path, text in {**written, folder / "stdout": done.stdout, folder / "stderr": done.stderr}.items()
        if secret.encode() in text
    }
    assert leaks == set()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert b'"TORCH_HOME": "https://[removed]@host/x"' in written[folder / "environment.json"]
    assert b'"WANDB_API_KEY":"from environment"' in written[folder / "plan.jsonl"]


def test_what_an_earlier_run_wrote_down_is_neither_shown_nor_bundled(tmp_path: Path) -> None:
    secrets = {kind: secret for kind, (_, secret) in LEAKS.items()}
    variables = {"WANDB_API_KEY": "s3cret-key", "MY_DB_URL": "postgres://u:s3cret-db@host/x", "NCCL_DEBUG": "INFO"}
    cases = [
        case(kind, 4, point={"layout": "tp4", "words": text}, environment=variables)
        for kind, (text, _) in LEAKS.items()
    ]
    fates = [(outcome(planned, "failed", reason=f"it said: {planned.point['words']}"), None) for planned in cases]
    environment = {"hosts": {"a": {"kernel": "6.8", "variables": {"UCX_PWD": "s3cret-pwd"}}}}
    run = write_run(tmp_path / "run", cases, fates, environment=environment)
    (run.path / "logs").mkdir(exist_ok=True)
    (run.path / "logs" / "start-0000-rank-0000.log").write_text("\n".join(text for text, _ in LEAKS.values()))
    (run.path / "suite.yaml").write_text("# WANDB_API_KEY: s3cret-key\nsuite: s\n")
    render_report(run)
    secrets |= {"key": "s3cret-key", "db": "s3cret-db", "pwd": "s3cret-pwd"}
    shown = {name: (run.path / name).read_text() for name in ("rows.csv", "index.html", "verdict.json")}
    assert {(kind, name) for kind, secret in secrets.items() for name, text in shown.items() if secret in text} == set()
    assert all("[removed]" in shown[name] for name in ("rows.csv", "index.html"))
    back = open_bundle(write_bundle(run.path, None, {})[0], tmp_path / "there")
    files = {path.name: path.read_text() for path in back.rglob("*") if path.is_file()}
    assert {(kind, name) for kind, secret in secrets.items() for name, text in files.items() if secret in text} == set()
    read = RunFolder.open(back)
    assert [planned.hash for planned in read.plan().cases] == [planned.hash for planned in cases]
    assert [each.hash for each in read.outcomes()] == [planned.hash for planned in cases]
    assert read.problems == []


# A page shows what a run says, and never does it

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    '"onmouseover="alert(1)" x="',
    "'><img src=x onerror=alert(1)>",
    "]]><svg onload=alert(1)>",
    "--><iframe srcdoc='<script>alert(1)</script>'>",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% for x in y %}",
    "\x1b[31m\x1b]0;owned\x07 \x00 \x9b31m \u2028 \u202e",
    "$\\frac{$ & &lt;script&gt; \\u003cscript\\u003e",
)
ALL = " ".join(HOSTILE)


@pytest.fixture(autouse=True)
def _planted() -> Iterator[None]:
    undo = plant()
    yield
    undo()


def hostile_case(layout: str, world_size: int, words: str) -> Case:
    point = {"layout": layout, "shape": words, "dtype": words, "seq_len": 8, words: words, "context": words}
    return case(words + layout, world_size, point=point, layout=layout, source=words, environment={"NCCL_X": words})


def hostile_run(path: Path) -> RunFolder:
    """A run that is hostile in every text that somebody else can write."""
    figures = [
        {"name": name, "unit": unit, "value": 5.0, "basis": ALL, **detail}
        for name, unit, detail in (
            ("tokens_per_s_per_rank", "tokens/s", {}),
            ("scaling_efficiency", "fraction", {}),
            ("peak_memory", "B", {"detail": {"category": "total"}}),
            ("peak_memory", "B", {"detail": {"category": ALL}}),
        )
    ]
    layouts = {"tp1": 1, "tp2": 2, "cp2": 2, "tp4": 4}
    cases = [hostile_case(layout, size, words) for layout, size in layouts.items() for words in (ALL, HOSTILE[2])]
    lost = hostile_case("dp4", 4, HOSTILE[0])
    hot = {ALL: {ALL: {"index": 1, "throttle_reasons": {ALL: 0.5}}}}
    records = [
        (outcome(planned), observation(planned, None, figures, hosts=(ALL,), telemetry=hot)) for planned in cases
    ]
    fault = outcome(lost, "failed", reason=ALL, host=ALL, phase=ALL, log=ALL, rank=1, started=ALL)
    return write_run(
        path,
        [*cases, lost],
        [*records, (fault, None)],
        refusals=[Refusal(ALL, ALL, {"layout": "tp3", ALL: ALL}, 1, ALL, ALL, ALL)],
        question=ALL,
        suite=ALL,
        environment={"hosts": {ALL: {"kernel": ALL}, "b": {"kernel": "6.8"}}, ALL: [ALL, {ALL: ALL}]},
    )


def test_hostile_words_are_text_in_the_page(tmp_path: Path) -> None:
    run = hostile_run(tmp_path / "run")
    page = render_report(run).path.read_text()
    assert RunFolder.open(run.path).problems == []
    assert page.count("<script") == page.count("</script>") == 2
    assert not re.search(r"<(img|iframe|object|embed|base|form)|<svg onload", page)
    assert not re.search(r"<[a-z][^<>]*\son\w+\s*=", page), "an event handler"
    assert not re.search(r"(href|src|action)=[\"']?javascript:", page)
    assert page.count("<svg ") == page.count("</svg>") > 1
    embedded = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert embedded is not None
    assert any(ALL in name for name in json.loads(embedded[1])["columns"][0]["values"])


@pytest.mark.browser
def test_hostile_words_do_nothing_in_a_browser(tmp_path: Path, visit: Callable[..., Page]) -> None:
    page = visit(render_report(hostile_run(tmp_path / "run")).path.as_uri())
    for button in page.locator("#table tbody tr td:first-child button").all():
        button.click()  # unfolds what is made by script from the embedded data
    page.fill("#filter", "<script>")
    for name in ("tokens", "mouse"):
        page.mouse.move(300, 300 + len(name))
    assert page.evaluate(INJECTED) == []
    assert "<script>alert(1)</script>" in page.inner_text("body")


INJECTED = """[...document.querySelectorAll("*")].filter((element) =>
  ["IMG", "IFRAME", "OBJECT", "EMBED", "FORM"].includes(element.tagName)
  || [...element.attributes].some((one) => one.name.startsWith("on") || /javascript:/i.test(one.value))
  || (element.tagName === "SCRIPT" && element.textContent.includes("alert(1)") && element.type !== "application/json")
).map((element) => element.outerHTML.slice(0, 200))"""
