"""The package's layers as code: imports go down only, and what is read without torch imports without torch."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "clusterbench"

LAYERS = (
    "cli __main__ api catalogue",
    "launch report compare trend layout_view importing dry doctor",
    "confront",
    "suite planning derive verdict hosts",
    "diagnoses charts",
    "cases drawing checks",
    "benchmarks",
    "proof",
    "trainers",
    "training",
    "pricing",
    "measured",
    "expected",
    "parallel",
    "model",
    "facts",
    "engine launchers tools shape_file hf_config yaml_lines",
    "baseline",
    "job run_folder",
    "types rows units layout shape cluster floors formulas errors options discover words terminal own_copy garbage "
    "precision expectation csv_lines text_files host_facts fingerprint recorded forked torch_release",
)
"""From the top. A module may import those of its own layer and of the layers below, and ``clusterbench`` itself."""

READING_HALF = (
    "run_folder",
    "derive",
    "compare",
    "trend",
    "cases",
    "diagnoses",
    "verdict",
    "hosts",
    "drawing",
    "charts",
    "report",
)
"""What turns a run's folder into a report, on a laptop without a GPU."""

WITHOUT_TORCH = (
    *READING_HALF,
    "cli",
    "api",
    "layout_view",
    "importing",
    "catalogue",
    "confront",
    "suite",
    "planning",
    "run_folder",
    "baseline",
    "benchmarks",
    "measured",
    "pricing",
    "expected",
    "parallel",
    "job",
    "tools",
    "launchers",
    "facts",
    "checks",
    "doctor",
)


@cache
def modules() -> dict[str, Path]:
    """All modules by dotted name within the package: ``engine.loop``."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found.pop("", None)
    return found


@cache
def parsed(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text(encoding="utf-8"))


@cache
def imports(module: str, where: str = "anywhere") -> frozenset[str]:
    """Full names of what a module imports; also inside functions, unless only ``on import`` is asked for."""
    tree = parsed(module)
    names: set[str] = set()
    for node in ast.walk(tree) if where == "anywhere" else on_import(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(names)


def on_import(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when the module is imported: not those of functions and of ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        type_checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not (isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or type_checking):
            yield node
            yield from on_import(node)


@cache
def own(module: str) -> frozenset[str]:
    """The top modules of the package that a module imports."""
    parts = (name.split(".") for name in imports(module))
    tops = {name[1] for name in parts if name[0] == "clusterbench" and len(name) > 1}
    return frozenset(top for top in tops if (PACKAGE / top).is_dir() or (PACKAGE / f"{top}.py").exists())


def first_parts(module: str, where: str = "anywhere") -> set[str]:
    return {name.split(".")[0] for name in imports(module, where)}


def below(*tops: str) -> list[str]:
    """The modules of some folders and modules of the top."""
    found = sorted(module for module in modules() if module.split(".")[0] in tops)
    assert {module.split(".")[0] for module in found} == {*tops}, "a folder that is named here is not there"
    return found


def layer(top: str) -> int:
    found = [number for number, names in enumerate(LAYERS) if top in names.split()]
    assert found, f"say in LAYERS where '{top}' belongs"
    return found[0]


def drawn() -> list[tuple[str, bool]]:
    """The folders and modules of the table in ``docs/architecture.md``, from the top, and whether each has its star."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`\S+` )+)(\* |… \* )?\|", page, re.MULTILINE)
    return [
        (name.removesuffix(".py").rstrip("/"), bool(star))
        for names, star in rows
        for name in re.findall(r"`(\S+)`", names)
    ]


def test_the_page_draws_these_layers():
    order = [layer(name) for name, _ in drawn()]
    assert order == sorted(order)
    above_vocabulary = {name for names in LAYERS[:-1] for name in names.split() if (PACKAGE / name).is_dir()}
    assert above_vocabulary - {name for name, _ in drawn()} == set()


def test_the_page_marks_what_is_imported_with_torch_blocked():
    vocabulary = LAYERS[-1].split()
    assert {name for name, star in drawn() if star != (name in (*WITHOUT_TORCH, *vocabulary))} == set()


def test_imports_go_down_only():
    upwards = {
        f"{module} imports {other}, which stands above it"
        for module in modules()
        for other in own(module)
        if layer(other) < layer(module.split(".")[0])
    }
    assert upwards == set()


def needs() -> dict[str, set[str]]:
    """What each folder and each module of the top imports, inside functions and under TYPE_CHECKING too."""
    found: dict[str, set[str]] = {}
    for module in modules():
        top = module.split(".")[0]
        found.setdefault(top, set()).update(own(module) - {top})
    return found


def test_no_two_folders_import_each_other():
    graph = needs()
    assert {(a, b) for a in graph for b in graph[a] if a < b and a in graph[b]} == set()


def test_the_structure_has_no_circle():
    tuple(TopologicalSorter(needs()).static_order())  # raises CycleError, which names the circle


def test_no_files_import_each_other_in_a_circle():
    names = {f"clusterbench.{module}": module for module in modules()}
    graph = {module: {names[name] for name in imports(module) if name in names} - {module} for module in modules()}
    tuple(TopologicalSorter(graph).static_order())


def test_the_reading_half_never_imports_what_measures():
    forbidden = {"engine", "model", "training", "trainers", "proof", "launch", "torch"}
    used = {module: (own(module) | first_parts(module)) & forbidden for module in below(*READING_HALF)}
    assert {module: names for module, names in used.items() if names} == {}


def test_vocabulary_and_run_folder_need_the_standard_library_only_and_msgspec_where_it_is():
    lowest = " ".join(LAYERS[-2:]).split()
    used = {module: first_parts(module) - {*sys.stdlib_module_names, "clusterbench"} for module in below(*lowest)}
    assert {module: names for module, names in used.items() if names} == {"run_folder.fast": {"msgspec"}}


def test_whatever_is_imported_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    said = [*project["dependencies"], *extras["fast"], *extras["deepspeed"], *extras["torchtitan"]]
    declared = {re.split(r"[>=<]", requirement)[0].lower() for requirement in said}
    used = set().union(*map(first_parts, modules())) - {*sys.stdlib_module_names, "clusterbench"}
    brought_by = packages_distributions()
    assert {
        name for name in used if not {distribution.lower() for distribution in brought_by.get(name, [])} & declared
    } == set()


TORCH_SIDE = ("launch.worker", "launch.store")
"""What a zygote forks. The zygote itself imports them, and torch, in a function: it is another process."""

AGENT_SIDE = [module for module in below("launch") if module not in TORCH_SIDE]


def test_the_agent_imports_nothing_that_can_take_it_down():
    offenders = {}
    for module in AGENT_SIDE:
        needed = imports(module, "on import" if module == "launch.zygote" else "anywhere")
        dangerous = {"torch", "numpy", *(f"clusterbench.{name}" for name in TORCH_SIDE)}
        offenders[module] = {name for name in needed if name in dangerous or name.split(".")[0] in dangerous}
    assert {module: names for module, names in offenders.items() if names} == {}


def run_without_torch(program: str) -> None:
    blocked = "import sys; sys.modules['torch'] = None\n"
    done = subprocess.run([sys.executable, "-c", blocked + program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_describes_and_reads_imports_with_torch_blocked():
    """Found by ast, because a process for each module takes a second."""
    assert [module for module in below(*WITHOUT_TORCH) if "torch" in first_parts(module, "on import")] == []


def test_planning_and_reading_import_with_torch_blocked():
    run_without_torch("\n".join(f"import clusterbench.{module}" for module in below(*WITHOUT_TORCH)))


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


def test_no_text_is_read_or_written_in_the_encoding_of_a_host():
    forgotten = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _is_of_text(node) and not _names_encoding(node):
                forgotten.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert forgotten == []


def _is_of_text(call: ast.Call) -> bool:
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    is_function = isinstance(call.func, ast.Name)
    if called in ("read_text", "write_text"):
        return not is_function  # of a path: the function read_text looks at the bytes
    mode = next((word.value for word in call.args if _is_mode(word)), "b" if called == "TemporaryFile" else "")
    return (called == "TemporaryFile" or (called == "open" and is_function)) and "b" not in mode


def _is_mode(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and re.fullmatch("[rwax+bt]{1,3}", str(node.value)) is not None


def _names_encoding(call: ast.Call) -> bool:
    return any(keyword.arg == "encoding" for keyword in call.keywords)


def test_help_loads_neither_torch_nor_pandas():
    run_without_torch(
        "from clusterbench.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "assert not {'pandas', 'numpy', 'yaml', 'matplotlib'} & set(sys.modules)"
    )
