"""An exported reward model gives the same rewards in transformers, which loads it with a single score."""

import dataclasses
import json

import chat_templates
import jax
import numpy as np
import pytest
from families import FAMILIES
from numerics import assert_close
from objective_cases import CASES

from t5x_like import parameters
from t5x_like.config.derived import derive
from t5x_like.conversion.settings import Source, Target
from t5x_like.convert import convert
from t5x_like.data import batches
from t5x_like.models.special_tokens import SpecialTokens
from t5x_like.objectives import passes
from t5x_like.objectives.reward_model import RewardModel
from t5x_like.training.runs import weights_run
from t5x_like.vocabularies.chat_template import ChatTemplate

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


@pytest.mark.parametrize(("family", "bos"), [("llama", "<s>"), ("gpt2", "</s>")])
def test_scores_of_conversations_that_end_in_eos_are_equal_in_transformers(family, bos, tmp_path):
    """A head of transformers reads the last token that is not padding, so that padding is another token than EOS."""
    (source := tmp_path / "source").mkdir()
    chat_templates.write(source, "{% for each in messages %}{{ each.role + each.content + eos_token }}{% endfor %}")
    config = json.loads((source / "tokenizer_config.json").read_text())
    (source / "tokenizer_config.json").write_text(json.dumps(config | {"bos_token": bos, "pad_token": "</s>"}))
    objective = RewardModel()
    model = dataclasses.replace(
        FAMILIES[family].config,
        vocab_size=300,
        max_length=64,
        special_tokens=SpecialTokens({"pad_token_id": 257, "eos_token_id": 257}),
    )
    made = model.make(jax.random.key(0))
    params = {"model": made, "objective": objective.init(jax.random.key(1), made)}
    text, _ = derive("t5x_like.stored.network_weights.run_model", {"model": model, "objective": objective})
    leaves = parameters.stack(parameters.named_leaves(params))
    files = {each.name: each.read_bytes() for each in source.iterdir()}
    weights_run.write(str(tmp_path / "run"), leaves, text, about={}, tokenizer=files)
    convert(Source(str(tmp_path / "run")), Target(str(exported := tmp_path / "exported")))

    conversations = [
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": answer}] for answer in ("b", "c")
    ]
    template = ChatTemplate(str(source))
    ids = np.array([template.encode(template.render(each)) for each in conversations])
    assert (ids[:, -1] == 257).all()
    arrays = {f"targets_{index}": row[None] for index, row in enumerate(ids)}
    arrays |= {f"loss_mask_{index}": np.ones_like(row)[None] for index, row in enumerate(ids)}
    arrays["margin"] = np.zeros((1, 1), np.float32)
    batch = batches.from_arrays(objective.features, arrays)
    (expected,) = passes.predict(objective, params, batch)["rewards"]

    classifier = transformers.AutoModelForSequenceClassification.from_pretrained(exported).eval()
    with torch.no_grad():
        found = [classifier(torch.tensor(row[None])).logits.item() for row in ids]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert abs(expected[0] - expected[1]) > 1e-4
    if bos == "</s>":
        assert classifier.config.pad_token_id is None  # rows are read one at a time
        return
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    assert classifier.config.pad_token_id == tokenizer.pad_token_id == 256
    padded = torch.tensor(np.pad(ids, ((0, 0), (0, 3)), constant_values=256))
    with torch.no_grad():
        np.testing.assert_allclose(classifier(padded).logits[:, 0], expected, atol=1e-5)
