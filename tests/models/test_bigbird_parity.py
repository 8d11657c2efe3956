"""Compares BigBird ITC with transformers: random weights, small odd sizes, rows with padding, float32.

transformers draws random blocks in training mode alone, so that its dropout is 0 here. numerics.py defines the
tolerance.
"""

import jax
import numpy as np
import pytest
from objective_cases import terms_of

from t5x_like import interop, parameters
from t5x_like.interop import tables
from t5x_like.models import bigbird_plan
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence
from t5x_like.objectives.passes import total_weights

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

ROWS, PREDICTIONS = 2, 5
SIZES = dict(
    vocab_size=67,
    hidden_size=21,
    intermediate_size=29,
    num_attention_heads=3,
    num_hidden_layers=3,
    type_vocab_size=3,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
# Name -> (length of the rows, settings).
VARIANTS = {
    "dense": (41, dict(block_size=4, num_random_blocks=3, max_position_embeddings=50)),
    "short": (48, dict(block_size=4, num_random_blocks=3, max_position_embeddings=50)),
    "part_of_a_block": (107, dict(block_size=5, num_random_blocks=2, max_position_embeddings=120)),
    "without_bias": (33, dict(block_size=3, num_random_blocks=1, max_position_embeddings=50, use_bias=False)),
    "scaled": (64, dict(block_size=4, num_random_blocks=1, max_position_embeddings=64, rescale_embeddings=True)),
    "original_full": (64, dict(block_size=4, max_position_embeddings=64, attention_type="original_full")),
    "paper_1024": (1024, dict(hidden_act="relu", num_hidden_layers=2, max_position_embeddings=4096)),
}


def make_batch(length, config):
    """Returns rows of two lengths that are both dense or both sparse: transformers decides for the whole batch."""
    shorter = 2 * length // 3 if config.is_dense(length) else max(2 * length // 3, config.dense_length + 1)
    rng, lengths = np.random.default_rng(0), np.array([length, shorter])
    valid = np.arange(length) < lengths[:, None]
    positions = np.stack([np.sort(rng.choice(size, PREDICTIONS, replace=False)) for size in lengths])
    batch = {
        "encoder_input_tokens": rng.integers(1, config.vocab_size, (ROWS, length)) * valid,
        "encoder_segment_ids": valid,
        "token_types": rng.integers(0, config.num_token_types, (ROWS, length)) * valid,
        "masked_positions": positions,
        "masked_targets": rng.integers(0, config.vocab_size, (ROWS, PREDICTIONS)),
        "next_sentence_label": rng.integers(0, 2, (ROWS, 1)),
    }
    weights = {"masked_weights": np.ones((ROWS, PREDICTIONS), np.float32)}
    return {name: array.astype(np.int32) for name, array in batch.items()} | weights


@pytest.fixture(scope="module", params=VARIANTS)
def original(request, tmp_path_factory):
    """Returns a model of transformers with random weights, its directory, and a batch."""
    length, settings = VARIANTS[request.param]
    torch.manual_seed(0)
    reference = transformers.BigBirdForPreTraining(transformers.BigBirdConfig(**SIZES | settings)).train()
    with torch.no_grad():
        for parameter in reference.parameters():  # move norms and biases away from 1 and 0
            parameter += 0.2 * torch.randn_like(parameter)
    directory = str(tmp_path_factory.mktemp(request.param))
    reference.save_pretrained(directory, safe_serialization=True)
    return reference, directory, length


@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
def test_hidden_states_logits_loss_and_gradients(original, scan, assert_parity):
    reference, directory, length = original
    config, model = interop.from_huggingface(directory, scan_layers=scan)
    objective, batch = Joint([MaskedLM(), NextSentence()]), make_batch(length, config)
    valid, rows = batch["encoder_segment_ids"] == 1, np.arange(ROWS)[:, None]
    labels = np.full((ROWS, length), -100)
    labels[rows, batch["masked_positions"]] = batch["masked_targets"]
    expected = reference(
        input_ids=torch.tensor(batch["encoder_input_tokens"]).long(),
        attention_mask=torch.tensor(valid).long(),
        token_type_ids=torch.tensor(batch["token_types"]).long(),
        labels=torch.tensor(labels),
        next_sentence_label=torch.tensor(batch["next_sentence_label"]).long(),
        output_hidden_states=True,
    )
    reference.zero_grad()
    expected.loss.backward()
    stored = {
        name.removeprefix(tables.OBJECTIVE): leaf
        for name, leaf in interop.read(directory, config).items()
        if name.startswith(tables.OBJECTIVE)
    }
    heads = parameters.rebuild(jax.eval_shape(objective.init, jax.random.key(0), model), stored)

    def loss(params):
        outputs = params["model"](batch, capture=("encoder/layers/hidden",))
        head = params["objective"]["masked_lm"]
        logits = head.logits(params["model"], head(outputs.hidden))
        terms, weights = terms_of(objective, params, batch), total_weights(objective, batch)
        value = sum(terms.sums[name] / weights[name] for name in terms.sums)
        return value, (outputs.captured["encoder/layers/hidden"], logits)

    run = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (value, (layers, logits)), gradient = run({"model": model, "objective": heads})
    for number, (ours, theirs) in enumerate(zip(layers, expected.hidden_states[1:], strict=True)):
        theirs = theirs.detach().numpy()[:, :length][valid]
        assert_parity({number: np.asarray(ours)[valid]}, {number: theirs}, "hidden states")
    theirs = expected.prediction_logits.detach().numpy()[valid]
    assert_parity({"logits": np.asarray(logits)[valid]}, {"logits": theirs}, "logits")
    assert_parity({"loss": value}, {"loss": expected.loss.detach()}, "loss")
    wanted = {name: parameter.grad.numpy() for name, parameter in reference.named_parameters()}
    found = interop.tensors_to_huggingface(gradient, config)
    assert_parity(join_key_biases(found), join_key_biases(wanted), "gradients")


def join_key_biases(tensors):
    """Appends the biases of keys to their kernels: their gradient is the rounding error of a sum of zero."""
    joined = dict(tensors)
    for name in tensors:
        if name.endswith("key.bias"):
            kernel = name.replace("bias", "weight")
            joined[kernel] = np.append(tensors[kernel], joined.pop(name))
    return joined


@pytest.mark.parametrize(
    ("length", "longest"), [(768, 4096), (1024, 4096), (3072, 4096), (4096, 4096), (1024, 4000), (3072, 3100)]
)
@pytest.mark.parametrize("layer", [0, 7])
def test_random_blocks_are_those_of_transformers(length, longest, layer):
    config = transformers.BigBirdConfig(hidden_size=24, intermediate_size=8)
    reference = transformers.models.big_bird.modeling_big_bird.BigBirdBlockSparseAttention(config, layer).train()
    np.random.seed(layer)
    if length == 768:
        plan = reference._get_rand_attn_plan(length, 64, 3)
        theirs = reference._bigbird_block_rand_mask_with_head(length, length, 64, 64, 12, *plan)
    else:
        theirs = [reference._bigbird_block_rand_mask(longest, longest, 64, 64, 3, last_idx=1024) for _ in range(12)]
    ours = bigbird_plan.random_blocks(layer, 12, length, max_length=longest, size=64, num_random=3)
    np.testing.assert_array_equal(ours, np.stack(theirs)[:, : length // 64 - 2])
