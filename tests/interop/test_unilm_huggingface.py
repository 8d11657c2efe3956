"""UniLM's weights in the format of transformers' BERT."""

import json

import jax
import numpy as np

from t5x_like import interop, parameters
from t5x_like.models.bert import BertConfig
from t5x_like.models.unilm import UnilmConfig
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence

SIZES = dict(vocab_size=31, embed_dim=8, mlp_dim=12, num_heads=2, head_dim=4, num_layers=2, max_length=16)


def test_weights_with_six_token_types_are_read(tmp_path):
    bert = BertConfig(**SIZES, num_token_types=6, norm_epsilon=1e-5, activations=("gelu_exact",))
    model = bert.make(jax.random.key(0))
    params = {"model": model, "objective": Joint([MaskedLM(), NextSentence()]).init(jax.random.key(1), model)}
    interop.to_huggingface(params, bert, str(tmp_path))
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_type": "unilm"}))
    config, found = interop.from_huggingface(str(tmp_path), special_tokens=None)
    assert config == UnilmConfig(**SIZES)
    expected = parameters.named_leaves(model)
    assert expected["embeddings/token_type_embedder/embedding"].shape == (6, 8)
    for name, leaf in parameters.named_leaves(found).items():
        np.testing.assert_array_equal(leaf, expected[name])
    assert "objective/masked_lm/bias" in interop.read(str(tmp_path), config)
