"""The networks of a run, on synthetic batches: each can be exported, opened, started from, and be a teacher."""

import dataclasses
import json

import copying_run
import jax
import numpy as np
import pytest
from families import FAMILIES
from objective_cases import CASES

from t5x_like import interop, parameters
from t5x_like.conversion.settings import Source, Target
from t5x_like.convert import convert
from t5x_like.distill import distill
from t5x_like.distillation.losses.hidden import HiddenCosine
from t5x_like.distillation.losses.logits import ForwardKL
from t5x_like.distillation.teachers import Teacher
from t5x_like.errors import UserError
from t5x_like.loading import open_model, open_teacher
from t5x_like.models import networks
from t5x_like.models.electra import ElectraConfig
from t5x_like.models.networks import NetworkSpec, Shared
from t5x_like.objectives import heads, passes
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.replaced_tokens import GENERATOR, ReplacedTokenDetection
from t5x_like.objectives.sequence_classification import SequenceClassification
from t5x_like.optimizers import ParameterGroup, adamw
from t5x_like.partitioning import Partitioner
from t5x_like.stored import network_weights
from t5x_like.stored.network_weights import RunModel, Weights
from t5x_like.train import train

pytestmark = pytest.mark.full

BATCH = CASES["replaced_tokens"].batch()
CONFIG = ElectraConfig(
    **{name: getattr(FAMILIES["bert"].config, name) for name in ("vocab_size", "mlp_dim", "max_length")},
    embedding_dim=8,
    embed_dim=24,
    num_heads=2,
    head_dim=12,
    num_layers=2,
)
OBJECTIVE = ReplacedTokenDetection(generator_size=0.5)
GENERATOR_CONFIG = OBJECTIVE.networks(CONFIG)[GENERATOR].config
TABLE = "embeddings/token_embedder/embedding"


class Rows(copying_run.Copying):
    """A source with the same masked rows in every batch, which also have labels."""

    def rows(self, spec):
        tokens = BATCH["encoder_input_tokens"]
        others = {"token_types": np.zeros_like(tokens), "label": np.zeros((len(tokens), 1), np.int32)}
        return {name: (BATCH | others)[name] for name in spec.dtypes}

    def batch_shapes(self, spec):
        return {name: array.shape for name, array in self.rows(spec).items()}

    def host_iterator(self, spec, *, process_index, process_count):
        found = dataclasses.replace(self)
        found.make = lambda seed: self.rows(spec)
        return found

    def check(self, spec):
        pass


def recipe(model_dir, *, learning_rate=0.01, frozen=(), **changes):
    changes = {"model": CONFIG, "objective": OBJECTIVE, "total": 3, "save": 3, "evaluate": None} | changes
    groups = tuple(ParameterGroup(pattern, freeze=True) for pattern in frozen)
    optimizer = adamw(learning_rate=learning_rate, groups=groups)
    return copying_run.recipe(model_dir, data=Rows(), evaluations={}, optimizer=optimizer, **changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The directory of a run of ELECTRA, and its parameters."""
    directory = tmp_path_factory.mktemp("electra")
    return str(directory), train(recipe(directory)).params


def opened(path, network):
    return open_model(path, network=network, partitioner=Partitioner(devices=jax.devices()[:1]))


def leaves(tree):
    return parameters.stack(parameters.named_leaves(tree))


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, leaf in found.items():
        np.testing.assert_array_equal(leaf, expected[name], err_msg=name)


def test_opened_generator_has_shared_embeddings_and_its_masked_lm_head(run):
    path, params = run
    loaded = opened(path, GENERATOR)
    assert (loaded.config.embed_dim, loaded.config.embedding_dim) == (12, 8) and type(loaded.objective) is MaskedLM
    expected = {
        "model": networks.exported(OBJECTIVE, params)[GENERATOR],
        "objective": {"masked_lm": params["objective"]["masked_lm"]},
    }
    assert_equal(leaves(loaded.read()), leaves(expected))
    found = passes.terms(passes.forward_at_evaluation(loaded.objective, loaded.read(), BATCH)).sums
    whole = passes.terms(passes.forward_at_evaluation(OBJECTIVE, params, BATCH)).sums
    np.testing.assert_allclose(found["masked_lm"], whole["masked_lm"], rtol=1e-6)
    model = opened(path, "model")
    assert type(model.objective) is ReplacedTokenDetection
    assert_equal(leaves(model.read()), leaves(params))


def test_unknown_networks_raise_with_the_networks_of_the_run(run, tmp_path):
    path, _ = run
    message = "network 'generater': .* does not have it. Give one of its networks: model, generator"
    for read in (
        lambda: opened(path, "generater"),
        lambda: open_teacher(Teacher(path, network="generater")),
        lambda: convert(Source(path, model=CONFIG, network="generater"), Target(str(tmp_path / "out"))),
        lambda: train(recipe(tmp_path / "a", path=path, network="generater")),
        lambda: train(recipe(tmp_path / "b", path=path, target="generater")),
    ):
        with pytest.raises(UserError, match=message):
            read()
    exported = convert(Source(path, model=CONFIG), Target(str(tmp_path / "exported")))
    with pytest.raises(UserError, match="exported is not a run. Convert all of it to a run, and give the run"):
        convert(Source(exported, network=GENERATOR), Target(str(tmp_path / "run")))
    with pytest.raises(UserError, match="TEACHER_NETWORK='generator': .*exported has a model only"):
        open_teacher(Teacher(exported, network=GENERATOR))
    with pytest.raises(UserError, match="network 'generator': .*exported has a model only"):
        train(recipe(tmp_path / "c", path=exported, network=GENERATOR))


@pytest.mark.parametrize(("network", "head"), [(None, "replaced_tokens"), (GENERATOR, "masked_lm")])
def test_exported_network_is_complete(run, tmp_path, network, head):
    path, params = run
    convert(Source(path, model=CONFIG, network=network), Target(str(tmp_path / "out")))
    config = interop.config_from_huggingface(str(tmp_path / "out"))
    expected = {
        "model": networks.exported(OBJECTIVE, params)[network or "model"],
        "objective": {head: params["objective"][head]},
    }
    assert_equal(interop.read(str(tmp_path / "out"), config), leaves(expected))
    assert (f"| Network of the run | `{network}` |" in (tmp_path / "out/README.md").read_text()) == bool(network)


def restored_from(path, directory, **changes):
    """Returns the parameters of a run that starts from weights, before its first update changes them."""
    return leaves(train(recipe(directory, total=1, learning_rate=0.0, path=path, **changes)).params)


def test_discriminator_starts_a_classifier(run, tmp_path):
    path, params = run
    objective = SequenceClassification(("a", "b"), head=heads.FirstToken())
    found = restored_from(path, tmp_path, objective=objective)
    assert_equal({n: x for n, x in found.items() if n.startswith("model/")}, leaves({"model": params["model"]}))


def test_generator_starts_a_masked_language_model(run, tmp_path):
    path, params = run
    found = restored_from(path, tmp_path, model=GENERATOR_CONFIG, objective=MaskedLM(), network=GENERATOR)
    assert_equal(found, leaves(opened(path, GENERATOR).read()))


def test_frozen_parameters_are_read_from_the_network_that_they_came_from(run, tmp_path):
    path, _ = run
    frozen = ("embeddings/", "encoder/")
    start = {"model": GENERATOR_CONFIG, "objective": MaskedLM(), "path": path, "network": GENERATOR}
    params = train(recipe(tmp_path, frozen=frozen, **start)).params
    base = json.loads((tmp_path / "base.json").read_text())["leaves"]
    assert base[f"model/{TABLE}"]["name"] == f"model/{TABLE}"
    name = "encoder/layers/attention/query/kernel"
    assert base[f"model/{name}"]["name"] == f"objective/{GENERATOR}/{name}"
    assert_equal(leaves(opened(str(tmp_path), None).read()), leaves(params))


@pytest.mark.parametrize("kind", ["run", "Hugging Face"])
def test_masked_language_model_starts_the_generator(run, tmp_path, kind):
    path, _ = run
    plain = train(recipe(tmp_path / "plain", model=GENERATOR_CONFIG, objective=MaskedLM(), total=1, seed=7)).params
    given = str(tmp_path / "plain")
    if kind == "Hugging Face":
        given = convert(Source(given, model=GENERATOR_CONFIG), Target(str(tmp_path / "hf")))
    params = train(recipe(tmp_path / "run", total=1, learning_rate=0.0, path=given, target=GENERATOR)).params
    generator = networks.exported(OBJECTIVE, params)[GENERATOR]
    found = {"model": generator, "objective": {"masked_lm": params["objective"]["masked_lm"]}}
    assert_equal(leaves(found), leaves(plain))
    fresh = train(recipe(tmp_path / "fresh", total=1, learning_rate=0.0)).params
    for name, leaf in leaves(fresh).items():
        if name.startswith(("model/encoder/", "objective/replaced_tokens/")):
            np.testing.assert_array_equal(leaves(params)[name], leaf, err_msg=name)


def test_masked_language_model_starts_both_networks_and_the_generator_is_frozen(tmp_path):
    """ELECTRA in two stages: networks of one size, which share nothing."""
    config = dataclasses.replace(CONFIG, mlp_dim=96, num_heads=1, head_dim=24)
    first = train(recipe(tmp_path / "first", model=config, objective=MaskedLM(), total=1, seed=7)).params
    second = {
        "model": config,
        "objective": ReplacedTokenDetection(generator_size=1.0, shared=()),
        "path": str(tmp_path / "first"),
        "target": ("model", GENERATOR),
        "frozen": (f"^objective/({GENERATOR}|masked_lm)/",),
    }
    before = train(recipe(tmp_path / "before", total=1, learning_rate=0.0, **second)).params
    assert_equal(leaves({"model": before["model"]}), leaves({"model": first["model"]}))
    after = train(recipe(tmp_path / "after", **second)).params
    for params in (before, after):
        generator = {
            "model": params["objective"][GENERATOR],
            "objective": {"masked_lm": params["objective"]["masked_lm"]},
        }
        assert_equal(leaves(generator), leaves(first))
    assert all(
        np.any(x != y) for x, y in zip(*(jax.tree.leaves(p["model"].encoder) for p in (before, after)), strict=True)
    )


@pytest.mark.parametrize("network", [None, GENERATOR])
def test_networks_are_teachers(run, tmp_path, network):
    """The generator teaches its logits, and the discriminator its hidden states, on samples of its own generator."""
    path, params = run
    if network is None:
        teacher, loss, model = Teacher(path), HiddenCosine(), dataclasses.replace(CONFIG, num_layers=1)
    else:
        teacher, loss, model = Teacher(path, network=network), ForwardKL(prediction="masked_lm"), GENERATOR_CONFIG
    student = recipe(tmp_path, model=model, objective=MaskedLM())
    made = distill(student, teachers={"t": teacher}, losses={"distance": loss})
    result = train(made)
    assert result.step == 3
    read = made.teachers["t"].on(student.partitioner).read()
    if network is not None:
        assert_equal(leaves(read["model"]), leaves(networks.exported(OBJECTIVE, params)[network]))
    rows = [row["distance"] for row in copying_run.read_metrics(str(tmp_path)) if row["split"] == "train"]
    assert rows[0] > rows[-1] > 0


class Reversed(ReplacedTokenDetection):
    """ELECTRA whose generator stores the embeddings. The discriminator adds a table of its own, or shares them."""

    def __init__(self, combine):
        super().__init__(generator_size=0.5)
        self.combine = combine

    def networks(self, config):
        found = super().networks(config)
        shares = {"embeddings": Shared(f"{GENERATOR}/embeddings", self.combine)}
        generator = NetworkSpec(found[GENERATOR].config, objective=MaskedLM())
        return {"model": dataclasses.replace(found["model"], shares=shares), GENERATOR: generator}


def add(source, own):
    theirs = parameters.named_leaves(source)
    return parameters.map_named(lambda name, leaf: leaf + theirs[name], own)


@pytest.mark.parametrize("combine", [None, add])
def test_model_with_modules_of_another_network_is_read_complete(combine):
    objective = Reversed(combine)
    params = jax.jit(lambda key: networks.make(objective, CONFIG, key))(jax.random.key(0))
    stored = leaves(params)
    weights = Weights(
        {name: leaf.shape for name, leaf in stored.items()},
        lambda wanted: {name: stored[name] for name in wanted},
        {name: name for name in stored},
    )
    chosen = network_weights.select(weights, RunModel(CONFIG, objective), "model")
    at = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    wanted = {name: jax.ShapeDtypeStruct(shape, np.float32, sharding=at) for name, shape in chosen.shapes.items()}
    head = {"replaced_tokens": params["objective"]["replaced_tokens"]}
    expected = {"model": networks.exported(objective, params)["model"], "objective": head}
    assert_equal(chosen.read(wanted), leaves(expected))
    assert (f"model/{TABLE}" in chosen.tensors) == (combine is None)


def test_combined_module_of_the_model_is_read_complete_unless_its_networks_are_read(monkeypatch):
    objective = Reversed(add)
    params = jax.jit(lambda key: networks.make(objective, CONFIG, key))(jax.random.key(0))
    stored = leaves(params)
    monkeypatch.setattr(RunModel, "read", lambda path: RunModel(CONFIG, objective))
    monkeypatch.setattr(network_weights.run_files, "find_run", lambda path: path)
    weights = Weights(
        {name: leaf.shape for name, leaf in stored.items()},
        lambda wanted: {name: stored[name] for name in wanted},
        {name: name for name in stored},
    )
    at = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    of_model = {
        name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at) for name, x in stored.items() if "model/" in name
    }
    assert f"model/{TABLE}" in of_model
    complete = leaves({"model": networks.exported(objective, params)["model"]})
    found = network_weights.with_shared_modules(weights, [*of_model, "objective/labels/kernel"], "run")
    assert_equal(found.read(of_model), complete)
    assert f"model/{TABLE}" not in found.tensors
    found = network_weights.with_shared_modules(weights, stored, "run")
    assert_equal(found.read(of_model), {name: stored[name] for name in of_model})


def test_shared_module_of_the_model_is_found_without_the_name_of_a_network(tmp_path, monkeypatch):
    objective = Reversed(None)
    params = train(recipe(tmp_path / "run", objective=objective, total=1)).params
    monkeypatch.setattr(RunModel, "read", lambda path: RunModel(CONFIG, objective))
    monkeypatch.setattr(network_weights.run_files, "find_run", lambda path: path)
    assert not any(name.startswith("model/embeddings/") for name in leaves(params))
    found = restored_from(str(tmp_path / "run"), tmp_path / "plain", objective=MaskedLM())
    shared = params["objective"][GENERATOR].embeddings
    for name, leaf in leaves(shared).items():
        np.testing.assert_array_equal(found[f"model/embeddings/{name}"], leaf)
