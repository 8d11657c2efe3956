"""Rules on the logits of the next token, such as a minimum length.

A rule is a function of the logits and the history of the rows. `compose` selects the rules that the settings ask for
when the program is traced, so that others cost nothing. The order follows transformers. A forbidden token gets -inf.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from t5x_like.decoding.settings import Decoding

Logits = Float[Array, "rows vocab"]


@struct.dataclass
class History:
    """The tokens so far.

    Attributes:
      prompt: Tokens before the first generated one, aligned at their end.
      present: Whether a position of `prompt` has a token; the others are padding.
      generated: Generated tokens, from the left.
      count: Number of generated tokens, the same for all rows.
      limit: Maximum number of generated tokens per row.
    """

    prompt: Int[Array, "rows prompt"]
    present: Bool[Array, "rows prompt"]
    generated: Int[Array, "rows length"]
    count: Int[Array, ""]
    limit: Int[Array, " rows"]

    @property
    def tokens(self) -> Int[Array, "rows prompt+length"]:
        """The prompt and the generated tokens. The first free position is `end`."""
        return jnp.concatenate([self.prompt, self.generated], axis=1)

    @property
    def known(self) -> Bool[Array, "rows prompt+length"]:
        """Whether a position of `tokens` has a token."""
        known = jnp.broadcast_to(jnp.arange(self.generated.shape[1]) < self.count, self.generated.shape)
        return jnp.concatenate([self.present, known], axis=1)

    @property
    def end(self) -> Int[Array, ""]:
        """Position of the next token in `tokens`."""
        return self.prompt.shape[1] + self.count


Rule = Callable[[Logits, History], Logits]


def compose(decoding: Decoding) -> Rule:
    """Returns the rule that applies all rules of the settings, in the order of transformers.

    Args:
      decoding: The resolved settings.
    """
    rules: list[Rule] = []
    if decoding.repetition_penalty != 1:
        rules.append(lambda logits, history: penalize_repetition(logits, history, decoding.repetition_penalty))
    if decoding.no_repeat_ngram_size:
        rules.append(lambda logits, history: forbid_repeated_ngrams(logits, history, decoding.no_repeat_ngram_size))
    if decoding.min_length and decoding.eos_ids:
        rules.append(lambda logits, history: forbid_early_end(logits, history, decoding.min_length, decoding.eos_ids))
    if decoding.forced_bos_id is not None:
        rules.append(lambda logits, history: force_token(logits, decoding.forced_bos_id, history.count == 0))
    if decoding.forced_eos_id is not None:
        rules.append(
            lambda logits, history: force_token(logits, decoding.forced_eos_id, history.count + 1 == history.limit)
        )

    def apply(logits, history):
        for rule in rules:
            logits = rule(logits, history)
        return logits

    return apply


def penalize_repetition(logits: Logits, history: History, penalty: float) -> Logits:
    """Divides positive logits of tokens that occurred before by the penalty, and multiplies negative ones by it.

    Args:
      logits: Logits of the next token.
      history: The tokens so far.
      penalty: Factor (Keskar et al. 2019, section 4.1).
    """
    penalized = jnp.where(logits < 0, logits * penalty, logits / penalty)
    return jnp.where(_contains(history.tokens, history.known, logits.shape[-1]), penalized, logits)


def forbid_repeated_ngrams(logits: Logits, history: History, size: int) -> Logits:
    """Forbids the tokens that would complete an n-gram that occurred before (Paulus et al. 2018, section 2.5).

    Args:
      logits: Logits of the next token.
      history: The tokens so far.
      size: Length of the n-grams.
    """
    tokens, known = history.tokens, history.known
    starts = tokens.shape[1] - size + 1
    if starts < 1:
        return logits
    last = jax.lax.dynamic_slice_in_dim(tokens, history.end - size + 1, size - 1, axis=1)
    # Whether the n-gram that starts at a position is complete and begins with the last n-1 tokens.
    repeats = known[:, :starts] & known[:, size - 1 :]
    for offset in range(size - 1):
        repeats &= tokens[:, offset : offset + starts] == last[:, offset, None]
    return jnp.where(_contains(tokens[:, size - 1 :], repeats, logits.shape[-1]), -jnp.inf, logits)


def forbid_early_end(logits: Logits, history: History, min_length: int, eos_ids: tuple[int, ...]) -> Logits:
    """Forbids EOS as one of the first `min_length` generated tokens."""
    is_eos = jnp.isin(jnp.arange(logits.shape[-1]), jnp.array(eos_ids))
    return jnp.where((history.count < min_length) & is_eos, -jnp.inf, logits)


def force_token(logits: Logits, token: int, when: Bool[Array, "..."]) -> Logits:
    """Makes a token the only one, with logit 0, in the rows where `when` is true.

    Args:
      logits: Logits of the next token.
      token: The token.
      when: Condition per row, or one for all rows.
    """
    forced = jnp.where(jnp.arange(logits.shape[-1]) == token, 0.0, -jnp.inf)
    return jnp.where(jnp.broadcast_to(when, logits.shape[:1])[:, None], forced, logits)


def _contains(
    tokens: Int[Array, "rows length"], selected: Bool[Array, "rows length"], vocab_size: int
) -> Bool[Array, "rows vocab"]:
    """Returns whether each token id is among the selected tokens of a row."""
    rows = jnp.arange(len(tokens))[:, None]
    return jnp.zeros((len(tokens), vocab_size), bool).at[rows, tokens].max(selected)
