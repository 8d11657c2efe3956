"""ERNIE (Zhang et al. 2019, arXiv:1905.07129): BERT whose last layers also read the entities that a text mentions.

Entities are vectors of a knowledge graph, such as TransE's (Bordes et al. 2013), which are not trained: they are
features of a batch, as the released code looks them up on the host. An entity belongs to the first token of its
mention (section 3.3). The first layers are BERT's (the T-Encoder). In the others (the K-Encoder), attention among the
entities accompanies attention among the tokens, and one hidden layer reads a token and its entity and updates both
(equations 3 to 5).
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t5x_like.errors import UserError
from t5x_like.kernels.dropout import FIRST_NAMED_KEY, Dropout, split_key
from t5x_like.layers import captures as capturing
from t5x_like.layers import initializers, stacks
from t5x_like.layers.attention import MultiHeadAttention, Sizes
from t5x_like.layers.blocks import Hidden, TransformerLayer
from t5x_like.layers.captures import Captures
from t5x_like.layers.embeddings import position_ids
from t5x_like.layers.mlp import ACTIVATIONS, MLP
from t5x_like.layers.norms import LayerNorm
from t5x_like.layers.projections import shard_activation, shard_residual
from t5x_like.layers.stacks import Stack
from t5x_like.models import checks
from t5x_like.models.base import Batch
from t5x_like.models.bert import Bert, BertConfig, forward_flops
from t5x_like.models.outputs import Outputs

ENTITY_FEATURES = ("entities", "entity_positions", "entity_vectors")
KNOWLEDGE = "knowledge"
# Number of the key of the entities' parameters among the keys derived from those of the model.
_KNOWLEDGE_KEY = FIRST_NAMED_KEY + 2

# Hidden states of tokens and of entities.
Streams = tuple[Hidden, Float[Array, "batch length entity"]]


@dataclasses.dataclass(frozen=True)
class ErnieConfig(BertConfig):
    """Sizes and hyperparameters of ERNIE; by default those of the released model."""

    # Size of an entity's vectors and hidden states.
    entity_dim: int = 100
    # Number of attention heads of entities.
    entity_heads: int = 4
    # Number of the last layers that read entities. The first of these has no attention among entities.
    knowledge_layers: int = 7
    # Activation of the feed-forward blocks and of the heads of pretraining.
    activations: tuple[str, ...] = ("gelu_exact",)

    def __post_init__(self):
        super().__post_init__()
        checks.positive_integers(self, "entity_dim", "entity_heads", "knowledge_layers")
        checks.divides(self, "entity_heads", "entity_dim")
        checks.at_most(self, "knowledge_layers", "num_layers")
        if len(self.activations) > 1:
            raise UserError(
                f"ErnieConfig.activations={self.activations!r}: several activations make a gated block, which entities "
                "cannot join. Give one activation."
            )

    @property
    def text_layers(self) -> int:
        """Number of the first layers, which read tokens alone."""
        return self.num_layers - self.knowledge_layers

    @property
    def reads(self) -> tuple[str, ...]:
        """Features of a batch that the model reads; see `ModelConfig.reads`."""
        return (*super().reads, *ENTITY_FEATURES)

    def make(self, key: jax.Array) -> "Ernie":
        """Returns an ERNIE with newly initialized parameters; see `ModelConfig.make`."""
        return Ernie(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step: BERT's, and those of `entity_flops`."""
        batch, length = shapes["encoder_input_tokens"]
        _, predictions = shapes.get("masked_positions", (batch, 0))
        return 3.0 * (forward_flops(self, batch, length, predictions) + entity_flops(self, batch, length))


def entity_flops(config: ErnieConfig, batch: int, length: int) -> float:
    """Returns the floating-point operations of the matrix products of entities in a forward pass.

    With e = entity_dim, f = mlp_dim, n = knowledge_layers and L = length, a row takes L · (n · ef + (n - 1) · (ef + 4ee
    + 2Le)) multiply-adds: the hidden states of entities after the last layer are not read. The head of entities does
    not count.

    Args:
      config: Configuration of the model.
      batch: Number of rows.
      length: Tokens per row.
    """
    e, fusion, others = config.entity_dim, config.entity_dim * config.mlp_dim, config.knowledge_layers - 1
    per_token = config.knowledge_layers * fusion + others * (fusion + 4 * e * e + 2 * length * e)
    return 2.0 * batch * length * per_token


def make_entity_layer(config: ErnieConfig, key: jax.Array, *, attention: bool) -> TransformerLayer:
    """Makes what a layer adds for entities: their attention, if it has one, and their part of the feed-forward block.

    No rule shards the size of an entity, which has few divisors.
    """
    attention_key, mlp_key = jax.random.split(key)
    init, dtype = initializers.truncated_normal(config.initializer_range), config.compute_dtype
    options = {"init": init, "bias": True, "embed_axis": None, "dtype": dtype}
    head_dim, blocks = config.entity_dim // config.entity_heads, {}
    if attention:
        blocks["attention"] = MultiHeadAttention(
            Sizes(config.entity_dim),
            heads=config.entity_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            dropout=Dropout(config.attention_dropout_rate),
            key=attention_key,
            **options,
        )
    blocks["mlp"] = MLP(config.entity_dim, config.mlp_dim, activations=config.activations, key=mlp_key, **options)
    return TransformerLayer(
        blocks,
        lambda: LayerNorm(config.entity_dim, epsilon=config.norm_epsilon),
        norm_position="post",
        dropout=Dropout(config.dropout_rate),
    )


class Ernie(Bert):
    """ERNIE. Implements `Model` of `models/base.py`.

    The parameters of the tokens have BERT's names and shapes, so that they start from a BERT. Further arrays to capture
    are `knowledge/embedding`, `knowledge/layers/INDEX/hidden` and `knowledge/output`, the hidden states of entities in
    the last `knowledge_layers` layers.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      mix: The entities' part of the first layer that reads them.
      knowledge: The entities' part of the layers after it; only if there are such layers.
    """

    def __init__(self, config: ErnieConfig, *, key: jax.Array):
        super().__init__(config, key=key)
        mix_key, knowledge_key = jax.random.split(jax.random.fold_in(key, _KNOWLEDGE_KEY))
        options = {"scan": bool(config.scan_layers), "remat": config.remat}
        self.mix = Stack(functools.partial(make_entity_layer, config, attention=False), 1, key=mix_key, **options)
        if config.knowledge_layers > 1:
            make = functools.partial(make_entity_layer, config, attention=True)
            self.knowledge = Stack(make, config.knowledge_layers - 1, key=knowledge_key, **options)

    def trunk(
        self,
        embedded: Mapping[str, Hidden],
        batch: Batch,
        *,
        dropout_key: jax.Array | None = None,
        capture: Sequence[str] = (),
        edits: Sequence[capturing.Edit] = (),
    ) -> Outputs:
        """Computes everything between the embeddings and the logits; see `Model.trunk`.

        Args:
          embedded: Result of `embed`.
          batch: The features of BERT; `entities` `[batch mentions]`, 0 where there is none; `entity_positions`, the
            first token of each mention; and `entity_vectors` `[batch mentions entity]`. Without them, there are none.
          dropout_key: Random key of dropout; None disables dropout.
          capture: Names of intermediate arrays to return.
          edits: Interventions in intermediate arrays of the same names.
        """
        config = self.config
        layers = {
            "encoder": (config.num_layers, self.encoder.capturable),
            KNOWLEDGE: (config.knowledge_layers, ("hidden",)),
        }
        captures = capturing.parse(capture, layers, edits)
        first_key, text_key, mix_key, knowledge_key = split_key(dropout_key, 4)
        entities, present = self.entity_inputs(batch)
        inputs = self.attention_inputs(batch)
        mask = dataclasses.replace(inputs["mask"], key_valid=present)
        inputs = {"attention": inputs, "entities": {"mask": mask}, "present": present[..., None]}

        states = {"encoder": self.first_layer_input(embedded["encoder"], first_key), KNOWLEDGE: entities}
        captured, in_layers = {}, {}
        for name, x in states.items():
            states[name], found = captures[name].state(capturing.EMBEDDING, x)
            captured |= found
        if config.text_layers:
            options = {"dropout_key": text_key, "captures": captures["encoder"].part(0, config.text_layers)}
            order = range(config.text_layers)
            states["encoder"], in_layers = self.encoder.run(states["encoder"], inputs, order=order, **options)
        streams = states["encoder"], states[KNOWLEDGE]
        streams, found = self._fuse(self.mix, 0, streams, inputs, captures, dropout_key=mix_key)
        in_layers |= found
        if config.knowledge_layers > 1:
            streams, found = self._fuse(self.knowledge, 1, streams, inputs, captures, dropout_key=knowledge_key)
            in_layers |= found
        for name, x in zip(layers, streams, strict=True):
            states[name], found = captures[name].state(capturing.OUTPUT, x)
            captured |= found | captures[name].join(in_layers)
        return Outputs(hidden=self.encoder.apply_norm(states["encoder"]), captured=captured)

    def entity_inputs(self, batch: Batch) -> tuple[Float[Array, "batch length entity"], Bool[Array, "batch length"]]:
        """Returns the vector of the entity at each token, 0 without one, and which tokens take part among entities.

        These are the first token of each segment, so that every token attends to one at least, and those with an
        entity.
        """
        tokens = batch["encoder_input_tokens"]
        first = position_ids(*tokens.shape, batch.get("encoder_positions")) == 0
        ids, positions, vectors = (batch.get(name) for name in ENTITY_FEATURES)
        if ids is None:
            return jnp.zeros((*tokens.shape, self.config.entity_dim), self.config.compute_dtype), first
        at = (positions[..., None] == jnp.arange(tokens.shape[1])) & (ids > 0)[..., None]
        # A product with one-hot vectors, as in `masked_lm.gather_positions`.
        placed = jnp.einsum("bnl,bne->ble", at.astype(vectors.dtype), vectors, precision=jax.lax.Precision.HIGHEST)
        return shard_residual(placed.astype(self.config.compute_dtype)), first | jnp.any(at, axis=1)

    def _fuse(
        self,
        entity_layers: Stack,
        first: int,
        streams: Streams,
        inputs: Mapping[str, Any],
        captures: Mapping[str, Captures],
        *,
        dropout_key: jax.Array | None,
    ) -> tuple[Streams, dict[str, Array]]:
        """Applies layers that read entities, the `first` one of these and those that follow it."""
        count, start = entity_layers.num_layers, self.config.text_layers + first
        text, entities = self.encoder.run_layers, entity_layers.layers
        if stacks.is_scanned(text):
            layers = jax.tree.map(lambda leaf: leaf[start : start + count], text), entities
        else:
            layers = [(text[start + index], entities[index]) for index in range(count)]
        parts = {"encoder": captures["encoder"].part(start, start + count)}
        parts[KNOWLEDGE] = captures[KNOWLEDGE].part(first, first + count)

        def apply(pair, streams, index, key):
            of_layer = {name: part.of_layer(index) for name, part in parts.items()}
            streams, captured = fuse(*pair, streams, inputs, dropout_key=key, captures=of_layer)
            return streams, {f"{name}/{what}": x for name, found in captured.items() for what, x in found.items()}

        keep = {f"{name}/{what}": layers for name, part in parts.items() for what, layers in part.kept.items()}
        options = {"order": range(count), "dropout_key": dropout_key, "remat": self.config.remat}
        streams, kept = stacks.apply_layers(layers, apply, streams, keep=keep, **options)
        captured = {}
        for name, part in parts.items():
            captured |= part.named({what: kept[f"{name}/{what}"] for what in part.kept})
        return streams, captured


def fuse(
    text: TransformerLayer,
    entity: TransformerLayer,
    streams: Streams,
    inputs: Mapping[str, Any],
    *,
    dropout_key: jax.Array | None,
    captures: Mapping[str, Captures],
) -> tuple[Streams, dict[str, dict[str, Array]]]:
    """Applies a layer to tokens and entities (equations 3 to 5).

    After attention, h = f(W · x + U · e) reads the token x and the entity e, and x becomes norm(x + V · h), e becomes
    norm(e + T · h). Tokens that take no part in attention among entities have e = 0 before.

    Args:
      text: The layer of tokens.
      entity: What it has for entities.
      streams: Hidden states of tokens and of entities.
      inputs: `attention` and `entities`, the arguments of the attention of each, and `present` `[batch length 1]`:
        which tokens take part in attention among entities, those with an entity and the first one of each segment.
      dropout_key: Random key of dropout; None disables dropout.
      captures: What to capture and to edit, of `encoder` and of `knowledge`.

    Returns:
      The hidden states, and the captured arrays.
    """
    (x, e), keys = streams, split_key(dropout_key, 8)
    options = {"dropout_key": keys[0], **captures["encoder"].within("attention"), **inputs["attention"]}
    x, attended = text.residual("attention", lambda x: text.attention(x, **options), x, keys[1])
    if "attention" in entity.names:
        options = {"dropout_key": keys[2], **inputs["entities"]}
        e, _ = entity.residual("attention", lambda e: entity.attention(e, **options), e, keys[3])
    e = e * inputs["present"].astype(e.dtype)
    (activation,) = text.mlp.activations

    def update_text(x):
        joined = text.mlp.wi(x, dropout_key=keys[4]) + entity.mlp.wi(e, dropout_key=keys[5])
        hidden = ACTIVATIONS[activation](shard_activation(joined, "mlp"))
        return text.mlp.wo(hidden, dropout_key=keys[4]), hidden

    x, hidden = text.residual("mlp", update_text, x, keys[6])
    e, _ = entity.residual("mlp", lambda _: (entity.mlp.wo(hidden, dropout_key=keys[5]), None), e, keys[7])
    # One key, so that both streams lose the layer together.
    x, e = text.select(streams[0], x, dropout_key), entity.select(streams[1], e, dropout_key)
    x = captures["encoder"].edits("hidden", shard_residual(x))
    e = captures[KNOWLEDGE].edits("hidden", shard_residual(e))
    captured = {"encoder": captures["encoder"].collect(hidden=x, attention=attended)}
    return (x, e), captured | {KNOWLEDGE: captures[KNOWLEDGE].collect(hidden=e)}
