"""An exported reward model gives the same rewards in transformers, which loads it with a single score."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from numerics import assert_close
from objective_cases import CASES

from t5x_like import parameters
from t5x_like.config.derived import derive
from t5x_like.conversion.settings import Source, Target
from t5x_like.convert import convert
from t5x_like.objectives import passes
from t5x_like.training.runs import weights_run

torch = pytest.importorskip("torch", reason="compares with torch and transformers (extra `parity`)")
transformers = pytest.importorskip("transformers", reason="compares with torch and transformers (extra `parity`)")

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("family", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_exported_reward_model_gives_the_rewards_in_transformers(family, tmp_path):
    case = dataclasses.replace(CASES["reward_model"], family=family)
    objective, params, batch = case.objective, case.params(), case.batch()
    expected = jax.jit(lambda params, batch: passes.predict(objective, params, batch))(params, batch)["rewards"]

    config = params["model"].config
    text, unknown = derive("t5x_like.stored.network_weights.run_model", {"model": config, "objective": objective})
    assert not unknown
    leaves = parameters.stack(parameters.named_leaves(params))
    weights_run.write(str(tmp_path / "run"), leaves, text, about={}, tokenizer={})
    convert(Source(str(tmp_path / "run")), Target(str(tmp_path / "exported")))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "exported").eval()
    assert model.config.num_labels == 1 and "label2id" in json.loads((tmp_path / "exported/config.json").read_text())

    found = np.zeros_like(expected)
    for place in np.ndindex(found.shape):
        count = np.count_nonzero(batch["decoder_segment_ids"][place])
        if count:
            ids = torch.tensor(batch["decoder_input_tokens"][place][None, :count].astype(np.int64))
            with torch.no_grad():
                found[place] = model(ids).logits.item()
    real = (batch["decoder_segment_ids"] != 0).any(-1)
    assert np.std(expected[real]) > 1e-3 and real.any() and not real.all()
    assert_close({"rewards": found * real}, {"rewards": np.asarray(expected) * real})
