"""Objects of a bucket with their generations: a write says which object it replaces.

The generation of an object changes with each write (cloud.google.com/storage/docs/request-preconditions). Lists are
consistent, so an object that a list does not have does not exist; an error never means that.

Requires Python 3.10 and google-cloud-storage.
"""

from typing import Any, NamedTuple

import cloud
from cloud import Changed, Clients, NotFound, TransientFailure

ATTEMPTS = 5  # to read an object that is replaced meanwhile


class Stored(NamedTuple):
    """An object.

    Attributes:
      data: Its content.
      generation: Its generation.
    """

    data: bytes
    generation: int


class Bucket:
    """Reads and writes objects by their addresses, gs://….

    Args:
      clients: The clients.
    """

    def __init__(self, clients: Clients):
        from google.cloud.storage.retry import DEFAULT_RETRY

        self._storage = clients.storage
        self._policy = {"retry": DEFAULT_RETRY.with_timeout(cloud.RETRY_SECONDS), "timeout": cloud.TIMEOUT_SECONDS}

    def generations(self, prefix: str) -> dict[str, int]:
        """Returns the generations of all objects whose address starts with a prefix, by address."""
        return {f"gs://{blob.bucket.name}/{blob.name}": int(blob.generation) for blob in self._blobs(prefix)}

    def directories(self, directory: str) -> list[str]:
        """Returns the names of the directories in a directory."""
        bucket, prefix = split(f"{directory.rstrip('/')}/")
        with cloud.errors(f"{directory} cannot be listed"):
            found = self._storage.list_blobs(bucket, prefix=prefix, delimiter="/", **self._policy)
            list(found)  # the prefixes are known after the last page
            return sorted(name.removeprefix(prefix).rstrip("/") for name in found.prefixes)

    def generation(self, path: str) -> int | None:
        """Returns the generation of an object, or None if it does not exist."""
        return self.generations(path).get(path)

    def read(self, path: str, last_bytes: int | None = None) -> Stored | None:
        """Returns an object, or None if it does not exist.

        Args:
          path: The address.
          last_bytes: Read only so many bytes of its end.

        Raises:
          TransientFailure: It cannot be read, but a retry may succeed.
          CommandFailed: It cannot be read: missing permission.
        """
        for _ in range(ATTEMPTS):
            blob = next((blob for blob in self._blobs(path) if blob.name == split(path)[1]), None)
            if blob is None:
                return None
            generation, start = int(blob.generation), max(0, blob.size - last_bytes) if last_bytes else None
            if not blob.size:
                return Stored(b"", generation)
            try:
                with cloud.errors(f"{path} cannot be read"):
                    pinned = blob.bucket.blob(blob.name, generation=generation)
                    return Stored(pinned.download_as_bytes(start=start, **self._policy), generation)
            except (NotFound, TransientFailure):
                if self.generation(path) == generation:
                    raise
        raise TransientFailure(f"{path} cannot be read: it is replaced again and again.")

    def write(self, path: str, data: bytes, replaces: int | None = None) -> int:
        """Writes an object and returns its generation.

        Args:
          path: The address.
          data: The content.
          replaces: The generation that it replaces, 0 for none; None replaces any.

        Raises:
          Changed: There is another generation, with other data.
          TransientFailure: It was not written, but a retry may succeed.
          CommandFailed: It was not written: missing permission.
        """
        bucket, name = split(path)
        blob = self._storage.bucket(bucket).blob(name)
        try:
            with cloud.errors(f"{path} was not written"):
                blob.upload_from_string(data, if_generation_match=replaces, **self._policy)
                return int(blob.generation)
        except Changed:
            # The answer to this write may have been lost, and the policy has repeated it.
            found = self.read(path)
            if found is None or found.data != data:
                raise
            return found.generation

    def _blobs(self, prefix: str) -> list[Any]:
        bucket, name = split(prefix)
        with cloud.errors(f"{prefix} cannot be read"):
            return list(self._storage.list_blobs(bucket, prefix=name, **self._policy))


def split(path: str) -> tuple[str, str]:
    """Returns the bucket and the name of an object."""
    bucket, _, name = path.removeprefix("gs://").partition("/")
    return bucket, name
