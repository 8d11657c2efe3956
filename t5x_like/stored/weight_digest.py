"""The digest by which a run recognizes weights that it reads again at each start: teachers, and a frozen base."""

import concurrent.futures
import hashlib

import fsspec

from t5x_like import paths
from t5x_like.checkpoints import checksums, weight_files

# The item of a checkpoint of a run with its parameters.
_STATE = "state"
_DIGEST_BYTES = 16
_THREADS = 4


def digest(path: str) -> str | None:
    """Returns a hash of weights: of the checksums of a checkpoint, or of the files of a Hugging Face directory.

    Args:
      path: a Hugging Face directory, or one checkpoint of a run.

    Returns:
      The hash; None if `path` is neither, or a checkpoint without checksums.
    """
    if weight_files.is_huggingface(path):
        files = [name for name in paths.listdir(path) if name.endswith(".safetensors")] + ["config.json"]
    else:
        path, files = paths.join(path, _STATE), [checksums.MANIFEST]
        if not paths.exists(paths.join(path, checksums.MANIFEST)):
            return None
    found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        hashes = pool.map(lambda name: _hash(paths.join(path, name)), sorted(files))
        for name, file_hash in zip(sorted(files), hashes, strict=True):
            found.update(f"{name} {file_hash}\n".encode())
    return found.hexdigest()


def _hash(file: str) -> str:
    with fsspec.open(file, "rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=_DIGEST_BYTES)).hexdigest()
