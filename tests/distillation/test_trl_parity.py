"""Losses across tokenizers and the divergences of GKD against the functions of the library trl, on one row each.

trl imports packages that these functions do not need, so their source alone is compiled.
"""

import __future__

import ast
import importlib.util
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from aligned_cases import STUDENT, TEACHER, compute, inputs

from t5x_like.distillation import losses
from t5x_like.kernels.chunks import Readout, sum_over_positions
from t5x_like.vocabularies import token_matches

torch = pytest.importorskip("torch", reason="compares with trl (pip install --no-deps trl==1.16.0)")

pytestmark = pytest.mark.parity


ROW = 0  # the row whose tokens all have a group
# Byte ends of its tokens, in which groups end where they end in `aligned_cases.ROWS`.
ENDS = {"student": [1, 4, 7, 8, 9, 10, 15], "teacher": [4, 5, 6, 7, 10, 12, 13, 14, 15]}
IGNORED = -100


def of_trl(module, *names):
    """Compiles the definitions with these names, of a module of trl or of a class in it."""
    if importlib.util.find_spec("trl") is None:
        pytest.skip("trl is not installed (pip install --no-deps trl==1.16.0)")
    path = Path(importlib.util.find_spec("trl").submodule_search_locations[0]) / f"{module}.py"
    found = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in names:
            node.decorator_list = []
            scope = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional} | found
            flags = __future__.annotations.compiler_flag  # annotations name classes that are not defined here
            exec(compile(ast.Module([node], []), str(path), "exec", flags), scope)
            found.setdefault(node.name, scope[node.name])
    return found


def uld_loss(**settings):
    """Returns trl's loss of the tokens of `aligned_cases`, with the matches of the same bytes."""
    found = of_trl("experimental/gold/gold_trainer", "ULDLoss", "generalized_jsd_loss")
    found["ULDLoss"].__call__.__globals__["GOLDTrainer"] = SimpleNamespace(**found)
    names = ("crossentropy_weight", "distillation_weight", "student_temperature", "teacher_temperature")
    config = {f"uld_{name}": 1.0 for name in names} | {
        "uld_crossentropy_weight": 0.0,
        "uld_skip_student_eos": False,
        "uld_skip_teacher_eos": False,
        "use_extended_uld": True,
        "uld_token_merge_strategy": "bayesian",
        **settings,
    }
    made = found["ULDLoss"](SimpleNamespace(**config))
    matches = token_matches.equal(STUDENT, TEACHER)
    made._teacher_matched_ids, made._student_matched_ids = set(matches.second.tolist()), set(matches.first.tolist())
    made._vocab_mapping = dict(zip(matches.second.tolist(), matches.first.tolist(), strict=True))
    made.mapping_tensor = torch.tensor([made._vocab_mapping.get(index, -1) for index in range(len(TEACHER))])
    return made


def reference(loss, logits, targets):
    """Returns the value of trl's loss of the row, and its gradient with respect to the student's logits."""
    given = {}
    for name in ("student", "teacher"):
        # trl predicts token i from position i - 1; a first token without a loss precedes the row.
        x = torch.tensor(np.pad(logits[name][ROW], ((0, 1), (0, 0))), dtype=torch.float64)
        given[name] = x[None].requires_grad_()
        labels = torch.tensor([[IGNORED, *targets[name][ROW].tolist()]])
        ids = labels.clamp_min(0)
        offsets = torch.tensor([[[0, end] for end in [0, *ENDS[name]]]])
        given |= {f"{name}_labels": labels, f"{name}_ids": ids, f"{name}_offsets": offsets}
    value = loss(
        *(given[name] for name in ("student", "teacher")),
        *(given[f"{name}_{kind}"] for kind in ("labels", "ids", "offsets") for name in ("student", "teacher")),
    )
    value.backward()
    return float(value.detach()), given["student"].grad[0, :-1].numpy()


@pytest.mark.parametrize(
    ("loss", "settings"),
    [
        (losses.GOLD(), {"uld_use_hybrid_loss": True, "beta": 0.5}),
        (losses.GOLD(beta=0.0), {"uld_use_hybrid_loss": True, "beta": 0}),
        (losses.GOLD(beta=1.0), {"uld_use_hybrid_loss": True, "beta": 1}),
        (
            losses.GOLD(temperature=2.0, matched_weight=0.3),
            {
                "uld_use_hybrid_loss": True,
                "beta": 0.5,
                "uld_student_temperature": 2.0,
                "uld_teacher_temperature": 2.0,
                "uld_hybrid_matched_weight": 0.3,
                "uld_hybrid_unmatched_weight": 0.7,
            },
        ),
        (losses.ULD(align="positions"), {"use_extended_uld": False}),
    ],
)
def test_gold_and_uld_equal_trl(loss, settings):
    logits, targets = inputs(3)
    mean, gradient = reference(uld_loss(**settings), logits, targets)
    number = 7 if isinstance(loss, losses.ULD) else 4  # pairs of positions, or groups
    value, gradients = compute(loss, logits, targets, rows=slice(ROW, ROW + 1))
    assert float(value) == pytest.approx(number * mean, rel=1e-6)
    found = np.asarray(gradients["student"][ROW])
    assert np.abs(found - number * gradient).max() <= 1e-6 * max(1.0, np.abs(number * gradient).max())


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 1.0])
def test_gkd_equals_trl(beta):
    """`GKDTrainer.generalized_jsd_loss`, whose temperature is 1, averaged over the positions with a label."""
    jsd = of_trl("experimental/gkd/gkd_trainer", "generalized_jsd_loss")["generalized_jsd_loss"]
    rng = np.random.default_rng(0)
    student, teacher = rng.normal(size=(2, 2, 5, 7))
    weights = np.array([[1, 1, 0, 1, 1], [1, 0, 0, 0, 0]])
    given = torch.tensor(student, requires_grad=True)
    mean = jsd(given, torch.tensor(teacher), labels=torch.tensor(np.where(weights, 1, IGNORED)), beta=beta)
    mean.backward()
    ours = losses.GKD(beta=beta).of_positions(Readout(jnp.asarray(teacher, jnp.float32), lambda x: x), weights)
    value, gradient = jax.value_and_grad(lambda x: sum_over_positions(Readout(x, lambda x: x), ours))(
        jnp.asarray(student, jnp.float32)
    )
    assert float(value) == pytest.approx(weights.sum() * float(mean.detach()), rel=1e-6)
    np.testing.assert_allclose(gradient, weights.sum() * given.grad.numpy(), atol=1e-6)
