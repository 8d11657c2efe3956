"""Properties of T5 only; test_families.py tests the properties of every family."""

import dataclasses

import jax
import numpy as np
import pytest
from families import FAMILIES, example_batch, random_model, scanned, tokens

from t5x_like import parameters
from t5x_like.models.t5 import make_layer

T5 = FAMILIES["t5_1_1"]


def test_segment_ids_of_one_stack_only_raise():
    batch = example_batch(T5)
    with pytest.raises(ValueError, match="segment ids of one stack only"):
        random_model(T5.config)(batch | {"encoder_segment_ids": np.ones_like(batch["encoder_input_tokens"])})


def test_initial_queries_include_attention_scale():
    wide = dataclasses.replace(T5.config, embed_dim=64, num_heads=16, head_dim=16)
    attention = make_layer(wide, ("attention",), jax.random.key(0)).attention
    ratio = np.std(attention.query.kernel[...]) / np.std(attention.key.kernel[...])
    assert abs(ratio / 16**-0.5 - 1) < 0.03


# ---- decoding ----------------------------------------------------------------------------------------------------


def test_decoding_uses_first_segment_of_packed_row():
    model, alone = random_model(T5.config), example_batch(T5, rows=1, encoder=4)
    packed = {
        "encoder_input_tokens": np.concatenate([alone["encoder_input_tokens"], tokens(1, 3, seed=5)], 1),
        "encoder_segment_ids": np.array([[1] * 4 + [2] * 3]),
    }

    @jax.jit
    def first_step(batch):
        cache = model.init_cache(1, 3, model.encode(batch))
        return model.decode_step(np.zeros((1, 1), np.int32), cache, 0)[0]

    np.testing.assert_allclose(first_step(packed), first_step(alone), atol=2e-5)


# ---- captures, counts, configuration ------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [T5.config, scanned(T5.config)], ids=["unrolled", "scanned"])
def test_capture_cross_attention_and_projections(config):
    model, batch = random_model(config), example_batch(T5)
    names = (
        "encoder/output",
        "decoder/layers/1/hidden",
        "decoder/layers/0/cross_attention/scores",
        "decoder/layers/self_attention/query",
    )
    outputs = jax.jit(lambda model: model(batch, capture=names))(model)
    captured = outputs.captured
    assert captured["encoder/output"].shape == (2, 7, 12)
    np.testing.assert_allclose(model.decoder.norm(captured["decoder/layers/1/hidden"]), outputs.hidden, atol=2e-5)
    assert captured["decoder/layers/0/cross_attention/scores"].shape == (2, 2, 6, 7)
    assert captured["decoder/layers/self_attention/query"].shape == (2, 2, 6, 2, 5)


def test_parameter_names_and_axes():
    axes = parameters.logical_axes(jax.eval_shape(scanned(T5.config).make, jax.random.key(0)))
    assert axes["encoder/layers/attention/query/kernel"] == ("layers", "embed", "heads", "kv")
    assert axes["decoder/layers/cross_attention/out/kernel"] == ("layers", "heads", "kv", "embed")
    assert axes["decoder/layers/mlp/wi_1/kernel"] == ("layers", "embed", "mlp")
    assert axes["encoder/relative_bias/table"] == ("heads", "relpos_buckets")
    assert axes["token_embedder/embedding"] == ("vocab", "embed")
    assert axes["logits/kernel"] == ("embed", "vocab")
    assert "decoder/layers/0/mlp_norm/scale" in parameters.named_leaves(
        jax.eval_shape(T5.config.make, jax.random.key(0))
    )
    assert "logits/kernel" not in parameters.named_leaves(
        jax.eval_shape(FAMILIES["t5_1_0"].config.make, jax.random.key(0))
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 0}, r"T5Config.num_heads=0: must be a positive integer"),
        ({"embed_dim": 1.5}, r"T5Config.embed_dim=1.5: must be a positive integer"),
        ({"activations": ("swish",)}, r"unknown: \['swish'\]. Give one or more of \[.*'linear', 'relu'.*\]"),
        ({"activations": ()}, r"activations=\(\): empty. Give one or more of"),
        ({"dropout_rate": 1.0}, r"T5Config.dropout_rate=1.0: must be in \[0, 1\)"),
        ({"remat": "some"}, r"T5Config.remat='some': must be one of \['attention', 'dots', 'full', 'none'\]"),
        ({"dtype": "float16"}, r"T5Config.dtype='float16': must be 'float32', 'bfloat16' or None"),
        ({"relpos_buckets": 3}, r"relpos_buckets=3: too few buckets. Give at least 4"),
        ({"relpos_max_distance": 16, "relpos_buckets": 32}, r"relpos_max_distance=16: must be larger than 16"),
        ({"norm_epsilon": 0.0}, r"norm_epsilon=0.0: must be positive"),
    ],
)
def test_invalid_config_raises(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(T5.config, **changes)
