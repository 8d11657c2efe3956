"""Imports follow the levels of the packages, and heavy packages are imported lazily (docs/architecture.md)."""

import ast
import functools
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]

# From low to high. A module may import modules of its own and lower levels. All other modules are commands: they may
# import everything, and only commands may import them.
LEVELS = (
    {
        *("axis_rules", "checkpoint_paths", "errors", "limits", "mesh", "own_files", "packages", "parameters"),
        *("partitioning", "paths", "recorded", "runtime", "stores", "version"),
    },
    {"vocabularies"},
    {"data", "optimizers", "metrics"},
    {"kernels"},
    {"layers"},
    {"adapters"},
    {"models"},
    {"objectives", "decoding"},
    {"interop", "config"},
    {"checkpoints"},
    {"stored"},
    {"distillation"},
    {"training"},
    {"inference", "pruning"},
)
COMMANDS = len(LEVELS)
# These modules work with any model and objective. They may import the interfaces of both only.
GENERIC = (
    "t5x_like.train",
    "t5x_like.training",
    "t5x_like.stored",
    "t5x_like.checkpoints",
    "t5x_like.optimizers",
    "t5x_like.metrics",
)

# These packages import TensorFlow at module level. Other modules import them inside functions only.
TENSORFLOW_PACKAGES = ("t5x_like.data.seqio_feed", "t5x_like.data.cached.writer", "data_tasks")
TENSORFLOW = {"seqio", "tensorflow", "tensorflow_datasets", "tensorflow_text"}
# Modules that may import SeqIO (its Evaluator, its registry) or TensorFlow (its checkpoint reader) inside functions.
LAZY_TENSORFLOW = (
    "t5x_like.eval",
    "t5x_like.infer",
    "t5x_like.inspect_task",
    "t5x_like.interop.tensorflow_checkpoints",
    "t5x_like.vocabularies",
)


class Import(NamedTuple):
    importer: str
    imported: str
    lazy: bool
    where: str


def python_files(*directories: str) -> list[Path]:
    return sorted(path for directory in directories for path in (ROOT / directory).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def nodes(*directories: str, containing: str) -> Iterator[tuple[Path, ast.AST]]:
    """Yields the nodes of the files whose text has a match of a regular expression."""
    for path in python_files(*directories):
        if re.search(containing, text := path.read_text(encoding="utf-8")):
            yield from ((path, node) for node in ast.walk(ast.parse(text)))


MODULES = {module_name(path): path for path in python_files("t5x_like", "data_tasks")}


def is_module(name: str) -> bool:
    return name in MODULES or ROOT.joinpath(*name.split(".")).is_dir()


def imports_of(name: str, source: str, path: str, *, is_package: bool = False, types: bool = False) -> Iterator[Import]:
    """Returns the imports of a module; those of `if TYPE_CHECKING:` blocks with `types`.

    Imports inside functions are lazy.
    """

    def walk(node: ast.AST, lazy: bool) -> Iterator[Import]:
        for_types = isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        if for_types and not types:
            return
        where = f"{path}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(name, alias.name, lazy, where)
        elif isinstance(node, ast.ImportFrom):
            package = name.split(".") if is_package else name.split(".")[:-1]
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            for alias in node.names:
                # `from t5x_like import parameters` imports a module, `from t5x_like.parameters import Tree` a name.
                inner = f"{base}.{alias.name}"
                yield Import(name, inner if is_module(inner) else base, lazy, where)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))

    yield from walk(ast.parse(source), lazy=False)


@functools.cache
def all_imports(*, types: bool = False) -> list[Import]:
    return [
        found
        for name, path in MODULES.items()
        for found in imports_of(
            name, path.read_text(), str(path.relative_to(ROOT)), is_package=path.stem == "__init__", types=types
        )
    ]


def level_of(name: str) -> int:
    """Returns the level of a module of t5x_like. The package itself only has the version, and is below all levels."""
    parts = name.split(".")
    if parts[0] == "data_tasks":
        return COMMANDS
    if len(parts) == 1:
        return -1
    return next((level for level, packages in enumerate(LEVELS) if parts[1] in packages), COMMANDS)


def under(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def violations(imports: list[Import]) -> list[str]:
    """Describes imports from a higher level. The shipped tasks in data_tasks are at the level of commands."""
    return [
        f"{found.where}: {found.importer} imports {found.imported}, a higher level"
        for found in imports
        if found.importer.startswith("t5x_like.") and found.imported.split(".")[0] in ("t5x_like", "data_tasks")
        if level_of(found.imported) > level_of(found.importer)
    ]


def test_no_module_imports_a_higher_level():
    assert len(MODULES) > 20, "too few modules found"
    assert violations(all_imports()) == []


@pytest.mark.parametrize(
    ("importer", "statement", "allowed"),
    [
        ("t5x_like.models.t5", "from t5x_like import partitioning", True),
        ("t5x_like.models.t5", "from t5x_like import objectives", False),
        ("t5x_like.layers.mlp", "from ..partitioning import shard", True),
        ("t5x_like.layers.mlp", "from ..models.t5 import T5", False),
        ("t5x_like.optimizers.base", "def f():\n  import t5x_like.models.t5", False),
        ("t5x_like.data.feed", "from t5x_like.stored import loaded", False),
        ("t5x_like.data.seqio_feed.source", "def f():\n  from data_tasks.corpora import c4", False),
        ("t5x_like.inspect_task", "def f():\n  from data_tasks import preprocessors", True),
        ("t5x_like.kernels.masks", "from t5x_like.layers.mlp import MLP", False),
        ("t5x_like.config", "from t5x_like import train", False),
        ("t5x_like.train", "from t5x_like import config, eval", True),
        ("t5x_like.models.t5", "if TYPE_CHECKING:\n  from t5x_like import train", True),
    ],
)
def test_level_check_finds_violations(importer, statement, allowed):
    assert (violations(list(imports_of(importer, statement, "example.py"))) == []) == allowed


def test_loops_import_only_interfaces_of_models_and_objectives():
    specific = ("t5x_like.models", "t5x_like.objectives")
    found = [f for f in all_imports() if under(f.importer, GENERIC) and under(f.imported, specific)]
    models = {"base", "build", "construct", "networks"}
    objectives = {"base", "carry", "gathering", "gradients", "keys", "passes", "reused_batches"}
    objectives |= {"row_updates", "variables"}
    interfaces = {f"t5x_like.models.{each}" for each in models} | {f"t5x_like.objectives.{each}" for each in objectives}
    assert {f.imported for f in found} <= interfaces


def test_models_and_decoding_name_no_adapter():
    packages = ("t5x_like.models", "t5x_like.decoding", "t5x_like.training", "t5x_like.train")
    found = {
        f.imported for f in all_imports() if under(f.importer, packages) and under(f.imported, ("t5x_like.adapters",))
    }
    assert found <= {f"t5x_like.adapters.{each}" for each in ("base", "lifecycle", "model_adapters")}


def test_models_and_layers_do_not_name_mesh_axes():
    packages = [f"t5x_like/{package}" for package in ("models", "layers", "kernels", "objectives", "decoding")]
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value!r}"
        for path, node in nodes(*packages, containing="['\"](fsdp|tensor|sequence)['\"]")
        if isinstance(node, ast.Constant) and node.value in ("fsdp", "tensor", "sequence")
    ]
    assert found == []


def test_tensorflow_is_imported_lazily():
    wrong = []
    for found in all_imports():
        heavy = found.imported.split(".")[0] in TENSORFLOW
        if under(found.importer, TENSORFLOW_PACKAGES):
            continue
        if heavy and not (found.lazy and under(found.importer, LAZY_TENSORFLOW)):
            wrong.append(f"{found.where}: {found.importer} imports {found.imported}")
        if under(found.imported, TENSORFLOW_PACKAGES) and not found.lazy:
            wrong.append(f"{found.where}: {found.importer} imports {found.imported} at module level")
    assert wrong == []


def loaded_by(statement: str) -> set[str]:
    """Returns the top-level modules that a new interpreter has loaded after a statement."""
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted({{n.split('.')[0] for n in sys.modules}})))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(result.stdout.splitlines()[-1]))


HEAVY = TENSORFLOW | {"flax", "gin", "jax", "jaxlib", "optax", "orbax", "torch"}


@pytest.mark.notf
@pytest.mark.parametrize("module", ["t5x_like", "t5x_like.cli", "t5x_like.data.features", "t5x_like.data.span_lengths"])
def test_light_modules_do_not_import_heavy_packages(module):
    assert loaded_by(f"import {module}") & HEAVY == set()


@pytest.mark.notf
def test_importing_the_commands_does_not_import_tensorflow():
    names = "train, eval, infer, plan, inspect_task, cache, config, metrics, partitioning, optimizers"
    loaded = loaded_by(f"from t5x_like import {names}; from t5x_like.data import cached")
    assert "jax" in loaded
    assert loaded & TENSORFLOW == set()


@pytest.mark.notf
def test_vocabularies_encode_and_decode_without_tensorflow(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n")
    letters = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
    for name, end in (("gpt2", ""), ("gpt1", "</w>")):
        ids = {
            piece: index
            for index, piece in enumerate(dict.fromkeys(["<unk>", "<|endoftext|>", *letters, f"a{end}", f"b{end}"]))
        }
        (tmp_path / name).mkdir()
        (tmp_path / name / "vocab.json").write_text(json.dumps(ids | {f"ab{end}": len(ids)}))
        (tmp_path / name / "merges.txt").write_text(f"a b{end}\n")
    (tmp_path / "gpt1" / "config.json").write_text('{"model_type": "openai-gpt"}')
    code = f"""
from t5x_like.vocabularies import from_folder, late, shipped, vocabulary_files
directory = {str(tmp_path)!r}
known = [
    shipped.python_docs(), shipped.byte_level(), vocabulary_files.word_pieces(directory + "/vocab.txt"),
    vocabulary_files.byte_bpe(directory + "/gpt2"), from_folder.from_folder(directory + "/gpt1"),
    late.LateVocabulary(lambda: str(shipped.PYTHON_DOCS_MODEL)),
]
for vocabulary in known:
    assert vocabulary.decode(vocabulary.encode("ab ab")).strip() == "ab ab", vocabulary
"""
    assert loaded_by(code) & (TENSORFLOW | {"jax"}) == set()


@pytest.mark.notf
def test_help_answers_within_a_second():
    command = [sys.executable, "-c", "from t5x_like.cli import main; main()", "--help"]
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        seconds.append(time.perf_counter() - start)
        assert result.returncode == 0, result.stderr
        for name in ("train", "eval", "infer", "inspect", "plan"):
            assert name in result.stdout
    assert min(seconds) < 1, f"t5x_like --help took {seconds} s"


def test_no_module_shadows_the_standard_library():
    # The directory of a script comes first on sys.path: an inspect.py next to it would replace the standard module.
    names = [path for path in python_files("t5x_like", "data_tasks", "tests") if path.stem in sys.stdlib_module_names]
    assert names == []


def test_the_library_names_no_module_of_the_shipped_tasks():
    """Names in strings are imports that the levels do not see. The exception is the documented default of tasks."""
    found = {
        (path.relative_to(ROOT).as_posix(), node.value)
        for path, node in nodes("t5x_like", containing="data_tasks")
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"data_tasks(\.\w+)+", node.value)
    }
    assert found == {("t5x_like/data/seqio_feed/registry.py", "data_tasks.shipped_tasks")}
    named = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, node in nodes("t5x_like", "data_tasks", containing="import_module")
        if isinstance(node, ast.Call) and getattr(node.func, "attr", None) == "import_module"
        if node.args and isinstance(node.args[0], ast.Constant)
    ]
    assert named == []


def test_no_circle_of_imports():
    """Imports inside functions and for types count, so that a module can be read without those that read it."""
    assert circles(all_imports(types=True)) == set()


@pytest.mark.parametrize(
    "statement", ["from t5x_like import b", "def f():\n  import t5x_like.b", "if TYPE_CHECKING:\n  import t5x_like.b"]
)
def test_circles_are_found(statement, monkeypatch):
    monkeypatch.setitem(MODULES, "t5x_like.a", ROOT)
    monkeypatch.setitem(MODULES, "t5x_like.b", ROOT)
    here = list(imports_of("t5x_like.a", statement, "a.py", types=True))
    back = list(imports_of("t5x_like.b", "from t5x_like import a", "b.py"))
    assert circles(here + back) == {frozenset({"t5x_like.a", "t5x_like.b"})}
    assert circles(here) == set()


def circles(found: list[Import]) -> set[frozenset[str]]:
    """Returns the sets of modules that import one another, directly or through others."""
    imports = {name: set() for name in MODULES}
    for each in found:
        if each.importer in imports and each.imported in imports and each.imported != each.importer:
            imports[each.importer].add(each.imported)
    reached = {name: _reached(name, imports) for name in imports}
    sets = {frozenset(other for other in reached[name] if name in reached[other]) for name in imports}
    return {each for each in sets if each}


def _reached(name, imports):
    found, left = set(), [name]
    while left:
        for each in imports[left.pop()] - found:
            found.add(each)
            left.append(each)
    return found
