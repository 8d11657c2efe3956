"""The sizes of the files in which a checkpoint stores its arrays."""

import dataclasses
from typing import Any

import jax
import orbax.checkpoint as ocp

from t5x_like.errors import UserError

_MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class ArrayFiles:
    """How a checkpoint divides its arrays into chunks and files.

    Each process stores its shards in chunks, which are read and decompressed as a whole, and collects the chunks of all
    arrays in files. Settings only affect saves: any checkpoint is read, on any mesh.

    Args:
      file_mib: Size in MiB at which a process starts another file; 0 for no limit.
      chunk_mib: Largest size of a chunk in MiB before compression. A mesh with smaller shards reads less of a
        checkpoint with smaller chunks.

    Raises:
      UserError: `file_mib` is negative, `chunk_mib` is not positive, or a chunk is larger than a file.
    """

    file_mib: int = 256
    chunk_mib: int = 64

    def __post_init__(self):
        if self.file_mib < 0:
            raise UserError(f"ArrayFiles.file_mib={self.file_mib} is negative. Give a size in MiB, or 0 for no limit.")
        if self.chunk_mib < 1:
            raise UserError(f"ArrayFiles.chunk_mib={self.chunk_mib} is not positive. Give a size in MiB.")
        if self.file_mib and self.chunk_mib > self.file_mib:
            raise UserError(
                f"ArrayFiles.chunk_mib={self.chunk_mib} is larger than file_mib={self.file_mib}, and a chunk is in one "
                "file. Give a smaller chunk_mib or a larger file_mib."
            )

    def save_args(self, tree: Any) -> dict[str, Any]:
        """Returns the arguments with which Orbax saves a tree of arrays in such files."""
        chunks = ocp.SaveArgs(chunk_byte_size=self.chunk_mib * _MIB)
        return {
            "save_args": jax.tree.map(lambda _: chunks, tree),
            "ocdbt_target_data_file_size": self.file_mib * _MIB,
        }
