"""Checkpoints: one Orbax step directory that holds model, optimizer, data position and dropout key.

On disk every stack of layers is one `[layers, …]` array, whatever the layout at run time (see `parameters.stack`), so a
checkpoint written by an unrolled CPU run restores into a scanned TPU run, on another mesh too.

A step directory holds the items `state` (arrays by nested name), `feed` (the data position, one file a process) and
`about` (JSON: what was written, by which versions), each with the checksums of its files (see `checkpoint_items`). It
appears under its final name only when complete.
"""

import concurrent.futures
import functools
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import fsspec
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from jax.experimental import multihost_utils
from orbax.checkpoint import checkpoint_managers as policies

from t5x_like import parameters, paths
from t5x_like.errors import RunFailed, UserError
from t5x_like.runtime.run_files import COMMITTED
from t5x_like.training import checkpoint_items as items
from t5x_like.training import checksums
from t5x_like.training.checkpoint_layout import lay_out, stacked_shapes

_NATIVE_SCHEMES = ("", "file", "gs")
ITEMS = ("state", "feed", "about")


class DamagedCheckpoint(UserError):
    """A file of a checkpoint is missing or does not match its checksum."""


def _nest(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """`{"a/b": 1}` as `{"a": {"b": 1}}`: the tree that Orbax writes."""
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *parents, last = name.split("/")
        functools.reduce(lambda node, key: node.setdefault(key, {}), parents, tree)[last] = leaf
    return tree


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves = {}
    for key, value in tree.items():
        leaves |= _flatten(value, f"{prefix}{key}/") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return leaves


class Checkpoints:
    """The checkpoints of one run, in `directory`.

    Saves are asynchronous. What is kept: the latest `keep_latest`, every `keep_every`-th step, and the `keep_best`
    best by `best_metric`; a checkpoint that is none of these is deleted, and the newest never is.
    """

    def __init__(
        self,
        directory: str,
        *,
        keep_latest: int = 2,
        keep_every: int | None = None,
        keep_best: int = 0,
        best_metric: str = "loss",
        best_is_larger: bool = False,
        read_only: bool = False,
    ):
        """Opens `directory`, a local path, `gs://…`, or any fsspec URL (mirrored in a local folder).

        Raises:
          UserError: Orbax cannot write below a path like `directory`, or `keep_latest` is not positive.
        """
        if not read_only:
            paths.check_checkpoint_directory("directory", directory)
        if keep_latest < 1:
            raise UserError(f"keep_latest={keep_latest}: at least the newest checkpoint is kept")
        scheme = directory.split("://", 1)[0] if "://" in directory else ""
        self._mirror = None if scheme in _NATIVE_SCHEMES else _Mirror(directory)
        self._uploader = concurrent.futures.ThreadPoolExecutor(max_workers=1)
        self._uploading: concurrent.futures.Future | None = None
        self._verified: set[tuple[int, str]] = set()
        self._has_read_back = False
        self._best_metric = best_metric
        preserve: list[Any] = [policies.LatestN(keep_latest)]
        if keep_every:
            preserve.append(policies.EveryNSteps(keep_every))
        if keep_best:
            preserve.append(
                policies.BestN(
                    get_metric_fn=lambda metrics: metrics[best_metric],
                    reverse=not best_is_larger,
                    n=keep_best,
                    keep_checkpoints_without_metrics=False,
                )
            )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy(preserve),
            # Orbax's own `read_only` logs a warning per directory; without these two, reading writes nothing either.
            create=not read_only,
            cleanup_tmp_directories=not read_only,
        )
        root = epath.Path(self._mirror.local if self._mirror else directory)
        if "://" not in str(root):
            root = epath.Path(os.path.abspath(root))
        self.directory = root
        handlers = {"state": items.StateHandler(), "feed": items.FeedHandler(), "about": items.AboutHandler()}
        self._manager = ocp.CheckpointManager(root, options=options, item_handlers=handlers)

    def steps(self) -> list[int]:
        """The steps of complete checkpoints, oldest first."""
        return sorted(self._manager.all_steps())

    def latest(self) -> int | None:
        """The newest complete checkpoint's step, or None."""
        return max(self.steps(), default=None)

    def save(
        self,
        step: int,
        tree: Any,
        *,
        feed: bytes = b"",
        about: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Starts saving `tree` as checkpoint `step`; the caller may donate or change its arrays right after.

        Args:
          step: a step later than every earlier checkpoint's.
          tree: any pytree, such as a `TrainState`; stored by name, stacks of layers as one array each.
          feed: the data position after the last batch that `tree` has seen.
          about: JSON-able facts stored beside it.
          metrics: evaluation results by name, for `best_metric`.
        """
        self.wait()
        leaves = _detached(parameters.named_leaves(tree))
        if metrics is not None and self._best_metric not in metrics:
            metrics = None
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=items.StateSave(_nest(leaves)),
                feed=items.FeedSave(feed),
                about=items.AboutSave(dict(about or {})),
            ),
            metrics=None if metrics is None else dict(metrics),
            force=True,
        )
        if not self._has_read_back:
            self._manager.wait_until_finished()
            self._read_back(step, leaves)
            self._has_read_back = True
        if self._mirror:
            self._uploading = self._uploader.submit(self._upload)

    def _read_back(self, step, leaves):
        """Verifies the first checkpoint and reads its smallest array, to detect an unreliable storage early."""
        name = min(leaves, key=lambda name: leaves[name].size)
        leaf = leaves[name]
        try:
            self.verify(step)
            self._read(step, {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)})
        except Exception as error:
            raise RunFailed(
                f"checkpoint {self.directory}/{step} was written but cannot be read: {error}. Check the storage, or "
                "give another MODEL_DIR"
            ) from error

    def _upload(self):
        self._manager.wait_until_finished()
        self._mirror.upload()

    def restore(self, step: int, like: Any, partitioner: Any) -> Any:
        """The tree saved at `step`, laid out and sharded like `like`.

        Args:
          step: one of `steps()`.
          like: a pytree of arrays or shapes with the names that were saved, in either layout.
          partitioner: where the arrays go.

        Raises:
          DamagedCheckpoint: a file does not match its checksum.
          UserError: a tensor of `like` is missing in the checkpoint, or has another shape there.
        """
        stacked = self.read(step, stacked_shapes(like, partitioner))
        return parameters.rebuild(like, lay_out(stacked, parameters.named_leaves(partitioner.shardings(like))))

    def read(self, step: int, shapes: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
        """Reads arrays of checkpoint `step` by stored name with the given shapes and shardings, see `restore`."""
        self._check(step, shapes)
        return self._read(step, shapes)

    def _read(self, step, shapes):
        restore_args = {
            name: ocp.ArrayRestoreArgs(sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype)
            for name, leaf in shapes.items()
        }
        state = items.StateRestore(item=_nest(shapes), restore_args=_nest(restore_args), partial_restore=True)
        return _flatten(self._manager.restore(step, args=ocp.args.Composite(state=state))["state"])

    def verify(self, step: int, *names: str) -> None:
        """Compares the files of checkpoint `step` with their checksums; several processes divide the work.

        Args:
          step: one of `steps()`.
          *names: the items to verify; default all.

        Raises:
          DamagedCheckpoint: raised in every process; only the process that found the damage names the file.
        """
        self._require(step)
        for name in names or ITEMS:
            if (step, name) not in self._verified:
                self._verify(step, name)
                self._verified.add((step, name))

    def _verify(self, step, name):
        damage, count, folder = "", jax.process_count(), self.directory / str(step) / name
        try:
            if not folder.is_dir():
                raise checksums.DamagedFile(f"{folder} is missing")
            if not checksums.verify(folder, jax.process_index(), count) and name == "state":
                logging.info("checkpoint %s/%d has no checksums: its files are not verified", self.directory, step)
        except checksums.DamagedFile as error:
            damage = str(error)
        if count > 1:
            finders = np.flatnonzero(multihost_utils.process_allgather(np.array([bool(damage)])).ravel())
            if len(finders) and not damage:
                damage = f"see the message of process {finders[0]}"
        if damage:
            raise DamagedCheckpoint(
                f"checkpoint {self.directory}/{step} is damaged: {damage}. Restore the file from a copy, or use an "
                f"earlier checkpoint (there are {self.steps()}); `t5x_like train --restore=previous` resumes from the "
                "newest intact one"
            )

    def delete_damaged(self) -> None:
        """Deletes the newest checkpoints if they are damaged, down to the newest intact one.

        Raises:
          DamagedCheckpoint: every checkpoint is damaged; nothing has been deleted.
        """
        damaged: list[int] = []
        for step in reversed(self.steps()):
            try:
                self.verify(step)
                break
            except DamagedCheckpoint as error:
                logging.warning("%s", error)
                damaged.append(step)
        else:
            if damaged:
                raise DamagedCheckpoint(
                    f"{self.directory}: every checkpoint is damaged ({damaged}), and none was deleted. Restore the "
                    "files from a copy, or start again in another MODEL_DIR"
                )
        for step in damaged:
            self.delete(step)

    def delete(self, step: int) -> None:
        """Deletes checkpoint `step`; called by all processes of a run."""
        logging.warning("deleting checkpoint %s/%d", self.directory, step)
        self.wait()
        self._manager.delete(step)

    def restore_feed(self, step: int) -> bytes:
        """The data position of this process at `step`."""
        self.verify(step, "feed")
        return self._manager.restore(step, args=ocp.args.Composite(feed=items.FeedRestore()))["feed"]

    def about(self, step: int) -> dict[str, Any]:
        """What `save` was told about this checkpoint."""
        self.verify(step, "about")
        return self._manager.restore(step, args=ocp.args.Composite(about=items.AboutRestore()))["about"]

    def shapes(self, step: int) -> dict[str, tuple[int, ...]]:
        """The shape of every stored tensor by (stacked) name."""
        self.verify(step, "state")
        metadata = self._manager.item_metadata(step)["state"]
        tree = getattr(metadata, "tree", metadata)
        return {name: tuple(leaf.shape) for name, leaf in _flatten(tree).items()}

    def _check(self, step, wanted):
        stored = self.shapes(step)
        missing = sorted(set(wanted) - set(stored))
        if missing:
            raise UserError(
                f"checkpoint {self.directory}/{step} has no tensor {missing[0]!r} ({len(missing)} of {len(wanted)} are "
                "missing): it was written by another model or optimizer"
            )
        for name, leaf in wanted.items():
            if stored[name] != tuple(leaf.shape):
                raise UserError(
                    f"checkpoint {self.directory}/{step}: {name} has shape {stored[name]}, this run's has {leaf.shape}"
                )

    def _require(self, step):
        if step not in self.steps():
            raise UserError(f"there is no complete checkpoint {step} in {self.directory}; there are {self.steps()}")

    def wait(self) -> None:
        """Blocks until the save in progress has committed."""
        self._manager.wait_until_finished()
        if self._uploading:
            self._uploading.result()

    def close(self) -> None:
        """Waits for the save in progress and releases what was opened."""
        self.wait()
        self._manager.close()
        if self._mirror:
            self._mirror.close()


def _detached(leaves: dict[str, Any]) -> dict[str, Any]:
    """Stacked leaves that share no buffer with `leaves` where a background writer could see a donated one change."""
    unrolled = any(parameters.stored_name(name)[1] is not None for name in leaves)
    on_cpu = next(iter(next(iter(leaves.values())).devices())).platform == "cpu"
    if not (unrolled or on_cpu):  # Orbax copies an accelerator's arrays to the host before it returns.
        return leaves
    return jax.jit(lambda arrays: parameters.stack({name: jnp.copy(leaf) for name, leaf in arrays.items()}))(leaves)


class _Mirror:
    """Checkpoints in a store that Orbax cannot write: through a local folder, committed by a marker object.

    `<url>/<step>/…` holds the files and `<url>/<step>.committed` says that all are there.
    """

    def __init__(self, url: str):
        if jax.process_count() > 1:
            raise UserError(f"MODEL_DIR={url}: several processes can write local paths and gs:// only")
        self._filesystem, root = fsspec.core.url_to_fs(url)
        self._root = root.rstrip("/")
        self._folder = tempfile.TemporaryDirectory(prefix="t5x_like_checkpoints_")
        self.local = self._folder.name
        for step in self._steps():
            self._filesystem.get(f"{self._root}/{step}/", f"{self.local}/{step}/", recursive=True)
            logging.info("copied checkpoint %d from %s", step, url)

    def _names(self) -> list[str]:
        self._filesystem.invalidate_cache()
        if not self._filesystem.exists(self._root):
            return []
        return [path.rstrip("/").rsplit("/", 1)[-1] for path in self._filesystem.ls(self._root, detail=False)]

    def _steps(self) -> set[int]:
        return {int(name.removesuffix(COMMITTED)) for name in self._names() if name.endswith(COMMITTED)}

    def upload(self) -> None:
        """Makes the store hold what the local folder holds."""
        local = {int(entry.name) for entry in epath.Path(self.local).iterdir() if entry.name.isdigit()}
        stored = self._steps()
        for step in sorted(local - stored):
            self._filesystem.makedirs(f"{self._root}/{step}", exist_ok=True)
            self._filesystem.put(f"{self.local}/{step}/", f"{self._root}/{step}/", recursive=True)
            self._filesystem.pipe_file(f"{self._root}/{step}{COMMITTED}", b"complete\n")
        for step in sorted(stored - local):
            self._filesystem.rm_file(f"{self._root}/{step}{COMMITTED}")
        for name in self._names():  # without their marker: deleted here, or half-written by a run that was killed
            if name.isdigit() and int(name) not in local:
                self._filesystem.rm(f"{self._root}/{name}", recursive=True)

    def close(self) -> None:
        self._folder.cleanup()
