"""Denoising entity alignment (ERNIE): an encoder that reads corrupted entities predicts the original ones."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like import partitioning
from t5x_like.axis_rules import SHARED
from t5x_like.data import specs
from t5x_like.errors import UserError
from t5x_like.layers import initializers
from t5x_like.layers.mlp import ACTIVATIONS
from t5x_like.layers.norms import LayerNorm
from t5x_like.layers.projections import Projection
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import DEFAULT_OPTIONS, Batch, HeadConfig, Objective, Params, Pass, RunOptions
from t5x_like.objectives.joint import Joint, merge_features
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.masked_lm import gather_positions, most_probable
from t5x_like.objectives.prediction import Prediction
from t5x_like.recorded import recorded

NAME = "entity_alignment"
_METRICS = {f"{NAME}_loss": "nll", f"{NAME}_accuracy": "correct"}
# The unique entities of the global batch in ascending order, and `_UNUSED` after them; their vectors; their number.
UNIQUE_IDS, UNIQUE_VECTORS, UNIQUE_COUNT = (f"{SHARED}entity_{name}" for name in ("ids", "vectors", "count"))
_UNUSED = jnp.iinfo(jnp.int32).max
# Logit of candidates that do not exist.
_NO_CANDIDATE = -1e10


class EntityConfig(HeadConfig, Protocol):
    """The fields of a model's configuration that the head needs.

    Attributes:
      entity_dim: Size of the vectors of entities.
      activations: Activations of the feed-forward blocks; the head uses the first.
      norm_epsilon: Epsilon of the norm.
    """

    entity_dim: int
    activations: Sequence[str]
    norm_epsilon: float


class EntityAlignmentHead(nnx.Module):
    """Transforms hidden states to the vectors that are multiplied with those of entities.

    Args:
      config: Configuration of the model.
      key: Random key for the initial values.

    Attributes:
      dense: Projection with kernel `[embed, entity_dim]` and bias.
      norm: Layer norm after the activation.
    """

    def __init__(self, config: EntityConfig, *, key: jax.Array):
        self.dense = Projection(
            (config.embed_dim,),
            (config.entity_dim,),
            axes=("embed", None),  # no rule shards the size of an entity
            key=key,
            init=initializers.BERT,
            bias=True,
            dtype=config.compute_dtype,
        )
        self.norm = LayerNorm(config.entity_dim, epsilon=config.norm_epsilon)
        self.activation = config.activations[0]

    def __call__(self, hidden: Float[Array, "batch mentions embed"]) -> Float[Array, "batch mentions entity"]:
        """Returns a vector per mention."""
        return self.norm(ACTIVATIONS[self.activation](self.dense(hidden)))


@recorded
class EntityAlignment(Joint):
    """Adds denoising entity alignment to other objectives (ERNIE, Zhang et al. 2019, arXiv:1905.07129, section 3.4).

    The model reads corrupted entities. Each is replaced by a random entity of the batch, removed, or kept; the draw of
    a mention depends on its row and its number alone, at evaluation as well. Without keys, entities stay as they are.
    The term `entity_alignment` is the cross-entropy of the original entity of each mention in
    softmax(E · norm(f(W · h + b))), where h is the hidden state of the first token of the mention, and the rows of E
    are the vectors of the unique entities of the global batch and a vector of zeros, which stands for no entity. The
    metrics are `entity_alignment_loss` in nats per mention and `entity_alignment_accuracy`.

    Args:
      objectives: The other objectives, such as `[MaskedLM(), NextSentence()]`, which read the same forward pass.
      entity_dim: Size of the vectors of entities, in the data and in the model.
      replaced: Probability that an entity is replaced by a random one.
      removed: Probability that it is removed.
      coefficient: Factor of the term.

    Raises:
      UserError: The probabilities are negative or their sum exceeds 1, `entity_dim` is not that of the model, or see
        `Joint`.
    """

    draws = True

    def __init__(
        self,
        objectives: Sequence[Objective],
        *,
        entity_dim: int = 100,
        replaced: float = 0.05,
        removed: float = 0.15,
        coefficient: float = 1.0,
    ):
        super().__init__(objectives)
        if min(replaced, removed) < 0 or replaced + removed > 1:
            raise UserError(
                f"EntityAlignment.replaced={replaced}, removed={removed}: not probabilities whose sum is at most 1. "
                "ERNIE has 0.05 and 0.15."
            )
        self.features = merge_features([self.features, specs.with_entities(specs.ENCODER_INPUTS, entity_dim)])
        self.coefficients |= {NAME: coefficient}
        self.entity_dim, self.replaced, self.removed = entity_dim, replaced, removed

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Initializes the heads of all objectives and `entity_alignment`; see `Objective.init`."""
        config = model.config
        if (found := getattr(config, "entity_dim", None)) != self.entity_dim:
            raise UserError(
                f"EntityAlignment.entity_dim={self.entity_dim}: the {type(config).__name__} has "
                f"{'no entities' if found is None else f'entity_dim={found}'}. Give an ErnieConfig of this size, or "
                "set ENTITY_DIM to it."
            )
        others_key, own_key = jax.random.split(key)
        return super().init(others_key, model) | {NAME: EntityAlignmentHead(config, key=own_key)}

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns the weights of the other objectives, and 1 for mentions; see `Objective.weights`."""
        return super().weights(rows) | {NAME: _is_mention(rows)}

    def target_weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns those of the other objectives, and 1 for mentions; see `Objective.target_weights`."""
        return super().target_weights(rows) | {NAME: _is_mention(rows)}

    @property
    def prepare(self):
        """Prepares a batch for the other objectives, and collects its entities; see `Objective`."""
        others = super().prepare

        def prepare(params: Params, batch: Batch, *, key: jax.Array | None, step: Any) -> Batch:
            if others is not None:
                batch = others(params, batch, key=key, step=step)
            return {**batch, **unique_entities(batch["entities"], batch["entity_vectors"])}

        return prepare

    def run(self, params: Params, rows: Batch, options: RunOptions = DEFAULT_OPTIONS) -> Outputs:
        """Runs the model on corrupted entities; see `Objective.run`."""
        corrupted = {**rows, **self.corrupt(rows, options.keys)}
        return super().run(params, corrupted, options)

    def corrupt(self, rows: Batch, keys: Keys) -> dict[str, Array]:
        """Draws the `entities` and `entity_vectors` that the model reads.

        Args:
          rows: The features, and the entities of the batch from `prepare`.
          keys: The keys of the rows; without them, entities stay as they are.
        """
        entities = rows["entities"]
        if keys.rows is None:
            return {"entities": entities, "entity_vectors": rows["entity_vectors"]}
        draw = jax.vmap(lambda key: jax.random.uniform(key, (2, entities.shape[1])))
        kind, other = jnp.moveaxis(draw(keys.rows), 1, 0)
        count = rows[UNIQUE_COUNT]
        index = jnp.minimum((other * count).astype(jnp.int32), count - 1)
        is_replaced, is_removed = kind < self.replaced, (kind >= self.replaced) & (kind < self.replaced + self.removed)
        is_mention = entities > 0
        ids = jnp.where(is_replaced & is_mention, rows[UNIQUE_IDS][index], entities)
        vectors = jnp.where((is_replaced & is_mention)[..., None], rows[UNIQUE_VECTORS][index], rows["entity_vectors"])
        return {"entities": jnp.where(is_removed, 0, ids), "entity_vectors": vectors}

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns what the outputs mean to the other objectives, and the entity of each mention; see `Objective`."""
        found, head = super().read(params, outputs, rows, keys=keys), params["objective"][NAME]
        vectors = jnp.pad(rows[UNIQUE_VECTORS], ((1, 0), (0, 0)))
        exists = jnp.arange(len(vectors)) <= rows[UNIQUE_COUNT]

        def logits(transformed):
            # Vectors of entities are constants; only `transformed` has a gradient.
            product = transformed.astype(jnp.float32) @ jax.lax.stop_gradient(vectors).T
            return jnp.where(exists, product, _NO_CANDIDATE)

        transformed = head(gather_positions(outputs.hidden, rows["entity_positions"]))
        weights = _is_mention(rows)
        targets = jnp.where(weights > 0, 1 + jnp.searchsorted(rows[UNIQUE_IDS], rows["entities"]).astype(jnp.int32), 0)
        predicted = Prediction(transformed, logits, weights, targets, weights).with_cross_entropy(NAME, _METRICS)
        return dataclasses.replace(found, predictions={**found.predictions, NAME: predicted})

    def predict(self, found: Pass) -> dict[str, Array]:
        """Returns the predictions of the other objectives, and the entity of each mention as `entity_alignment`.

        An entity is a number of the data, or 0 for none.
        """
        ids = jnp.pad(found.rows[UNIQUE_IDS], (1, 0))
        return super().predict(found) | {NAME: ids[most_probable(found.predictions[NAME])]}


def unique_entities(
    entities: Int[Array, "batch mentions"], vectors: Float[Array, "batch mentions entity"]
) -> Mapping[str, Array]:
    """Returns the unique entities of a global batch, by the names of the shared arrays.

    All arrays are as long as the number of mentions, which is static; the unique entities come first.

    Args:
      entities: Numbers of the entities, 0 where there is none.
      vectors: Their vectors.
    """
    flat = entities.reshape(-1)
    order = jnp.argsort(flat, stable=True)
    ordered = flat[order]
    is_first = (ordered > 0) & (ordered != jnp.pad(ordered, (1, 0))[:-1])
    ids = jnp.where(is_first, ordered, _UNUSED)
    place = jnp.argsort(ids, stable=True)
    chosen = vectors.reshape(len(flat), -1)[order[place]]
    count = jnp.sum(is_first)
    is_unique = jnp.arange(len(flat)) < count
    return {
        UNIQUE_IDS: partitioning.shard(ids[place], None),
        UNIQUE_VECTORS: partitioning.shard(jnp.where(is_unique[:, None], chosen, 0.0), None, None),
        UNIQUE_COUNT: count,
    }


def _is_mention(rows: Batch) -> Float[Array, "batch mentions"]:
    return (rows["entities"] > 0).astype(jnp.float32)
