"""`t5x_like convert`: weights from and to Hugging Face folders."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging

from t5x_like import initial, interop, parameters, partitioning, paths, run_folder, weight_files
from t5x_like.checkpoints import Checkpoints
from t5x_like.errors import UserError

_PARAMS = "params/"


def convert(*, checkpoint_path: str, output_path: str, model: Any = None) -> str:
    """Writes a checkpoint in the other format: a Hugging Face folder as a run folder, a run as a Hugging Face folder.

    A run folder written here holds one checkpoint, of step 0, with the network and the heads that the Hugging Face
    folder has, and a config.gin that describes the network. INITIAL_CHECKPOINT_PATH of `train`, and CHECKPOINT_PATH
    and MODEL_DIR of the commands that read a run, take it. Numbers stay as they are: float32, or what float16 and
    bfloat16 are in float32.

    Args:
      checkpoint_path: a Hugging Face folder with safetensors, or a run folder or one of its checkpoints.
      output_path: the folder to write, local or in a bucket.
      model: the configuration of the network; not needed to read a Hugging Face folder, whose config.json has it.

    Returns:
      `output_path`.

    Raises:
      UserError: the output exists, the network cannot be stored in the other format, or a tensor is missing,
        superfluous or of the wrong shape, by its name. Nothing has been written then.
    """
    if paths.exists(output_path) and paths.listdir(output_path):
        raise UserError(f"output_path={output_path!r} exists and is not empty: give a new folder")
    if weight_files.is_huggingface(checkpoint_path):
        stored = interop.config_from_huggingface(checkpoint_path)
        leaves = interop.read(checkpoint_path, model or stored)
        config = dataclasses.replace(model or stored, vocab_size=stored.vocab_size)
        _write_run(leaves, config, checkpoint_path, output_path)
    else:
        if model is None:
            if initial.find_step(checkpoint_path) is None:
                raise UserError(weight_files.explain_missing(checkpoint_path))
            raise UserError(
                f"{checkpoint_path}: config.gin, which describes the model, not found. Give it with --gin_file=models/…"
            )
        leaves = _read_run(checkpoint_path)
        interop.to_huggingface(leaves, model, output_path)
    _report(leaves, checkpoint_path, output_path)
    return output_path


def _read_run(path: str) -> dict[str, Any]:
    """The parameters of a checkpoint by stored name, `model/…` and `objective/…`."""
    directory, step = initial.locate(path)
    reader = Checkpoints(directory, read_only=True)
    try:
        step = reader.latest() if step is None else step
        if step is None:
            raise UserError(weight_files.explain_missing(path))
        sharding = partitioning.Partitioner(rules="dp").replicated
        shapes = {
            name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)
            for name, shape in reader.shapes(step).items()
            if name.startswith(_PARAMS)
        }
        return {name.removeprefix(_PARAMS): leaf for name, leaf in reader.read(step, shapes).items()}
    finally:
        reader.close()


def _write_run(leaves: Mapping[str, Any], config: Any, source: str, output_path: str) -> None:
    keeper = Checkpoints(paths.join(output_path, "checkpoints"))
    try:
        arrays = {name: jnp.asarray(leaf) for name, leaf in leaves.items()}
        keeper.save(0, {"params": arrays}, about={"converted_from": source})
        keeper.wait()
    finally:
        keeper.close()
    # Last: a folder with a config.gin is whole.
    paths.write_atomic(paths.join(output_path, run_folder.CONFIG), describe(config))


def describe(config: Any) -> str:
    """The configuration of a network as a gin file that sets MODEL."""
    module, name = type(config).__module__, type(config).__qualname__
    package, _, last = module.rpartition(".")
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return "\n".join(
        [
            "from __gin__ import dynamic_registration",
            "",
            f"from {package} import {last}",
            "",
            f"MODEL = @{last}.{name}()",
            f"{last}.{name}:",
            *(f"  {field} = {value!r}" for field, value in fields.items()),
            "",
        ]
    )


def _report(leaves, checkpoint_path, output_path):
    counts = {
        root: parameters.count({name: leaf for name, leaf in leaves.items() if name.startswith(f"{root}/")})
        for root in ("model", "objective")
    }
    heads = sorted({name.split("/")[1] for name in leaves if name.startswith("objective/")})
    logging.info(
        "%s -> %s: %d tensors, network of %s parameters, %s",
        checkpoint_path,
        output_path,
        len(leaves),
        f"{counts['model']:,}",
        f"heads of {counts['objective']:,}: {', '.join(heads)}" if heads else "no heads",
    )
