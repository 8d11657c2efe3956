"""Checkpoints: one Orbax step directory that holds model, optimizer, data position and dropout key.

On disk every stack of layers is one `[layers, …]` array, whatever the layout at run time (see `parameters.stack`), so a
checkpoint written by an unrolled CPU run restores into a scanned TPU run, on another mesh too.

A step directory holds the items `state` (arrays by nested name), `feed` (the data position, one file a process) and
`about` (JSON: what was written, by which versions). It appears under its final name only when complete.
"""

import concurrent.futures
import dataclasses
import functools
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import fsspec
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from orbax.checkpoint import checkpoint_managers as policies

from t5x_like import parameters
from t5x_like.errors import UserError

_NATIVE_SCHEMES = ("", "file", "gs")


class FeedHandler(ocp.CheckpointHandler):
    """Stores the opaque data position of each process in a file of its own."""

    def save(self, directory: epath.Path, args: "FeedSave"):
        (directory / f"process_{jax.process_index()}_of_{jax.process_count()}.bin").write_bytes(args.position)

    def restore(self, directory: epath.Path, args: "FeedRestore | None" = None) -> bytes:
        """This process's position; where another number of processes wrote it, the first one's.

        That means the same to all where data is read in one order, as from a cache. A live feed knows which process
        wrote it, and refuses.
        """
        path = directory / f"process_{jax.process_index()}_of_{jax.process_count()}.bin"
        if not path.exists():
            path = min(directory.glob("process_0_of_*.bin"), default=path)
        return path.read_bytes()

    def finalize(self, directory: epath.Path):
        pass

    def close(self):
        pass


@ocp.args.register_with_handler(FeedHandler, for_save=True)
@dataclasses.dataclass
class FeedSave(ocp.args.CheckpointArgs):
    position: bytes


@ocp.args.register_with_handler(FeedHandler, for_restore=True)
@dataclasses.dataclass
class FeedRestore(ocp.args.CheckpointArgs):
    pass


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


def stacked_shapes(like: Any, partitioner: Any) -> dict[str, jax.ShapeDtypeStruct]:
    """The stacked leaves of `like` (arrays or shapes) as shapes with the sharding that they restore to."""
    axes = parameters.logical_axes(like)
    unrolled = parameters.named_leaves(like)
    shapes = parameters.stack({name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in unrolled.items()})
    by_stored_name = {parameters.stored_name(name)[0]: axes[name] for name in unrolled}
    sharded = {}
    for name, shape in shapes.items():
        logical = by_stored_name[name]
        if len(logical) < len(shape.shape):
            logical = (parameters.LAYERS, *logical)
        sharding = jax.sharding.NamedSharding(partitioner.mesh, partitioner.spec(logical, shape.shape, name))
        sharded[name] = jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)
    return sharded


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
          UserError: `keep_latest` is not positive.
        """
        if keep_latest < 1:
            raise UserError(f"keep_latest={keep_latest}: at least the newest checkpoint is kept")
        scheme = directory.split("://", 1)[0] if "://" in directory else ""
        self._mirror = None if scheme in _NATIVE_SCHEMES else _Mirror(directory)
        self._uploader = concurrent.futures.ThreadPoolExecutor(max_workers=1)
        self._uploading: concurrent.futures.Future | None = None
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
            read_only=read_only,
            save_interval_steps=0 if read_only else 1,  # 1 is Orbax's default, and warned about there
            create=not read_only,
            cleanup_tmp_directories=not read_only,
        )
        root = epath.Path(self._mirror.local if self._mirror else directory)
        if "://" not in str(root):
            root = epath.Path(os.path.abspath(root))
        self.directory = root
        handlers = {"state": ocp.PyTreeCheckpointHandler(), "feed": FeedHandler(), "about": ocp.JsonCheckpointHandler()}
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
                state=ocp.args.PyTreeSave(_nest(leaves)),
                feed=FeedSave(feed),
                about=ocp.args.JsonSave(dict(about or {})),
            ),
            metrics=None if metrics is None else dict(metrics),
            force=True,
        )
        if self._mirror:
            self._uploading = self._uploader.submit(self._upload)

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
          UserError: a tensor of `like` is missing in the checkpoint, or has another shape there.
        """
        shapes = stacked_shapes(like, partitioner)
        return self._restore_stacked(step, shapes, like, partitioner, "")

    def restore_part(self, step: int, like: Any, partitioner: Any, prefix: str) -> Any:
        """The subtree named `prefix`, such as `params/model`, of checkpoint `step`; otherwise as `restore`."""
        shapes = {f"{prefix}/{name}": leaf for name, leaf in stacked_shapes(like, partitioner).items()}
        return self._restore_stacked(step, shapes, like, partitioner, prefix + "/")

    def _restore_stacked(self, step, shapes, like, partitioner, prefix):
        self._require(step)
        self._check(step, shapes)
        restore_args = {
            name: ocp.ArrayRestoreArgs(sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype)
            for name, leaf in shapes.items()
        }
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                state=ocp.args.PyTreeRestore(item=_nest(shapes), restore_args=_nest(restore_args), partial_restore=True)
            ),
        )
        leaves = {name.removeprefix(prefix): leaf for name, leaf in _flatten(restored["state"]).items()}
        unstack = functools.partial(parameters.unstack, like=like)
        return partitioner.jit(lambda arrays: unstack(arrays), out_shardings=partitioner.shardings(like))(leaves)

    def restore_feed(self, step: int) -> bytes:
        """The data position of this process at `step`."""
        self._require(step)
        return self._manager.restore(step, args=ocp.args.Composite(feed=FeedRestore()))["feed"]

    def about(self, step: int) -> dict[str, Any]:
        """What `save` was told about this checkpoint."""
        self._require(step)
        return self._manager.restore(step, args=ocp.args.Composite(about=ocp.args.JsonRestore()))["about"]

    def shapes(self, step: int) -> dict[str, tuple[int, ...]]:
        """The shape of every stored tensor by (stacked) name."""
        self._require(step)
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
        return {int(name.removesuffix(".committed")) for name in self._names() if name.endswith(".committed")}

    def upload(self) -> None:
        """Makes the store hold what the local folder holds."""
        local = {int(entry.name) for entry in epath.Path(self.local).iterdir() if entry.name.isdigit()}
        stored = self._steps()
        for step in sorted(local - stored):
            self._filesystem.makedirs(f"{self._root}/{step}", exist_ok=True)
            self._filesystem.put(f"{self.local}/{step}/", f"{self._root}/{step}/", recursive=True)
            self._filesystem.pipe_file(f"{self._root}/{step}.committed", b"complete\n")
        for step in sorted(stored - local):
            self._filesystem.rm_file(f"{self._root}/{step}.committed")
        for name in self._names():  # without their marker: deleted here, or half-written by a run that was killed
            if name.isdigit() and int(name) not in local:
                self._filesystem.rm(f"{self._root}/{name}", recursive=True)

    def close(self) -> None:
        self._folder.cleanup()
