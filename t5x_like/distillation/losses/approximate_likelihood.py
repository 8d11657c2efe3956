"""Approximate likelihood matching: a loss of the probabilities that two tokenizers give to the same text."""

import dataclasses
from collections.abc import Mapping
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.data.retokenized import STUDENT_GROUPS, STUDENT_WORDS, TEACHER_GROUPS, TEACHER_WORDS
from t5x_like.distillation.loss import ForwardPass
from t5x_like.distillation.losses.across_tokenizers import TEACHER, AcrossTokenizers
from t5x_like.distillation.losses.token_groups import bounds, count_groups, sum_groups
from t5x_like.errors import UserError
from t5x_like.kernels.chunks import Readout, map_networks
from t5x_like.objectives.base import Batch, Objective
from t5x_like.objectives.prediction import Scalar
from t5x_like.vocabularies.token_bytes import TokenBytes

# Largest log y, so that log(1 - y) is finite.
_LARGEST = -1e-6
_ARRAYS = {"groups": (STUDENT_GROUPS, TEACHER_GROUPS), "words": (STUDENT_WORDS, TEACHER_WORDS)}


class _Tokens(NamedTuple):
    """What a network predicts at each position.

    Attributes:
      target: Log-probability of the target token.
      complete: Log-probability that the token begins with whitespace or is EOS: the text before it ends a word.
      bias: Probability of the longer tokens that begin with the bytes of the target.
    """

    target: Float[Array, "batch positions"]
    complete: Float[Array, "batch positions"]
    bias: Float[Array, "batch positions"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ALM(AcrossTokenizers):
    """-[y_T log y_S + (1 - y_T) log(1 - y_S)] of the probabilities of the same bytes, in nats per chunk.

    A chunk is a group of tokens that cover the same bytes, or a run of groups up to the end of a word. Its probability
    is the product of the probabilities of its tokens, and y = probability^(1 / tau); y_S is the student's, y_T the
    teacher's. log y is at most -1e-6.

    Source: Minixhofer et al. 2025 (Approximate Likelihood Matching), arXiv:2503.20083, equations 5 and 6, with tau=100;
    section 3.3 for outcomes and for the bias of tokenizers: a token also says that no longer token with the same
    beginning follows, which the other tokenizer may not say.
    """

    # What is compared: the smallest `groups`, or `words`, after which no tokenizer could go on within a token.
    chunks: Literal["groups", "words"] = "groups"
    # τ: the probabilities are raised to the power of 1 / tau.
    tau: float = 100.0
    # Whether a word's probability includes that whitespace or EOS follows, with any token. Needs chunks='words'.
    outcome: bool = False
    # Largest bias: chunks are left out whose last token has longer continuations of a larger total probability, by
    # either network. They still count in the average, which depends on the data alone. None: no limit; 1e-4 is the
    # paper's.
    max_bias: float | None = None

    def __post_init__(self):
        if self.chunks not in _ARRAYS:
            raise UserError(f"ALM.chunks={self.chunks!r} is unknown. Give {' or '.join(_ARRAYS)}.")
        if self.tau <= 0:
            raise UserError(f"ALM.tau={self.tau} is not positive. Give a number such as 100.")
        if self.outcome and self.chunks != "words":
            raise UserError("ALM.outcome=True: only words have an outcome. Give chunks='words', or outcome=False.")
        if self.max_bias is not None and not 0 < self.max_bias <= 1:
            raise UserError(f"ALM.max_bias={self.max_bias} is not a probability in (0, 1]. Give 1e-4, or None.")

    def weights(self, rows: Batch, objective: Objective) -> Float[Array, "batch chunks"]:
        """Returns 1 for each chunk; see `AcrossTokenizers.weights`."""
        return count_groups(*(rows[TEACHER + name] for name in _ARRAYS[self.chunks]))[1]

    def __call__(self, heads: Mapping[str, nnx.Module], student: ForwardPass, teacher: ForwardPass) -> Scalar:
        """Computes the loss; see `Loss`."""
        groups = [teacher.batch[name] for name in _ARRAYS[self.chunks]]
        number, exists = count_groups(*groups)
        log_y = []
        for network, forward_pass, of_network in zip(
            self.readouts(student, teacher), (student, teacher), groups, strict=True
        ):
            found = self._tokens(network, forward_pass.batch["decoder_target_tokens"], forward_pass.spec.tokens)
            last = bounds(of_network, number).last
            total = sum_groups(found.target, of_network, number)
            if self.outcome:
                weights = forward_pass.batch["decoder_loss_weights"]
                follows = jnp.pad(weights > 0, ((0, 0), (0, 1)))[:, 1:]  # not after EOS at the end
                total += jnp.take_along_axis(jnp.where(follows, _next(found.complete), 0.0), last, axis=1)
            if self.max_bias is not None:
                exists *= jnp.take_along_axis(found.bias, last, axis=1) < self.max_bias
            log_y.append(jnp.minimum(total / self.tau, _LARGEST))
        ours, theirs = log_y[0], jax.lax.stop_gradient(log_y[1])
        cross_entropy = -(jnp.exp(theirs) * ours - jnp.expm1(theirs) * jnp.log(-jnp.expm1(ours)))
        return jnp.sum(jnp.where(exists > 0, cross_entropy, 0.0))

    def _tokens(self, network: Readout, targets: Int[Array, "batch positions"], tokens: TokenBytes) -> _Tokens:
        """Reads the predictions of a network in chunks. What the loss does not need is 0."""
        starts = np.flatnonzero(tokens.word_starts)
        order, begin, end = _longer(tokens) if self.max_bias is not None else (None, None, None)

        def of_chunk(logits, targets):
            log_p = jax.nn.log_softmax(logits[0])
            target = jnp.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]
            complete = jax.nn.logsumexp(log_p[..., starts], axis=-1) if self.outcome else jnp.zeros_like(target)
            bias = jnp.zeros_like(target)
            if order is not None:
                up_to = jnp.pad(jnp.cumsum(jnp.exp(log_p[..., order]), axis=-1), ((0, 0), (0, 0), (1, 0)))
                ends = (jnp.take_along_axis(up_to, x[targets][..., None], axis=-1)[..., 0] for x in (end, begin))
                bias = jax.lax.stop_gradient(jnp.subtract(*ends))
            return _Tokens(target, complete, bias)

        return map_networks([network], of_chunk, targets)


def _next(x: Float[Array, "batch positions"]) -> Float[Array, "batch positions"]:
    return jnp.pad(x, ((0, 0), (0, 1)))[:, 1:]


def _longer(tokens: TokenBytes) -> tuple[np.ndarray, Int[Array, " vocab"], Int[Array, " vocab"]]:
    """Returns the order of tokens by their bytes, and where in it the longer tokens that begin with each token are."""
    ids = sorted((index for index, token in enumerate(tokens.of) if token), key=lambda index: tokens.of[index])
    size = len(tokens)
    begin, end, open_tokens = np.zeros(size, np.int32), np.zeros(size, np.int32), []
    for at, index in enumerate(ids):
        while open_tokens and not tokens.of[index].startswith(tokens.of[open_tokens[-1]]):
            end[open_tokens.pop()] = at
        begin[index] = at + 1
        open_tokens.append(index)
    end[open_tokens] = len(ids)
    return np.array(ids), jnp.asarray(begin), jnp.asarray(end)
