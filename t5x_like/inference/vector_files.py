"""Files of vectors: npz, hdf5, JSON lines and text."""

import io
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32

from t5x_like import paths
from t5x_like.data.vector_text import format_vector
from t5x_like.errors import UserError

SUFFIXES = (".npz", ".hdf5", ".h5", ".jsonl", ".txt")
_HDF5 = (".hdf5", ".h5")


def check(path: str, *, overwrite: bool) -> None:
    """Checks that a file of vectors can be written.

    Raises:
      UserError: The format is unknown, its library is not installed, or the file exists.
    """
    if not path.endswith(SUFFIXES):
        raise UserError(f"OUTPUT_PATH={path}: unknown format. Give a file that ends in {', '.join(SUFFIXES)}.")
    if path.endswith(_HDF5):
        _h5py()
    paths.check_output_file("OUTPUT_PATH", path, overwrite=overwrite)


def write(
    path: str,
    vectors: Sequence[Float32[np.ndarray, "..."]],
    records: Sequence[Mapping[str, Any]],
    tokens: Sequence[Sequence[str]] | None,
) -> None:
    r"""Writes the vectors of records.

    `.npz` and `.hdf5` have `vectors`, `[records, embed]`. Vectors of tokens are `[all tokens, embed]`: record i has the
    rows from `offsets[i]` up to `offsets[i + 1]`, and `tokens` has the tokens as text. `.jsonl` has a record per line,
    with `vector`, or `tokens` and `vectors`. `.txt` has a vector per line, numbers separated by spaces. A line of a
    token begins with the token, whose line breaks are written as `\n`, and an empty line ends a record.

    Args:
      path: The file, whose suffix is the format.
      vectors: Of each record, `[embed]` or `[tokens, embed]`.
      records: The records.
      tokens: The tokens of each record; None for vectors of whole texts.
    """
    render = {".jsonl": _jsonl, ".txt": _text}.get(os.path.splitext(path)[1])
    if render is not None:
        paths.write_output("OUTPUT_PATH", path, render(vectors, records, tokens))
        return
    arrays: dict[str, np.ndarray] = {"vectors": np.stack(vectors) if tokens is None else np.concatenate(vectors)}
    if tokens is not None:
        arrays["offsets"] = np.cumsum([0, *map(len, tokens)])
        # HDF5 has no NUL in a text, and NumPy removes it at the end.
        arrays["tokens"] = np.array([token.replace("\0", "\ufffd") for of_record in tokens for token in of_record], str)
    paths.write_output("OUTPUT_PATH", path, _hdf5(arrays) if path.endswith(_HDF5) else _npz(arrays))


def _npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    stored = io.BytesIO()
    np.savez(stored, **arrays)
    return stored.getvalue()


def _hdf5(arrays: Mapping[str, np.ndarray]) -> bytes:
    h5py = _h5py()
    with tempfile.TemporaryDirectory() as directory:
        name = os.path.join(directory, "vectors.hdf5")
        with h5py.File(name, "w") as file:
            for key, array in arrays.items():
                is_text = array.dtype.kind == "U"
                file.create_dataset(key, data=array.astype(object) if is_text else array, **_options(h5py, is_text))
        return paths.read_bytes(name)


def _options(h5py: Any, is_text: bool) -> dict[str, Any]:
    return {"dtype": h5py.string_dtype()} if is_text else {}


def _jsonl(vectors, records, tokens) -> str:
    lines = []
    for index, (vector, record) in enumerate(zip(vectors, records, strict=True)):
        found = {"vector": vector.tolist()} if tokens is None else {"tokens": tokens[index], "vectors": vector.tolist()}
        lines.append(json.dumps({"index": index, **record, **found}, ensure_ascii=False) + "\n")
    return "".join(lines)


def _text(vectors, records, tokens) -> str:
    if tokens is None:
        return "".join(f"{format_vector(vector)}\n" for vector in vectors)
    lines = []
    for names, of_record in zip(tokens, vectors, strict=True):
        lines += [
            f"{_one_line(token)} {format_vector(vector)}\n" for token, vector in zip(names, of_record, strict=True)
        ]
        lines.append("\n")
    return "".join(lines)


def _one_line(token: str) -> str:
    """Returns a token without line breaks, which byte-level vocabularies have as tokens."""
    return token.replace("\n", "\\n").replace("\r", "\\r")


def _h5py() -> Any:
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise UserError(
            "h5py: not installed, but needed for .hdf5. Run pip install -e '.[hdf5]' -c constraints.txt, or give an "
            ".npz file."
        ) from error
    return h5py
