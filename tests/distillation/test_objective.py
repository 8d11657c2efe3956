"""The objective of a student with teachers: terms by hand, microbatches and devices, features, and names."""

import contextlib
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES
from numerics import assert_close
from objective_case import Case
from objective_cases import CASES, terms_of

from t5x_like import optimizers, parameters
from t5x_like.data import specs
from t5x_like.distillation.features import merge
from t5x_like.distillation.losses.logits import ForwardKL, LogitMSE, ReverseKL
from t5x_like.distillation.objective import PROJECTIONS, Distillation
from t5x_like.errors import UserError
from t5x_like.kernels import chunks
from t5x_like.kernels.top_k import TopK
from t5x_like.layers import initializers
from t5x_like.layers.projections import Projection
from t5x_like.objectives import gradients, heads
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.passes import forward, loss, predict, total_weights
from t5x_like.objectives.sequence_classification import SequenceClassification
from t5x_like.objectives.staged import Stage, Staged
from t5x_like.objectives.variables import Frozen
from t5x_like.partitioning import Partitioner

PRETRAINING = CASES["pretraining"]


@dataclasses.dataclass(frozen=True)
class Logits:
    """KL(teacher || student) per position of a prediction; of cached logits, over the cached classes and the tail."""

    name: str = "masked_lm"
    teacher: str | None = None

    def check(self, student, teacher):
        assert self.name in teacher.objective.coefficients

    def captures(self, student, teacher):
        return (), ()

    def init(self, key, student, teacher):
        return {}

    def weights(self, rows, objective):
        return objective.weights(rows)[self.name]

    def __call__(self, heads, student, teacher):
        ours, theirs = student.predictions[self.name], teacher.predictions[self.name]
        log_q = jax.nn.log_softmax(ours.logits(ours.hidden))
        if isinstance(theirs, TopK):
            log_p = jax.nn.log_softmax(theirs.values)
            log_q = jnp.take_along_axis(log_q, theirs.ids, axis=-1)
        else:
            log_p = jax.nn.log_softmax(theirs.logits(theirs.hidden))
        return jnp.sum(ours.weights * jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1))


@dataclasses.dataclass(frozen=True)
class States:
    """Squared error of the first layer's states, projected to the size of the teacher's, summed over sizes."""

    teacher: str | None = None
    read: str = "encoder/layers/0/hidden"

    def check(self, student, teacher):
        if student.config.num_layers < 1:
            raise UserError("no layers")

    def captures(self, student, teacher):
        return (self.read,), (self.read,)

    def init(self, key, student, teacher):
        sizes = (student.config.embed_dim,), (teacher.config.embed_dim,)
        return {"projection": Projection(*sizes, axes=("embed", None), key=key, init=initializers.BERT)}

    def weights(self, rows, objective):
        return (rows["encoder_segment_ids"] != 0).astype(jnp.float32)

    def __call__(self, heads, student, teacher):
        error = heads["projection"](student.outputs.captured[self.read]) - teacher.outputs.captured[self.read]
        real = student.batch["encoder_segment_ids"] != 0
        return jnp.sum(jnp.sum(jnp.square(error), axis=-1) * real)


@dataclasses.dataclass(frozen=True)
class Network:
    """A teacher whose parameters are made by the test; see `loaded_teachers.LoadedTeacher`."""

    case: Case
    weight: float = 1.0
    layers: int = 2
    vocabulary: str | None = None
    path: str = "runs/teacher"

    @property
    def objective(self):
        return self.case.objective

    @property
    def config(self):
        return dataclasses.replace(FAMILIES[self.case.family].config, num_layers=self.layers)

    def params(self):
        return self.case.params(num_layers=self.layers)

    def bound(self):
        return contextlib.nullcontext()


TEACHERS = {"a": Network(PRETRAINING), "b": Network(PRETRAINING, weight=3.0, layers=1)}


def distillation(losses=None, teachers=TEACHERS, case=PRETRAINING, **options):
    return Distillation(case.objective, losses or {"kl": Logits(), "states": States()}, teachers=teachers, **options)


@functools.cache
def student(case=PRETRAINING):
    """Returns the parameters of a student that differ from its teachers', with projections."""
    params = jax.tree.map(lambda leaf: 0.8 * leaf + 0.05, case.params())
    shapes = jax.eval_shape(lambda: distillation().init(jax.random.key(0), params["model"])[PROJECTIONS])
    rng = np.random.default_rng(5)
    drawn = parameters.map_named(lambda _, leaf: jnp.asarray(0.3 * rng.normal(size=leaf.shape), jnp.float32), shapes)
    return {**params, "objective": {**params["objective"], PROJECTIONS: drawn}}


def frozen(params, teachers=TEACHERS):
    return Frozen(optimizers.split(params, ())[1], {name: each.params() for name, each in teachers.items()})


def gradient(objective, microbatches, devices):
    partitioner = Partitioner(
        ici={"data": devices // min(devices, 4), "fsdp": min(devices, 4)}, devices=jax.devices()[:devices]
    )

    def run(params, others, batch):
        normalize = gradients.normalizers(objective, batch, "NUM_REAL_TARGET_TOKENS")
        options = {"keys": NO_KEYS, "microbatches": microbatches, "normalize": normalize, "step": 7}
        return gradients.compute(objective, params, others, batch, **options)[:2]

    found = partitioner.jit(run)(student(), frozen(student()), partitioner.put_batch(PRETRAINING.batch()))
    return parameters.named_leaves(found[0]), {name: np.stack(pair) for name, pair in found[1].items()}


def test_gradient_is_equal_on_any_microbatches_and_devices():
    """The reference is the gradient of the terms written out, with both teachers, coefficients and a schedule."""
    objective = distillation(coefficients={"task": 0.25, "kl": lambda step: 0.1 * step, "states": 0.5})
    batch, own = PRETRAINING.batch(), PRETRAINING.objective
    masked, tokens = batch["masked_weights"], batch["encoder_segment_ids"] != 0
    teachers = {name: each.params() for name, each in TEACHERS.items()}

    def reference(params):
        def states(params):
            found = forward(own, params, batch, capture=["encoder/layers/0/hidden"])
            logits = found.predictions["masked_lm"]
            return found.outputs.captured["encoder/layers/0/hidden"], jax.nn.log_softmax(logits.logits(logits.hidden))

        hidden, log_q = states(params)
        weights, total = total_weights(own, batch), 0.0
        total += 0.25 * sum(value / weights[name] for name, value in terms_of(own, params, batch).sums.items())
        for name, share in (("a", 0.25), ("b", 0.75)):
            other, log_p = states(teachers[name])
            kl = jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)
            total += share * 0.7 * jnp.sum(kl * masked) / masked.sum()
            projected = params["objective"][PROJECTIONS]["states"][name]["projection"](hidden)
            error = jnp.sum((projected - other) ** 2, axis=-1)
            total += share * 0.5 * jnp.sum(error * tokens) / tokens.sum()
        return total

    value, expected = jax.jit(jax.value_and_grad(reference))(student())
    for microbatches, devices in ((1, 1), (2, 8)):
        found, metrics = gradient(objective, microbatches, devices)
        named = parameters.named_leaves(expected)
        zero = [name for name in named if name.endswith("key/bias")]  # only adds a constant to scores
        assert_close({n: found[n] for n in named if n not in zero}, {n: named[n] for n in named if n not in zero})
        np.testing.assert_allclose(metrics["objective"][0], value, rtol=1e-5)
        assert {"kl", "states", "loss", "next_sentence_loss"} <= metrics.keys()
        assert metrics["kl"][1] == masked.sum() and metrics["states"][1] == tokens.sum()


def test_teachers_have_no_gradient_and_no_dropout():
    objective = distillation({"states": States()}, {"a": TEACHERS["a"]})
    dropping = {"dropout_rate": 0.5, "attention_dropout_rate": 0.5}
    teacher = PRETRAINING.params(num_layers=2, **dropping)

    def total(params, key):
        return terms_of(objective, params, PRETRAINING.batch(), keys=Keys(dropout=key)).sums["states"]

    params = {**student(), "teachers": {"a": teacher}}  # the student has no dropout
    value, found = jax.jit(jax.value_and_grad(total))(params, jax.random.key(0))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(found["teachers"]))
    assert any(np.any(leaf) for leaf in jax.tree.leaves(found["model"]))
    np.testing.assert_allclose(value, jax.jit(total)(params, None), rtol=1e-6)


def test_squared_error_of_several_scores_is_that_of_all_scores():
    case = CASES["regression of several scores"]
    name, teachers = "sequence_regression", {"a": Network(case)}
    objective = distillation({"soft": LogitMSE(prediction=name)}, teachers, case)
    batch, params = case.batch(), jax.tree.map(lambda leaf: 0.8 * leaf, case.params())
    both = [params, teachers["a"].params()]
    total = terms_of(objective, {**params, "teachers": {"a": both[1]}}, batch).sums["soft"]
    ours, theirs = (predict(case.objective, each, batch)["predictions"] for each in both)
    known = case.objective.weights(batch)[name]
    np.testing.assert_allclose(total, np.sum(known * (ours - theirs) ** 2), rtol=1e-4)


def test_teacher_with_another_vocabulary_raises_for_every_loss():
    teachers = {"a": dataclasses.replace(TEACHERS["a"], vocabulary="b" * 8)}
    message = r"teacher 'a': the vocabulary of runs/teacher \(bbbbbbbb\) differs .* student \(aaaaaaaa\)"
    with pytest.raises(UserError, match=message):
        distillation({"states": States()}, teachers, vocabulary="a" * 8)


def test_vocabulary_of_a_decoder_is_compared_before_its_features():
    teacher = Network(CASES["causal_lm"], vocabulary="b" * 8)  # which the rows of the student do not have
    with pytest.raises(UserError, match="teacher 't': the vocabulary of"):
        distillation({"states": States()}, {"t": teacher}, vocabulary="a" * 8)


def test_init_adds_projections_per_teacher_to_the_heads_of_the_student():
    model, key = PRETRAINING.params()["model"], jax.random.key(0)
    heads = jax.eval_shape(distillation().init, key, model)
    assert heads.keys() == {"masked_lm", "next_sentence", PROJECTIONS}
    names = [name for name in parameters.named_leaves(heads) if name.startswith(PROJECTIONS)]
    assert names == [f"{PROJECTIONS}/states/{teacher}/projection/kernel" for teacher in "ab"]
    assert PROJECTIONS not in jax.eval_shape(distillation({"kl": Logits()}).init, key, model)


def test_choices_are_rows_of_both_networks():
    case = CASES["multiple choice"]
    teacher = Network(case)
    objective = distillation({"kl": Logits("multiple_choice")}, {"t": teacher}, case)
    params = {**case.params(), "teachers": {"t": teacher.params()}}
    terms = jax.jit(functools.partial(terms_of, objective))(params, case.batch())
    weights = total_weights(objective, case.batch())
    real = case.batch()["encoder_segment_ids"].any(axis=(1, 2))
    assert float(weights["kl"]) == real.sum() > float(weights["multiple_choice"])  # rows without a label count
    with np.errstate(divide="ignore", invalid="ignore"):
        log_q, log_p = (
            np.log(jax.jit(functools.partial(predict, case.objective))(each, case.batch())["probabilities"])
            for each in (params, teacher.params())
        )
        kl = np.where(log_p > -np.inf, np.exp(log_p) * (log_p - log_q), 0).sum(axis=1)  # 0 for missing choices
    np.testing.assert_allclose(terms.sums["kl"], kl[real].sum(), rtol=1e-4)


LOGIT_LOSSES = {"forward": ForwardKL(prediction="masked_lm"), "reverse": ReverseKL(prediction="masked_lm", teacher="a")}
FACTORS = {"masked_lm": 2.0, "next_sentence": 1.0, "forward": 0.5, "reverse": jnp.float32(3.0), "states": 0.25}


def test_losses_of_logits_share_one_pass_with_the_loss_of_the_student():
    objective, batch = distillation(LOGIT_LOSSES), PRETRAINING.batch()
    params = {**student(), "teachers": {name: each.params() for name, each in TEACHERS.items()}}

    def one_pass(params):
        return loss(forward(objective, params, batch), FACTORS)

    terms, jaxpr = jax.jit(one_pass)(params)[1], jax.make_jaxpr(one_pass)(params)
    products = [each.outvars[0].aval.shape for each in jaxpr.eqns if each.primitive.name == "dot_general"]
    logits = (*batch["masked_positions"].shape, TEACHERS["a"].config.vocab_size)
    assert products.count(logits) == 3  # one per network
    own = PRETRAINING.objective
    stub = jax.jit(functools.partial(terms_of, distillation({"kl": Logits()})))(params, batch)
    np.testing.assert_allclose(terms.sums["forward"], stub.sums["kl"], rtol=1e-4)
    for name, expected in jax.jit(functools.partial(terms_of, own))(params, batch).sums.items():
        np.testing.assert_allclose(terms.sums[name], expected, rtol=1e-5)


def test_gradient_of_one_pass_equals_that_of_separate_losses(monkeypatch):
    objective, batch = distillation(LOGIT_LOSSES | {"states": States()}), PRETRAINING.batch()
    teachers = {name: each.params() for name, each in TEACHERS.items()}

    def separate(params):
        sums = terms_of(objective, {**params, "teachers": teachers}, batch).sums
        return sum(FACTORS[name] * each for name, each in sums.items()), sums

    def one_pass(params):
        return loss(forward(objective, {**params, "teachers": teachers}, batch), FACTORS)

    (value, sums), gradient = jax.jit(jax.value_and_grad(separate, has_aux=True))(student())
    monkeypatch.setattr(chunks, "LOGITS_BUDGET_BYTES", 1)  # one position per chunk
    monkeypatch.setattr(chunks, "MIN_POSITIONS", 1)
    (found, found_terms), found_gradient = jax.jit(jax.value_and_grad(one_pass, has_aux=True))(student())
    np.testing.assert_allclose(found, value, rtol=1e-6)
    assert_close(found_terms.sums, sums)
    named, expected = parameters.named_leaves(found_gradient), parameters.named_leaves(gradient)
    zero = [name for name in named if name.endswith("key/bias")]  # only adds a constant to scores
    assert_close(*({name: each[name] for name in each if name not in zero} for each in (named, expected)))


def test_cached_predictions_replace_the_teacher():
    teacher = TEACHERS["a"]
    batch, own = PRETRAINING.batch(), PRETRAINING.objective

    @jax.jit
    def logits_of(params):
        predicted = forward(own, params, batch).predictions["masked_lm"]
        return predicted.logits(predicted.hidden)

    logits = np.asarray(logits_of(teacher.params()))
    ids = np.argsort(-logits, axis=-1).astype(np.int32)
    values = np.take_along_axis(logits, ids, axis=-1)

    class Cached:
        attached, classes = (), None

        def check_classes(self, classes):
            self.classes = classes

        def check_prediction(self, prediction):
            if prediction != "masked_lm":
                raise UserError(f"{prediction} is not stored")

        def predictions(self, batch):
            return {"masked_lm": TopK(jnp.asarray(values), jnp.asarray(ids), jnp.full(ids.shape[:2], -jnp.inf))}

    cached = Cached()
    losses, teachers = {"kl": Logits()}, {"a": teacher}
    stored, online = distillation(losses, teachers, cached={"a": cached}), distillation(losses, teachers)
    jax.eval_shape(stored.init, jax.random.key(0), PRETRAINING.params()["model"])
    vocabulary = teacher.config.vocab_size
    assert cached.classes == {"masked_lm": vocabulary, "all_tokens": vocabulary, "next_sentence": 2}
    expected = jax.jit(functools.partial(terms_of, online))({**student(), "teachers": {"a": teacher.params()}}, batch)
    found = jax.jit(functools.partial(terms_of, stored))(student(), batch)
    np.testing.assert_allclose(found.sums["kl"], expected.sums["kl"], rtol=1e-5)
    with pytest.raises(UserError, match="'states' reads 'encoder/layers/0/hidden' of the teacher 'a', of which only"):
        distillation({"states": States()}, teachers, cached={"a": cached}).check(teacher.config)
    with pytest.raises(UserError, match="all_tokens is not stored"):
        distillation({"kl": ForwardKL(prediction="all_tokens")}, teachers, cached={"a": cached}).check(teacher.config)


def test_teacher_reads_more_features_than_the_student():
    teacher = Network(PRETRAINING)
    objective = Distillation(MaskedLM(), {"kl": Logits()}, teachers={"t": teacher})
    added = {feature.name for feature in objective.features.features} - {f.name for f in specs.MASKED_LM.features}
    assert added == {"token_types"} and objective.features.packable
    assert objective.features.task_features == ("inputs", "masked_positions", "targets", "token_types")
    read = []

    class Student(MaskedLM):
        def run(self, params, rows, options):
            read.extend(rows)
            return super().run(params, rows, options)

    batch = {name: array for name, array in PRETRAINING.batch().items() if name in objective.features.dtypes}
    objective = Distillation(Student(), {"kl": Logits()}, teachers={"t": teacher})
    terms = jax.jit(functools.partial(terms_of, objective))({**student(), "teachers": {"t": teacher.params()}}, batch)
    assert set(read) == {feature.name for feature in specs.MASKED_LM.features} and np.isfinite(terms.sums["kl"])


def test_conflicting_features_raise():
    with pytest.raises(UserError, match="teacher 't' reads 'decoder_input_tokens' as .*'shifted'.*, the student as"):
        merge(specs.NEXT_TOKEN, {"t": (specs.CAUSAL_LM, ["decoder_input_tokens"])})
    with pytest.raises(UserError, match="teacher 't' reads the token 5 first, the student 0"):
        merge(specs.CAUSAL_LM, {"t": (dataclasses.replace(specs.CAUSAL_LM, bos_id=5), ["decoder_input_tokens"])})
    with pytest.raises(UserError, match="'t': what teachers read is not in the rows of the student .*'targets', which"):
        classifier = SequenceClassification(("a", "b"), head=heads.PooledFirstToken())
        merge(classifier.features, {"t": (specs.CAUSAL_LM, ["decoder_segment_ids"])})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"teachers": {}}, r"TEACHERS=\[\]: a distillation needs both"),
        ({"losses": {"masked_lm": Logits()}}, "'masked_lm' is a term of the student already"),
        ({"losses": {"task": Logits()}}, "'task' is a term"),
        ({"coefficients": {"kd": 1.0}}, "unknown loss 'kd'. The losses are task, masked_lm, next_sentence, kl, states"),
        ({"losses": {"kl": Logits(teacher="c")}}, "loss 'kl': unknown teacher 'c'. The teachers are a, b"),
        ({"losses": {"kl": Logits(teacher="a")}}, "no loss reads 'b'"),
        ({"cached": {"c": None}}, "cached predictions of 'c': unknown teacher"),
        ({"coefficients": {"kl": "0.5"}}, "COEFFICIENTS: '0.5' of 'kl' is neither a number nor a schedule. Give"),
        ({"coefficients": {"kl": -0.5}}, "COEFFICIENTS: -0.5 of 'kl' is negative or not finite. Give 0 or"),
        ({"coefficients": {"kl": float("nan")}}, "COEFFICIENTS: nan of 'kl' is negative or not finite"),
        ({"coefficients": {"task": None}}, "COEFFICIENTS: None of 'task' is neither a number nor a schedule"),
    ],
)
def test_invalid_names_raise(options, message):
    with pytest.raises(UserError, match=message):
        distillation(**options)


def test_coefficients_of_single_terms():
    objective = distillation(coefficients={"task": 0.5, "masked_lm": 0.2})
    own = PRETRAINING.objective.coefficients
    assert objective.coefficients["masked_lm"] == pytest.approx(0.1 * own["masked_lm"])
    assert objective.coefficients["next_sentence"] == pytest.approx(0.5 * own["next_sentence"])


def test_metric_of_the_student_cannot_be_a_loss():
    objective = distillation({"accuracy": Logits(teacher="a")}, {"a": TEACHERS["a"]})
    params = {**student(), "teachers": {"a": TEACHERS["a"].params()}}
    with pytest.raises(UserError, match="'accuracy' is a metric of the student already"):
        jax.eval_shape(functools.partial(terms_of, objective), params, PRETRAINING.batch())


def test_rows_longer_than_the_positions_of_a_teacher_name_it():
    objective = distillation({"kl": Logits()}, {"t": Network(PRETRAINING)})
    params = {**student(), "teachers": {"t": PRETRAINING.params(num_layers=2, max_length=2)}}
    with pytest.raises(UserError, match="teacher 't', runs/teacher: rows of .* longer than the positions of the model"):
        jax.eval_shape(functools.partial(terms_of, objective), params, PRETRAINING.batch())


def test_student_with_stages_or_two_ways_to_prepare_a_batch_raises():
    class Prepared(MaskedLM):
        @staticmethod
        def prepare(params, batch, *, key, step):
            return batch

    staged = Staged({"only": Stage(objective=MaskedLM(), trains="^model/")})
    with pytest.raises(UserError, match="Staged: the objective of a student can have neither stages nor"):
        Distillation(staged, {"kl": Logits()}, teachers={"t": Network(PRETRAINING)})
    prepared = Distillation(Prepared(), {"kl": Logits()}, teachers={"t": Network(PRETRAINING)})
    assert prepared.prepare is Prepared.prepare
    assert Distillation(MaskedLM(), {"kl": Logits()}, teachers={"t": Network(PRETRAINING)}).prepare is None
