"""A decoder on the rows of an encoder-decoder, whose teacher it then is."""

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array

from t5x_like.data import features, prompts, specs
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import DEFAULT_OPTIONS, Batch, Params, RunOptions
from t5x_like.objectives.token_prediction import TokenPrediction
from t5x_like.recorded import recorded


@recorded
class JoinedLM(TokenPrediction):
    """Predicts `targets` with a decoder that reads the rows of an encoder before those of a decoder.

    The decoder is the teacher of an encoder-decoder, whose features these are: it predicts the same targets at the same
    positions (Zhang et al. 2025, arXiv:2504.06225, section 3.2). A packed example sees its own inputs and targets. Its
    positions count its tokens; the windows of a model count the positions of the joined row.

    Args:
      bos_id: First token id of each text, which the encoder-decoder reads before the targets.
      encoder_bos: Whether the encoder reads the same id before the inputs, and no EOS after them; see
        `SequenceToSequence`. The targets then follow the inputs without an EOS in between.
      causal_inputs: Whether inputs attend only to earlier inputs, as in the pretraining of a decoder.
    """

    read_as = {"encoder_input_tokens": "decoder_input_tokens"}

    def __init__(self, *, bos_id: int = features.BOS_ID, encoder_bos: bool = False, causal_inputs: bool = True):
        super().__init__()
        self.encoder_bos, self.causal_inputs = encoder_bos, causal_inputs
        self.features = dataclasses.replace(specs.ENCODER_DECODER, bos_id=bos_id)
        if encoder_bos:
            self.features = prompts.with_encoder_bos(self.features)

    def read_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the joined rows; see `Objective.read_shapes`."""
        (rows, inputs), (_, targets) = (shapes[f"{stack}_input_tokens"] for stack in ("encoder", "decoder"))
        return super().read_shapes(shapes) | {"decoder_input_tokens": (rows, inputs + targets)}

    def run(self, params: Params, rows: Batch, options: RunOptions = DEFAULT_OPTIONS) -> Outputs:
        """Runs the decoder on the joined rows, and returns the states of the targets; see `Objective.run`."""
        outputs = super().run(params, self.join(rows), options)
        return outputs.replace(hidden=outputs.hidden[:, rows["encoder_input_tokens"].shape[1] :])

    def join(self, rows: Batch) -> dict[str, Array]:
        """Returns the features of a decoder that reads BOS, the inputs, and the targets but the last.

        The inputs are shifted right by one: BOS is their first, and their last stands where the decoder of the rows
        reads BOS. Targets without inputs keep it. Inputs that begin with BOS already are not shifted, and nothing sees
        the position of their last.

        Args:
          rows: The features of an encoder-decoder.
        """
        names = ("input_tokens", "segment_ids", "positions")
        inputs, targets = ({name: rows[f"{stack}_{name}"] for name in names} for stack in ("encoder", "decoder"))
        is_input = inputs["segment_ids"][:, None] == targets["segment_ids"][..., None]
        num_inputs = jnp.sum(is_input, axis=-1, dtype=targets["positions"].dtype)
        is_last = is_input & (inputs["positions"][:, None] == num_inputs[..., None] - 1)
        last_input = jnp.sum(jnp.where(is_last, inputs["input_tokens"][:, None], 0), axis=-1)
        is_first, before = targets["positions"] == 0, num_inputs
        targets["input_tokens"] = jnp.where(is_first & (num_inputs > 0), last_input, targets["input_tokens"])
        if self.encoder_bos:
            before = jnp.maximum(num_inputs - 1, 0)
            has_next = inputs["segment_ids"] == jnp.roll(inputs["segment_ids"], -1, axis=1).at[:, -1].set(0)
            inputs["segment_ids"] = jnp.where(has_next, inputs["segment_ids"], 0)
        else:
            shifted = jnp.roll(inputs["input_tokens"], 1, axis=1)
            inputs["input_tokens"] = jnp.where(inputs["positions"] == 0, self.features.bos_id, shifted)
        targets["positions"] = targets["positions"] + before
        joined = {f"decoder_{name}": jnp.concatenate([inputs[name], targets[name]], axis=1) for name in names}
        if not self.causal_inputs:
            of_inputs = jnp.concatenate([jnp.ones_like(inputs["positions"]), is_first], axis=1)
            joined["decoder_prefix"] = of_inputs.astype(jnp.int32)
        return joined
