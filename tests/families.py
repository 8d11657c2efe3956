"""A small configuration of every family, for tests of all families. A new family adds one entry.

Test modules use `from families import FAMILIES`. Properties of one family are tested in its own module.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numerics import assert_close

from t5x_like import parameters
from t5x_like.kernels.cross_entropy import cross_entropy
from t5x_like.models.bart import BartConfig
from t5x_like.models.base import Model, ModelConfig
from t5x_like.models.bert import BertConfig
from t5x_like.models.gpt import GPTConfig
from t5x_like.models.llama import LlamaConfig
from t5x_like.models.t5 import T5Config
from t5x_like.models.t5_variants import SharedT5Config, T5DecoderConfig

VOCABULARY = 40
SIZES = dict(vocab_size=VOCABULARY, embed_dim=12, mlp_dim=20)
NO_DROPOUT = dict(dropout_rate=0.0, attention_dropout_rate=0.0)
ENCODER_DECODER = dict(num_heads=2, head_dim=5, encoder_layers=2, decoder_layers=2)
# Sizes at which the operations that FLOP formulas omit (norms, softmax, activations) are a few percent of the total.
WIDE = dict(vocab_size=1000, embed_dim=128, mlp_dim=256, num_heads=4, head_dim=32)


@dataclasses.dataclass(frozen=True)
class Family:
    """A family or a published variant of it.

    Attributes:
      config: small configuration without dropout and with unrolled layers.
      stacks: names of the stacks, "encoder", "decoder" or both.
      mesh: rule set and mesh axes for the test on eight devices.
      flops_sizes: fields of `config` to replace in the test of FLOPs.
      attention: name of the self-attention block of each stack; None: the default of `attention_of`.
      generates: whether the model implements `GenerativeDecoder` or `GenerativeEncoderDecoder`.
      padding_id: padding token in batches without segment ids, or None.
      initial_loss_margin: nats per token by which the initial loss may exceed that of a uniform prediction.
    """

    config: ModelConfig
    stacks: tuple[str, ...]
    mesh: tuple[str, Mapping[str, int]] = ("fsdp_tp_sp", {"fsdp": 2, "sequence": 2, "tensor": 2})
    flops_sizes: Mapping[str, int] = dataclasses.field(
        default_factory=lambda: WIDE | {"num_layers": 3, "max_length": 96}
    )
    attention: Mapping[str, str] | None = None
    generates: bool = True
    padding_id: int | None = 0
    initial_loss_margin: float = 0.2

    @property
    def is_encoder_decoder(self) -> bool:
        return self.stacks == ("encoder", "decoder")

    def attention_of(self, stack: str) -> str:
        if self.attention:
            return self.attention[stack]
        return "self_attention" if self.is_encoder_decoder and stack == "decoder" else "attention"


_BERT = BertConfig(**SIZES, **NO_DROPOUT, num_heads=2, head_dim=6, num_layers=2, max_length=16)
_GPT = GPTConfig(**SIZES, **NO_DROPOUT, num_heads=4, head_dim=3, num_layers=2, max_length=16)
_LLAMA = LlamaConfig(**SIZES, num_heads=4, num_kv_heads=2, head_dim=6, num_layers=2, max_length=16)
_T5 = T5Config(**SIZES, **ENCODER_DECODER, relpos_buckets=8, relpos_max_distance=16)
_T5_1_0 = dataclasses.replace(_T5, activations=("relu",), tied_embeddings=True)
_WIDE_STACKS = WIDE | {"encoder_layers": 2, "decoder_layers": 3}
_FSDP = ("fsdp", {"fsdp": 4, "data": 2})


def _convert(kind: type[T5Config], config: T5Config) -> T5Config:
    """Converts a configuration to a subclass of its type."""
    return kind(**{field.name: getattr(config, field.name) for field in dataclasses.fields(config)})


FAMILIES: dict[str, Family] = {
    "bert": Family(_BERT, ("encoder",), generates=False),
    "roberta": Family(
        dataclasses.replace(
            _BERT, position_offset=2, num_token_types=1, padding_id=1, activations=("gelu_exact",), norm_epsilon=1e-5
        ),
        ("encoder",),
        mesh=_FSDP,
        generates=False,
        padding_id=1,
    ),
    "gpt1": Family(dataclasses.replace(_GPT, norm_position="post"), ("decoder",)),
    "gpt2": Family(_GPT, ("decoder",), mesh=_FSDP),
    "gpt3": Family(
        dataclasses.replace(_GPT, head_dim=5, num_layers=4, attention_windows=(None, 2), tied_embeddings=False),
        ("decoder",),
        flops_sizes=WIDE | {"num_layers": 4, "max_length": 96},
    ),
    "llama": Family(_LLAMA, ("decoder",), mesh=_FSDP),
    "mistral": Family(dataclasses.replace(_LLAMA, attention_windows=(3,), tied_embeddings=True), ("decoder",)),
    "bart": Family(
        dataclasses.replace(BartConfig(**SIZES, **ENCODER_DECODER, max_length=16), **NO_DROPOUT),
        ("encoder", "decoder"),
        flops_sizes=_WIDE_STACKS | {"max_length": 96},
    ),
    "t5_1_0": Family(_T5_1_0, ("encoder", "decoder"), mesh=_FSDP, flops_sizes=_WIDE_STACKS, initial_loss_margin=1.5),
    "t5_1_1": Family(_T5, ("encoder", "decoder"), flops_sizes=_WIDE_STACKS, initial_loss_margin=1.5),
    "t5_shared": Family(
        _convert(SharedT5Config, _T5_1_0),
        ("encoder", "decoder"),
        mesh=("dp", {"data": 8}),
        flops_sizes=WIDE | {"encoder_layers": 2, "decoder_layers": 2},
        attention={"encoder": "self_attention", "decoder": "self_attention"},
        initial_loss_margin=1.5,
    ),
    "t5_decoder": Family(
        _convert(T5DecoderConfig, _T5_1_0),
        ("decoder",),
        mesh=("dp", {"data": 8}),
        flops_sizes=_WIDE_STACKS,
        generates=False,
        initial_loss_margin=1.5,
    ),
}


def scanned(config: ModelConfig, **changes: Any) -> ModelConfig:
    """Returns the configuration with stacked layers."""
    return dataclasses.replace(config, scan_layers=True, **changes)


@functools.cache
def random_model(config: ModelConfig) -> Model:
    """Returns a model with random parameters, which do not depend on the layout.

    They are drawn by NumPy because compiling an initialization takes longer than a test.
    """
    stack = jax.eval_shape(scanned(config).make, jax.random.key(0))
    rng = np.random.default_rng(0)

    def draw(name, leaf):
        # Scales of norms stay close to 1: scales around 0 amplify rounding.
        if name.endswith("scale"):
            return 1 + 0.2 * rng.normal(size=leaf.shape)
        return (0.3 if name.endswith("kernel") else 0.6) * rng.normal(size=leaf.shape)

    drawn = {name: draw(name, leaf).astype(np.float32) for name, leaf in parameters.named_leaves(stack).items()}
    return parameters.unstack(drawn, jax.eval_shape(config.make, jax.random.key(0)))


def tokens(*shape: int, seed: int = 0) -> np.ndarray:
    """Returns random token ids that are neither padding nor EOS in any family."""
    return np.random.default_rng(seed).integers(2, VOCABULARY, shape).astype(np.int32)


def example_batch(family: Family, rows: int = 2, encoder: int = 7, decoder: int = 6) -> dict[str, np.ndarray]:
    """Returns a batch of full rows of the given lengths, one feature per stack."""
    lengths = {"encoder": encoder, "decoder": decoder}
    return {
        f"{stack}_input_tokens": tokens(rows, lengths[stack], seed=seed) for seed, stack in enumerate(family.stacks)
    }


def eight_rows(family: Family) -> dict[str, np.ndarray]:
    """Returns a batch with eight rows and positions, to split over eight devices."""
    return example_batch(family, rows=8, encoder=8, decoder=8)


@jax.jit
def hidden(model, batch):
    """Returns the last hidden states, `[batch length embed]`."""
    return model(batch).hidden


def loss(model, batch, key=None):
    """Returns the summed cross-entropy, with z-loss, of predicting the input tokens of the last stack."""
    targets = batch.get("decoder_input_tokens", batch.get("encoder_input_tokens"))
    states = model(batch, dropout_key=key).hidden
    return cross_entropy(states, model.unembed, targets, jnp.ones(targets.shape), z_loss=1e-3).total


@functools.cache
def loss_and_gradient(name: str, config: Any) -> tuple[jax.Array, Any]:
    """Returns loss and gradient of `eight_rows` on one device; `config` is the family's or a variant of it."""
    return jax.jit(jax.value_and_grad(loss))(random_model(config), eight_rows(FAMILIES[name]))


def assert_trees_close(actual: Any, expected: Any) -> None:
    """Asserts that two trees of parameters or gradients, in either layout, agree up to rounding."""
    assert_close(*(parameters.stack(parameters.named_leaves(tree)) for tree in (actual, expected)))
