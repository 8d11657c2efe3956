"""Losses between a student and a teacher with different tokenizers, which read the same text (docs/distillation.md).

The data has the tokens of both, and the groups of tokens that cover the same bytes (`data.retokenized`). All losses are
averages over the groups, or over the positions that they compare. Predictions of both networks are read in chunks.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.data.retokenized import STUDENT_GROUPS, TEACHER_GROUPS
from t5x_like.distillation.loss import ForwardPass, ModelSpec
from t5x_like.distillation.losses.token_groups import Positions, at, bounds, count_groups, sum_groups
from t5x_like.errors import UserError
from t5x_like.kernels import divergence
from t5x_like.kernels.chunks import Logits, Readout, map_networks
from t5x_like.kernels.cross_entropy import target_probabilities
from t5x_like.kernels.top_k import TopK
from t5x_like.objectives.base import Batch, Objective
from t5x_like.objectives.prediction import Scalar
from t5x_like.vocabularies import token_matches

# The smallest probability whose logarithm trl's GOLD computes.
_SMALLEST = 1e-8

PerPair = Float[Array, "batch pairs"]
TEACHER = "teacher/"
"""Prefix of the teacher's features in the rows of `AcrossTokenizers.weights`."""


class Pairs(NamedTuple):
    """Positions of student and teacher to be compared.

    Attributes:
      student: Positions of the student's predictions.
      teacher: Positions of the teacher's.
      weights: 1 for a pair, 0 for padding.
    """

    student: Positions
    teacher: Positions
    weights: PerPair


@dataclasses.dataclass(frozen=True, kw_only=True)
class AcrossTokenizers:
    """Base class of the losses across tokenizers. Implements `Loss`, except for `weights` and `__call__`."""

    # The prediction that is compared, of text.
    prediction: str = "targets"
    # Name of the only teacher that the loss reads; None with a single teacher.
    teacher: str | None = None

    def check(self, student: ModelSpec, teacher: ModelSpec) -> None:
        """Checks that the tokens of both networks are known; see `Loss.check`."""
        for spec in (student, teacher):
            if spec.tokens is None:
                raise UserError(
                    f"{type(self).__name__}: the tokenizer of {spec.name} is not known. Give a model with its "
                    "tokenizer, or VOCABULARY_PATH of the student."
                )
            if len(spec.tokens) > spec.config.vocab_size:
                raise UserError(
                    f"{type(self).__name__}: the vocabulary of {spec.name} has {len(spec.tokens)} tokens, but "
                    f"its model only {spec.config.vocab_size} embeddings. Give the tokenizer of this model, or a "
                    "model with a larger vocab_size."
                )
            if self.prediction not in spec.objective.coefficients:
                raise UserError(
                    f"{type(self).__name__}.prediction={self.prediction!r}: the objective of {spec.name} does not "
                    f"predict it. Give one of {', '.join(spec.objective.coefficients)}."
                )

    def captures(self, student: ModelSpec, teacher: ModelSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns no names: the loss reads predictions alone."""
        return (), ()

    def init(self, key: jax.Array, student: ModelSpec, teacher: ModelSpec) -> dict[str, nnx.Module]:
        """Returns no projections."""
        return {}

    def weights(self, rows: Batch, objective: Objective) -> Float[Array, "batch groups"]:
        """Returns 1 for each group; see `Loss.weights`.

        Args:
          rows: The features of the student, and those of the teacher with the prefix `teacher/`.
          objective: The objective of the student.
        """
        return count_groups(rows[TEACHER + STUDENT_GROUPS], rows[TEACHER + TEACHER_GROUPS])[1]

    def readouts(self, student: ForwardPass, teacher: ForwardPass, temperature: float = 1.0) -> tuple[Readout, Readout]:
        """Returns the predictions of student and teacher, whose logits are float32 and divided by a temperature.

        Of a teacher whose largest logits are stored, the probability of the other tokens is spread evenly over them.
        """
        found = []
        for forward_pass in (student, teacher):
            predicted, classes = forward_pass.predictions[self.prediction], forward_pass.spec.config.vocab_size
            if isinstance(predicted, TopK):
                found.append(Readout(predicted, functools.partial(_dense, classes=classes, temperature=temperature)))
            else:
                found.append(Readout(predicted.hidden, functools.partial(_scaled, predicted.logits, temperature)))
        return tuple(found)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OfPairs(AcrossTokenizers):
    """A loss that is a sum over pairs of positions of a function of the logits of both networks."""

    # T: the logits of both networks are divided by it before the softmax.
    temperature: float = 1.0

    def __post_init__(self):
        if self.temperature <= 0:
            raise UserError(
                f"{type(self).__name__}.temperature={self.temperature} is not positive. Give a positive number."
            )

    def pairs(self, student: Batch, teacher: Batch) -> Pairs:
        """Returns the first positions of each group: both networks have read the same bytes.

        Args:
          student: The features of the student.
          teacher: The features of the teacher, and the groups.
        """
        number, exists = count_groups(teacher[STUDENT_GROUPS], teacher[TEACHER_GROUPS])
        ours, theirs = (bounds(teacher[name], number).first for name in (STUDENT_GROUPS, TEACHER_GROUPS))
        return Pairs(ours, theirs, exists)

    def sum_pairs(
        self,
        student: ForwardPass,
        teacher: ForwardPass,
        function: Callable[[Logits, Logits, Any], PerPair],
        arrays: Any = (),
    ) -> Scalar:
        """Sums a function of float32 logits, divided by the temperature, over the pairs.

        Args:
          student: What the student computed.
          teacher: What the teacher computed.
          function: `function(student logits, teacher logits, arrays)` returns a value per pair.
          arrays: A tree of arrays `[batch, pairs, …]`.
        """
        found = self.pairs(student.batch, teacher.batch)
        ours, theirs = self.readouts(student, teacher, self.temperature)
        networks = [
            Readout(at(network.hidden, positions), network.logits)
            for network, positions in ((ours, found.student), (theirs, found.teacher))
        ]

        def of_chunk(logits, arrays):
            return function(logits[0], jax.lax.stop_gradient(logits[1]), arrays)

        return jnp.sum(map_networks(networks, of_chunk, arrays) * found.weights)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ULD(_OfPairs):
    """Σ |student - teacher| of the probabilities in descending order, per pair of positions.

    Source: Boizard et al. 2024 (Universal Logit Distillation), arXiv:2402.12030, equation 4. The smaller vocabulary is
    padded with zeros. The loss does not know which tokens it compares: it teaches how certain the teacher is.
    """

    # What is compared: the first positions of `groups`, or, as in the paper, `positions`: the i-th prediction of both,
    # up to the shorter text.
    align: Literal["groups", "positions"] = "groups"
    # How many of the largest probabilities are compared; None for all. Sorting a whole vocabulary takes longer than the
    # networks of small models.
    k: int | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.k is not None and self.k < 1:
            raise UserError(f"ULD.k={self.k} is not positive. Give a number of probabilities, or None for all.")
        if self.align not in ("groups", "positions"):
            raise UserError(f"ULD.align={self.align!r} is unknown. Give groups or positions.")

    def pairs(self, student: Batch, teacher: Batch) -> Pairs:
        """Returns the positions to compare; see `align`."""
        if self.align == "groups":
            return super().pairs(student, teacher)
        predicted = [rows["decoder_loss_weights"] > 0 for rows in (student, teacher)]
        pairs = jnp.arange(min(each.shape[1] for each in predicted))
        count = jnp.minimum(*(jnp.sum(each, axis=1, keepdims=True) for each in predicted))
        ours, theirs = (
            jnp.minimum(jnp.argmax(each, axis=1, keepdims=True) + pairs, each.shape[1] - 1) for each in predicted
        )
        return Pairs(ours, theirs, (pairs < count).astype(jnp.float32))

    def weights(self, rows: Batch, objective: Objective) -> Float[Array, "batch pairs"]:
        """Returns 1 for each pair; see `AcrossTokenizers.weights`."""
        teacher = {name.removeprefix(TEACHER): x for name, x in rows.items() if name.startswith(TEACHER)}
        return self.pairs(rows, teacher).weights

    def __call__(self, heads: Mapping[str, nnx.Module], student: ForwardPass, teacher: ForwardPass) -> Scalar:
        """Computes the loss; see `Loss`."""

        def of_pairs(ours, theirs, arrays):
            return _sorted_distance(jax.nn.softmax(ours), jax.nn.softmax(theirs), self.k)

        return self.sum_pairs(student, teacher, of_pairs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinED(_OfPairs):
    """T² · KL(teacher || student), where each teacher token stands for the student token of least edit distance.

    Source: the mapping of tokens of FuseLLM (Wan et al. 2024, arXiv:2401.10491, section 3.2), the baseline of this name
    in Minixhofer et al. 2025, arXiv:2503.20083. The first positions of the groups are compared, before which both
    networks have read the same bytes. The probabilities of tokens with the same nearest token are added.
    """

    def __call__(self, heads: Mapping[str, nnx.Module], student: ForwardPass, teacher: ForwardPass) -> Scalar:
        """Computes the loss; see `Loss`."""
        mapping = token_matches.nearest(teacher.spec.tokens, student.spec.tokens)

        def of_pairs(ours, theirs, arrays):
            known = jax.nn.softmax(theirs[..., : len(mapping)])
            mapped = jnp.zeros(ours.shape).at[..., mapping].add(known)
            kl = divergence.forward_kl(jnp.log(mapped), jax.nn.log_softmax(ours))
            return self.temperature**2 * kl

        return self.sum_pairs(student, teacher, of_pairs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GOLD(_OfPairs):
    """Jensen-Shannon divergence over the tokens that both vocabularies have, and sorted distance over the others.

    The distribution of a group is the one at its last position times the probabilities of its earlier tokens, by the
    chain rule; it does not sum to 1. Tokens match if they stand for the same bytes. The two parts are weighted by the
    share of the teacher's vocabulary that has a match, or by `matched_weight`. Logarithms are of probabilities of at
    least 1e-8.

    Source: GOLD (General On-policy Logit Distillation) of the library trl 1.16, `uld_use_hybrid_loss` with
    `uld_token_merge_strategy="bayesian"`, whose loss for a batch is the mean over rows of the means over groups.
    """

    # β of the divergence, in [0, 1]: 0 is KL(teacher || student), 1 is KL(student || teacher).
    beta: float = 0.5
    # Weight of the matched tokens, and 1 minus it of the others; None for the share of matched tokens.
    matched_weight: float | None = None

    def __post_init__(self):
        super().__post_init__()
        for name in ("beta", "matched_weight"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise UserError(f"GOLD.{name}={value} is out of range. Give a number in [0, 1].")

    def pairs(self, student: Batch, teacher: Batch) -> Pairs:
        """Returns the last positions of each group; see `_OfPairs.pairs`."""
        number, exists = count_groups(teacher[STUDENT_GROUPS], teacher[TEACHER_GROUPS])
        ours, theirs = (bounds(teacher[name], number).last for name in (STUDENT_GROUPS, TEACHER_GROUPS))
        return Pairs(ours, theirs, exists)

    def __call__(self, heads: Mapping[str, nnx.Module], student: ForwardPass, teacher: ForwardPass) -> Scalar:
        """Computes the loss; see `Loss`."""
        matches = token_matches.equal(student.spec.tokens, teacher.spec.tokens)
        share = len(matches.second) / teacher.spec.config.vocab_size
        matched = share if self.matched_weight is None else self.matched_weight
        earlier = self._earlier(student, teacher)

        def of_pairs(ours, theirs, earlier):
            merged = [jax.nn.softmax(x) * jnp.exp(e)[..., None] for x, e in zip((ours, theirs), earlier, strict=True)]
            logs = [
                jnp.log(jnp.maximum(x[..., ids], _SMALLEST))
                for x, ids in zip(merged, (matches.first, matches.second), strict=True)
            ]
            rest = [jnp.delete(x, ids, axis=-1) for x, ids in zip(merged, matches[:2], strict=True)]
            # trl compares the unmatched tokens only if both vocabularies have some.
            unmatched = _sorted_distance(*rest) if min(x.shape[-1] for x in rest) else 0.0
            return matched * divergence.generalized(self.beta)(logs[1], logs[0]) + (1 - matched) * unmatched

        return self.sum_pairs(student, teacher, of_pairs, earlier)

    def _earlier(self, student: ForwardPass, teacher: ForwardPass) -> tuple[PerPair, PerPair]:
        """Returns the log-probability of all tokens of each group but the last."""
        number, _ = count_groups(teacher.batch[STUDENT_GROUPS], teacher.batch[TEACHER_GROUPS])
        found = []
        for network, forward_pass, name in zip(
            self.readouts(student, teacher, self.temperature),
            (student, teacher),
            (STUDENT_GROUPS, TEACHER_GROUPS),
            strict=True,
        ):
            groups, targets = teacher.batch[name], forward_pass.batch["decoder_target_tokens"]
            is_last = groups != jnp.pad(groups, ((0, 0), (0, 1)))[:, 1:]
            of_tokens = target_probabilities(network.hidden, network.logits, targets).log_probability
            of_tokens = jnp.maximum(of_tokens, jnp.log(_SMALLEST))
            found.append(sum_groups(jnp.where(is_last, 0.0, of_tokens), groups, number))
        return found[0], jax.lax.stop_gradient(found[1])


def _scaled(logits: Callable[[Array], Logits], temperature: float, hidden: Array) -> Logits:
    return logits(hidden).astype(jnp.float32) / temperature


def _dense(stored: TopK, *, classes: int, temperature: float) -> Logits:
    """Returns the logits of all classes, among which the stored tail is spread evenly."""
    if temperature != stored.temperature and stored.ids.shape[-1] < classes:
        raise UserError(
            f"temperature={temperature}: the tail of the k={stored.ids.shape[-1]} stored logits of {classes} classes "
            f"was summed at temperature {stored.temperature}. Use this temperature, or store the logits of all classes."
        )
    others = max(classes - stored.ids.shape[-1], 1)
    even = jnp.broadcast_to((stored.log_tail - math.log(others))[..., None], (*stored.log_tail.shape, classes))
    return jnp.put_along_axis(even, stored.ids, stored.values / temperature, axis=-1, inplace=False)


def _sorted_distance(
    p: Float[Array, "batch pairs first"], q: Float[Array, "batch pairs second"], k: int | None = None
) -> Float[Array, "batch pairs"]:
    """Returns Σ |p - q| of the k largest values in descending order, the shorter ones padded with zeros."""
    size = max(p.shape[-1], q.shape[-1])
    if k is not None and k < size:
        p, q = (jax.lax.top_k(x, min(k, x.shape[-1]))[0] for x in (p, q))
        p, q = (jnp.pad(x, ((0, 0), (0, 0), (0, k - x.shape[-1]))) for x in (p, q))
    else:
        p, q = (jnp.pad(x, ((0, 0), (0, 0), (size - x.shape[-1], 0))) for x in (jnp.sort(p), jnp.sort(q)))
    return jnp.sum(jnp.abs(p - q), axis=-1)
