"""What a stored model predicts for rows of random tokens, by the program with which `infer` predicts."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from t5x_like.benchmarking import memory, synthetic
from t5x_like.data.records import Record
from t5x_like.decoding.settings import Decoding
from t5x_like.inference.predictors import TextOptions, predictor_for, predicts_text
from t5x_like.objectives.base import Batch
from t5x_like.stored.loaded import Loaded
from t5x_like.training.program import check_inputs

# Smaller ids are special tokens in most vocabularies.
_FIRST_ID = 2


@dataclasses.dataclass(frozen=True)
class CompiledPrediction:
    """The compiled prediction of a number of rows.

    Attributes:
      call: Function without arguments that returns arrays.
      peak_bytes: Peak memory of the program with its arguments, in bytes, which the compiler computes.
    """

    call: Callable[[], Any]
    peak_bytes: float


class Prediction:
    """The prediction of a model: the outputs of its heads, or generated text.

    Text is generated greedily, as many tokens as `targets` has, because no token ends it.

    Args:
      loaded: The model.
      lengths: Task feature -> length in tokens. All rows are full.

    Attributes:
      description: What is computed.

    Raises:
      UserError: The model does not predict, or a length is missing.
    """

    def __init__(self, loaded: Loaded, lengths: Mapping[str, int]):
        self._loaded = dataclasses.replace(loaded, task_feature_lengths=dict(lengths), decoding=Decoding())
        self._spec, self._lengths = loaded.features, lengths
        self._generates = predicts_text(self._spec)
        options = TextOptions(decoding=Decoding(eos_ids=())) if self._generates else TextOptions()
        self._predictor = predictor_for(self._loaded, options)
        if self._generates:
            read, generated = lengths["inputs"], lengths["targets"]
            self.description = f"greedy generation of {generated:,} tokens for {read:,} tokens of input"
        else:
            shapes = self._spec.row_shapes(lengths)
            check_inputs(loaded.resolved, loaded.objective, {name: (1, *shape) for name, shape in shapes.items()})
            tokens = [f"{lengths[name]:,} {name}" for name in self._spec.length_keys if name in lengths]
            self.description = f"predictions of {type(loaded.objective).__name__} for rows of {', '.join(tokens)}"

    def load(self) -> Any:
        """Reads the parameters, in the form in which the prediction reads them."""
        return self._predictor.load()

    def compile(self, params: Any, rows: int) -> CompiledPrediction:
        """Compiles the prediction of some rows.

        Args:
          params: The parameters.
          rows: Number of rows.
        """
        partitioner = self._loaded.partitioner
        batch = partitioner.put_batch(self._batch(rows), self._spec.axes)
        arguments = (params, batch, np.arange(rows, dtype=np.int32), jax.random.key(0))
        program = partitioner.jit(self._predictor.compute, out_shardings=partitioner.replicated)
        compiled = program.lower(*arguments).compile()
        used = memory.of_program(compiled, partitioner.platform)
        return CompiledPrediction(lambda: compiled(*arguments), used.peak)

    def _batch(self, rows: int) -> Batch:
        vocab_size = self._loaded.config.vocab_size
        if not self._generates:
            shapes = {name: (rows, *shape) for name, shape in self._spec.row_shapes(self._lengths).items()}
            return synthetic.make_batch(self._spec, shapes, vocab_size)
        ids = np.random.default_rng(0).integers(_FIRST_ID, vocab_size, self._lengths["inputs"])
        examples = self._predictor.examples("random tokens", [Record(1, {"inputs": ids.tolist()})])
        return examples.batch(examples.read(0, 1), rows, examples.longest)


def held_bytes(params: Any) -> int:
    """Returns the bytes of parameters on a device."""
    leaves = jax.tree.leaves(params)
    return sum(shard.data.nbytes for leaf in leaves for shard in leaf.addressable_shards[:1])
