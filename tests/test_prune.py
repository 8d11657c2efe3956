"""`prune`: smaller runs from a trained one, in rounds; their export; and errors."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from copying_run import TWO_LAYERS, Copying, run
from numerics import assert_close

from t5x_like import interop, parameters
from t5x_like.conversion.settings import Source, Target
from t5x_like.convert import convert
from t5x_like.errors import RunFailed, UserError
from t5x_like.loading import open_model
from t5x_like.metrics.best import BestMetric
from t5x_like.models import build
from t5x_like.models.bert import BertConfig
from t5x_like.models.llama import LlamaConfig
from t5x_like.partitioning import Partitioner
from t5x_like.prune import RECORD, Plan, prune

BERT = BertConfig(vocab_size=31, embed_dim=16, mlp_dim=8, num_heads=2, head_dim=4, num_layers=2, max_length=16)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trained")
    run(directory, model=TWO_LAYERS, total=3, evaluations=None)
    return directory


def opened(path, partitioner=None):
    return open_model(str(path), partitioner=partitioner or Partitioner(devices=jax.devices()[:1], ici={"data": 1}))


def test_each_layer_loses_the_same_number_and_the_run_opens(tmp_path, trained):
    options = {"data": Copying(), "batches": 1, "round_share": 0.25, "layers": {"encoder": (1,)}}
    prune(opened(trained), output_path=str(tmp_path / "small"), heads=0.5, units=0.25, **options)
    loaded = opened(tmp_path / "small")
    sizes = ("encoder_layers", "decoder_layers", "num_heads", "mlp_dim")
    assert [getattr(loaded.config, name) for name in sizes] == [1, 2, 2, 8]
    batch = Copying().make(1)
    whole, small = opened(trained).read_model(), loaded.read_model()
    assert small(batch).hidden.shape == whole(batch).hidden.shape
    assert parameters.count(small) < parameters.count(whole)
    rounds = json.loads((tmp_path / "small" / RECORD).read_text())["rounds"]
    assert len(rounds) == 4 and 0 <= rounds[-1]["score"] <= 1
    left = np.array(rounds[-1]["heads"]["model/encoder/layers/attention"])
    # The heads that are left are those of the trained model.
    kept = np.flatnonzero(left[0])
    kernel = whole.encoder.layers[1].attention.query.kernel[...]
    np.testing.assert_array_equal(small.encoder.layers[0].attention.query.kernel[...], kernel[:, kept])


@pytest.mark.full
@pytest.mark.parametrize(
    "rules, ici, per_layer",
    [("fsdp", {"fsdp": 8}, False), ("fsdp_tp_sp", {"fsdp": 2, "sequence": 2, "tensor": 2}, True)],
)
def test_several_devices_remove_the_same_parts(tmp_path, trained, rules, ici, per_layer):
    """Parameters are sharded over the devices, and the heads and units of a layer over `tensor`."""
    meshes = {"one": None, "eight": Partitioner(rules=rules, ici=ici)}
    options = {"heads": 0.5, "units": 0.5, "round_share": 0.25, "batches": 2, "per_layer": per_layer}
    found, rounds = {}, {}
    for name, partitioner in meshes.items():
        loaded = opened(trained, partitioner)
        prune(loaded, output_path=str(tmp_path / name), data=Copying(), **options)
        rounds[name] = json.loads((tmp_path / name / RECORD).read_text())["rounds"]
        found[name] = parameters.stack(parameters.named_leaves(opened(tmp_path / name).read_model()))
    assert len(rounds["one"]) == len(rounds["eight"]) == 3
    for one, eight in zip(*rounds.values(), strict=True):
        assert eight["score"] == pytest.approx(one["score"], rel=1e-5)
        for kind in ("heads", "feed-forward units"):
            assert eight[kind] == one[kind]
            importances = [each.get("importance_before", {}).get(kind, {}) for each in (one, eight)]
            for block, expected in importances[0].items():
                np.testing.assert_allclose(importances[1][block], expected, atol=1e-5, err_msg=block)
    assert found["one"].keys() == found["eight"].keys()
    for name, leaf in found["one"].items():
        np.testing.assert_array_equal(found["eight"][name], leaf, err_msg=name)


@pytest.mark.full
def test_a_pruned_bigbird_opens_from_its_configuration_with_its_random_blocks(tmp_path, run_command):
    """Its config.gin has the `plan` of the heads that are left; without it, other blocks would be drawn."""
    small = tmp_path / "small"
    sizes = {"num_layers": 2, "num_heads": 4, "head_dim": 4, "block_size": 2, "num_random_blocks": 1}
    settings = {"MODEL_DIR": repr(f"{tmp_path}/run"), "MIXTURE_OR_TASK_NAME": "'python_docs_bigbird'"}
    settings |= {"TASK_FEATURE_LENGTHS": {"inputs": 64, "targets": 10}, "TRAIN_STEPS": 1, "WARMUP_STEPS": 0}
    settings |= {"BATCH_SIZE": 2, "EVAL_STEPS": 1} | {f"BigBirdConfig.{name}": size for name, size in sizes.items()}
    command = ["train", "--gin_file=models/bigbird/tiny.gin", "--gin_file=runs/bigbird.gin"]
    command += [f"--gin.{name}={value}" for name, value in settings.items()]
    pruning = ["prune", f"--gin.MODEL_DIR='{tmp_path}/run'", f"--output={small}", "--gin.HEADS=0.5", "--gin.BATCHES=1"]
    for each in (command, pruning):
        code, output = run_command(each)
        assert code == 0, output
    whole, loaded = opened(tmp_path / "run"), opened(small)
    rounds = json.loads((small / RECORD).read_text())["rounds"]
    left = np.array(rounds[-1]["heads"]["model/encoder/layers/attention"], bool)
    expected = np.stack([blocks[kept] for blocks, kept in zip(whole.config.blocks(64).keys, left, strict=True)])
    assert loaded.config.num_heads == 2
    np.testing.assert_array_equal(loaded.config.blocks(64).keys, expected)
    assert not np.array_equal(dataclasses.replace(loaded.config, plan=None).blocks(64).keys, expected)


@pytest.mark.full
def test_over_all_layers_writes_zeros_that_training_keeps(tmp_path, trained):
    prune(opened(trained), output_path=str(tmp_path / "zeros"), data=Copying(), heads=0.75, batches=1, per_layer=False)
    assert opened(tmp_path / "zeros").config == opened(trained).config

    def removed(directory):
        leaves = parameters.stack(parameters.named_leaves(opened(directory).read_model()))
        blocks = [name for name in leaves if name.endswith("attention/out/kernel")]
        return {name: (np.asarray(leaves[name]) == 0).all((2, 3)) for name in blocks}

    before = removed(tmp_path / "zeros")
    assert sum(each.sum() for each in before.values()) == 6  # of 24 heads
    run(tmp_path / "retrained", model=TWO_LAYERS, path=str(tmp_path / "zeros"), total=2, evaluations=None)
    for name, each in removed(tmp_path / "retrained").items():
        np.testing.assert_array_equal(each, before[name])


def test_a_low_score_ends_pruning(tmp_path, trained):
    options = {"data": Copying(), "batches": 1, "min_score": 10.0}  # no model has ten times the score
    prune(opened(trained), output_path=str(tmp_path / "same"), heads=0.25, **options)
    assert opened(tmp_path / "same").config.num_heads == TWO_LAYERS.num_heads
    assert json.loads((tmp_path / "same" / RECORD).read_text())["rounds"][-1]["undone"]


def test_min_score_limits_metrics_in_their_direction(tmp_path, trained):
    accuracy, loss = (Plan(True, 0.5, False, BestMetric(name), 0.9) for name in ("accuracy", "loss"))
    assert accuracy.is_too_bad(0.89, 1.0) and not accuracy.is_too_bad(0.91, 1.0)
    assert loss.is_too_bad(1.12, 1.0) and not loss.is_too_bad(1.11, 1.0) and not loss.is_too_bad(0.1, 1.0)
    options = {"data": Copying(), "batches": 1, "metric": "loss", "heads": 0.75, "round_share": 0.25}
    for name, min_score, num_heads in (("strict", 10.0, 4), ("lenient", 0.01, 3)):
        prune(opened(trained), output_path=str(tmp_path / name), min_score=min_score, **options)
        assert opened(tmp_path / name).config.num_heads == num_heads


def test_output_is_deleted_if_it_cannot_be_written(tmp_path, trained, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("t5x_like.training.runs.weights_run.tokenizer_files.write", fail)
    with pytest.raises(RunFailed, match="OUTPUT_PATH=.*new"):
        prune(opened(trained), output_path=str(tmp_path / "new"), layers=2)
    assert not (tmp_path / "new").exists()


def test_invalid_settings_raise(tmp_path, trained):
    output = {"output_path": str(tmp_path / "new")}
    for options, message in (
        ({}, "HEADS, UNITS and LAYERS are not set, so nothing is removed"),
        ({"heads": 0.1, "data": Copying()}, "HEADS=0.1: keeps none of the 4 heads of a layer. Give at least 0.25"),
        ({"heads": 0.5}, "HEADS and UNITS need data"),
        ({"heads": 0.5, "min_score": 0.0}, "MIN_SCORE=0.0: not positive"),
        ({"heads": 0.5, "data": Copying(), "batches": 1, "metric": "f1"}, "METRIC='f1': unknown. Give one of"),
        ({"layers": 2, "output_path": str(trained)}, "exists and is not empty"),
    ):
        with pytest.raises(UserError, match=message):
            prune(opened(trained), **output | options)
    assert not (tmp_path / "new").exists()


def random_leaves(config):
    shapes, rng = build.stacked_shapes(config), np.random.default_rng(0)
    return {
        f"model/{name}": rng.normal(size=leaf.shape).astype(np.float32) / 3
        for name, leaf in parameters.named_leaves(shapes).items()
    }


@pytest.mark.full
def test_bert_with_fewer_heads_comes_back_from_hugging_face(tmp_path):
    leaves = random_leaves(BERT)
    interop.to_huggingface(leaves, BERT, str(tmp_path / "hf"))
    stored = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (stored["num_attention_heads"], stored["pruned_heads"]) == (4, {"0": [2, 3], "1": [2, 3]})
    config = interop.config_from_huggingface(str(tmp_path / "hf"))
    assert (config.num_heads, config.head_dim) == (2, 4)
    for name, leaf in interop.read(str(tmp_path / "hf"), config).items():
        np.testing.assert_array_equal(leaf, leaves[name])
    stored["pruned_heads"] = {"0": [1], "1": [0, 3]}
    (tmp_path / "hf" / "config.json").write_text(json.dumps(stored))
    with pytest.raises(UserError, match="pruned_heads .* the layers lack 1, 2 heads"):
        interop.config_from_huggingface(str(tmp_path / "hf"))


# Half of the heads of 4 features.
SMALL = {
    "bert": (dataclasses.replace(BERT, activations=("gelu_exact",)), "BertModel"),
    "roberta": (
        dataclasses.replace(BERT, activations=("gelu_exact",), padding_id=1, position_offset=2, num_token_types=1),
        "RobertaModel",
    ),
    "llama": (
        LlamaConfig(
            vocab_size=31, embed_dim=16, mlp_dim=8, num_heads=2, num_kv_heads=2, head_dim=4, num_layers=2, max_length=16
        ),
        "LlamaModel",
    ),
}


@pytest.mark.parity
@pytest.mark.parametrize("family", SMALL)
def test_transformers_has_the_outputs_of_models_with_fewer_heads(tmp_path, family):
    import torch
    import transformers

    config, name = SMALL[family]
    leaves = random_leaves(config)
    interop.to_huggingface(leaves, config, str(tmp_path / "hf"))
    options = {} if family == "llama" else {"add_pooling_layer": False}
    theirs = getattr(transformers, name).from_pretrained(str(tmp_path / "hf"), **options).eval()
    weights = dict(theirs.named_parameters())
    kernel = "layers.0.self_attn.q_proj.weight" if family == "llama" else "encoder.layer.0.attention.self.query.weight"
    assert weights[kernel].shape == (8, 16)
    tokens = np.random.default_rng(1).integers(5, 31, (2, 7)).astype(np.int32)
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens)).last_hidden_state.numpy()
    names = {name.removeprefix("model/"): leaf for name, leaf in leaves.items()}
    ours = parameters.unstack(names, jax.eval_shape(config.make, jax.random.key(0)))
    stack = "decoder" if family == "llama" else "encoder"
    np.testing.assert_allclose(ours({f"{stack}_input_tokens": tokens}).hidden, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parity
def test_transformers_has_the_logits_of_a_pruned_run(tmp_path, trained):
    """T5, from the run over `prune` and `convert` to the model of transformers."""
    import torch
    import transformers

    options = {"heads": 0.5, "units": 0.25, "layers": {"encoder": (1,)}, "data": Copying(), "batches": 1}
    prune(opened(trained), output_path=str(tmp_path / "small"), **options)
    loaded = opened(tmp_path / "small")
    convert(Source(str(tmp_path / "small"), model=loaded.config), Target(str(tmp_path / "hf")))
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(str(tmp_path / "hf")).eval()
    assert (theirs.config.num_layers, theirs.config.num_heads, theirs.config.d_ff) == (1, 2, 8)
    source, target = (np.random.default_rng(seed).integers(2, 32, (2, 6)) for seed in range(2))
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(source), decoder_input_ids=torch.tensor(target)).logits.numpy()
    model, batch = loaded.read_model(), {"encoder_input_tokens": source, "decoder_input_tokens": target}
    assert_close({"logits": model.unembed(model(batch).hidden)}, {"logits": expected})
