"""Compares steps of DeBERTa v3's pretraining with torch: transformers' layers, the decoder and updates by hand.

The generator is updated first. The discriminator then reads samples from before this update, and embeddings from after
it. A low temperature makes the samples the most probable tokens. numerics.py defines the tolerance.
"""

import jax
import numpy as np
import pytest

from t5x_like import interop, optimizers, parameters
from t5x_like.adapters.lifecycle import NO_HOOKS
from t5x_like.models import networks
from t5x_like.models.deberta_v2 import DebertaV2Config
from t5x_like.objectives.decoupled_replaced_tokens import DecoupledReplacedTokens
from t5x_like.objectives.variables import Frozen
from t5x_like.partitioning import Partitioner
from t5x_like.training import stages, step
from t5x_like.training.recipe import Update
from t5x_like.training.state import create_state

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")
functional = torch.nn.functional

pytestmark = pytest.mark.parity

CONFIG = DebertaV2Config(
    vocab_size=41,
    embed_dim=14,
    mlp_dim=19,
    num_heads=2,
    head_dim=7,
    num_layers=4,
    max_length=16,
    max_distance=12,
    position_buckets=6,
    dropout_rate=0.0,
    attention_dropout_rate=0.0,
    scan_layers=True,
)
LENGTH, LENGTHS, COUNTS, MASK = 13, np.array([13, 9]), np.array([3, 2]), 40
RATE, B1, B2, EPS, DECAY, MAX_NORM, STEPS = 2.0, 0.9, 0.999, 1.0, 0.01, 0.7, 2
TABLE = "deberta.embeddings.word_embeddings.weight"
OBJECTIVE = DecoupledReplacedTokens(temperature=1e-6)


def make_batch():
    rng = np.random.default_rng(1)
    valid = np.arange(LENGTH) < LENGTHS[:, None]
    weights = np.arange(max(COUNTS)) < COUNTS[:, None]
    positions, targets = np.array([[1, 5, 9], [2, 6, 0]]), rng.integers(1, MASK, weights.shape) * weights
    tokens = rng.integers(1, MASK, (2, LENGTH)) * valid
    tokens[np.nonzero(weights)[0], positions[weights]] = MASK
    batch = {"encoder_input_tokens": tokens, "encoder_segment_ids": valid, "masked_positions": positions}
    batch |= {"masked_targets": targets, "masked_weights": weights}
    return {name: array.astype(np.int32) for name, array in batch.items()}


def make_params():
    """Returns parameters with random values everywhere, so that the tables of both networks differ."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda key: networks.make(OBJECTIVE, CONFIG, key), jax.random.key(0))
    draw = lambda name, leaf: (name.endswith("scale") + 0.3 * rng.normal(size=leaf.shape)).astype(np.float32)  # noqa: E731
    return parameters.map_named(draw, shapes)


def take_steps(params, batch):
    adam = optimizers.adamw(
        learning_rate=RATE, b1=B1, b2=B2, eps=EPS, weight_decay=DECAY, bias_correction=False, groups=()
    )
    partitioner = Partitioner(rules="dp", ici={"data": 1}, devices=jax.devices()[:1])
    params, frozen = optimizers.split(params, ())
    state = create_state(params, stages.of_objective(OBJECTIVE, adam, MAX_NORM), 0)
    train_step = partitioner.jit(
        step.make_train_step(OBJECTIVE, adam, Update(max_grad_norm=MAX_NORM), dropout=False, hooks=NO_HOOKS)
    )
    for _ in range(STEPS):
        state, metrics = train_step(state, Frozen(frozen), partitioner.put_batch(batch))
    names = {"masked_lm": "masked_lm_loss", "replaced_tokens": "loss"}
    return state.params, {term: np.divide(*metrics[name]) for term, name in names.items()}


def torch_network(params, name):
    """Returns the body of a network in transformers, its own tensors, and those of its head, by our names."""
    network = params["model"] if name == "model" else params["objective"][name]
    heads = "replaced_tokens" if name == "model" else "masked_lm"
    tensors = interop.tensors_to_huggingface({"model": network}, network.config)
    hf_config = transformers.DebertaV2Config.from_dict(interop.family_of(CONFIG).config_to_json(network.config, []))
    body = transformers.DebertaV2Model(hf_config).double().eval()
    own = {key: torch.tensor(x, dtype=torch.float64, requires_grad=True) for key, x in tensors.items()}
    head = parameters.named_leaves(params["objective"][heads])
    return body, own, {key: torch.tensor(np.asarray(x, np.float64), requires_grad=True) for key, x in head.items()}


class Networks:
    """Both networks in torch, with their moments."""

    def __init__(self, params, batch):
        self.generator, self.discriminator = torch_network(params, "generator"), torch_network(params, "model")
        self.batch = {name: torch.tensor(x).long() for name, x in batch.items()}
        self.moments = {}

    def hidden(self, network, tensors, tokens):
        named = {name.removeprefix("deberta."): x for name, x in tensors.items()}
        options = {"input_ids": tokens, "attention_mask": self.batch["encoder_segment_ids"]}
        return torch.func.functional_call(network, named, kwargs={**options, "output_hidden_states": True})

    def generator_logits(self):
        body, own, head = self.generator
        source = self.hidden(body, own, self.batch["encoder_input_tokens"]).hidden_states[-2]
        queries = source + head["position_embedder/embedding"][:LENGTH]
        names = {name.removeprefix("deberta."): x for name, x in own.items()}
        last = f"encoder.layer.{body.config.num_hidden_layers - 1}."
        of_layer = {name.removeprefix(last): x for name, x in names.items() if name.startswith(last)}
        norm = (names["encoder.LayerNorm.weight"], names["encoder.LayerNorm.bias"], body.config.layer_norm_eps)
        table = functional.layer_norm(names["encoder.rel_embeddings.weight"], (CONFIG.embed_dim,), *norm)
        options = {
            "attention_mask": body.encoder.get_attention_mask(self.batch["encoder_segment_ids"]),
            "relative_pos": body.encoder.get_rel_pos(source),
            "rel_embeddings": table,
        }
        for _ in range(2):
            options["query_states"] = queries
            queries, _ = torch.func.functional_call(body.encoder.layer[-1], of_layer, (source,), options)
        z = functional.gelu(queries @ head["dense/kernel"] + head["dense/bias"])
        z = functional.layer_norm(z, z.shape[-1:], head["norm/scale"], head["norm/bias"], CONFIG.norm_epsilon)
        return z @ own[TABLE].T + head["bias"]

    def update(self, name, loss, tensors):
        """XAdam of the released code: clipped gradients, no bias correction, no decay of vectors."""
        grads = torch.autograd.grad(loss, tensors, allow_unused=True)
        grads = [torch.zeros_like(x) if grad is None else grad for x, grad in zip(tensors, grads, strict=True)]
        norm = torch.sqrt(sum((grad**2).sum() for grad in grads))
        moments = self.moments.setdefault(name, [(torch.zeros_like(x), torch.zeros_like(x)) for x in tensors])
        with torch.no_grad():
            for x, grad, (m, v) in zip(tensors, grads, moments, strict=True):
                grad = grad * min(1.0, MAX_NORM / norm)
                m.mul_(B1).add_((1 - B1) * grad)
                v.mul_(B2).add_((1 - B2) * grad**2)
                x -= RATE * (m / (v.sqrt() + EPS) + (DECAY * x if x.ndim > 1 else 0))

    def step(self):
        """Updates both networks, one after the other, and returns their losses."""
        (_, own, head), (body, delta, other_head) = self.generator, self.discriminator
        rows, columns = np.nonzero(self.batch["masked_weights"].numpy())
        at, targets = self.batch["masked_positions"][rows, columns], self.batch["masked_targets"][rows, columns]
        logits = self.generator_logits()
        tokens = self.batch["encoder_input_tokens"].clone()
        tokens[rows, at] = logits[rows, at].argmax(-1)
        first = functional.cross_entropy(logits[rows, at], targets)
        self.update("generator", first, [*own.values(), *head.values()])

        complete = {**delta, TABLE: own[TABLE].detach() + delta[TABLE]}
        hidden, p = self.hidden(body, complete, tokens).last_hidden_state, other_head
        z = hidden[:, :1] + hidden
        z = functional.layer_norm(z, z.shape[-1:], p["norm/scale"], p["norm/bias"], CONFIG.norm_epsilon)
        z = functional.gelu(z @ p["dense/kernel"] + p["dense/bias"])
        logits = (z @ p["classifier/kernel"] + p["classifier/bias"])[..., 0]
        replaced = torch.zeros_like(logits)
        replaced[rows, at] = (tokens[rows, at] != targets).double()
        valid = self.batch["encoder_segment_ids"] == 1
        second = functional.binary_cross_entropy_with_logits(logits[valid], replaced[valid])
        self.update("discriminator", 10 * second, [*delta.values(), *p.values()])
        return {"masked_lm": first.detach(), "replaced_tokens": second.detach()}


def test_steps_equal_updates_in_sequence(assert_parity):
    params, batch = make_params(), make_batch()
    reference = Networks(params, batch)
    found, losses = take_steps(params, batch)
    for _ in range(STEPS):
        expected = reference.step()
    assert_parity(losses, expected, "loss")
    for name, head, (_, own, of_head) in (
        ("generator", "masked_lm", reference.generator),
        ("model", "replaced_tokens", reference.discriminator),
    ):
        network = found["model"] if name == "model" else found["objective"][name]
        tensors = interop.tensors_to_huggingface({"model": network}, network.config)
        assert_parity(tensors, {key: x.detach() for key, x in own.items()}, "parameters after the step")
        tensors = {key: np.asarray(x) for key, x in parameters.named_leaves(found["objective"][head]).items()}
        assert_parity(tensors, {key: x.detach() for key, x in of_head.items()}, "parameters after the step")
