"""Generation of text by a model, one token at a time: greedy, by beam search, or sampled."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from t5x_like.adapters import model_adapters
from t5x_like.decoding.beam import beam_search
from t5x_like.decoding.generated import Generated
from t5x_like.decoding.mixture import Mixture
from t5x_like.decoding.parameters import for_decoding
from t5x_like.decoding.sampling import keys_of_samples, sample
from t5x_like.decoding.settings import Decoding
from t5x_like.decoding.start import Start
from t5x_like.errors import UserError


def generate(
    model: Any,
    batch: Mapping[str, Int[Array, "batch inputs"]],
    decoding: Decoding,
    key: jax.Array | None = None,
    *,
    example_ids: Int[Array, " batch"] | None = None,
) -> Generated:
    """Generates the targets of an encoder-decoder, or continues the prompts of a decoder.

    The inputs or prompts are processed in one forward pass, and all samples or beams of a row share its result.
    Generation ends early once every row is finished: by EOS, by the model's maximum length, or because no open beam can
    win.

    Args:
      model: Has `decode_step` and `unembed`. An encoder-decoder also has `encode` and `init_cache`; a decoder has
        `prefill`, and `config.max_length` if it limits its positions. `mixture.Mixture` has two models.
      batch: `encoder_input_tokens` with 0 for padding, or prompts as `prompts.left_pad` reads them.
      decoding: The settings, resolved by `Decoding.resolve`.
      key: Random key; only sampling needs it.
      example_ids: Number of each row, which determines its samples together with the key, in any batch and on any
        devices. The default is 0, 1, 2 ….

    Returns:
      The generated texts, `decoding.samples` per row.

    Raises:
      UserError: A field of `decoding` is missing, or sampling has no key.
    """
    if missing := [name for name in ("max_length", "eos_ids", "bos_id") if getattr(decoding, name) is None]:
        values = ", ".join(f"{name}=…" for name in missing)
        raise UserError(f"Decoding: missing {', '.join(missing)}. Give Decoding({values}), or call Decoding.resolve.")
    keys = None
    if decoding.temperature > 0:
        if key is None:
            raise UserError(f"temperature={decoding.temperature}: sampling needs a random key. Give `key`.")
        ids = jnp.arange(len(next(iter(batch.values())))) if example_ids is None else example_ids
        keys = keys_of_samples(key, ids, decoding.samples)
    model = model.map(_prepared) if isinstance(model, Mixture) else _prepared(model)
    start = Start.of(model, batch, max_length=decoding.max_length, bos_id=decoding.bos_id)

    def step(tokens, cache, count):
        hidden, cache = model.decode_step(tokens[:, None], cache, start.index + count)
        return model.unembed(hidden)[:, 0], cache

    if decoding.beams > 1:
        found = beam_search(step, start, decoding)
        return jax.tree.map(lambda x: x[:, : decoding.samples], found)
    return sample(step, start, decoding, keys)


def _prepared(model: Any) -> Any:
    return for_decoding(model_adapters.computed(model))
