"""Whether all processes of a run could write their part of a checkpoint, which they exchange before it commits."""

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import multihost

from t5x_like import paths
from t5x_like.errors import RunFailed


class SharedOutcome:
    """The outcome of the asynchronous saves of a run, which is the same in all of its processes.

    Without it, a process whose files cannot be written would not arrive where Orbax lets the processes wait for each
    other, and neither it nor the others would end.

    Attributes:
      has_failed: Whether a save has failed in any process.
    """

    def __init__(self):
        self.has_failed = False
        self._reason = ""  # why this process could not write
        self._wait = multihost.get_barrier_sync_fn()

    def of(self, written: ocp.future.Future) -> ocp.future.Future:
        """Returns a future that completes when `written` has completed or, with several processes, failed."""
        return _Recorded(written, self)

    def record(self, error: Exception) -> None:
        """Records why this process could not write. Raises the error if no other process waits for this one."""
        if jax.process_count() == 1:
            self.has_failed = True
            raise error
        # The messages of libraries may be long, with paths before the reason.
        self._reason = paths.unwritable_reason(error) or str(error).split("\n", 1)[0][:300] or type(error).__name__

    def exchange(self, *, key: str, timeout_ms: int) -> None:
        """Waits until all processes have written or failed. It is Orbax's `barrier_sync_fn`.

        Args:
          key: The name of the point at which the processes wait, unique per checkpoint.
          timeout_ms: How long to wait for them.

        Raises:
          RunFailed: Raised in all processes, if any of them could not write.
        """
        client, failed = multihost.get_jax_distributed_client(), f"t5x_like/failed/{key}"
        if self._reason:
            client.key_value_set(f"{failed}/{jax.process_index()}", self._reason)
        self._wait(key=key, timeout_ms=timeout_ms)
        failures = sorted(client.key_value_dir_get(failed))
        if not failures:
            return
        self.has_failed = True
        name, reason = failures[0]
        raise RunFailed(
            f"process {name.rsplit('/', 1)[-1]} of {jax.process_count()} cannot write its part of a checkpoint: "
            f"{reason}. The checkpoints written so far are intact; free space or repair the storage, then run the same "
            "command in all processes to resume from the newest one."
        )


class _Recorded:
    """A future whose error is recorded."""

    def __init__(self, written: ocp.future.Future, outcome: SharedOutcome):
        self._written, self._outcome = written, outcome

    def result(self, timeout: float | None = None) -> None:
        try:
            self._written.result(timeout)
        except Exception as error:
            self._outcome.record(error)
