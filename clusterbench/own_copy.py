"""The copy of the package that runs here: where it lies, what is in it, and how another process runs a module of it.

``python -m`` takes whichever copy Python finds first. With a checkout beside an installed package that can be another
one, and a run would plan with the one and measure with the other.
"""

from __future__ import annotations

import hashlib
import importlib.util
import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).absolute().parent


def command(module: str, *arguments: str) -> list[str]:
    """The command line that runs ``module`` of this copy with Python, as ``python -m`` would.

    ``-P`` and a path to this file keep everything else where it is: neither the folder someone stands in nor the one
    beside the package can shadow a module.
    """
    return [sys.executable, "-P", __file__, module, *arguments]


def version() -> str:
    """As the installed package says it, or a checkout that is not installed; ``unknown`` where neither does."""
    import tomllib  # here, as every process that is started runs this file
    from importlib import metadata

    try:
        return metadata.version("clusterbench")
    except metadata.PackageNotFoundError:
        pass
    try:
        project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return str(project["version"]) if project["name"] == "clusterbench" else "unknown"
    except (OSError, ValueError, KeyError):
        return "unknown"


def digest() -> str:
    """16 hexadecimal digits that tell the sources of this copy, as they are on disk now, from those of others."""
    content = hashlib.sha256()
    for path in sorted(FOLDER.rglob("*.py")):
        source = path.read_bytes()
        content.update(f"{path.relative_to(FOLDER).as_posix()} {len(source)}\n".encode() + source)
    return content.hexdigest()[:16]


def main() -> None:
    place = {"location": FOLDER / "__init__.py", "submodule_search_locations": [str(FOLDER)]}
    spec = importlib.util.spec_from_file_location("clusterbench", **place)  # type: ignore[arg-type]
    assert spec is not None
    assert spec.loader is not None
    sys.modules["clusterbench"] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
