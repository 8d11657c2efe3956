"""`t5x_like import_logits`: served outputs in all forms become a cache and teacher logits; wrong rows are named."""

import dataclasses
import json
import math

import jax
import numpy as np
import pytest
import recipes
import small_models

from t5x_like import optimizers
from t5x_like.data.cached import CachedSource
from t5x_like.data.served_outputs import ServedVocabulary, read
from t5x_like.distill import distill
from t5x_like.distillation import losses
from t5x_like.distillation.cached_logits import CachedLogits
from t5x_like.distillation.teachers import Teacher
from t5x_like.errors import UserError
from t5x_like.import_logits import import_logits
from t5x_like.metrics import read_metrics
from t5x_like.models.gpt import GPTConfig
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.joined_lm import JoinedLM
from t5x_like.optimizers import schedules
from t5x_like.partitioning import Partitioner
from t5x_like.train import train
from t5x_like.vocabularies.from_folder import from_folder
from t5x_like.vocabularies.shipped import python_docs

pytestmark = pytest.mark.notf

LENGTH = 6
PYTHON_DOCS = python_docs().sentencepiece_model_file
# The tokens of two texts, and the probabilities of their most probable tokens.
TEXTS = (
    (("a", {"a": 0.5, "b": 0.25}), (" ", {" ": 0.9, "a": 0.05}), ("b", {"c": 0.6, "b": 0.3})),
    (("<|endoftext|>", {"<|endoftext|>": 0.99, "x": 0.004}),),
)


def logs(top):
    return {token: math.log(p) for token, p in top.items()}


def chat(text):
    content = [
        {"token": token, "top_logprobs": [{"token": other, "logprob": x} for other, x in logs(top).items()]}
        for token, top in text
    ]
    return {"id": "chat", "choices": [{"index": 0, "logprobs": {"content": content}}]}


def part(text):
    return {"tokens": [token for token, _ in text], "top_logprobs": [logs(top) for _, top in text], "prompt": "ab"}


def completions(text):
    return {"choices": [{"logprobs": part(text)}]}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A directory whose ids are letters of bytes; `of` gives the id of a character."""
    path = tmp_path_factory.mktemp("models") / "gpt2"
    small_models.write_gpt2(path)
    return str(path)


def ids(tokenizer, *tokens):
    vocabulary = from_folder(tokenizer)
    return [256 if token == "<|endoftext|>" else vocabulary.encode(token)[0] for token in tokens]


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def run(directory, tokenizer, **settings):
    given = {
        "pattern": f"{directory}/*.jsonl",
        "cache_dir": f"{directory}/cache",
        "objective": CausalLM(bos_id=256),
        "vocabulary_path": tokenizer,
        "task_feature_lengths": {"targets": LENGTH},
        "dtype": "float32",
    }
    return import_logits(**given | settings)


def batch(directory, objective, digest):
    """Returns the rows of the cache in order, with what is stored of the teacher."""
    logits = f"{directory}/cache/teacher_logits"
    cached = CachedLogits.open("t", logits, digest=digest, spec=objective.features)
    spec = dataclasses.replace(objective.features, attached=cached.attached)
    source = CachedSource(cache_dir=f"{directory}/cache", batch_size=2, shuffle=False)
    found = next(source.host_iterator(spec))
    return found, cached.predictions(found)["targets"]


@pytest.mark.parametrize("form", [chat, completions, part])
def test_every_form_has_the_same_rows(form, tmp_path, tokenizer):
    write(tmp_path / "a.jsonl", map(form, TEXTS))
    manifest = run(tmp_path, tokenizer)
    rows, top = batch(tmp_path, CausalLM(bos_id=256), manifest.settings["teacher"]["digest"])
    assert rows["decoder_target_tokens"][0].tolist() == [*ids(tokenizer, "a", " ", "b"), 0, 0, 0]
    assert rows["decoder_target_tokens"][1].tolist() == [256, 0, 0, 0, 0, 0]
    assert rows["decoder_loss_weights"].sum(axis=1).tolist() == [3, 1]
    assert top.ids[0, :3].tolist() == [ids(tokenizer, *pair) for pair in ("ab", " a", "cb")]
    np.testing.assert_allclose(np.exp(top.values[0, :3]), [[0.5, 0.25], [0.9, 0.05], [0.6, 0.3]], rtol=1e-6)
    np.testing.assert_allclose(np.exp(top.log_tail[0, :3]), [0.25, 0.05, 0.1], rtol=1e-5)
    np.testing.assert_allclose(np.exp(top.log_tail[1, 0]), 0.006, rtol=1e-4)


def test_renormalised_probabilities_have_no_rest(tmp_path, tokenizer):
    write(tmp_path / "a.jsonl", map(part, TEXTS))
    manifest = run(tmp_path, tokenizer, rest="renormalised", k=2)
    _, top = batch(tmp_path, CausalLM(bos_id=256), manifest.settings["teacher"]["digest"])
    np.testing.assert_allclose(np.exp(top.values[0, 0]), [2 / 3, 1 / 3], rtol=1e-6)
    assert np.all(np.isneginf(top.log_tail[0, :3]))


def test_parquet_and_token_ids(tmp_path, tokenizer):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    vocabulary = ServedVocabulary(from_folder(tokenizer))
    parquet.write_table(pyarrow.Table.from_pylist([chat(text) for text in TEXTS]), tmp_path / "a.parquet")
    from_parquet = list(read(str(tmp_path / "a.parquet"), vocabulary))
    from_lines = list(read(write(tmp_path / "a.jsonl", map(chat, TEXTS)), vocabulary))
    assert [text.positions for text in from_parquet] == [text.positions for text in from_lines]
    assert from_parquet[1].where == f"{tmp_path}/a.parquet, row 1"
    numbered = [f"token_id:{index}" for index in ids(tokenizer, "a", "b")]
    record = {"tokens": numbered[:1], "top_logprobs": [{name: -1.0 for name in numbered}]}
    (text,) = read(write(tmp_path / "ids.jsonl", [record]), vocabulary)
    assert text.positions[0].id == ids(tokenizer, "a")[0]


def test_tokens_within_characters_are_found_by_their_bytes(tmp_path, tokenizer):
    vocabulary = ServedVocabulary(from_folder(tokenizer))
    first, second = (vocabulary.tokens.of.index(byte) for byte in (b"\xc3", b"\xa9"))
    content = [
        {"token": "\ufffd", "bytes": [0xC3], "top_logprobs": [{"token": "\ufffd", "bytes": [0xC3], "logprob": -0.1}]},
        {"token": "bytes:\\xa9", "top_logprobs": [{"token": "bytes:\\xa9", "logprob": -0.2}]},
    ]
    (text,) = read(write(tmp_path / "a.jsonl", [{"content": content}]), vocabulary)
    assert [position.id for position in text.positions] == [first, second]


def test_prompts_are_inputs(tmp_path, tokenizer):
    objective = JoinedLM(bos_id=256)
    write(tmp_path / "a.jsonl", map(part, TEXTS))
    lengths = {"inputs": 4, "targets": 4}
    manifest = run(tmp_path, tokenizer, objective=objective, task_feature_lengths=lengths, prompt_field="prompt")
    rows, top = batch(tmp_path, objective, manifest.settings["teacher"]["digest"])
    weighted = np.flatnonzero(rows["decoder_loss_weights"][0])
    assert rows["decoder_target_tokens"][0][weighted].tolist() == ids(tokenizer, "a", " ", "b")
    np.testing.assert_allclose(np.exp(top.values[0, weighted[0]]), [0.5, 0.25], rtol=1e-6)


def recipe(directory, vocab_size):
    return recipes.make(
        model=GPTConfig(vocab_size=vocab_size, num_layers=1, max_length=LENGTH, dropout_rate=0.0, **small_models.SIZES),
        objective=CausalLM(bos_id=256),
        optimizer=optimizers.adamw(learning_rate=schedules.constant(0.05)),
        data=CachedSource(cache_dir=f"{directory}/cache", batch_size=2),
        total=20,
        log=1,
        model_dir=f"{directory}/run",
        partitioner=Partitioner(devices=jax.devices()[:1], ici={"data": 1}),
    )


def test_student_with_another_tokenizer_learns_from_a_served_teacher(tmp_path, tokenizer):
    """The cache has the student's tokens, and the losses read the stored distributions at the teacher's."""
    # A text of the teacher's tokens, one that ends within a character, and one that is too long for the student.
    texts = [(("a", {"a": 0.5, "b": 0.2}), ("b", {"b": 0.9, "c": 0.05})), (("bytes:\\xc3", {"a": 0.5, "b": 0.2}),)]
    texts.append((("q", {"q": 0.5, "b": 0.2}),) * 20)
    write(tmp_path / "a.jsonl", map(part, [*texts, texts[0]]))
    run(tmp_path, tokenizer, student_vocabulary_path=PYTHON_DOCS, teacher_lengths={"targets": 9})
    teacher = Teacher(f"{tmp_path}/cache/teacher_logits")
    chosen = {"alm": losses.ALM(tau=1.0), "gold": losses.GOLD()}
    made = distill(recipe(tmp_path, 1200), teachers={"t": teacher}, losses=chosen, coefficients={"task": 0.0})
    rows = next(made.data.host_iterator(made.objective.features))
    assert rows["retokenized/t/decoder_target_tokens"].tolist() == [[*ids(tokenizer, "a", "b"), *[0] * 7]] * 2
    stored = np.exp(rows["teacher_logits/t/targets/values"][0, :2])
    np.testing.assert_allclose(stored, [[0.5, 0.2], [0.9, 0.05]], rtol=1e-6)
    train(made)
    found = [row["alm"] for row in read_metrics(f"{tmp_path}/run")]
    assert found[-1] < found[0], "the student gives `ab` a probability like the teacher's, 0.45"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"text": "a"}, "a.jsonl:2: has neither logprobs.content .* but text. Ask the server for logprobs"),
        ({"tokens": ["a"]}, "a.jsonl:2: 1 tokens, but no top_logprobs"),
        ({"tokens": ["a"], "top_logprobs": [None]}, "a.jsonl:2, token 0: has no top_logprobs"),
        ({"tokens": ["ab"], "top_logprobs": [{"a": -1.0}]}, "a.jsonl:2, token 0: the token 'ab' is not in the vocab"),
        ({"tokens": ["a"], "top_logprobs": [{"a": 0.5}]}, "a.jsonl:2, token 0: the logprob 0.5 is not a log-prob"),
        ({"tokens": ["a"], "top_logprobs": [{"a": float("nan")}]}, "the logprob nan is not a log-probability of"),
        (
            {"tokens": ["a"], "top_logprobs": [{"a": -0.1, "b": -0.1}]},
            "the probabilities add up to 1.8097",
        ),
        ({"tokens": [], "top_logprobs": []}, "a.jsonl:2: the text has no tokens"),
        ({"tokens": [3], "top_logprobs": [{"a": -0.1}]}, "a.jsonl:2, token 0: the token 3 is not text"),
    ],
)
def test_wrong_rows_are_named(record, message, tmp_path, tokenizer):
    write(tmp_path / "a.jsonl", [part(TEXTS[0]), record])
    with pytest.raises(UserError, match=message):
        run(tmp_path, tokenizer)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 3}, "K=3: .*a.jsonl:1 has a token with 2 log-probabilities. Give K=2"),
        ({"rest": "none"}, "REST='none' is unknown"),
        ({"prompt_field": "prompt"}, "PROMPT_FIELD='prompt': the objective reads targets"),
        ({"pattern": "/none/*.jsonl"}, "PATTERN='/none/\\*.jsonl': no file found"),
        ({"dtype": "int8"}, "LOGITS_DTYPE='int8' is not supported"),
    ],
)
def test_wrong_settings_are_refused(settings, message, tmp_path, tokenizer):
    write(tmp_path / "a.jsonl", map(part, TEXTS))
    with pytest.raises(UserError, match=message):
        run(tmp_path, tokenizer, **settings)


def test_student_learns_from_a_served_teacher(tmp_path, tokenizer):
    """The loss of the first step is the divergence over the stored tokens and the rest, computed by hand."""
    write(tmp_path / "a.jsonl", map(part, TEXTS))
    run(tmp_path, tokenizer)
    teacher = Teacher(f"{tmp_path}/cache/teacher_logits")
    train(
        distill(
            recipe(tmp_path, 257),
            teachers={"t": teacher},
            losses={"kl": losses.ForwardKL()},
            coefficients={"task": 0.0},
        )
    )
    found = [row["kl"] for row in read_metrics(f"{tmp_path}/run")]
    # A new model is almost uniform over 257 tokens.
    tops = [[*top.values()] for text in TEXTS for _, top in text]
    outcomes = [([*top, 1 - sum(top)], [1 / 257] * len(top) + [1 - len(top) / 257]) for top in tops]
    expected = np.mean([sum(p * math.log(p / q) for p, q in zip(*pair, strict=True)) for pair in outcomes])
    assert found[0] == pytest.approx(expected, rel=0.02)
    assert found[-1] < 0.5 * found[0]
