"""Compares StructBERT's objectives with torch: random weights, small odd sizes, float32."""

import jax
import numpy as np
import pytest
from objective_cases import terms_of

from t5x_like import interop, parameters
from t5x_like.interop import tables
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.passes import total_weights
from t5x_like.objectives.sentence_structure import SentenceStructure
from t5x_like.objectives.word_structure import WordStructure

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
safetensors_torch = pytest.importorskip("safetensors.torch", reason="compares with torch (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity

OBJECTIVE = Joint([WordStructure(), SentenceStructure()])
ROWS, LENGTH = 3, 19
LENGTHS = np.array([19, 13, 17])
MASKED = [[2, 5, 11], [4], [1, 8]]
SHUFFLED = [[6, 7, 8, 13, 14, 15], [7, 8, 9], []]


def padded(rows, columns):
    found = np.zeros((ROWS, columns), np.int32)
    for number, row in enumerate(rows):
        found[number, : len(row)] = row
    return found


def make_batch(rng, vocab_size):
    valid = np.arange(LENGTH) < LENGTHS[:, None]
    batch = {
        "encoder_input_tokens": rng.integers(1, vocab_size, (ROWS, LENGTH)) * valid,
        "encoder_segment_ids": valid,
        "token_types": rng.integers(0, 2, (ROWS, LENGTH)) * valid,
        "next_sentence_label": np.array([[2], [0], [1]]),
    }
    for name, positions, columns in (("masked", MASKED, 4), ("shuffled", SHUFFLED, 6)):
        weights = padded([[1] * len(row) for row in positions], columns)
        targets = rng.integers(0, vocab_size, (ROWS, columns)) * weights
        batch |= {
            f"{name}_positions": padded(positions, columns),
            f"{name}_weights": weights,
            f"{name}_targets": targets,
        }
    return {name: array.astype(np.int32) for name, array in batch.items()}


@pytest.mark.parametrize(("seed", "scan"), [(0, False), (1, True)])
def test_loss_and_gradients_equal_those_of_torch(seed, scan, tmp_path, assert_parity):
    torch.manual_seed(seed)
    reference = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=47 + seed,
            hidden_size=15,
            intermediate_size=31,
            num_attention_heads=3,
            num_hidden_layers=1 + seed,
            max_position_embeddings=LENGTH + 3,
            hidden_act="gelu_new",
            attn_implementation="eager",
        )
    ).eval()
    reference.cls.seq_relationship = torch.nn.Linear(15, 3)
    tensors = {name: tensor.detach().numpy() for name, tensor in reference.named_parameters()}
    classifier = {name: tensors.pop(f"cls.seq_relationship.{name}") for name in ("weight", "bias")}
    reference.config.save_pretrained(tmp_path)
    two_classes = {f"cls.seq_relationship.{name}": torch.tensor(array[:2].copy()) for name, array in classifier.items()}
    state = {name: torch.tensor(array) for name, array in tensors.items()} | two_classes
    safetensors_torch.save_file(state, tmp_path / "model.safetensors")
    config, model = interop.from_huggingface(str(tmp_path), scan_layers=scan)
    stored = {
        name.removeprefix(tables.OBJECTIVE).replace("next_sentence", "sentence_structure"): leaf
        for name, leaf in interop.read(str(tmp_path), config).items()
        if name.startswith(tables.OBJECTIVE)
    }
    stored |= {
        "sentence_structure/classifier/kernel": classifier["weight"].T,
        "sentence_structure/classifier/bias": classifier["bias"],
    }
    heads = parameters.rebuild(jax.eval_shape(OBJECTIVE.init, jax.random.key(0), model), stored)
    params, batch = {"model": model, "objective": heads}, make_batch(np.random.default_rng(seed), config.vocab_size)

    given = {name: torch.tensor(array).long() for name, array in batch.items()}
    found = reference(
        given["encoder_input_tokens"],
        attention_mask=given["encoder_segment_ids"],
        token_type_ids=given["token_types"],
    )
    cross_entropy = torch.nn.functional.cross_entropy
    expected = cross_entropy(found.seq_relationship_logits, given["next_sentence_label"][:, 0])
    for name in ("masked", "shuffled"):
        rows, columns = torch.nonzero(given[f"{name}_weights"], as_tuple=True)
        logits = found.prediction_logits[rows, given[f"{name}_positions"][rows, columns]]
        expected = expected + cross_entropy(logits, given[f"{name}_targets"][rows, columns])
    expected.backward()

    def loss(params):
        terms, weights = terms_of(OBJECTIVE, params, batch), total_weights(OBJECTIVE, batch)
        assert set(terms.sums) == {"masked_lm", "word_structure", "next_sentence"}
        return sum(OBJECTIVE.coefficients[name] * terms.sums[name] / weights[name] for name in terms.sums)

    value, gradient = jax.jit(jax.value_and_grad(loss))(params)
    assert_parity({"loss": value}, {"loss": expected.detach()}, "loss")
    heads = gradient["objective"]
    named = {"masked_lm": heads["masked_lm"], "next_sentence": heads["sentence_structure"]}
    assert_parity(
        interop.tensors_to_huggingface({**gradient, "objective": named}, config),
        {name: parameter.grad for name, parameter in reference.named_parameters()},
        "gradients",
    )
