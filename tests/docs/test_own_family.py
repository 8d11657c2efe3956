"""The family of docs/own_family.md: its module and its gin file, as a user writes them into the working directory."""

import math
import re
import shlex
import types

import jax
import jax.numpy as jnp
import numpy as np
import page_commands
import pytest

from t5x_like.metrics import read_metrics

PAGE = page_commands.read("own_family")
MODULE = re.search(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[1]
GIN = re.search(r"^```gin\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[1]
SMALLER = [f"--gin.{each}" for each in ("MixerConfig.embed_dim=32", "MixerConfig.num_layers=2", "TRAIN_STEPS=20")]


def test_tokens_see_earlier_tokens_of_their_text_alone():
    module = types.ModuleType("mixer")
    exec(compile(MODULE, "mixer.py", "exec"), vars(module))
    model = module.MixerConfig(vocab_size=11, embed_dim=8, mlp_dim=8, window=3, num_layers=2).make(jax.random.key(0))
    segments = jnp.array([[1, 1, 1, 2, 2, 2, 2, 0]])
    embedded = jax.random.normal(jax.random.key(1), (1, 8, 8))

    def hidden(embedded):
        return model.trunk({"decoder": embedded}, {"decoder_segment_ids": segments}).hidden[0].sum(-1)

    seen = np.abs(jax.jacobian(hidden)(embedded)[:, 0]).sum(-1) > 0
    same = np.equal.outer(segments[0], segments[0])
    np.testing.assert_array_equal(seen, np.tril(same) & np.triu(np.ones((8, 8), bool), -4).astype(bool))


@pytest.mark.full
def test_commands_of_the_page_train_and_evaluate(tmp_path, monkeypatch, run_command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mixer.py").write_text(MODULE)
    (tmp_path / "mixer.gin").write_text(GIN)
    train, evaluate = page_commands.commands("own_family")
    code, output = run_command([*shlex.split(train)[1:], *SMALLER, "--gin.WARMUP_STEPS=2"])
    assert code == 0, output
    monkeypatch.setenv(*re.search(r"^    export (\w+)=(\w+)$", PAGE, re.MULTILINE).groups())
    code, output = run_command(shlex.split(evaluate)[1:])
    assert code == 0 and "accuracy = " in output, output
    losses = [row["loss"] for row in read_metrics("runs/mixer") if row["split"] == "validation"]
    assert losses[-1] < math.log(1024)
