"""All readers of files that others write, on damaged files, for half a minute: an error with the file, or its result.

`T5X_LIKE_FUZZ_SECONDS=3600 T5X_LIKE_FUZZ_SEED=7 pytest tests/test_damaged_readers.py -m full -n 0 -s` tests longer,
from another seed. A failure shows its seed.
"""

import importlib.util
import inspect
import os
import sys
import types

import pytest
from damage import check
from file_formats import WRITERS
from readers import READERS, package_of

from data_tasks.corpora.formats import FORMATS, format_of
from t5x_like import convert_vectors, interop

pytestmark = [pytest.mark.full, pytest.mark.parity]

SECONDS = float(os.environ.get("T5X_LIKE_FUZZ_SECONDS", "30"))
SEED = int(os.environ.get("T5X_LIKE_FUZZ_SEED", "0"))


def skip_without(*packages):
    if missing := [each for each in packages if each is not None and importlib.util.find_spec(each) is None]:
        pytest.skip(f"{missing[0]} is not installed")


@pytest.mark.parametrize("name", READERS)
def test_damaged_file(name, tmp_path):
    skip_without(package_of(name))
    artefact = READERS[name](tmp_path / "intact")
    cases = check(artefact, None, SEED, tmp_path, seconds=SECONDS / len(READERS))
    print(f"{name}: {cases} cases from seed {SEED}")


def test_every_reader_is_damaged(tmp_path):
    """The functions that read files are found in the modules; the intact files call all of them."""
    skip_without("h5py", "tensorflow", "pyarrow", "warcio")
    modules = [getattr(interop, name) for name in dir(interop)]
    modules = [each for each in modules if inspect.ismodule(each) and each.__name__.startswith(interop.__name__)]
    modules.append(convert_vectors)
    expected = {
        function.__code__: f"{module.__name__}.{name}"
        for module in modules
        for name, function in vars(module).items()
        if isinstance(function, types.FunctionType)
        and function.__module__ == module.__name__
        and (name in ("read", "parse") or name.startswith("read_"))
    }
    called = set()

    def record(frame, event, argument):
        if event == "call" and frame.f_code in expected:
            called.add(frame.f_code)

    for number, make in enumerate(READERS.values()):
        artefact = make(tmp_path / str(number))
        sys.setprofile(record)
        try:
            artefact.read(artefact.directory)
        finally:
            sys.setprofile(None)
    assert {name for code, name in expected.items() if code not in called} == set()
    assert {type(format_of(name)) for name in WRITERS} == set(map(type, FORMATS))
