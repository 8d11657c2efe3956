"""Whether all processes of a run read the same weights: each compares a sample of its files with the others'.

A machine with another copy of a pretrained model would otherwise train, or evaluate, a mixture of two models.
"""

import concurrent.futures
import hashlib
import os
import pathlib
from collections.abc import Sequence

import jax

from t5x_like import paths
from t5x_like.checkpoints import checkpoint_choice, weight_files
from t5x_like.errors import UserError
from t5x_like.interop import safetensors_files
from t5x_like.runtime import distributed
from t5x_like.stored import weight_digest

# Of each tensor of a safetensors file, and of each other file, so many blocks are compared, of so many bytes.
_BLOCKS, _BLOCK_BYTES = 16, 4096
_THREADS = 8
_SHOWN = 3


def check(path: str) -> None:
    """Checks that all processes of a run read the same weights. All of them must call it.

    Args:
      path: A checkpoint of a run, a Hugging Face directory, or a T5X checkpoint.

    Raises:
      UserError: Raised in every process; the message names the process and the files that differ.
    """
    if jax.process_count() == 1 or not paths.is_local(path):  # a store has one copy
        return
    everyone = distributed.compute_everywhere(lambda: sample(path))
    for process, found in enumerate(everyone):
        if different := [name for name in found | everyone[0] if found.get(name) != everyone[0].get(name)]:
            shown = ", ".join(different[:_SHOWN]) + (", …" if len(different) > _SHOWN else "")
            raise UserError(
                f"{path}: process {process} of {len(everyone)} has other weights than process 0, in {shown}. Give the "
                "same files to all processes, or a bucket."
            )


def sample(path: str) -> dict[str, str]:
    """Returns a hash of parts of each file with weights, by its name.

    A checkpoint of a run with checksums has one hash, of its checksums. Of other files, the size is hashed, and 16
    blocks of 4 KiB that are evenly spaced in each tensor, or in the file if it has no list of its tensors.

    Args:
      path: See `check`. A run directory stands for its latest checkpoint.
    """
    if (index := weight_files.find_t5x(path)) is not None:
        return _hashes(paths.local(index).parent if paths.local(path).is_dir() else paths.local(index))
    if weight_files.is_huggingface(path):
        return _hashes(paths.local(path), ("config.json", "*.safetensors"))
    if (step := checkpoint_choice.find_step(path)) is None:
        return {}
    checkpoint = paths.join(checkpoint_choice.locate(path)[0], str(step))
    digest = weight_digest.digest(checkpoint)
    return _hashes(paths.local(checkpoint)) if digest is None else {f"checkpoints/{step}": digest}


def _hashes(root: pathlib.Path, patterns: Sequence[str] = ("**/*",)) -> dict[str, str]:
    files = [root] if root.is_file() else [file for each in patterns for file in root.glob(each) if file.is_file()]
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        hashes = list(pool.map(_hash, files))
    names = [os.path.relpath(file, root.parent if root.is_file() else root) for file in files]
    return dict(sorted(zip(names, hashes, strict=True)))


def _hash(file: pathlib.Path) -> str:
    size = file.stat().st_size
    found = hashlib.blake2b(str(size).encode(), digest_size=16)
    with open(file, "rb") as stream:
        for first, last in _ranges(file, size):
            steps = range(first, last, max((last - first) // _BLOCKS, _BLOCK_BYTES))
            for start in (*steps, max(first, last - _BLOCK_BYTES)):
                stream.seek(start)
                found.update(stream.read(min(_BLOCK_BYTES, last - start)))
    return found.hexdigest()


def _ranges(file: pathlib.Path, size: int) -> list[tuple[int, int]]:
    """Returns the bytes of each tensor of a file and of what comes before them; of other files, all bytes."""
    if file.suffix != ".safetensors":
        return [(0, size)]
    start, ranges = safetensors_files.tensor_ranges(str(file))
    return [(0, start), *((start + first, start + last) for first, last in ranges)]
