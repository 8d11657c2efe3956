"""Adapters of a whole model: models and decoding call the interface, also of an adapter that they do not know."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.adapters import model_adapters
from t5x_like.adapters.base import WeightAdapter
from t5x_like.adapters.model_adapters import ModelAdapter
from t5x_like.errors import UserError
from t5x_like.models import construct
from t5x_like.models.bert import BertConfig
from t5x_like.models.gpt import GPTConfig

TOKENS = np.random.default_rng(0).integers(1, 20, (2, 6)).astype(np.int32)
SIZES = {"num_layers": 1, "embed_dim": 8, "num_heads": 2, "mlp_dim": 16, "vocab_size": 20, "max_length": 16}
BERT = BertConfig(**SIZES, dropout_rate=0.0)


@dataclasses.dataclass(frozen=True)
class Marker(ModelAdapter):
    """Puts the same token before each row."""

    plural: ClassVar[str] = "markers"
    features: ClassVar[tuple[str, ...]] = ("marker",)
    token: int = 3

    def add(self, model, key):
        model.opened = True

    def count_positions(self, config):
        return 1

    def count_tokens(self):
        return 1

    def extend(self, config, batch, padding):
        before = jnp.full((len(batch["encoder_input_tokens"]), 1), self.token)
        return {**batch, "encoder_input_tokens": jnp.concatenate([before, batch["encoder_input_tokens"]], axis=1)}

    def remove(self, config, hidden):
        return hidden[:, 1:]


@dataclasses.dataclass(frozen=True)
class Halved(WeightAdapter):
    """Halves all embeddings, once for all of its kind."""

    pattern: str = ""

    @staticmethod
    def apply(model, settings):
        model.halved = len(settings)


def test_model_reads_what_an_adapter_adds_and_returns_the_tokens_of_the_batch():
    plain = construct.make(BERT, jax.random.key(0))
    opened = construct.make(dataclasses.replace(BERT, adapters=(Marker(),)), jax.random.key(0))
    assert opened.opened
    extended = np.concatenate([np.full((2, 1), 3), TOKENS], axis=1)
    expected = plain({"encoder_input_tokens": extended}).hidden[:, 1:]
    found = opened({"encoder_input_tokens": TOKENS}).hidden
    np.testing.assert_array_equal(found, expected)


def test_counts_and_features_are_those_of_all_adapters():
    config = dataclasses.replace(BERT, adapters=(Marker(),))
    assert (model_adapters.count_positions(config), model_adapters.count_tokens(config)) == (1, 1)
    assert model_adapters.features(config) == ("marker",)
    batch = {"encoder_input_tokens": TOKENS}
    assert model_adapters.extend(BERT, batch) is batch


def test_weight_adapters_of_a_kind_are_applied_together():
    config = dataclasses.replace(BERT, adapters=(Halved("a"), Halved("b")))
    assert construct.make(config, jax.random.key(0)).halved == 2


def test_model_has_one_adapter_of_each_class():
    with pytest.raises(UserError, match="several markers. Give one that is as long as all of them"):
        dataclasses.replace(BERT, adapters=(Marker(3), Marker(4)))


def test_adapter_of_a_model_cannot_be_merged_unless_it_says_how():
    model = construct.make(dataclasses.replace(BERT, adapters=(Marker(),)), jax.random.key(0))
    with pytest.raises(UserError, match="Marker: a marker cannot be merged into the parameters"):
        construct.merge(model)


def test_model_without_adapters_of_stacks_is_returned_as_it_is():
    model = construct.make(GPTConfig(**SIZES, dropout_rate=0.0), jax.random.key(0))
    assert model_adapters.computed(model) is model
    assert construct.collapse(model) is model
