"""The files that `udo init` writes: templates with the operator's name filled in, and, for other languages, a copy of the SDK that the
project is built with. No file is ever overwritten.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from udo_protocol.errors import Conflict, NotFound, UsageError

_NAME = re.compile(r"^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$")
_SUFFIX = ".tmpl"
# The folder of a project's copy of the SDK.
_SDK = "sdk"
# The files of a language's folder in runtimes/ that an operator is built with.
SDK_FILES: dict[str, tuple[str, ...]] = {
    "python": (),
    "go": ("*.go", "go.mod", "go.sum", "internal/pb/*.go"),
    "java": ("sdk/pom.xml", "sdk/src/main/**/*"),
    "node": ("sdk/package.json", "sdk/src/*"),
    "rust": ("sdk/Cargo.toml", "sdk/src/*.rs"),
    "cpp": ("sdk/CMakeLists.txt", "sdk/include/udo/*", "sdk/src/*"),
}
# Styles whose skeleton exists in Python only, and where to find an example for other languages.
ONLY_PYTHON = {
    "keyed": "the samples in the folder runtimes/ of the source, and docs/operators.md, Other languages",
    "spark-worker": "docs/operators.md, Workers written for Spark: the adapter is in Python, the worker in any language",
    "model": "docs/operator-protocol.md: the files of a deployment are in the folder that UDO_DIRECTORY names",
}
# For a style: the adapter that it is built with, which is imported from the operator's folder.
STYLE_FILES = {"spark-worker": ("spark_worker", "udo_spark_worker/*.py")}
# The first commands to run in the new folder.
FIRST = {
    "go": "go test ./... && CGO_ENABLED=0 go build -o bin/{name} . && udo test .",
    "java": "mvn package && udo test .",
    "node": "npm install && npm test && udo test .",
    "rust": "cargo test && cargo build --release && install -D target/release/operator bin/operator && udo test .",
    "cpp": "cmake -B build && cmake --build build && ctest --test-dir build && cmake --install build --prefix . && udo test .",
}


def write(directory: Path, name: str, style: str, runtime: str = "python") -> list[Path]:
    """Write the skeleton in `style` (batch, event, or one of ONLY_PYTHON) into `directory`; return the files written.

    UsageError for an invalid operator name or a style that the language does not have, Conflict if a file is already there.
    """
    if runtime != "python" and style in ONLY_PYTHON:
        raise UsageError(f"--style {style} is a skeleton in Python; for {runtime} see {ONLY_PYTHON[style]}")
    if not _NAME.match(name):
        raise UsageError(
            f"{name!r} cannot name an operator: lower-case letters, digits, '-' and '_', at most 63. Name it with: --name NAME"
        )
    module = re.sub(r"\W", "_", name)
    if module[0].isdigit() or module in sys.stdlib_module_names:
        module = f"op_{module}"  # a module of that name would not be importable, or would hide Python's own
    planned: dict[Path, str] = {}
    templates = Path(__file__).parent / "templates"
    for folder in (templates / "common", templates / runtime / "common", templates / runtime / style):
        for template in sorted(folder.rglob(f"*{_SUFFIX}")):
            inside = template.relative_to(folder).with_name(template.name.removesuffix(_SUFFIX))
            target = inside.with_name(f"{module}.py") if inside.name == "operator.py" else inside
            planned[directory / target] = template.read_text("utf-8").replace("{name}", name).replace("{module}", module)
    planned |= {directory / _SDK / file: text for file, text in _sdk(runtime)}
    if style in STYLE_FILES:
        sdk, files = STYLE_FILES[style]
        planned |= {directory / path.relative_to(sdk_folder(sdk)): path.read_text("utf-8") for path in sdk_folder(sdk).glob(files)}
    if runtime == "go":
        planned |= {directory / file: text for file, text in _go_module(name, planned, directory / _SDK)}
    if runtime == "rust":  # the versions that the SDK was tested with; cargo leaves out what the project does not need
        planned[directory / "Cargo.lock"] = (sdk_folder(runtime) / "Cargo.lock").read_text("utf-8")
    if there := [str(p) for p in planned if p.exists()]:
        raise Conflict(f"already there, nothing was written: {', '.join(there)}")
    for path, text in planned.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return sorted(planned)


def sdk_folder(runtime: str) -> Path:
    """The language's folder of runtimes/: beside the packages in a checkout, inside this package when installed."""
    package = Path(__file__).parent
    for folder in (package / "_sdks" / runtime, package.parent / "runtimes" / runtime):
        if folder.is_dir():
            return folder
    raise NotFound(f"the SDK for {runtime} is missing from {package / '_sdks'}; install udo-spark again")


def _sdk(runtime: str) -> Iterator[tuple[str, str]]:
    """(path inside, text) of each file of the SDK's copy."""
    if not SDK_FILES[runtime]:
        return
    folder = sdk_folder(runtime)
    for pattern in SDK_FILES[runtime]:
        for path in sorted(folder.glob(pattern)):
            if path.is_file() and not path.name.endswith("_test.go"):
                yield path.relative_to(folder).as_posix().removeprefix(f"{_SDK}/"), path.read_text("utf-8")


def _go_module(name: str, planned: dict[Path, str], sdk: Path) -> Iterator[tuple[str, str]]:
    """go.mod and go.sum: those of the SDK, since a module names its dependencies' requirements too, and a reference to the SDK's copy."""
    module, rest = planned[sdk / "go.mod"].split("\n", 1)
    own = module.removeprefix("module ")
    yield "go.mod", f"module example.com/{name}\n{rest}\nrequire {own} v0.0.0\n\nreplace {own} => ./{_SDK}\n"
    yield "go.sum", planned[sdk / "go.sum"]
