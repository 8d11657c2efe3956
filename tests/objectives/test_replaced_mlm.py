"""ELECTRA's ablations: losses by hand, and the positions that logits are computed for."""

import jax
import jax.numpy as jnp
import numpy as np
import objective_cases
import pytest
from jax.extend.core import jaxprs_in_params
from objective_case import PREDICTIONS, ROWS, Case

from t5x_like import parameters
from t5x_like.objectives import passes
from t5x_like.objectives.discriminators import MaskedReplacedTokens
from t5x_like.objectives.replaced_mlm import ReplaceMLM
from t5x_like.objectives.replaced_tokens import READ_TOKENS, ReplacedTokenDetection, place

CASES = {
    **{name: objective_cases.CASES[name] for name in ("replaced_tokens", "all_tokens_mlm")},
    **{
        name: Case(ReplacedTokenDetection(generator_size=1 / 3, discriminator=discriminator), "bert")
        for name, discriminator in {"electra_15": MaskedReplacedTokens(), "replace_mlm": ReplaceMLM()}.items()
    },
}
VOCABULARY = CASES["replace_mlm"].params()["model"].config.vocab_size


def forward(name):
    """Returns an objective's forward pass, and its parameters, batch and terms."""
    case = CASES[name]
    params, batch = case.params(), case.batch()

    @jax.jit
    def run(params):
        found = passes.forward_at_evaluation(case.objective, params, batch)
        read = found.outputs.captured[READ_TOKENS]
        return np.float32(0) + found.outputs.hidden, read, passes.terms(found), case.objective.predict(found)

    hidden, read, terms, predicted = run(params)
    original = np.asarray(place(jnp.asarray(batch["encoder_input_tokens"]), batch, batch["masked_targets"]))
    return params, batch, np.asarray(hidden), np.asarray(read), original, terms, predicted["predictions"]


def log_softmax_of_head(params, head, hidden):
    """Returns the log-probabilities of a masked-LM head in numpy."""
    p = {name: np.asarray(leaf, np.float64) for name, leaf in parameters.named_leaves(head).items()}
    x = hidden @ p["dense/kernel"] + p["dense/bias"]
    x = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))  # the activation of this model
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + params["model"].config.norm_epsilon)
    x = x * p["norm/scale"] + p["norm/bias"]
    logits = x @ np.asarray(params["model"].embeddings.token_embedder.embedding[...]).T + p["bias"]
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_electra_15_detects_at_masked_positions():
    params, batch, hidden, read, original, terms, predicted = forward("electra_15")
    at, weights = batch["masked_positions"], batch["masked_weights"]
    logits = np.asarray(params["objective"]["replaced_tokens"](hidden))[..., 0]
    replaced = read != original
    every = np.where(replaced, np.log1p(np.exp(-logits)), np.log1p(np.exp(logits)))
    expected = (np.take_along_axis(every, at, axis=1) * weights).sum()
    np.testing.assert_allclose(terms.sums["replaced_tokens"], expected, rtol=1e-5)
    share = (np.take_along_axis(replaced, at, axis=1) * weights).sum(), weights.sum()
    assert [float(x) for x in terms.metrics["replaced"]] == list(share)
    assert predicted.shape == (ROWS, PREDICTIONS)


def test_replace_mlm_predicts_original_tokens_at_masked_positions():
    params, batch, hidden, read, original, terms, _ = forward("replace_mlm")
    log_probabilities = log_softmax_of_head(params, params["objective"]["replace_mlm"], hidden)
    at_masked = log_probabilities[np.arange(ROWS)[:, None], batch["masked_positions"], batch["masked_targets"]]
    expected = -(at_masked * batch["masked_weights"]).sum()
    np.testing.assert_allclose(terms.sums["replace_mlm"], expected, rtol=1e-5)
    # The model reads samples, and both losses are those of the masked tokens.
    assert np.mean(read != original) > 0.1
    assert terms.metrics["loss"][1] == terms.metrics["masked_lm_loss"][1] == batch["masked_weights"].sum()


def test_all_tokens_mlm_mixes_a_copy_and_the_vocabulary():
    params, batch, hidden, read, original, terms, predicted = forward("all_tokens_mlm")
    head = params["objective"]["all_tokens_mlm"]
    probabilities = np.exp(log_softmax_of_head(params, head.prediction, hidden))
    copy = 1 / (1 + np.exp(-np.asarray(head.copy(hidden))))
    mixed = copy * np.eye(VOCABULARY)[read] + (1 - copy) * probabilities
    real = batch["encoder_segment_ids"] != 0
    of_original = np.take_along_axis(mixed, original[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(terms.sums["all_tokens_mlm"], -np.log(of_original[real]).sum(), rtol=1e-5)
    np.testing.assert_array_equal(predicted[real], mixed.argmax(-1)[real])
    correct = (mixed.argmax(-1) == original)[real].sum()
    assert [float(x) for x in terms.metrics["accuracy"]] == [correct, real.sum()]
    assert 0 < (read == original)[real].sum() < real.sum()


@pytest.mark.parametrize("name", ["replaced_tokens", "electra_15", "replace_mlm"])
def test_logits_over_the_vocabulary_exist_for_masked_positions_alone(name):
    case = CASES[name]

    def total(params):
        found = passes.forward_at_evaluation(case.objective, params, case.batch())
        return passes.loss(found, dict.fromkeys(case.objective.coefficients, 1.0))[0]

    shapes = set()

    def collect(jaxpr):
        for equation in jaxpr.eqns:
            shapes.update(variable.aval.shape for variable in equation.outvars if hasattr(variable.aval, "shape"))
            for inner in jaxprs_in_params(equation.params):
                collect(inner)

    collect(jax.make_jaxpr(jax.grad(total))(case.params()).jaxpr)
    sizes = {int(np.prod(shape[:-1])) for shape in shapes if len(shape) > 2 and shape[-1] == VOCABULARY}
    assert max(sizes) == ROWS * PREDICTIONS
