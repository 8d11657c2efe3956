"""On-policy batches: rows with samples of the student equal those that a task would make of the samples."""

import contextlib
import dataclasses
import itertools

import jax
import jax.numpy as jnp
import lanes
import numpy as np
import pytest
from objective_cases import terms_of

from t5x_like.data import batches, conversation_specs, specs
from t5x_like.decoding.generate import generate
from t5x_like.decoding.settings import Decoding
from t5x_like.distillation.losses.logits import JensenShannon
from t5x_like.distillation.losses.sequences import MiniLLM
from t5x_like.distillation.objective import Distillation
from t5x_like.distillation.on_policy import OnPolicy
from t5x_like.errors import UserError
from t5x_like.models.gpt import GPTConfig
from t5x_like.models.special_tokens import SpecialTokens
from t5x_like.models.t5 import T5Config
from t5x_like.objectives.prefix_lm import PrefixLM
from t5x_like.partitioning import Partitioner

SIZES = dict(vocab_size=13, embed_dim=16, mlp_dim=32, num_heads=2, head_dim=8)
GPT = GPTConfig(**SIZES, num_layers=1, max_length=16)
T5 = T5Config(**SIZES, encoder_layers=1, decoder_layers=1, relpos_buckets=4, relpos_max_distance=8)
ROWS, INPUTS, TARGETS, BOS, EOS = 8, 5, 6, 2, 11
SPECS = {
    "encoder_decoder": (T5, specs.ENCODER_DECODER),
    "prefix": (GPT, specs.PREFIX_LM),
    "prompted": (GPT, specs.PROMPTED),
    "next_token": (GPT, specs.NEXT_TOKEN),
}
KEY = jax.random.key(3)


def model_of(config):
    model = config.make(jax.random.key(0))
    return jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape), model)


def task_arrays(random):
    """Returns token ids of a task, and the number of them in each row."""
    counts = {"inputs": random.integers(1, INPUTS + 1, ROWS), "targets": random.integers(1, TARGETS + 1, ROWS)}
    lengths = {"inputs": INPUTS, "targets": TARGETS}
    arrays = {name: random.integers(3, 13, (ROWS, length)) for name, length in lengths.items()}
    return arrays, counts


@pytest.fixture(scope="module", params=SPECS)
def case(request):
    """Returns model, spec, arrays of a task, their counts and the supervised batch."""
    config, spec = SPECS[request.param]
    spec = dataclasses.replace(spec, bos_id=BOS)
    arrays, counts = task_arrays(np.random.default_rng(0))
    return model_of(config), spec, arrays, counts, batches.from_arrays(spec, arrays, counts=counts)


def prompts_of(spec, arrays, counts):
    """Returns what the model reads before the first target."""
    if "encoder_input_tokens" in {feature.name for feature in spec.features}:
        return batches.from_arrays(specs.ENCODER_INPUTS, arrays, counts=counts)
    roles = {feature.name: feature.role for feature in spec.features}
    bos = [BOS] if roles["decoder_input_tokens"] == "shifted" else []
    read = [bos + row[:count].tolist() for row, count in zip(arrays["inputs"], counts["inputs"], strict=True)]
    if "inputs" not in spec.task_features:
        read = [row[:1].tolist() for row in arrays["targets"]]
    tokens, segments = (np.zeros((ROWS, 1 + INPUTS), np.int32) for _ in range(2))
    for row, prompt in enumerate(read):
        tokens[row, : len(prompt)], segments[row, : len(prompt)] = prompt, 1
    features = {"decoder_input_tokens": tokens, "decoder_segment_ids": segments}
    return features | ({"decoder_prefix": segments} if "decoder_prefix" in roles else {})


@pytest.mark.full
def test_sampled_targets_make_the_batch_of_a_task_with_these_targets(case):
    model, spec, arrays, counts, batch = case
    continues = "inputs" not in spec.task_features  # the first token of the targets, which is never predicted
    longest = TARGETS - continues
    sampler = OnPolicy(max_length=longest, eos_id=EOS)
    found = jax.jit(lambda model, batch: sampler(model, spec, batch, key=KEY, step=0))(model, batch)
    decoding = Decoding(temperature=1.0, max_length=longest, eos_ids=(EOS,), bos_id=BOS)
    samples = generate(model, prompts_of(spec, arrays, counts), decoding, jax.random.fold_in(KEY, 1))
    assert len({tuple(row) for row in samples.tokens[:, 0].tolist()}) > 4
    assert len(set(samples.lengths[:, 0].tolist())) > 1
    targets, lengths = np.asarray(samples.tokens[:, 0]), np.asarray(samples.lengths[:, 0])
    if continues:
        targets, lengths = np.concatenate([arrays["targets"][:, :1], targets], axis=1), lengths + 1
    expected = batches.from_arrays(spec, arrays | {"targets": targets}, counts=counts | {"targets": lengths})
    assert set(found) == set(expected) == set(batch)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_without_samples_the_batch_is_the_supervised_one(case):
    model, spec, _, _, batch = case
    found = OnPolicy(rate=0.0, eos_id=EOS)(model, spec, batch, key=KEY, step=0)
    for name in batch:
        np.testing.assert_array_equal(found[name], batch[name])


def prompted(rows, seed=0):
    """Returns the spec of a decoder with prompts, and a batch in which one row is padding."""
    spec = dataclasses.replace(specs.PREFIX_LM, bos_id=BOS)
    random = np.random.default_rng(seed)
    arrays = {"inputs": random.integers(3, 13, (rows, INPUTS)), "targets": random.integers(3, 13, (rows, TARGETS))}
    arrays = {name: np.where(np.arange(rows)[:, None] == 1, 0, array) for name, array in arrays.items()}
    return spec, batches.from_arrays(spec, arrays)


@pytest.mark.full
def test_samples_do_not_depend_on_devices():
    model, (spec, batch) = model_of(GPT), prompted(16)
    sampler = OnPolicy(rate=0.5, max_length=TARGETS, eos_id=EOS)

    def on(devices):
        partitioner = Partitioner(rules="fsdp", devices=jax.devices()[:devices])
        compute = partitioner.jit(lambda model, batch: sampler(model, spec, batch, key=KEY, step=0))
        return jax.device_get(compute(model, partitioner.put_batch(batch)))

    one, eight = on(1), on(8)
    for name in batch:
        np.testing.assert_array_equal(one[name], eight[name], err_msg=name)
    changed = np.any(one["decoder_target_tokens"] != batch["decoder_target_tokens"], axis=1)
    assert 3 < changed.sum() < 13 and not changed[1]  # padding stays


def test_whole_batches_are_replaced_together():
    config, spec = SPECS["prompted"]
    spec = dataclasses.replace(spec, bos_id=BOS)
    arrays, counts = task_arrays(np.random.default_rng(0))
    batch, model = batches.from_arrays(spec, arrays, counts=counts), model_of(config)
    chosen = set()
    sampler = OnPolicy(rate=0.5, whole_batches=True, max_length=TARGETS, eos_id=EOS)
    sample = jax.jit(lambda key: sampler(model, spec, batch, key=key, step=0)["decoder_target_tokens"])
    for number in range(6):
        changed = np.any(np.asarray(sample(jax.random.key(number))) != batch["decoder_target_tokens"], axis=1)
        chosen.add(changed.mean() > 0.5)
        assert not changed.any() or changed.mean() > 0.5, "a sample may equal its target"
    assert chosen == {True, False}


def test_rate_may_be_a_schedule():
    model, (spec, batch) = model_of(GPT), prompted(4)
    sampler = OnPolicy(rate=lambda step: jnp.minimum(step / 10, 1.0), max_length=TARGETS, eos_id=EOS)
    compute = jax.jit(lambda step: sampler(model, spec, batch, key=KEY, step=step)["decoder_target_tokens"])
    np.testing.assert_array_equal(compute(0), batch["decoder_target_tokens"])
    changed = np.any(compute(10) != batch["decoder_target_tokens"], axis=1)
    assert changed.tolist() == [True, False, True, True]


@pytest.mark.full
def test_gradient_does_not_flow_through_sampling():
    model, (spec, batch) = model_of(GPT), prompted(4)
    sampler, objective = OnPolicy(max_length=TARGETS, eos_id=EOS), PrefixLM(bos_id=BOS)

    def loss(model, batch):
        return terms_of(objective, {"model": model, "objective": {}}, batch).sums["targets"]

    def sample(model):
        return sampler(model, spec, batch, key=KEY, step=0)

    fixed = sample(model)
    through = jax.grad(lambda model: loss(model, sample(model)))(model)
    jax.tree.map(np.testing.assert_array_equal, through, jax.grad(loss)(model, fixed))


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A teacher of the distillation below; see `loaded_teachers.LoadedTeacher`."""

    config: GPTConfig = dataclasses.replace(GPT, num_layers=2)
    objective: PrefixLM = PrefixLM(bos_id=BOS)
    vocabulary: str | None = None
    weight: float = 1.0

    def bound(self):
        return contextlib.nullcontext()


def distillation(on_policy, **options):
    losses = {"divergence": JensenShannon(prediction="targets", beta=0.3)}
    options = {"coefficients": {"task": 0.0}, "teachers": {"teacher": Teacher()}} | options
    return Distillation(PrefixLM(bos_id=BOS), losses, on_policy=on_policy, **options)


def test_teacher_and_student_are_compared_at_the_samples():
    spec, batch = prompted(4)
    sampler = OnPolicy(max_length=TARGETS, eos_id=EOS)
    objective, student, teacher = distillation(sampler), model_of(GPT), model_of(Teacher().config)
    assert not objective.features.packable
    params = {"model": student, "objective": {}, "teachers": {"teacher": {"model": teacher, "objective": {}}}}
    sampled = objective.prepare(params, batch, key=KEY, step=0)
    for name, expected in sampler(student, spec, batch, key=KEY, step=0).items():
        np.testing.assert_array_equal(sampled[name], expected)
    p, q = (np.asarray(jax.nn.softmax(each.unembed(each(sampled).hidden)), np.float64) for each in (teacher, student))
    mean = 0.3 * p + 0.7 * q
    divergence = np.sum(0.3 * p * np.log(p / mean) + 0.7 * q * np.log(q / mean), axis=-1)
    weights = np.asarray(sampled["decoder_loss_weights"])
    np.testing.assert_allclose(
        terms_of(objective, params, sampled).sums["divergence"], np.sum(divergence * weights), rtol=1e-5
    )
    np.testing.assert_array_equal(objective.weights(sampled)["divergence"], weights)
    assert distillation(None).prepare is None and distillation(None).features.packable


@pytest.mark.parametrize("name", lanes.others_are_full(("prompted", "encoder_decoder"), ("prompted",)))
def test_tokens_are_drawn_from_the_mixture_with_the_teacher(name):
    """The frequencies of all texts of two tokens, against their probabilities by whole forward passes."""
    config, spec = SPECS[name]
    rows, alpha, vocab = 6000, 0.3, 5
    config, spec = dataclasses.replace(config, vocab_size=vocab), dataclasses.replace(spec, bos_id=BOS)
    student, teacher = model_of(config), model_of(dataclasses.replace(config, embed_dim=24))
    texts = np.array(list(itertools.product(range(vocab), repeat=2)))

    def batch_of(targets):
        counts = {"inputs": np.full(len(targets), 3), "targets": np.full(len(targets), 2)}
        inputs = np.broadcast_to([3, 1, 4], (len(targets), 3))
        return batches.from_arrays(spec, {"inputs": inputs, "targets": targets}, counts=counts)

    def probabilities(mix):
        batch = batch_of(texts)
        q, p = (jax.nn.softmax(each.unembed(each(batch).hidden)) for each in (student, teacher))
        of_tokens = np.take_along_axis(
            np.asarray(mix * p + (1 - mix) * q, np.float64), batch["decoder_target_tokens"][..., None], axis=2
        )[..., 0]
        return np.prod(np.where(batch["decoder_loss_weights"] > 0, of_tokens, 1.0), axis=1)

    batch = batch_of(np.zeros((rows, 2), int))
    sampler = OnPolicy(max_length=2, eos_id=vocab, teacher_mix=alpha)
    sample = jax.jit(lambda student, teacher: sampler(student, spec, batch, key=KEY, step=0, teacher=teacher))
    found = sample(student, teacher)
    weights = np.asarray(found["decoder_loss_weights"])
    assert weights.sum() == 2 * rows
    drawn = np.asarray(found["decoder_target_tokens"])[weights > 0].reshape(rows, 2)
    counts = np.bincount(drawn[:, 0] * vocab + drawn[:, 1], minlength=vocab**2)
    assert np.all(counts > 0)
    # Pearson's statistic has 24 degrees of freedom: it is below 60 with a probability of 0.99994.
    assert np.sum((counts - rows * probabilities(alpha)) ** 2 / (rows * probabilities(alpha))) < 60
    for other in (0.0, 0.15, 0.45, 1.0):
        expected = rows * probabilities(other)
        assert np.sum((counts - expected) ** 2 / expected) > 60, other


def test_teacher_that_cannot_be_mixed_is_refused():
    sampler = OnPolicy(teacher_mix=0.2)
    assert distillation(sampler).prepare is not None
    mixed = {"minillm": MiniLLM(teacher_mix=0.1)}
    with pytest.raises(UserError, match="loss 'minillm' has teacher_mix=0.1, OnPolicy has 0.2"):
        Distillation(
            PrefixLM(bos_id=BOS), mixed, teachers={"t": Teacher()}, coefficients={"task": 0}, on_policy=sampler
        )
    with pytest.raises(UserError, match="needs one teacher, which reads the features and the tokens of the student"):
        distillation(sampler, teachers={"t": Teacher(), "u": Teacher()})


def test_losses_of_given_targets_are_refused():
    for coefficients in ({"task": 0.5}, {"task": lambda step: 0.0}):
        with pytest.raises(UserError, match="COEFFICIENTS: the term 'targets' of the student has a coefficient, but"):
            distillation(OnPolicy(), coefficients=coefficients)

    class Cached:
        attached = ()

    with pytest.raises(UserError, match="OnPolicy: the cached predictions of teacher belong to other targets"):
        distillation(OnPolicy(), cached={"teacher": Cached()})


def test_each_eos_of_the_model_ends_a_sample():
    """As the end of a text and the end of a turn of Llama 3."""
    spec = dataclasses.replace(specs.NEXT_TOKEN, bos_id=BOS)
    batch = batches.from_arrays(spec, {"targets": np.full((ROWS, TARGETS), 3)}, counts={"targets": [TARGETS] * ROWS})
    tokens = SpecialTokens(config={"eos_token_id": 4}, generation={"eos_token_id": (4, *range(6, 13))})
    model = model_of(dataclasses.replace(GPT, special_tokens=tokens))
    found = OnPolicy()(model, spec, batch, key=KEY, step=0)
    targets, weights = (np.asarray(found[f"decoder_{name}"]) for name in ("target_tokens", "loss_weights"))
    lengths = weights.sum(axis=1).astype(int)
    ends = np.isin(targets, (4, *range(6, 13))) & (weights > 0)
    assert len(set(lengths.tolist())) > 1
    for row, length in enumerate(lengths):
        assert np.flatnonzero(ends[row]).tolist() == ([length - 1] if length < TARGETS - 1 or ends[row].any() else [])


def test_an_unknown_eos_raises():
    message = "SAMPLE_EOS_ID=None: the model has no eos_token_id. Give the id that ends a sample."
    with pytest.raises(UserError, match=message):
        distillation(OnPolicy()).check(GPT)
    distillation(OnPolicy(eos_id=EOS)).check(GPT)
    distillation(OnPolicy()).check(dataclasses.replace(GPT, special_tokens=SpecialTokens({"eos_token_id": EOS})))


def test_invalid_arguments_raise():
    for changes, message in (
        ({"rate": 1.5}, r"OnPolicy.rate=1.5: not in \[0, 1\]"),
        ({"temperature": 0.0}, "OnPolicy.temperature=0.0: not positive"),
        ({"teacher_mix": 1.0}, r"OnPolicy.teacher_mix=1.0: not in \[0, 1\)"),
        ({"teacher_mix": 0.2, "top_p": 0.9}, "a mixture with temperature=1.0, top_k=0, top_p=0.9 has no known weights"),
        ({"max_length": 0}, "Decoding.max_length=0: not a positive integer"),
    ):
        with pytest.raises(UserError, match=message):
            OnPolicy(**changes)
    with pytest.raises(UserError, match="OnPolicy: samples are texts of a decoder, but the objective reads encoder"):
        OnPolicy().check(specs.MASKED_LM)
    with pytest.raises(UserError, match="OnPolicy: 'loss_mask' of the task selects the tokens with a loss, which a"):
        OnPolicy().check(conversation_specs.CONVERSATION)
    OnPolicy().check(specs.PROMPTED)
