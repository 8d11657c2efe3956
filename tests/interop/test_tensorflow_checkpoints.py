"""TensorFlow checkpoints of published models, compared with transformers' models with the same weights."""

import functools
import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import parameters
from t5x_like.conversion.settings import Source, Target
from t5x_like.convert import convert
from t5x_like.errors import UserError
from t5x_like.interop import safetensors_files, tensorflow_checkpoints
from t5x_like.models import build, networks
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence
from t5x_like.objectives.permutation_lm import PermutationLM
from t5x_like.objectives.replaced_tokens import ReplacedTokenDetection
from t5x_like.objectives.sentence_order import SentenceOrder
from t5x_like.stored import network_weights

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

TOKENS = np.array([[5, 9, 3, 30, 12], [8, 1, 1, 2, 7]])
SIZES = {
    "vocab_size": 31,
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
}
# Projections and norms of the released code -> names of transformers. Tables and other arrays are listed in `names`.
BERT_LAYER = {
    f"{here}": here.replace("/", ".")
    for here in (
        "attention/self/query",
        "attention/self/key",
        "attention/self/value",
        "attention/output/dense",
        "attention/output/LayerNorm",
        "intermediate/dense",
        "output/dense",
        "output/LayerNorm",
    )
}
ALBERT_LAYER = {
    "attention_1/self/query": "attention.query",
    "attention_1/self/key": "attention.key",
    "attention_1/self/value": "attention.value",
    "attention_1/output/dense": "attention.dense",
    "LayerNorm": "attention.LayerNorm",
    "ffn_1/intermediate/dense": "ffn",
    "ffn_1/intermediate/output/dense": "ffn_output",
    "LayerNorm_1": "full_layer_layer_norm",
}


def modules(name, there, layers, layer, *, projection=None):
    """Returns the projections and norms of an encoder: name in the released code -> name in transformers."""
    found = {
        f"{name}/{each}".format(i=i): f"{there}.{other}".format(i=i)
        for i in range(layers)
        for each, other in layer.items()
    }
    return found | (projection or {})


def variables(state, tables, modules, arrays):
    """Returns variables by their names in the released code.

    Args:
      state: tensors by their names in transformers.
      tables: prefix of the tables of embeddings -> prefix in transformers.
      modules: projections and norms.
      arrays: other variables, in the layout of transformers.
    """
    found = {name: state[there] for name, there in arrays.items()}
    for prefix, there in tables.items():
        for kind in ("word", "position", "token_type"):
            found[f"{prefix}/{kind}_embeddings"] = state[f"{there}.{kind}_embeddings.weight"]
        modules = modules | {f"{prefix}/LayerNorm": f"{there}.LayerNorm"}
    for name, there in modules.items():
        is_norm = "LayerNorm" in name
        found[f"{name}/{'gamma' if is_norm else 'kernel'}"] = state[f"{there}.weight"].T
        found[f"{name}/{'beta' if is_norm else 'bias'}"] = state[f"{there}.bias"]
    return found


def write(prefix, values):
    """Writes variables as the Saver of TensorFlow 1 does, with a part of the state of an optimizer."""
    import tensorflow as tf

    name = next(name for name in values if name.endswith("/kernel"))
    values = values | {f"{name}/adam_m": np.ones(3, np.float32), f"{name}/adam_v": np.ones(3, np.float32)}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        with tf.compat.v1.variable_scope("", use_resource=False):
            for name, value in values.items():
                tf.compat.v1.get_variable(name, initializer=np.asarray(value, np.float32))
            tf.compat.v1.get_variable("global_step", initializer=np.int64(7))
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(prefix))


def random_model(cls, config, seed=0):
    torch.manual_seed(seed)
    model = cls(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


def state_of(model):
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def bert(directory, name="bert_model.ckpt", change=None):
    """Writes a BERT; returns transformers' model."""
    model = random_model(transformers.BertForPreTraining, transformers.BertConfig(hidden_act="gelu_new", **SIZES))
    heads = {"bert/pooler/dense": "bert.pooler.dense"}
    heads |= {
        f"cls/predictions/transform/{each}": f"cls.predictions.transform.{each}" for each in ("dense", "LayerNorm")
    }
    arrays = {
        "cls/predictions/output_bias": "cls.predictions.bias",
        "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
        "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
    }
    layers = modules("bert/encoder/layer_{i}", "bert.encoder.layer.{i}", 2, BERT_LAYER)
    values = variables(state_of(model), {"bert/embeddings": "bert.embeddings"}, layers | heads, arrays)
    if change is not None:
        change(values)
    directory.mkdir()
    write(directory / name, values)
    (directory / "bert_config.json").write_text(json.dumps({"hidden_act": "gelu", **SIZES}))
    return model


def bigbird(directory, head="cls/predictions/transform"):
    """Writes a BigBird, whose norm of the embeddings is in the encoder; returns transformers' model.

    Args:
      directory: where to write.
      head: scope of the masked-LM head: that of the published checkpoints, or that of the released code.
    """
    sizes = SIZES | {"block_size": 2, "num_random_blocks": 1, "max_position_embeddings": 16}
    config = transformers.BigBirdConfig(hidden_act="gelu_new", **sizes)
    model = random_model(transformers.BigBirdForPreTraining, config)
    state = state_of(model)
    there = "cls.predictions.transform"
    arrays = {
        "cls/predictions/output_bias": "cls.predictions.bias",
        "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
        "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
        f"{head}/bias": f"{there}.dense.bias",
        f"{head}/gamma": f"{there}.LayerNorm.weight",
        f"{head}/beta": f"{there}.LayerNorm.bias",
    }
    layers = modules("bert/encoder/layer_{i}", "bert.encoder.layer.{i}", 2, BERT_LAYER)
    found = layers | {"bert/pooler/dense": "bert.pooler"}
    values = variables(state, {"bert/embeddings": "bert.embeddings"}, found, arrays)
    values[f"{head}/kernel"] = state[f"{there}.dense.weight"].T
    for name in ("gamma", "beta"):
        values[f"bert/encoder/LayerNorm/{name}"] = values.pop(f"bert/embeddings/LayerNorm/{name}")
    directory.mkdir()
    write(directory / "model.ckpt-0", values)
    (directory / "config.json").write_text(config.to_json_string())
    return model


def albert(directory):
    """Writes an ALBERT; returns transformers' model."""
    sizes = SIZES | {"embedding_size": 5, "num_hidden_layers": 3}
    config = transformers.AlbertConfig(hidden_act="gelu_new", **sizes)
    model = random_model(transformers.AlbertForPreTraining, config)
    found = modules(
        "bert/encoder/transformer/group_{i}/inner_group_0",
        "albert.encoder.albert_layer_groups.{i}.albert_layers.0",
        1,
        ALBERT_LAYER,
        projection={
            "bert/encoder/embedding_hidden_mapping_in": "albert.encoder.embedding_hidden_mapping_in",
            "bert/pooler/dense": "albert.pooler",
            "cls/predictions/transform/dense": "predictions.dense",
            "cls/predictions/transform/LayerNorm": "predictions.LayerNorm",
        },
    )
    arrays = {
        "cls/predictions/output_bias": "predictions.bias",
        "cls/seq_relationship/output_weights": "sop_classifier.classifier.weight",
        "cls/seq_relationship/output_bias": "sop_classifier.classifier.bias",
    }
    values = variables(state_of(model), {"bert/embeddings": "albert.embeddings"}, found, arrays)
    directory.mkdir()
    write(directory / "model.ckpt-best", values)
    (directory / "albert_config.json").write_text(json.dumps({"hidden_act": "gelu", "inner_group_num": 1, **sizes}))
    return model


def electra(directory):
    """Writes an ELECTRA; returns transformers' discriminator and generator."""
    sizes = SIZES | {"embedding_size": 5, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    own = transformers.ElectraConfig(**sizes)
    small = {"hidden_size": 8, "intermediate_size": 32, "num_attention_heads": 1}
    discriminator = random_model(transformers.ElectraForPreTraining, own)
    generator = random_model(transformers.ElectraForMaskedLM, transformers.ElectraConfig(**(sizes | small)), seed=1)
    generator.electra.embeddings.load_state_dict(discriminator.electra.embeddings.state_dict())
    values = {}
    for network, model, heads, arrays in (
        (
            "electra",
            discriminator,
            {
                "discriminator_predictions/dense": "discriminator_predictions.dense",
                "discriminator_predictions/dense_1": "discriminator_predictions.dense_prediction",
            },
            {},
        ),
        (
            "generator",
            generator,
            {f"generator_predictions/{each}": f"generator_predictions.{each}" for each in ("dense", "LayerNorm")},
            {"generator_predictions/output_bias": "generator_lm_head.bias"},
        ),
    ):
        found = modules(f"{network}/encoder/layer_{{i}}", "electra.encoder.layer.{i}", 2, BERT_LAYER, projection=heads)
        found[f"{network}/embeddings_project"] = "electra.embeddings_project"
        tables = {"electra/embeddings": "electra.embeddings"} if network == "electra" else {}
        values |= variables(state_of(model), tables, found, arrays)
    directory.mkdir()
    write(directory / "electra_small", values)
    (directory / "config.json").write_text(own.to_json_string())
    return discriminator, generator


def xlnet(directory, without=()):
    """Writes an XLNet, whose biases have all layers in one variable, without some variables; returns the reference."""
    sizes = {"d_model": 12, "d_inner": 20, "n_head": 3, "n_layer": 2}
    model = random_model(
        transformers.XLNetLMHeadModel, transformers.XLNetConfig(vocab_size=31, ff_activation="gelu_new", **sizes)
    )
    state, root = state_of(model), "model/transformer"
    values = {
        f"{root}/word_embedding/lookup_table": state["transformer.word_embedding.weight"],
        f"{root}/mask_emb/mask_emb": state["transformer.mask_emb"],
        "model/lm_loss/bias": state["lm_loss.bias"],
    }
    for name in ("r_w_bias", "r_r_bias", "r_s_bias", "seg_embed"):
        values[f"{root}/{name}"] = np.stack([state[f"transformer.layer.{i}.rel_attn.{name}"] for i in range(2)])
    for i in range(2):
        here, there = f"{root}/layer_{i}", f"transformer.layer.{i}"
        values |= {f"{here}/rel_attn/{name}/kernel": state[f"{there}.rel_attn.{name}"] for name in "qkvro"}
        for part in ("rel_attn", "ff"):
            values[f"{here}/{part}/LayerNorm/gamma"] = state[f"{there}.{part}.layer_norm.weight"]
            values[f"{here}/{part}/LayerNorm/beta"] = state[f"{there}.{part}.layer_norm.bias"]
        for name in ("layer_1", "layer_2"):
            values[f"{here}/ff/{name}/kernel"] = state[f"{there}.ff.{name}.weight"].T
            values[f"{here}/ff/{name}/bias"] = state[f"{there}.ff.{name}.bias"]
    directory.mkdir()
    write(directory / "xlnet_model.ckpt", {name: value for name, value in values.items() if name not in without})
    config = {"n_token": 31, "ff_activation": "gelu", "d_head": 4, "untie_r": True, **sizes}
    (directory / "xlnet_config.json").write_text(json.dumps(config))
    return model


def assert_logits_equal(prefix, objective, outputs, expected, network="model"):
    """Compares logits of a network of a checkpoint with expected ones."""
    found = tensorflow_checkpoints.read(str(prefix), None)
    like = build.params_shapes(found.config, objective)
    leaves = {name: jnp.asarray(leaf) for name, leaf in found.leaves.items()}
    params = networks.resolve(objective, parameters.unstack(leaves, like))
    model = params["model"] if network == "model" else params["objective"][network]
    batch = {"encoder_input_tokens": jnp.asarray(TOKENS), "token_types": jnp.asarray(TOKENS % 2)}
    hidden = model({**batch, "encoder_segment_ids": jnp.ones_like(TOKENS)}).hidden
    logits = outputs(params["objective"], model, hidden)
    np.testing.assert_allclose(logits, expected, atol=2e-5 * np.abs(expected).max())


def assert_exported(run, model, network=None):
    """Compares all parameters of a network of a run, after its export, with a model of transformers."""
    exported = convert(
        Source(run, model=network_weights.RunModel.read(run).model, network=network), Target(f"{run}_{network}")
    )
    found, expected = dict(safetensors_files.Tensors(exported)), state_of(model)
    assert found.keys() == {name for name, _ in model.named_parameters()}
    for name, tensor in found.items():
        np.testing.assert_array_equal(tensor, expected[name], err_msg=name)


def their(model):
    with torch.no_grad():
        return model(torch.tensor(TOKENS), token_type_ids=torch.tensor(TOKENS % 2))


def masked_lm_logits(heads, model, hidden):
    return model.unembed(heads["masked_lm"](hidden)) + heads["masked_lm"].bias[...]


@pytest.mark.parametrize(
    ("write_model", "name", "order"),
    [
        (bert, "bert_model.ckpt", NextSentence),
        (albert, "model.ckpt-best", SentenceOrder),
        (bigbird, "model.ckpt-0", NextSentence),
        (functools.partial(bigbird, head="transform"), "model.ckpt-0", NextSentence),
    ],
)
def test_model_equals_transformers(tmp_path, write_model, name, order):
    model = write_model(tmp_path / "tf")
    theirs, objective = their(model).prediction_logits.numpy(), Joint([MaskedLM(), order()])
    assert_logits_equal(tmp_path / "tf" / name, objective, masked_lm_logits, theirs)
    run = convert(Source(str(tmp_path / "tf")), Target(str(tmp_path / "run")))
    assert_exported(run, model)


def test_sizes_of_bigbird_come_from_a_model_file(tmp_path):
    bigbird(tmp_path / "tf")
    (tmp_path / "tf" / "config.json").unlink()
    with pytest.raises(UserError, match="config.json not found.*--gin_file=models/bigbird/base.gin"):
        convert(Source(str(tmp_path / "tf")), Target(str(tmp_path / "run")))


def test_xlnet_equals_transformers(tmp_path):
    model = xlnet(tmp_path / "tf")

    def logits(heads, model, hidden):
        return heads["permutation_lm"].logits(model, hidden)

    theirs = their(model).logits.numpy()
    assert_logits_equal(tmp_path / "tf" / "xlnet_model.ckpt", PermutationLM(), logits, theirs)
    assert_exported(convert(Source(str(tmp_path / "tf")), Target(str(tmp_path / "run"))), model)


def test_xlnet_of_fine_tuning_has_no_target_embedding(tmp_path):
    model = xlnet(tmp_path / "tf", without=("model/transformer/mask_emb/mask_emb",))
    run = convert(Source(str(tmp_path / "tf")), Target(str(tmp_path / "run")))
    torch.nn.init.zeros_(model.transformer.mask_emb)
    assert_exported(run, model)


def test_both_networks_of_electra_equal_transformers(tmp_path):
    discriminator, generator = electra(tmp_path / "tf")
    prefix = tmp_path / "tf" / "electra_small"
    objective = ReplacedTokenDetection(generator_size=0.5)
    replaced = their(discriminator).logits.numpy()
    assert_logits_equal(
        prefix, objective, lambda heads, model, hidden: heads["replaced_tokens"](hidden)[..., 0], replaced
    )
    assert_logits_equal(prefix, objective, masked_lm_logits, their(generator).logits.numpy(), "generator")
    run = convert(Source(str(prefix)), Target(str(tmp_path / "run")))
    assert_exported(run, discriminator)
    assert_exported(run, generator, "generator")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.pop("bert/encoder/layer_1/output/dense/bias"), "layer_1/output/dense/bias' is missing"),
        (lambda values: values.pop("cls/seq_relationship/output_bias"), "output_bias' is missing"),
        (
            lambda values: values.update({"bert/pooler/dense/kernel": np.zeros((12, 11), np.float32)}),
            r"pooler/dense/kernel' has shape \(12, 11\).*needs shape \(12, 12\)",
        ),
        (
            lambda values: values.update(output_weights=np.zeros(3, np.float32)),
            "unexpected variables.*'output_weights'",
        ),
    ],
)
def test_wrong_variable_raises_and_writes_nothing(tmp_path, change, message):
    bert(tmp_path / "tf", change=change)
    with pytest.raises(UserError, match=message):
        convert(Source(str(tmp_path / "tf")), Target(str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()


def test_damaged_files_raise_and_write_nothing(tmp_path):
    bert(tmp_path / "tf")

    def fails(message):
        with pytest.raises(UserError, match=message):
            convert(Source(str(tmp_path / "tf")), Target(str(tmp_path / "run")))
        assert not (tmp_path / "run").exists()

    data = tmp_path / "tf" / "bert_model.ckpt.data-00000-of-00001"
    shutil.copy(data, tmp_path / "data")
    data.write_bytes(data.read_bytes()[:200])
    fails("cannot be read")
    data.unlink()
    fails("cannot be read")
    shutil.copy(tmp_path / "data", data)
    (tmp_path / "tf" / "bert_config.json").unlink()
    fails("sizes are not known: bert_config.json and config.json not found.*--gin_file=models/bert/base.gin")
    (tmp_path / "tf" / "bert_model.ckpt.index").write_bytes(b"no index")
    fails("cannot be read")
