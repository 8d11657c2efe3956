"""Batches in which the targets of some rows are samples of the student (on-policy distillation)."""

import types
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from t5x_like.data.features import FeatureSpec, ModelFeature
from t5x_like.data.roles import make_feature
from t5x_like.decoding.generate import generate
from t5x_like.decoding.mixture import Mixture
from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError
from t5x_like.models.base import ModelConfig
from t5x_like.models.special_tokens import sampling_eos_ids
from t5x_like.objectives.base import Batch
from t5x_like.objectives.samples import place
from t5x_like.optimizers.schedules import Schedule, Step
from t5x_like.recorded import recorded

# Numbers of the keys of a step: which rows are replaced, and their samples.
_ROWS, _SAMPLES = 0, 1


@recorded
class OnPolicy:
    """Replaces the targets of some rows of each batch by samples of the student (Agarwal et al. 2024, algorithm 1).

    The student then learns from the teacher's distributions on its own mistakes. A row is replaced with a probability,
    the paper's λ; in the paper and in the library trl, that is the probability of a whole batch. Inputs and prompts
    stay. A decoder without inputs continues BOS, or else the first token of its row.

    A sample depends on the parameters, the step and the position of its row in the global batch, not on the number of
    microbatches and devices. If any row of a batch is replaced, all rows are sampled, so the time of a step does not
    depend on how many there are.

    Args:
      rate: Probability λ that a row is replaced: a number in [0, 1], or a function of the step.
      whole_batches: Whether all rows of a batch are replaced together, or none of them, as in the paper. Batches
        without samples then take less time.
      temperature: Divisor of the student's logits; positive.
      top_k: Number of the most probable tokens to sample from; 0: all.
      top_p: Total probability of the tokens to sample from; 1: all.
      max_length: Maximum number of sampled tokens; the rest of the row if None. A decoder keeps keys and values of its
        whole row and of as many tokens, so give the length of `targets`.
      eos_id: Token that ends a sample; None: each EOS of the model's special tokens.
      teacher_mix: α: each token is drawn from α · teacher + (1 - α) · student, in [0, 1); see `losses.MiniLLM`.

    Raises:
      UserError: An argument is out of range, or the tokens of a mixture are not drawn from all tokens at temperature 1.
    """

    def __init__(
        self,
        *,
        rate: float | Schedule = 1.0,
        whole_batches: bool = False,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        max_length: int | None = None,
        eos_id: int | None = None,
        teacher_mix: float = 0.0,
    ):
        if not callable(rate) and not 0 <= rate <= 1:
            raise UserError(f"OnPolicy.rate={rate}: not in [0, 1]. Give the share of rows whose targets are sampled.")
        if temperature <= 0:
            raise UserError(f"OnPolicy.temperature={temperature}: not positive. Give 1 for the student's distribution.")
        if not 0 <= teacher_mix < 1:
            raise UserError(f"OnPolicy.teacher_mix={teacher_mix}: not in [0, 1). Give 0.2, as MiniLLM, or 0.")
        if teacher_mix and (temperature, top_k, top_p) != (1, 0, 1):
            raise UserError(
                f"OnPolicy.teacher_mix={teacher_mix}: a mixture with temperature={temperature}, top_k={top_k}, "
                f"top_p={top_p} has no known weights. Give temperature=1, top_k=0 and top_p=1, or teacher_mix=0."
            )
        self.rate, self.eos_id, self.whole_batches = rate, eos_id, whole_batches
        self.teacher_mix = teacher_mix
        self.decoding = Decoding(temperature=temperature, top_k=top_k, top_p=top_p, max_length=max_length)

    def check(
        self,
        spec: FeatureSpec,
        *,
        coefficients: Mapping[str, float | Schedule] = types.MappingProxyType({}),
        cached: Collection[str] = frozenset(),
    ) -> None:
        """Checks that a decoder predicts targets that can be sampled.

        Args:
          spec: The features of student and teachers.
          coefficients: Term of the student's own objective -> its coefficient.
          cached: Names of the teachers whose predictions are cached.

        Raises:
          UserError: The objective predicts something else, its loss weights are a feature of the task, or a loss needs
            the targets of the task.
        """
        sources = {feature.name: feature.sources for feature in spec.features}
        if "targets" not in sources.get("decoder_target_tokens", ()):
            raise UserError(
                f"OnPolicy: samples are texts of a decoder, but the objective reads {', '.join(sources)}. Give an "
                "objective that predicts text, or omit OnPolicy."
            )
        if "targets" not in (weighted := sources["decoder_loss_weights"]):
            raise UserError(
                f"OnPolicy: {weighted[0]!r} of the task selects the tokens with a loss, which a sample does not have. "
                "Give prompts as `inputs` and answers as `targets`, as in runs/finetune.gin, or omit OnPolicy."
            )
        if used := [term for term, value in coefficients.items() if callable(value) or value != 0]:
            raise UserError(
                f"COEFFICIENTS: the term {used[0]!r} of the student has a coefficient, but with OnPolicy its targets "
                "are samples of the student. Give task=0."
            )
        if cached:
            raise UserError(
                f"OnPolicy: the cached predictions of {', '.join(cached)} belong to other targets. Run the teacher "
                "in the training step instead."
            )

    def check_model(self, config: ModelConfig) -> None:
        """Checks that EOS is known.

        Args:
          config: Configuration of the student.

        Raises:
          UserError: See `sampling_eos_ids`.
        """
        sampling_eos_ids(config.special_tokens, self.eos_id)

    def check_teachers(
        self,
        losses: Mapping[str, Any],
        teachers: Mapping[str, Any],
        retokenized: Collection[str],
        spec: FeatureSpec,
    ) -> None:
        """Checks that losses of samples expect the mixture that is sampled, and that a teacher can be a part of it.

        Args:
          losses: Name -> loss, perhaps with `teacher_mix`.
          teachers: Name -> teacher.
          retokenized: Names of the teachers with their own tokens.
          spec: Features of the student's own objective.

        Raises:
          UserError: A loss expects another mixture, or the only teacher does not predict the tokens of the student.
        """
        for name, loss in losses.items():
            if getattr(loss, "teacher_mix", self.teacher_mix) != self.teacher_mix:
                raise UserError(
                    f"loss {name!r} has teacher_mix={loss.teacher_mix}, OnPolicy has {self.teacher_mix}. Give both the "
                    "same, as TEACHER_MIX of distillation/minillm.gin does."
                )
        same = [each.objective.features.features == spec.features for each in teachers.values()]
        if self.teacher_mix and (len(teachers) > 1 or retokenized or not all(same)):
            raise UserError(
                f"OnPolicy.teacher_mix={self.teacher_mix}: the mixture needs one teacher, which reads the features and "
                f"the tokens of the student, not {', '.join(teachers)}. Give one such teacher, or teacher_mix=0."
            )

    def __call__(
        self, model: Any, spec: FeatureSpec, batch: Batch, *, key: jax.Array, step: Step, teacher: Any = None
    ) -> dict[str, Array]:
        """Returns a batch with samples of a model. Nothing in it has a gradient.

        Args:
          model: The student.
          spec: The features of the batch.
          batch: The global batch, with one example per row. Rows without targets stay as they are.
          key: Random key of the step.
          step: Number of the step from 0.
          teacher: The model of the teacher, for `teacher_mix`.

        Returns:
          The batch, with other features of the decoder in the chosen rows.
        """
        rate = self.rate(step) if callable(self.rate) else self.rate
        ids = jnp.arange(batch["decoder_loss_weights"].shape[0])
        ids = jnp.zeros_like(ids) if self.whole_batches else ids
        row_keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(key, _ROWS), ids)
        chosen = jax.vmap(jax.random.uniform)(row_keys) < rate
        chosen &= jnp.any(batch["decoder_loss_weights"] > 0, axis=1)
        sample_key = jax.random.fold_in(key, _SAMPLES)
        model = Mixture(model, teacher, self.teacher_mix) if self.teacher_mix else model
        sampled = jax.lax.cond(
            jnp.any(chosen),
            lambda: self._sampled(jax.lax.stop_gradient(model), spec, batch, sample_key),
            lambda: {name: batch[name] for name in _decoder_features(spec)},
        )
        return {**batch, **{name: jnp.where(chosen[:, None], x, batch[name]) for name, x in sampled.items()}}

    def _sampled(self, model: Any, spec: FeatureSpec, batch: Batch, key: jax.Array) -> dict[str, Array]:
        """Returns the features of the decoder with a sample in each row."""
        made = _decoder_features(spec)
        # The items of the joined sources, and the role of the weights, which tells where the targets begin.
        name = next(name for name, feature in made.items() if feature.role == "tokens")
        tokens, length = batch[name], batch[name].shape[1]
        first = jnp.argmax(batch["decoder_loss_weights"] > 0, axis=1, keepdims=True).astype(jnp.int32)
        before = first + made["decoder_loss_weights"].role.startswith("next")
        found = generate(model, _prompts(batch), self._resolved(model, spec, length), key)
        count = jnp.minimum(before + found.lengths[:, :1], length)
        joined = place(tokens, found.tokens[:, 0], before, count)
        return {name: make_feature(each.role, joined, count, before, spec.bos_id) for name, each in made.items()}

    def _resolved(self, model: Any, spec: FeatureSpec, length: int) -> Decoding:
        eos_ids = sampling_eos_ids(model.config.special_tokens, self.eos_id)
        return self.decoding.resolve(max_length=length, eos_ids=eos_ids, bos_id=spec.bos_id)


def _decoder_features(spec: FeatureSpec) -> Mapping[str, ModelFeature]:
    """Returns the features of the decoder by name: those with the source of its targets."""
    source = next(feature.source for feature in spec.features if feature.name == "decoder_target_tokens")
    return {feature.name: feature for feature in spec.features if feature.source == source}


def _prompts(batch: Batch) -> Batch:
    """Returns what `generate` reads: the inputs of an encoder, or rows of a decoder, which end before the targets."""
    encoder = {name: x for name, x in batch.items() if name.startswith("encoder_")}
    return encoder or {name: x for name, x in batch.items() if name.startswith("decoder_")}
