"""The package's layers as code: imports go down only, and what is read without torch imports without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "clusterbench"

LAYERS = (
    "cli __main__ catalogue",
    "launch report compare layout_view importing",
    "suite planning derive yaml_lines",
    "benchmarks diagnoses charts",
    "training",
    "measured",
    "expected",
    "parallel",
    "model",
    "engine tools",
    "job run_folder",
    "types rows units layout shape cluster formulas errors options discover words variables",
)
"""From the top. A module may import those of its own layer and of the layers below, and ``clusterbench`` itself."""

READING_HALF = ("run_folder", "derive", "compare", "diagnoses", "charts", "report")
"""What turns a run's folder into a report, on a laptop without a GPU."""

WITHOUT_TORCH = (
    *READING_HALF,
    "cli",
    "layout_view",
    "importing",
    "catalogue",
    "suite",
    "planning",
    "run_folder",
    "benchmarks",
    "measured",
    "expected",
    "parallel",
    "job",
    "tools",
)


def modules() -> dict[str, Path]:
    """All modules by dotted name within the package: ``engine.loop``."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found.pop("", None)
    return found


def imports(path: Path, where: str = "anywhere") -> Iterator[str]:
    """Full names of what a file imports; also inside functions, unless only ``on import`` is asked for."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if where == "anywhere" else on_import(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def on_import(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when the module is imported: not those of functions and of ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        type_checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not (isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or type_checking):
            yield node
            yield from on_import(node)


def own(names: Iterator[str]) -> set[str]:
    """The top modules of the package among ``names``."""
    parts = (name.split(".") for name in names)
    tops = {name[1] for name in parts if name[0] == "clusterbench" and len(name) > 1}
    return {top for top in tops if (PACKAGE / top).is_dir() or (PACKAGE / f"{top}.py").exists()}


def layer(top: str) -> int:
    found = [number for number, names in enumerate(LAYERS) if top in names.split()]
    assert found, f"say in LAYERS where '{top}' belongs"
    return found[0]


@pytest.mark.parametrize("module", sorted(modules()))
def test_imports_go_down_only(module):
    top = module.split(".")[0]
    upwards = {other for other in own(imports(modules()[module])) if layer(other) < layer(top)}
    assert not upwards, f"{module} imports {', '.join(sorted(upwards))}, which stand above it"


def needs() -> dict[str, set[str]]:
    """What each folder and each module of the top imports, inside functions and under TYPE_CHECKING too."""
    found: dict[str, set[str]] = {}
    for module, path in modules().items():
        top = module.split(".")[0]
        found.setdefault(top, set()).update(own(imports(path)) - {top})
    return found


EACH_OTHER = {("charts", "diagnoses")}
"""Folders that still import each other. Take a pair out once it is mended."""


def test_no_two_folders_import_each_other():
    graph = needs()
    assert {(a, b) for a in graph for b in graph[a] if a < b and a in graph[b]} == EACH_OTHER


def test_the_structure_has_no_circle():
    graph = {top: others - {a for a, b in EACH_OTHER if b == top} for top, others in needs().items()}
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


@pytest.mark.parametrize("module", sorted(name for name in modules() if name.split(".")[0] in READING_HALF))
def test_the_reading_half_never_imports_what_measures(module):
    forbidden = {"engine", "model", "training", "launch", "torch"}
    assert not own(imports(modules()[module])) & forbidden
    assert not {name.split(".")[0] for name in imports(modules()[module])} & forbidden


@pytest.mark.parametrize("module", sorted(name for name in modules() if layer(name.split(".")[0]) >= len(LAYERS) - 2))
def test_vocabulary_and_run_folder_need_the_standard_library_only(module):
    tops = {name.split(".")[0] for name in imports(modules()[module])}
    assert tops <= {*sys.stdlib_module_names, "clusterbench"}


TORCH_SIDE = ("launch.worker", "launch.store")
"""What a zygote forks. The zygote itself imports them, and torch, in a function: it is another process."""

AGENT_SIDE = sorted(name for name in modules() if name.split(".")[0] == "launch" and name not in TORCH_SIDE)


@pytest.mark.parametrize("module", AGENT_SIDE)
def test_the_agent_imports_nothing_that_can_take_it_down(module):
    needed = set(imports(modules()[module], "on import" if module == "launch.zygote" else "anywhere"))
    assert not {name.split(".")[0] for name in needed} & {"torch", "numpy"}
    assert not {name.removeprefix("clusterbench.") for name in needed} & {*TORCH_SIDE}


def run_without_torch(program: str) -> None:
    blocked = "import sys; sys.modules['torch'] = None\n"
    done = subprocess.run([sys.executable, "-c", blocked + program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", sorted(name for name in modules() if name.split(".")[0] in WITHOUT_TORCH))
def test_what_describes_and_reads_imports_with_torch_blocked(module):
    """Found by ast, because a process for each module takes a second."""
    assert "torch" not in {name.split(".")[0] for name in imports(modules()[module], "on import")}


def test_planning_and_reading_import_with_torch_blocked():
    tops = [name for name in modules() if name.split(".")[0] in WITHOUT_TORCH]
    run_without_torch("\n".join(f"import clusterbench.{name}" for name in tops))


def test_a_suite_is_planned_with_torch_blocked():
    run_without_torch(
        "from clusterbench.cli import main\n"
        "assert not main(['plan', 'suites/tp_scale.yaml', '--device', 'cpu'], standalone_mode=False)"
    )


def test_the_agent_side_imports_no_torch():
    program = "\n".join(f"import clusterbench.{name}" for name in AGENT_SIDE)
    run_without_torch(
        program + "\nassert not {'torch', 'numpy', 'pandas'} & {name for name, m in sys.modules.items() if m}"
    )


def test_help_loads_neither_torch_nor_pandas():
    run_without_torch(
        "from clusterbench.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "assert not {'pandas', 'numpy', 'yaml', 'matplotlib'} & set(sys.modules)"
    )
