"""Distillation on synthetic batches, without gin: teachers are frozen and recognized, and a run resumes exactly."""

import dataclasses
import functools
import json
import shutil
import sys
from pathlib import Path

import copying_run
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_like import ablate, cli, interop, parameters
from t5x_like.adapters.pruned import MagnitudePruning
from t5x_like.adapters.quantization import FakeQuantized
from t5x_like.adapters.ranges import is_range
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.conversion.settings import Changes, Source, Target
from t5x_like.convert import convert
from t5x_like.distill import distill
from t5x_like.distillation.teachers import Teacher
from t5x_like.errors import UserError
from t5x_like.loading import open_model, open_teacher
from t5x_like.metrics import read_metrics
from t5x_like.models import construct
from t5x_like.models.base import for_platform
from t5x_like.models.bert import BertConfig
from t5x_like.objectives import heads
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.sequence_classification import SequenceClassification
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.objectives.variables import Frozen
from t5x_like.optimizers import schedules
from t5x_like.partitioning import Partitioner
from t5x_like.planning import search, tracing
from t5x_like.prune import prune
from t5x_like.train import train
from t5x_like.training import program
from t5x_like.training.runs import run_directory

pytestmark = pytest.mark.notf

PROCESSES = Path(__file__).parent / "processes"
TEACHER = dataclasses.replace(copying_run.CONFIG, embed_dim=24, encoder_layers=1, decoder_layers=1)


class LastState:
    """The squared distance between the last hidden states of the teacher and a projection of the student's."""

    teacher = None

    def check(self, student, teacher):
        pass

    def captures(self, student, teacher):
        return (), ()

    def init(self, key, student, teacher):
        return {"projection": Projection(key, student.config.embed_dim, teacher.config.embed_dim)}

    def weights(self, rows, objective):
        return rows["decoder_loss_weights"].astype(jnp.float32)

    def __call__(self, heads, student, teacher):
        difference = heads["projection"](student.outputs.hidden) - teacher.outputs.hidden.astype(jnp.float32)
        weights = student.batch["decoder_loss_weights"]
        return jnp.sum(jnp.mean(difference**2, -1) * weights)


class Projection(nnx.Module):
    def __init__(self, key, inputs, outputs):
        self.kernel = nnx.Param(jax.random.normal(key, (inputs, outputs)) / inputs, axes=("embed", None))

    def __call__(self, x):
        return x @ self.kernel[...]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """The directory of a run with two checkpoints."""
    directory = tmp_path_factory.mktemp("teacher")
    copying_run.run(directory, model=TEACHER, total=2, save=1)
    return str(directory)


def run(model_dir, teacher, *, override=None, **changes):
    changes = {"total": 4, "evaluate": 4, "save": 2} | changes
    config = "t5x_like.training.recipe.Recipe.seed = 0\n"
    run_config = None if override is None else run_directory.RunConfig(config, override)
    recipe = distill(
        copying_run.recipe(model_dir, **changes),
        teachers={"t": teacher if isinstance(teacher, Teacher) else Teacher(teacher)},
        losses={"distance": LastState()},
        coefficients={"task": 0.5, "distance": schedules.linear(1.0, total_steps=8)},
    )
    return train(recipe, run_config=run_config)


def loss_rows(directory):
    return [(row["loss"], row["distance"]) for row in read_metrics(str(directory)) if row["split"] == "train"]


@pytest.fixture(scope="module")
def whole(teacher, tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    return directory, run(directory, teacher)


def test_student_learns_and_the_teacher_is_not_stored(whole, teacher):
    directory, result = whole
    assert loss_rows(directory)[-1][1] < loss_rows(directory)[0][1]
    stored = Checkpoints(str(directory / "checkpoints")).shapes(4)
    assert not [name for name in stored if "teacher" in name]
    assert stored["params/objective/distillation/distance/t/projection/kernel"] == (copying_run.CONFIG.embed_dim, 24)
    (described,) = json.loads((directory / "teachers.json").read_text()).values()
    assert (described["path"], described["digest"]) == (teacher, open_teacher(Teacher(teacher)).digest)


def test_other_commands_read_the_student_without_the_teacher(whole):
    directory, result = whole
    text = (directory / "config.gin").read_text()
    assert "OBJECTIVE = @t5x_like.objectives.sequence_to_sequence.SequenceToSequence()" in text
    partitioner = Partitioner(devices=jax.devices()[:1])
    loaded = open_teacher(Teacher(str(directory)))  # a student may be the teacher of the next generation
    read = loaded.on(partitioner).read()
    assert type(loaded.objective) is SequenceToSequence
    for name, leaf in parameters.named_leaves(read["model"]).items():
        np.testing.assert_array_equal(leaf, parameters.named_leaves(result.params["model"])[name], err_msg=name)


@pytest.mark.full
def test_quantized_student_learns_from_a_dense_teacher(teacher, tmp_path):
    pytest.importorskip("qwix", reason="needs the extra `quantization`")
    student = dataclasses.replace(copying_run.CONFIG, adapters=(FakeQuantized(),))
    result = run(tmp_path, teacher, model=student)
    assert loss_rows(tmp_path)[-1][1] < loss_rows(tmp_path)[0][1]
    ranges = [leaf for name, leaf in parameters.named_leaves(result.params).items() if is_range(name)]
    assert ranges and all(np.all(leaf > 0) for leaf in ranges)
    assert not any("quantization" in name for name in parameters.named_leaves(open_teacher(Teacher(teacher)).shapes))


def test_resumed_run_equals_an_uninterrupted_one(whole, teacher, tmp_path):
    run(tmp_path, teacher, total=2)
    result = run(tmp_path, teacher)
    assert loss_rows(tmp_path) == loss_rows(whole[0])
    expected = parameters.named_leaves(whole[1].params)
    for name, leaf in parameters.named_leaves(result.params).items():
        np.testing.assert_array_equal(leaf, expected[name], err_msg=name)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["kernels", "heads"])
def test_a_pruned_teacher_predicts_with_what_is_left_of_it(kind, tmp_path):
    source, path = tmp_path / "source", tmp_path / "teacher"
    if kind == "kernels":
        adapter = MagnitudePruning(density=0.25, begin=0, final_steps=1, total_steps=2)
        copying_run.run(path, model=dataclasses.replace(TEACHER, adapters=(adapter,)), total=2, evaluations=None)
    else:
        copying_run.run(source, model=TEACHER, total=2, evaluations=None)
        opened = open_model(str(source), partitioner=Partitioner(devices=jax.devices()[:1], ici={"data": 1}))
        prune(opened, output_path=str(path), data=copying_run.Copying(), heads=0.5, batches=1)
    result = run(tmp_path / "run", str(path))
    assert result.step == 4 and loss_rows(tmp_path / "run")[-1][1] < loss_rows(tmp_path / "run")[0][1]

    model = open_teacher(Teacher(str(path))).on(Partitioner(devices=jax.devices()[:1])).read()["model"]
    batch = copying_run.Copying().make(0)
    merged = construct.merge(model)
    np.testing.assert_allclose(model(batch).hidden, merged(batch).hidden, rtol=1e-5, atol=1e-6)
    kernel = parameters.named_leaves(merged)["encoder/layers/0/attention/query/kernel"]
    if kind == "kernels":
        assert np.count_nonzero(kernel) == kernel.size // 4
    else:
        assert kernel.shape == (24, 2, 4)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_teacher_in_integers_predicts_as_its_run(dtype, teacher, tmp_path):
    pytest.importorskip("qwix", reason="needs the extra `quantization`")
    path, one = str(tmp_path / "integers"), Partitioner(devices=jax.devices()[:1], ici={"data": 1})
    convert(Source(teacher, model=TEACHER), Target(path), Changes(quantization=dtype))
    batch = copying_run.Copying().make(0)
    expected = open_model(path, partitioner=one).read_model()(batch).hidden
    found = open_teacher(Teacher(path)).on(one).read()["model"]
    np.testing.assert_array_equal(found(batch).hidden, expected)
    rounded = open_teacher(Teacher(path, dtype="bfloat16")).on(one).read()["model"]
    query, same = (each.encoder.layers[0].attention.query.quantization for each in (rounded, found))
    np.testing.assert_array_equal(query.weight(None), same.weight(None))


def test_changed_teacher_is_refused_on_resume_with_both_digests(whole, teacher, tmp_path, caplog):
    shutil.copytree(whole[0], tmp_path / "run")
    other = Teacher(teacher, checkpoint=1)
    digests = [open_teacher(each).digest for each in (Teacher(teacher), other)]
    with pytest.raises(UserError, match=f"{digests[0]} stored, {digests[1]} of .*--override_config"):
        run(tmp_path / "run", other)
    assert run(tmp_path / "run", other, override=True).step == 4  # it had finished
    assert "accepted because of --override_config" in caplog.text


@pytest.mark.full
def test_teacher_has_its_own_dtype_and_rules_and_no_gradient(teacher):
    partitioner = Partitioner(rules="fsdp", ici={"fsdp": 8})
    each = Teacher(teacher, dtype="bfloat16", rules="dp")
    student = copying_run.recipe("unused", partitioner=partitioner)
    recipe = distill(student, teachers={"t": each}, losses={"distance": LastState()})
    (loaded,) = recipe.teachers.values()
    made = program.make_program(recipe)
    state, frozen = made.init(jax.random.key(0))
    read = loaded.on(partitioner).read()
    before = jax.device_get(read)
    leaves = parameters.named_leaves(read)
    assert {leaf.dtype for leaf in leaves.values()} == {jnp.dtype("bfloat16")}
    assert {leaf.sharding.is_fully_replicated for leaf in leaves.values()} == {True}
    assert parameters.named_leaves(made.shapes[1].teachers["t"]).keys() == leaves.keys()
    assert not [name for name in parameters.named_leaves(state) if "teacher" in name]
    batch = partitioner.put_batch(student.data.make(0))
    new, metrics = made.train_step(state, frozen.replace(teachers={"t": read}), batch)
    assert np.isfinite(float(metrics["distance"][0])) and int(new.step) == 1
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(read), before)
    flops = [for_platform(config, "cpu").train_flops(made.batch_shapes) for config in (copying_run.CONFIG, TEACHER)]
    assert made.flops == pytest.approx(flops[0] + flops[1] / 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": "nowhere"}, "TEACHER=nowhere: not found"),
        ({"checkpoint": 7}, r"TEACHER_CHECKPOINT=7: not found in .*Give one of \[1, 2\]"),
        ({"weight": 0.0}, "weight=0.0 of the teacher .* is not positive"),
        ({"objective": MaskedLM()}, "MaskedLM needs 'objective/masked_lm/bias', which it does not have"),
    ],
)
def test_unsuitable_teacher_raises_before_anything_is_written(teacher, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        run(tmp_path / "run", Teacher(**{"path": teacher} | changes))
    assert not (tmp_path / "run").exists()


def test_teacher_with_another_vocabulary_raises(teacher, tmp_path):
    shutil.copytree(teacher, tmp_path / "teacher")
    (tmp_path / "teacher" / "vocabulary.json").write_text('{"digest": "other"}')
    with pytest.raises(UserError, match=r"teacher 't': the vocabulary of .* \(other\) differs from the vocabulary"):
        run(tmp_path / "run", str(tmp_path / "teacher"))


def test_huggingface_teacher_has_the_objective_and_the_heads_of_its_directory(tmp_path):
    sizes = dict(vocab_size=32, embed_dim=8, mlp_dim=16, num_heads=2, head_dim=4, num_layers=2, max_length=16)
    model = BertConfig(**sizes, scan_layers=False)
    classifier = SequenceClassification(("no", "yes"), head=heads.PooledFirstToken())
    student = MaskedLM()
    for objective, directory in ((classifier, "classifier"), (student, "masked_lm")):
        module = model.make(jax.random.key(0))
        params = {"model": module, "objective": objective.init(jax.random.key(1), module)}
        interop.to_huggingface(params, model, str(tmp_path / directory), labels=getattr(objective, "labels", ()))
        loaded = open_teacher(Teacher(str(tmp_path / directory)), student)
        read = loaded.on(Partitioner(devices=jax.devices()[:1])).read()
        assert type(loaded.objective) is type(objective)
        for name, leaf in parameters.named_leaves(read["objective"]).items():
            np.testing.assert_array_equal(leaf, parameters.named_leaves(params["objective"])[name], err_msg=name)
    assert loaded.objective is student
    assert open_teacher(Teacher(str(tmp_path / "classifier")), student).objective.labels == ("no", "yes")
    hf_config = json.loads((tmp_path / "classifier/config.json").read_text())
    (tmp_path / "classifier/config.json").write_text(json.dumps(hf_config | {"num_hidden_layers": 3}))
    with pytest.raises(UserError, match=r"tensor 'bert.encoder.layer.2.* is missing"):  # before a device is touched
        open_teacher(Teacher(str(tmp_path / "classifier")), student)


def test_plan_counts_a_teacher_without_weights(tmp_path):
    recipe = distill(
        copying_run.recipe(tmp_path / "run", partitioner=None),
        teachers={"t": Teacher("models/t5_1_1/tiny.gin", rules="fsdp_tp")},
        losses={"distance": LastState()},
        require_weights=False,
    )
    made = program.make_program(recipe)
    (loaded,) = recipe.teachers.values()
    state, frozen = made.shapes
    leaves = search._leaves(made)
    trained, held = ([each for each in leaves if each.is_trained is kind and each.passes] for kind in (True, False))
    assert sum(each.size for each in trained) == parameters.count(state.params)
    assert sum(each.size for each in held) == parameters.count(frozen.teachers) == 4_309_888
    assert {each.passes for each in held} == {1}
    cost = functools.partial(tracing.row_cost, made.config, row_shapes=made.batch_shapes, embed=16)
    alone = cost(recipe.evaluated, (state, Frozen(frozen.params)))
    both = cost(recipe.objective, made.shapes)
    forward = for_platform(loaded.config, "cpu").train_flops(made.batch_shapes) / 3 / 8
    assert alone.flops < both.flops < alone.flops + forward  # the loss does not read the teacher's logits
    assert not (tmp_path / "run").exists()


DISTILLED = """
from __gin__ import dynamic_registration
import test_distill
LOSSES = {'distance': @test_distill.LastState()}
COEFFICIENTS = {'task': 0.5}
"""


@pytest.fixture
def command(teacher, tmp_path, monkeypatch):
    """Arguments of the command for a student of synthetic rows, which has other sizes than the teacher."""
    for name in ("JAX_PLATFORMS", "NO_GCE_CHECK"):
        monkeypatch.setenv(name, "cpu")  # so that what the command sets is taken back
    monkeypatch.setattr("t5x_like.cli.execute.prepare", lambda arguments: None)  # keeps logging and import paths
    monkeypatch.syspath_prepend(str(PROCESSES))
    monkeypatch.setitem(sys.modules, "test_distill", sys.modules[__name__])
    (tmp_path / "losses.gin").write_text(DISTILLED)
    files = [PROCESSES / "synthetic.gin", tmp_path / "losses.gin"]
    words = [*(f"--gin_file={file}" for file in files), f"--gin.TEACHER={teacher}", "--gin.TRAIN_STEPS=2"]
    return [*words, f"--gin.MODEL_DIR={tmp_path / 'run'}", "--gin.COMPILATION_CACHE_DIR=None"]


def test_command_reads_student_and_teacher_from_their_own_configurations(command, teacher, tmp_path, capsys):
    assert cli.main(["distill", "--dry_run", *command]) == 0
    shown = capsys.readouterr().out
    assert "model: T5Config, 7,536 parameters, heads of Distillation 384" in shown
    assert f"teacher: {teacher}: T5Config, {parameters.count(TEACHER.make(jax.random.key(0))):,}" in shown
    assert not (tmp_path / "run").exists()
    assert cli.main(["distill", *command]) == 0
    assert len(loss_rows(tmp_path / "run")) == 2
    text = (tmp_path / "run" / "config.gin").read_text()
    assert "t5x_like.distill.distill:" in text and "t5x_like.training.recipe.Recipe:" in text
    assert Checkpoints(str(tmp_path / "run" / "checkpoints")).shapes(2)["params/model/token_embedder/embedding"] == (
        *(32, 16),
    )
    assert cli.main(["distill", *command, "--gin.LastState.scale=2.0"]) == 2  # is not a parameter


LAYERS = """
from t5x_like.distillation import losses
LOSSES = {'scores': @losses.AttentionScoresMSE()}
COEFFICIENTS = {'task': 0.5}
losses.AttentionScoresMSE.layers = ((0, 7),)
"""


CLASSES = """
from t5x_like.distillation import losses
LOSSES = {'kl': @losses.ForwardKL()}
losses.ForwardKL.prediction = 'targets'
COEFFICIENTS = {'task': 0.5}
"""


def test_other_classes_of_the_teacher_are_refused_before_the_run_directory_exists(command, tmp_path, capsys):
    (tmp_path / "losses.gin").write_text("from __gin__ import dynamic_registration\n" + CLASSES)
    command = [*command, "--gin.T5Config.vocab_size=40"]
    for more in (["--dry_run"], []):
        assert cli.main(["distill", *command, *more]) == 2
        assert "the student predicts 40 classes of 'targets'" in capsys.readouterr().err
        assert not (tmp_path / "run").exists()


def test_dry_run_checks_layers_of_teacher_and_of_initial_weights(command, teacher, tmp_path, capsys):
    initial = [f"--gin.weight_source.InitialWeights.path='{teacher}'"]
    layers = "--gin.weight_source.InitialWeights.layers={'encoder': (5,)}"
    assert cli.main(["distill", "--dry_run", *command, *initial, layers]) == 2
    assert "layer 5 does not exist" in capsys.readouterr().err
    (tmp_path / "losses.gin").write_text("from __gin__ import dynamic_registration\n" + LAYERS)
    assert cli.main(["distill", "--dry_run", *command]) == 2
    assert "student layer 0 to teacher layer 7" in capsys.readouterr().err


def test_cells_of_an_ablation_may_be_distillations(command, tmp_path):
    names = dict(word.removeprefix("--gin").lstrip(".").split("=", 1) for word in command if "MODEL_DIR" not in word)
    files = [word.partition("=")[2] for word in command if word.startswith("--gin_file")]
    entries = [*files, "runs/distill.gin", f"TEACHER={names['TEACHER']}", "TRAIN_STEPS=1"]
    grid = {"row": {"distilled": entries, "alone": [str(PROCESSES / "synthetic.gin"), "TRAIN_STEPS=1"]}}
    cells = ablate.resolve_cells(grid=grid, output_dir=str(tmp_path / "study"))
    made = [cell[-1].macros["RECIPE"].selector for cell in cells]
    assert made == ["t5x_like.distill.distill", "t5x_like.training.recipe.Recipe"]
