"""An objective that draws: language modeling in which the model does not see some input tokens (Bowman et al. 2016)."""

import jax
import jax.numpy as jnp

from t5x_like.objectives.base import DEFAULT_OPTIONS
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.recorded import recorded


@recorded
class WordDropoutLM(CausalLM):
    """Predicts each token from the tokens before it, of which a random part is replaced by token 0.

    Args:
      rate: Probability that the model does not see an input token.
      bos_id: See `CausalLM`.
    """

    draws = True

    def __init__(self, *, rate=0.3, bos_id=0):
        super().__init__(bos_id=bos_id)
        self.rate = rate

    def run(self, params, rows, options=DEFAULT_OPTIONS):
        if options.keys.rows is not None:
            tokens = rows["decoder_input_tokens"]
            hidden = jax.vmap(lambda key: jax.random.bernoulli(key, self.rate, tokens.shape[1:]))(options.keys.rows)
            rows = {**rows, "decoder_input_tokens": jnp.where(hidden, 0, tokens)}
        return super().run(params, rows, options)
