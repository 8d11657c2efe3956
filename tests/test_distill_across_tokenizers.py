"""Students that learn from a teacher with another tokenizer: runs from Python, and what is refused."""

import jax
import numpy as np
import pytest
import recipes
import several_processes
import small_models
from python_texts import LENGTH, TEXTS, Texts

from t5x_like import optimizers
from t5x_like.data import specs
from t5x_like.distill import distill
from t5x_like.distillation import losses
from t5x_like.distillation.on_policy import OnPolicy
from t5x_like.distillation.teachers import Teacher
from t5x_like.errors import UserError
from t5x_like.metrics import read_metrics
from t5x_like.models.llama import LlamaConfig
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.optimizers import schedules
from t5x_like.partitioning import Partitioner
from t5x_like.train import train
from t5x_like.training import program

pytestmark = pytest.mark.notf

CONFIG = LlamaConfig(vocab_size=1024, embed_dim=8, mlp_dim=16, num_heads=2, head_dim=4, num_layers=1, max_length=32)
LOSSES = {
    "uld": losses.ULD(),
    "alm": losses.ALM(),
    "min_ed": losses.MinED(),
    "gold": losses.GOLD(),
    "dskd": losses.DSKD(),
}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "gpt2"
    small_models.write_gpt2(path)
    return Teacher(str(path), lengths={"targets": 40})


def student(model_dir, **settings):
    given = {"data": Texts(), "total": 2, "partitioner": Partitioner(devices=jax.devices()[:1], ici={"data": 1})}
    return recipes.make(
        model=CONFIG,
        objective=CausalLM(),
        optimizer=optimizers.adamw(learning_rate=schedules.constant(0.01)),
        log=1,
        model_dir=str(model_dir),
        **given | settings,
    )


def recipe(model_dir, teacher, *, of=("alm",), rate=None, **settings):
    """Returns a recipe, whose student samples the targets of a share of the rows."""
    sampled = {} if rate is None else {"coefficients": {"task": 0.0}, "on_policy": OnPolicy(rate=rate, eos_id=1)}
    chosen = {name: LOSSES[name] for name in of}
    return distill(student(model_dir, **settings), teachers={"t": teacher}, losses=chosen, **sampled)


def metrics(model_dir):
    rows = [row for row in read_metrics(str(model_dir)) if row["split"] == "train"]
    return [[row[name] for name in ("loss", *LOSSES) if name in row] for row in rows]


def test_run_has_the_losses_of_both_tokenizers(teacher, tmp_path):
    train(recipe(tmp_path / "run", teacher, of=("alm", "min_ed")))
    (first, second) = metrics(tmp_path / "run")
    assert len(first) == 3 and all(np.isfinite([*first, *second])) and min(*first, *second) > 0


@pytest.mark.full
@pytest.mark.parametrize(("of", "rate"), [(tuple(LOSSES), None), (("gold",), 0.5)])
def test_microbatches_and_devices_do_not_change_the_losses(of, rate, teacher, tmp_path):
    train(recipe(tmp_path / "one", teacher, of=of, rate=rate, total=3))
    mesh = Partitioner(devices=jax.devices()[:4], rules="fsdp", ici={"fsdp": 4})
    train(recipe(tmp_path / "four", teacher, of=of, rate=rate, total=3, microbatches=2, partitioner=mesh))
    np.testing.assert_allclose(metrics(tmp_path / "four"), metrics(tmp_path / "one"), rtol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize(("of", "rate"), [("alm", None), ("gold", 0.5)])
def test_interrupted_run_reads_the_same_rows(of, rate, teacher, tmp_path):
    settings = dict(of=(of,), rate=rate, save=2)
    train(recipe(tmp_path / "whole", teacher, total=4, **settings))
    train(recipe(tmp_path / "parts", teacher, total=2, **settings))
    train(recipe(tmp_path / "parts", teacher, total=4, **settings))
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")


def test_samples_are_read_in_the_tokens_of_the_teacher(teacher, tmp_path):
    made = recipe(tmp_path, teacher, of=("gold",), rate=0.5)
    objective, keys = made.objective, jax.random.split(jax.random.key(1))
    batch = next(made.data.host_iterator(objective.features))
    model = CONFIG.make(keys[0])
    sampled = jax.device_get(
        jax.jit(lambda batch: objective.prepare({"model": model}, batch, key=keys[1], step=0))(batch)
    )
    expected = OnPolicy(rate=0.5, eos_id=1)(model, objective.features, batch, key=keys[1], step=0)
    student_names = {feature.name for feature in specs.CAUSAL_LM.features}
    for name in student_names:
        np.testing.assert_array_equal(sampled[name], expected[name], err_msg=name)
    changed = np.any(sampled["decoder_target_tokens"] != batch["decoder_target_tokens"], axis=1)
    assert 0 < changed.sum() < 8
    # The features of the teacher are those of a source with the sampled rows.
    again = objective.retokenizers["t"]({name: sampled[name] for name in student_names})
    assert {*sampled} == {*batch} == student_names | {*again}
    for name, array in again.items():
        np.testing.assert_array_equal(sampled[name], array, err_msg=name)
    groups = "retokenized/t/student_groups"
    assert np.all(np.any(sampled[groups] != batch[groups], axis=1) <= changed) and sampled[groups][changed].any()


def test_rows_of_the_teacher_have_its_length_and_bos(teacher, tmp_path):
    made = recipe(tmp_path, teacher)
    shapes = made.data.batch_shapes(made.objective.features)
    assert shapes["retokenized/t/decoder_input_tokens"] == (8, 40)
    batch = next(made.data.host_iterator(made.objective.features))
    first = batch["retokenized/t/decoder_input_tokens"][0]
    assert first[0] == small_models.BOS_ID, "its own BOS, not the student's"
    text = bytes(TEXTS[0], "utf-8")[: len(first) - 1]
    assert batch["retokenized/t/decoder_segment_ids"][0].sum() <= len(text) + 1
    (loaded,) = made.teachers.values()
    of_rows = [
        config.train_flops({"decoder_input_tokens": (8, length), "decoder_target_tokens": (8, length)})
        for config, length in ((CONFIG, LENGTH), (loaded.config, 40))
    ]
    assert program.make_program(made).flops == of_rows[0] + of_rows[1] / 3


def test_other_losses_and_unknown_tokenizers_are_refused(teacher, tmp_path):
    both = {"alm": losses.ALM(), "kl": losses.ForwardKL()}
    with pytest.raises(UserError, match="loss 'kl': ForwardKL compares equal tokens, but the teacher 't' reads tokens"):
        distill(student(tmp_path), teachers={"t": teacher}, losses=both)
    with pytest.raises(UserError, match="texts: its vocabulary is not known. Set VOCABULARY_PATH"):
        recipe(tmp_path, teacher, data=Texts(known=False))
    with pytest.raises(UserError, match="ALM reads one teacher"):
        distill(student(tmp_path), teachers={"t": teacher, "u": teacher}, losses={"alm": losses.ALM()})


@pytest.mark.full
def test_two_processes_sample_for_another_tokenizer_as_one(teacher, tmp_path):
    flags = [f"--gin.TEACHER={teacher.path}"]
    processes = several_processes.start(tmp_path / "two", *flags, run="distill", gin_file="gold_on_policy.gin")
    codes = several_processes.finish(processes)
    assert codes == [0, 0], [several_processes.output(tmp_path / "two", index) for index in (0, 1)]
    mesh = Partitioner(devices=jax.devices()[:4], rules="fsdp", ici={"fsdp": 4})
    train(recipe(tmp_path / "one", teacher, of=("gold",), rate=0.5, total=3, partitioner=mesh))
    found, expected = metrics(tmp_path / "two"), metrics(tmp_path / "one")
    assert np.shape(found) == (3, 2) and np.min(found) > 0
    np.testing.assert_allclose(found, expected, rtol=1e-5)
