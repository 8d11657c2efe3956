"""The objective of a student that learns from teachers."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from t5x_like.data.attached import Attached
from t5x_like.distillation import features
from t5x_like.distillation.loss import Deferred, LogitLoss, Loss, Network, View
from t5x_like.distillation.on_policy import OnPolicy
from t5x_like.errors import UserError
from t5x_like.kernels.chunks import PositionLoss, Readout, sum_over_positions, weighted_sum_over_positions
from t5x_like.kernels.top_k import TopK
from t5x_like.models.base import ModelConfig
from t5x_like.objectives.base import Batch, Params, Scalar, Terms
from t5x_like.objectives.component import Component, flatten_choices, key_of_heads
from t5x_like.optimizers.schedules import Schedule

# Head that holds the projections of the losses, `objective/distillation/LOSS/TEACHER/PROJECTION`.
PROJECTIONS = "distillation"
# Key of the coefficient of the student's own terms.
TASK = "task"
STUDENT = "student"
# (Term, teacher) -> loss of the same logits; the teacher is None for the student's own loss.
PositionLosses = Mapping[tuple[str, str | None], PositionLoss]
# Sums the losses of the same logits: (sum to differentiate, the same keys -> tree of sums).
SumLosses = Callable[[Readout, PositionLosses], tuple[Scalar | float, dict[tuple[str, str | None], Any]]]
# Number of the key of the projections among the keys derived from that of the heads, which count from 0.
_PROJECTIONS_KEY = 2**31


class Teacher(Protocol):
    """A frozen network, whose parameters are at `params["teachers"][name]` unless its predictions are cached.

    Attributes:
      config: configuration of its model.
      objective: what it predicts.
      vocabulary: digest of its vocabulary; None if it is unknown.
      weight: weight among several teachers.
    """

    config: ModelConfig
    objective: Component
    vocabulary: str | None
    weight: float

    def bound(self) -> contextlib.AbstractContextManager[None]:
        """Binds its sharding rules within the trace of a step."""


class CachedTeacher(Protocol):
    """The stored predictions of a teacher, which replace its forward pass.

    Attributes:
      attached: the arrays that a batch needs.
    """

    attached: tuple[Attached, ...]

    def check_classes(self, classes: Mapping[str, int]) -> None:
        """Raises a UserError unless the student, prediction -> number of classes, predicts what is stored."""

    def predictions(self, batch: Batch) -> dict[str, TopK]:
        """Returns the stored predictions of a batch or a microbatch."""


class Distillation:
    """The objective of a student, and losses between the student and its teachers. Implements `Objective`.

    The terms are those of the student's own objective, and one per loss under its name. Each teacher runs once per
    microbatch, on the rows of the student, without dropout and gradient. The divisor of a loss depends on the data
    alone, so the result depends neither on the number of microbatches nor on that of devices. The metrics are those of
    the student, and the value of each loss under its name.

    Args:
      objective: what the student predicts.
      losses: name -> loss.
      coefficients: loss -> factor in the total loss, a number or a function of the step; by default 1. `task` is the
        factor of all terms of `objective`, and the name of a term that of this term, on top of its own coefficient.
      teachers: name -> teacher.
      cached: name of a teacher -> its stored predictions. Such a teacher does not run.
      vocabulary: digest of the student's vocabulary, which losses compare with those of the teachers.
      on_policy: replaces targets by samples of the student in training; None: the targets are those of the task.

    Raises:
      UserError: a name is unknown or used twice, or a teacher reads other features than the student.
    """

    def __init__(
        self,
        objective: Component,
        losses: Mapping[str, Loss],
        *,
        coefficients: Mapping[str, float | Schedule] | None = None,
        teachers: Mapping[str, Teacher],
        cached: Mapping[str, CachedTeacher] | None = None,
        vocabulary: str | None = None,
        on_policy: OnPolicy | None = None,
    ):
        self.objective, self.losses, self.teachers = objective, dict(losses), dict(teachers)
        self.cached, self._vocabulary = dict(cached or {}), vocabulary
        self._check_names(coefficients or {})
        running = {name: each.objective.features for name, each in self.teachers.items() if name not in self.cached}
        attached = [array for each in self.cached.values() for array in each.attached]
        self.features = features.merge(objective.features, running, attached)
        given = dict.fromkeys((TASK, *losses), 1.0) | dict(coefficients or {})
        own = {
            term: _product(_product(value, given[TASK]), given.get(term, 1.0))
            for term, value in objective.coefficients.items()
        }
        self.coefficients = own | {name: given[name] for name in losses}
        self.other_names = objective.other_names
        self._on_policy = on_policy
        if on_policy is not None:
            on_policy.check(self.features, coefficients=own, cached=self.cached)
            self.features = dataclasses.replace(self.features, packable=False)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the student's own objective; empty if it has none."""
        return tuple(getattr(self.objective, "labels", ()))

    @property
    def prepare(self) -> Callable[..., Batch] | None:
        """Function that replaces targets by samples of the student, see `Objective`; None without `on_policy`."""
        if self._on_policy is None:
            return None
        sample, spec = self._on_policy, self.features
        return lambda params, batch, *, key, step: sample(params["model"], spec, batch, key=key, step=step)

    def check(self, config: ModelConfig) -> None:
        """Checks that each loss is defined for the student and its teachers.

        Args:
          config: configuration of the student's model.

        Raises:
          UserError: it is not, it reads hidden states of a teacher whose predictions are cached, or a teacher has
            another vocabulary than the student, whose token ids it reads.
        """
        student = self._student(config)
        for name in self.teachers:
            self._check_vocabulary(name)
        for name, loss in self.losses.items():
            for teacher in self._teachers_of(loss):
                other = self._network(teacher)
                loss.check(student, other)
                if teacher in self.cached and (read := loss.captures(student, other)[1]):
                    raise UserError(
                        f"loss {name!r} reads {read[0]!r} of the teacher {teacher!r}, of which only predictions are "
                        "cached. Run the teacher in the training step instead: give TEACHER without its logits."
                    )

    def _check_vocabulary(self, teacher: str) -> None:
        theirs = self.teachers[teacher].vocabulary
        if None not in (self._vocabulary, theirs) and self._vocabulary != theirs:
            raise UserError(
                f"teacher {teacher!r}: its vocabulary ({theirs}) differs from that of the student "
                f"({self._vocabulary}), whose token ids it reads. Give a teacher with the vocabulary of the student."
            )

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Initializes the heads of the student and the projections of the losses; see `Objective.init`.

        Raises:
          UserError: see `check`.
        """
        self.check(model.config)
        heads = self.objective.init(key, model)  # as without a teacher
        projections_key = jax.random.fold_in(key, _PROJECTIONS_KEY)
        if self.cached:
            classes = _count_classes(self.objective, {"model": model, "objective": heads})
            for each in self.cached.values():
                each.check_classes(classes)
        student, projections = self._student(model.config), {}
        for number, (name, loss) in enumerate(self.losses.items()):
            keys = jax.random.split(jax.random.fold_in(projections_key, number), len(self.teachers))
            made = {
                teacher: loss.init(key, student, self._network(teacher))
                for teacher, key in zip(self.teachers, keys, strict=True)
                if teacher in self._teachers_of(loss)
            }
            if made := {teacher: modules for teacher, modules in made.items() if modules}:
                projections[name] = made
        return heads | ({PROJECTIONS: projections} if projections else {})

    def weights(self, batch: Batch) -> dict[str, Scalar]:
        """Computes the total weight of each term and loss; see `Objective.weights`."""
        own = features.select(batch, self.objective.features)
        rows = flatten_choices(own, self.objective.features.axes)
        losses = {name: loss.weight(rows, self.objective) for name, loss in self.losses.items()}
        return self.objective.weights(own) | losses

    def terms(self, params: Params, batch: Batch, *, dropout_key: jax.Array | None = None) -> Terms:
        """Runs the student and the teachers, and computes the terms and losses; see `Objective.terms`."""

        def separately(network: Readout, losses: PositionLosses) -> tuple[float, dict[Any, Any]]:
            return 0.0, {key: sum_over_positions(network, loss) for key, loss in losses.items()}

        return self._terms(params, batch, dropout_key, separately)[-1]

    def loss_and_terms(
        self,
        params: Params,
        batch: Batch,
        factors: Mapping[str, Scalar | float],
        *,
        dropout_key: jax.Array | None = None,
    ) -> tuple[Scalar, Terms]:
        """Computes the loss in one pass over the logits of each prediction; see `Objective.loss_and_terms`."""

        def factor(term: str, teacher: str | None) -> Scalar | float:
            weight = 1.0 if teacher is None else self._teachers_of(self.losses[term])[teacher]
            return factors[term] * weight

        def in_one_pass(network: Readout, losses: PositionLosses) -> tuple[Scalar, dict[Any, Any]]:
            return weighted_sum_over_positions(network, losses, {key: factor(*key) for key in losses})

        loss, included, terms = self._terms(params, batch, dropout_key, in_one_pass)
        return loss + sum(factors[name] * each for name, each in terms.sums.items() if name not in included), terms

    def _terms(
        self,
        params: Params,
        batch: Batch,
        dropout_key: jax.Array | None,
        sum_losses: SumLosses,
    ) -> tuple[Scalar | float, set[str], Terms]:
        """Returns the sum of the losses of logits that `sum_losses` returns, the names of its terms, and all terms."""
        rows = flatten_choices(batch, self.features.axes)
        own_rows = features.select(rows, self.objective.features)
        student, head_key = self._student(params["model"].config), key_of_heads(dropout_key)
        captures = [self._captures(student, name) for name in self.teachers]
        names = tuple(dict.fromkeys(name for own, _ in captures for name in own))
        outputs = self.objective.forward(params, own_rows, dropout_key=dropout_key, capture=names)
        predictions = self.objective.predictions(params, outputs, own_rows, dropout_key=head_key)
        view = View(student, outputs, own_rows, predictions)
        views = {
            name: self._view_of(name, params, rows, capture)
            for name, (_, capture) in zip(self.teachers, captures, strict=True)
        }
        loss_of_logits, own, summed = self._sum_over_positions(view, views, sum_losses)
        terms = self.objective.terms_of_sums(own, params, outputs, own_rows, dropout_key=head_key)
        sums, metrics = dict(terms.sums), dict(terms.metrics)
        for name, loss in self.losses.items():
            if name in metrics:
                raise UserError(f"LOSSES: {name!r} is a metric of the student already. Rename the loss.")
            sums[name] = self._mean(name, params, view, views, summed)
            metrics[name] = (sums[name], loss.weight(own_rows, self.objective))
        return loss_of_logits, {*own, *(name for name, _ in summed)}, Terms(sums=sums, metrics=metrics)

    def predict(self, params: Params, batch: Batch) -> dict[str, Array]:
        """Predicts the targets as the student's own objective does; see `Objective.predict`."""
        return self.objective.predict(params, features.select(batch, self.objective.features))

    def _student(self, config: ModelConfig) -> Network:
        return Network(STUDENT, config, self.objective, self._vocabulary)

    def _network(self, teacher: str) -> Network:
        found = self.teachers[teacher]
        return Network(teacher, found.config, found.objective, found.vocabulary)

    def _teachers_of(self, loss: Loss) -> dict[str, float]:
        """Returns the teachers that a loss reads, and their weights, which add up to 1."""
        names = self.teachers if loss.teacher is None else (loss.teacher,)
        total = sum(self.teachers[name].weight for name in names)
        return {name: self.teachers[name].weight / total for name in names}

    def _captures(self, student: Network, teacher: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the names that all losses with a teacher read from the student and from the teacher."""
        other = self._network(teacher)
        pairs = [loss.captures(student, other) for loss in self.losses.values() if teacher in self._teachers_of(loss)]
        own, theirs = (dict.fromkeys(name for names in side for name in names) for side in zip(*pairs, strict=True))
        return tuple(own), tuple(theirs)

    def _view_of(self, name: str, params: Params, rows: Batch, capture: tuple[str, ...]) -> View:
        """Runs a teacher, or reads its stored predictions."""
        teacher, network = self.teachers[name], self._network(name)
        own_rows = features.select(rows, teacher.objective.features)
        if name in self.cached:
            return View(network, None, own_rows, Deferred(lambda: self.cached[name].predictions(rows)))
        frozen = jax.lax.stop_gradient(params["teachers"][name])
        with teacher.bound():
            outputs = jax.lax.stop_gradient(teacher.objective.forward(frozen, own_rows, capture=capture))
        return View(
            network, outputs, own_rows, Deferred(lambda: teacher.objective.predictions(frozen, outputs, own_rows))
        )

    def _sum_over_positions(
        self,
        student: View,
        teachers: Mapping[str, View],
        sum_losses: SumLosses,
    ) -> tuple[Scalar | float, dict[str, Any], dict[tuple[str, str], Scalar]]:
        """Sums all losses of logits, those of a prediction with one call of `sum_losses`.

        Returns:
          The sum to differentiate, prediction -> sums of the student's own loss, and (loss, teacher) -> sum.
        """
        groups: dict[str, dict[tuple[str, str | None], PositionLoss]] = {}
        for name, loss in self.objective.position_losses(student.predictions).items():
            groups[name] = {(name, None): loss}
        for name, loss in self.losses.items():
            if isinstance(loss, LogitLoss):
                group = groups.setdefault(loss.prediction, {})
                for teacher in self._teachers_of(loss):
                    group[name, teacher] = loss.position_loss(student, teachers[teacher])
        total, own, summed = 0.0, {}, {}
        for prediction, group in groups.items():
            predicted = student.predictions[prediction]
            loss, found = sum_losses(Readout(predicted.hidden, predicted.logits), group)
            total += loss
            if (prediction, None) in found:
                own[prediction] = found.pop((prediction, None))
            summed |= found
        return total, own, summed

    def _mean(
        self,
        name: str,
        params: Params,
        student: View,
        teachers: Mapping[str, View],
        summed: Mapping[tuple[str, str], Scalar],
    ) -> Scalar:
        """Returns the weighted mean of a loss over its teachers, which is computed unless it is in `summed`."""
        loss, heads = self.losses[name], params["objective"].get(PROJECTIONS, {}).get(name, {})

        def value(teacher: str) -> Scalar:
            if (name, teacher) in summed:
                return summed[name, teacher]
            return loss(heads.get(teacher, {}), student, teachers[teacher])

        return sum(weight * value(teacher) for teacher, weight in self._teachers_of(loss).items())

    def _check_names(self, coefficients: Mapping[str, float | Schedule]) -> None:
        if not self.losses or not self.teachers:
            raise UserError(
                f"LOSSES={list(self.losses)}, TEACHERS={list(self.teachers)}: a distillation needs both. Give at least "
                "one loss and one teacher."
            )
        if reserved := sorted(self.losses.keys() & {TASK, *self.objective.coefficients}):
            raise UserError(f"LOSSES: {reserved[0]!r} is a term of the student already. Rename the loss.")
        known = (TASK, *self.objective.coefficients, *self.losses)
        if unknown := sorted(coefficients.keys() - {*known}):
            raise UserError(f"COEFFICIENTS: unknown loss {unknown[0]!r}. The losses are {', '.join(known)}.")
        if unknown := sorted(self.cached.keys() - self.teachers.keys()):
            raise UserError(f"cached predictions of {unknown[0]!r}: unknown teacher. Give {', '.join(self.teachers)}.")
        for name, loss in self.losses.items():
            if loss.teacher is not None and loss.teacher not in self.teachers:
                raise UserError(
                    f"loss {name!r}: unknown teacher {loss.teacher!r}. The teachers are {', '.join(self.teachers)}."
                )
        read = {name for loss in self.losses.values() for name in self._teachers_of(loss)}
        if unread := [name for name in self.teachers if name not in read]:
            raise UserError(f"TEACHERS: no loss reads {unread[0]!r}. Remove it, or give a loss with this teacher.")


def _product(coefficient: float | Schedule, factor: float | Schedule) -> float | Schedule:
    if not callable(coefficient) and not callable(factor):
        return coefficient * factor
    first, second = (each if callable(each) else lambda step, each=each: each for each in (coefficient, factor))
    return lambda step: first(step) * second(step)


def _count_classes(objective: Component, params: Params) -> dict[str, int]:
    """Returns the number of classes of each prediction, from the shapes of the smallest batch."""
    shapes = objective.features.row_shapes(dict.fromkeys(objective.features.length_keys, 1))
    dtypes = objective.features.dtypes
    batch = {name: jnp.zeros((1, *shape), dtypes[name]) for name, shape in shapes.items()}

    def logits(params: Params, batch: Batch) -> dict[str, Array]:
        rows = flatten_choices(batch, objective.features.axes)
        found = objective.predictions(params, objective.forward(params, rows), rows)
        return {name: each.logits(each.hidden) for name, each in found.items()}

    return {name: shape.shape[-1] for name, shape in jax.eval_shape(logits, params, batch).items()}
