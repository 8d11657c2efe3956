"""The objective of a student that learns from teachers."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.data.retokenized import Retokenizer
from t5x_like.distillation import features, names, retokenizing
from t5x_like.distillation.cached_logits import CachedLogits
from t5x_like.distillation.loss import ForwardPass, LogitLoss, Loss, ModelSpec
from t5x_like.distillation.losses import across_tokenizers
from t5x_like.distillation.losses.across_tokenizers import AcrossTokenizers
from t5x_like.distillation.on_policy import OnPolicy
from t5x_like.errors import UserError
from t5x_like.kernels.chunks import PositionLoss
from t5x_like.kernels.dropout import FIRST_NAMED_KEY
from t5x_like.models import networks
from t5x_like.models.base import ModelConfig
from t5x_like.models.networks import MODEL, NetworkSpec
from t5x_like.models.outputs import Outputs
from t5x_like.objectives import passes
from t5x_like.objectives.base import DEFAULT_OPTIONS, Batch, Objective, Params, Pass, RunOptions
from t5x_like.objectives.carry import TEACHER, Carry
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.prediction import LogitTerm, Scalar
from t5x_like.optimizers.schedules import Schedule

if TYPE_CHECKING:
    from t5x_like.stored.loaded_teachers import LoadedTeacher

# Head that holds the projections of the losses, `objective/distillation/LOSS/TEACHER/PROJECTION`.
PROJECTIONS = "distillation"
STUDENT = "student"
# Index of the projections' key among the keys derived from the heads' key, which count from 0.
_PROJECTIONS_KEY = FIRST_NAMED_KEY


class Distillation(Objective):
    """The objective of a student, and losses between the student and its teachers.

    It has the terms of the student's own objective, and one per loss under its name. Each teacher runs once per
    microbatch, on the rows of the student, without dropout and gradient. The divisor of a loss depends on the data
    alone, so the result does not depend on the number of microbatches and devices. The metrics are the metrics of the
    student, and the value of each loss under its name.

    Args:
      objective: What the student predicts.
      losses: Name -> loss.
      coefficients: Loss -> factor in the total loss, a number or a function of the step; by default 1. The key `task`
        multiplies the coefficients of all terms of `objective`, and the name of a term the coefficient of this term.
      teachers: Name -> teacher.
      cached: Name of a teacher -> its stored predictions. Such a teacher does not run.
      vocabulary: Digest of the student's vocabulary, which losses compare with the teachers'.
      on_policy: Replaces targets by samples of the student in training; None: the targets of the task.
      retokenizers: Name of a teacher with its own tokenizer -> what computes its features. Losses across tokenizers
        read it, and no others.

    Raises:
      UserError: A name is unknown or used twice, a teacher has another vocabulary than the student, whose token ids it
        reads, or it reads other features than the student.
    """

    def __init__(
        self,
        objective: Objective,
        losses: Mapping[str, Loss],
        *,
        coefficients: Mapping[str, float | Schedule] | None = None,
        teachers: "Mapping[str, LoadedTeacher]",
        cached: Mapping[str, CachedLogits] | None = None,
        vocabulary: str | None = None,
        on_policy: OnPolicy | None = None,
        retokenizers: Mapping[str, Retokenizer] | None = None,
    ):
        self.objective, self.losses, self.teachers = objective, dict(losses), dict(teachers)
        self.cached, self._vocabulary = dict(cached or {}), vocabulary
        self.retokenizers = dict(retokenizers or {})
        names.check(self.objective, self.losses, self.teachers, self.cached, coefficients or {})
        for name in self.teachers:
            if name not in self.retokenizers:
                self._check_vocabulary(name)
        running = {
            name: (each.objective.features, each.config.reads)
            for name, each in self.teachers.items()
            if name not in self.cached and name not in self.retokenizers
        }
        attached = [
            array for each in (self.cached, self.retokenizers) for one in each.values() for array in one.attached
        ]
        self.features = features.merge(objective.features, running, attached)
        given = dict.fromkeys((names.TASK, *losses), 1.0) | dict(coefficients or {})
        own = {
            term: _product(_product(value, given[names.TASK]), given.get(term, 1.0))
            for term, value in objective.coefficients.items()
        }
        self.coefficients = own | {name: given[name] for name in losses}
        running_objectives = [each.objective for name, each in self.teachers.items() if name not in self.cached]
        self.other_names = objective.other_names
        self.draws = any(each.draws for each in (objective, *running_objectives))
        self._on_policy = on_policy
        if objective.stages or (on_policy is not None and objective.prepare is not None):
            raise UserError(
                f"{type(objective).__name__}: the objective of a student can have neither stages nor, with OnPolicy, "
                "batches that it prepares itself. Give another objective, or omit OnPolicy."
            )
        sampled = [name for name, loss in self.losses.items() if getattr(loss, "needs_samples", False)]
        if sampled and on_policy is None:
            raise UserError(
                f"loss {sampled[0]!r} is defined for samples of the student. Add OnPolicy, as in "
                "distillation/minillm.gin."
            )
        if on_policy is not None:
            on_policy.check(self.features, coefficients=own, cached=self.cached)
            on_policy.check_teachers(self.losses, self.teachers, self.retokenizers, objective.features)
        if on_policy is not None or self.retokenizers:
            self.features = dataclasses.replace(self.features, packable=False)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the student's own objective; empty if it has none."""
        return self.objective.labels

    @property
    def prepare(self) -> Callable[..., Batch] | None:
        """Function that replaces targets by samples of the student, or `prepare` of its objective."""
        if self._on_policy is None:
            return self.objective.prepare
        return self._with_samples

    def _with_samples(self, params: Params, batch: Batch, *, key: jax.Array | None, step: Any) -> Batch:
        if key is None:
            return batch
        teacher = self._frozen(*self.teachers, params)["model"] if self._on_policy.teacher_mix else None
        sampled = self._on_policy(params["model"], self.features, batch, key=key, step=step, teacher=teacher)
        return retokenizing.of_samples(self.retokenizers, batch, sampled) if self.retokenizers else sampled

    def check(self, config: ModelConfig) -> None:
        """Checks that each loss is defined for the student and its teachers.

        Args:
          config: Configuration of the student's model.

        Raises:
          UserError: A loss is not defined, it reads hidden states of a teacher whose predictions are cached, or the EOS
            of samples is not known.
        """
        if self._on_policy is not None:
            self._on_policy.check_model(config)
        student = self._student(config)
        for name, loss in self.losses.items():
            for teacher in self._teachers_of(loss):
                other = self._spec(teacher)
                self._check_tokenizer(name, loss, teacher)
                loss.check(student, other)
                if teacher in self.cached and isinstance(loss, LogitLoss):
                    self.cached[teacher].check_prediction(loss.prediction)
                if teacher in self.cached and (read := loss.captures(student, other)[1]):
                    raise UserError(
                        f"loss {name!r} reads {read[0]!r} of the teacher {teacher!r}, of which only predictions are "
                        "cached. Run the teacher in the training step instead: give TEACHER without its logits."
                    )

    def _check_vocabulary(self, teacher: str) -> None:
        theirs = self.teachers[teacher].vocabulary
        if None not in (self._vocabulary, theirs) and self._vocabulary != theirs:
            raise UserError(
                f"teacher {teacher!r}: the vocabulary of {self.teachers[teacher].path} ({theirs}) differs from the "
                f"vocabulary of the student ({self._vocabulary}), whose token ids it reads. Give both the same "
                "vocabulary (VOCABULARY_PATH is the student's), or a loss across tokenizers, such as "
                "distillation/alm.gin."
            )

    def _check_tokenizer(self, name: str, loss: Loss, teacher: str) -> None:
        """Checks that losses across tokenizers, and no others, read a teacher with its own tokens."""
        across = isinstance(loss, AcrossTokenizers)
        if across and len(self._teachers_of(loss)) > 1:
            raise UserError(
                f"loss {name!r}: {type(loss).__name__} reads one teacher. Give teacher={teacher!r}, and a loss per "
                "teacher."
            )
        if across and teacher not in self.retokenizers:
            raise UserError(f"loss {name!r}: the tokens of the teacher {teacher!r} are not known. Give a retokenizer.")
        if not across and teacher in self.retokenizers:
            raise UserError(
                f"loss {name!r}: {type(loss).__name__} compares equal tokens, but the teacher {teacher!r} reads tokens "
                "of its own for a loss across tokenizers. Give a loss across tokenizers, or another teacher for it."
            )

    def networks(self, config: ModelConfig) -> Mapping[str, NetworkSpec]:
        """Returns the networks of the student's own objective; see `Objective.networks`."""
        return self.objective.networks(config)

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Initializes the heads of the student and the projections of the losses; see `Objective.init`.

        Raises:
          UserError: See `check`.
        """
        self.check(model.config)
        heads = self.objective.init(key, model)  # as without a teacher
        projections_key = jax.random.fold_in(key, _PROJECTIONS_KEY)
        if self.cached:
            classes = _count_classes(self.objective, {"model": model, "objective": heads})
            for name, each in self.cached.items():
                if name not in self.retokenizers:
                    each.check_classes(classes)
        student, projections = self._student(model.config), {}
        for number, (name, loss) in enumerate(self.losses.items()):
            keys = jax.random.split(jax.random.fold_in(projections_key, number), len(self.teachers))
            made = {
                teacher: loss.init(key, student, self._spec(teacher))
                for teacher, key in zip(self.teachers, keys, strict=True)
                if teacher in self._teachers_of(loss)
            }
            if made := {teacher: modules for teacher, modules in made.items() if modules}:
                projections[name] = made
        return heads | ({PROJECTIONS: projections} if projections else {})

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns the weights of the student's predictions and of the losses; see `Objective.weights`."""
        own = features.select(rows, self.objective.features)
        return self.objective.weights(own) | self._loss_weights(own, rows)

    def target_weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns the weights of the student's terms and of the losses; see `Objective.target_weights`."""
        own = features.select(rows, self.objective.features)
        return self.objective.target_weights(own) | self._loss_weights(own, rows)

    def _loss_weights(self, own: Batch, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        return {name: self._weights_of(loss, own, rows) for name, loss in self.losses.items()}

    def _weights_of(self, loss: Loss, own: Batch, rows: Batch) -> Float[Array, "batch positions"]:
        if isinstance(loss, AcrossTokenizers):
            (teacher,) = self._teachers_of(loss)
            theirs = self.retokenizers[teacher].select(rows)
            own = {**own, **{across_tokenizers.TEACHER + name: array for name, array in theirs.items()}}
        return loss.weights(own, self.objective)

    def teacher_shapes(self, teacher: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of what a teacher reads; see `Objective.teacher_shapes`."""
        return self.teachers[teacher].objective.read_shapes(self._rows_of(teacher, shapes))

    def initial_carry(self, config: ModelConfig, batch_size: int) -> Carry:
        """Returns the state of the student and of the teachers that run; see `Objective.initial_carry`."""
        found = dict(self.objective.initial_carry(config, batch_size))
        for name, teacher in self.teachers.items():
            carry = teacher.objective.initial_carry(teacher.resolved, batch_size)
            if carry and name in self.cached:
                raise UserError(
                    f"teacher {name!r} carries state from batch to batch, which cached predictions do not have. Run "
                    "the teacher in the training step instead: give TEACHER without its logits."
                )
            found |= {f"{TEACHER}{name}/{network}": arrays for network, arrays in carry.items()}
        return found

    def run(self, params: Params, rows: Batch, options: RunOptions = DEFAULT_OPTIONS) -> Outputs:
        """Runs the student, and the teachers whose predictions are not cached; see `Objective.run`."""
        student, ran = self._student(params["model"].config), {}
        captured, undropped = dict.fromkeys(options.capture), dataclasses.replace(options.keys, dropout=None)
        for name, teacher in self.teachers.items():
            ours, theirs = self._captures(student, name)
            captured |= dict.fromkeys(ours)
            if name not in self.cached:
                frozen = self._frozen(name, params)
                read = features.select(self._rows_of(name, rows), teacher.objective.features)
                prefix = f"{TEACHER}{name}/"
                own = {key.removeprefix(prefix): each for key, each in options.carry.items() if key.startswith(prefix)}
                try:
                    with teacher.bound():
                        given = RunOptions(keys=undropped, carry=own, capture=theirs)
                        outputs = teacher.objective.run(frozen, read, given)
                except UserError as error:  # such as rows that are longer than its positions
                    lengths = " Its rows have TEACHER_LENGTHS." if name in self.retokenizers else ""
                    raise UserError(f"teacher {name!r}, {teacher.path}: {error}{lengths}") from None
                outputs = jax.lax.stop_gradient(outputs)
                ran[f"{TEACHER}{name}"] = outputs
                ran |= {f"{prefix}{key}": outputs if key == MODEL else outputs.networks[key] for key in own}
        own = features.select(rows, self.objective.features)
        outputs = self.objective.run(params, own, dataclasses.replace(options, capture=tuple(captured)))
        return outputs.replace(networks={**outputs.networks, **ran})

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the student's predictions, with the losses between the networks; see `Objective.read`."""
        own = features.select(rows, self.objective.features)
        found = self.objective.read(params, outputs, own, keys=keys)
        if taken := self.losses.keys() & found.metric_names():
            raise UserError(f"LOSSES: {taken.pop()!r} is a metric of the student already. Rename the loss.")
        model = params["model"]
        student = ForwardPass(self._student(model.config), outputs, own, lambda: found.predictions, model)
        teachers = {name: self._forward_pass(name, params, outputs, rows) for name in self.teachers}
        predictions, sums, metrics = dict(found.predictions), dict(found.sums), dict(found.metrics)
        for name, loss in self.losses.items():
            weight = jnp.sum(self._weights_of(loss, own, rows)).astype(jnp.float32)
            shares = self._teachers_of(loss)
            if isinstance(loss, LogitLoss):
                terms = [
                    _term(name, loss.position_loss(student, teachers[each]), shares[each], weight) for each in shares
                ]
                predictions[loss.prediction] = predictions[loss.prediction].with_loss(*terms)
                continue
            heads = params["objective"].get(PROJECTIONS, {}).get(name, {})
            sums[name] = sum(
                share * loss(heads.get(teacher, {}), student, teachers[teacher]) for teacher, share in shares.items()
            )
            metrics[name] = (sums[name], weight)
        return dataclasses.replace(found, rows=rows, predictions=predictions, sums=sums, metrics=metrics)

    def predict(self, found: Pass) -> dict[str, Array]:
        """Predicts the targets as the student's own objective does; see `Objective.predict`."""
        return self.objective.predict(found)

    def _frozen(self, teacher: str, params: Params) -> Params:
        """Returns the complete networks of a teacher, without gradient."""
        return networks.resolve(self.teachers[teacher].objective, jax.lax.stop_gradient(params["teachers"][teacher]))

    def _student(self, config: ModelConfig) -> ModelSpec:
        tokens = next((each.student for each in self.retokenizers.values()), None)
        return ModelSpec(STUDENT, config, self.objective, self._vocabulary, tokens)

    def _spec(self, teacher: str) -> ModelSpec:
        found = self.teachers[teacher]
        tokens = self.retokenizers[teacher].teacher if teacher in self.retokenizers else None
        return ModelSpec(teacher, found.config, found.objective, found.vocabulary, tokens)

    def _rows_of(self, teacher: str, rows: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the features of a batch, or their shapes, by the names that a teacher reads for its own tokens."""
        return self.retokenizers[teacher].select(rows) if teacher in self.retokenizers else rows

    def _teachers_of(self, loss: Loss) -> dict[str, float]:
        """Returns the teachers that a loss reads, and their weights, which add up to 1."""
        names = self.teachers if loss.teacher is None else (loss.teacher,)
        total = sum(self.teachers[name].weight for name in names)
        return {name: self.teachers[name].weight / total for name in names}

    def _captures(self, student: ModelSpec, teacher: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the names that all losses with a teacher read from the student and from the teacher."""
        other = self._spec(teacher)
        pairs = [loss.captures(student, other) for loss in self.losses.values() if teacher in self._teachers_of(loss)]
        own, theirs = (dict.fromkeys(name for names in side for name in names) for side in zip(*pairs, strict=True))
        return tuple(own), tuple(theirs)

    def _forward_pass(self, name: str, params: Params, outputs: Outputs, rows: Batch) -> ForwardPass:
        """Returns what a teacher computed, or its stored predictions."""
        teacher, spec = self.teachers[name], self._spec(name)
        of_teacher = self._rows_of(name, rows)
        read = features.select(of_teacher, teacher.objective.features)
        known = of_teacher if name in self.retokenizers else read  # with the groups of its tokens
        if name in self.cached:
            return ForwardPass(spec, None, known, lambda: self.cached[name].predictions(rows))
        frozen, theirs = self._frozen(name, params), outputs.networks[f"{TEACHER}{name}"]
        compute = lambda: teacher.objective.read(frozen, theirs, read).predictions  # noqa: E731
        return ForwardPass(spec, theirs, known, compute, frozen["model"])


def _product(coefficient: float | Schedule, factor: float | Schedule) -> float | Schedule:
    if not callable(coefficient) and not callable(factor):
        return coefficient * factor
    first, second = (each if callable(each) else lambda step, each=each: each for each in (coefficient, factor))
    return lambda step: first(step) * second(step)


def _term(name: str, loss: PositionLoss, share: float, weight: Scalar) -> LogitTerm:
    """Returns the part of a loss of logits that compares with one of several teachers, and its metric."""
    return LogitTerm(name, loss, share, {name: lambda sums: (share * loss.trained(sums), share * weight)})


def _count_classes(objective: Objective, params: Params) -> dict[str, int]:
    """Returns the number of classes of each prediction, from the shapes of the smallest batch."""

    def logits(params: Params, batch: Batch) -> dict[str, Array]:
        found = passes.forward_at_evaluation(objective, params, batch).predictions
        return {name: each.logits(each.hidden) for name, each in found.items()}

    shapes = jax.eval_shape(logits, params, passes.smallest_batch(objective))
    return {name: shape.shape[-1] for name, shape in shapes.items()}
