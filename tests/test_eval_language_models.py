"""LAMBADA and perplexity by `eval`, against loops over a random GPT-2 of transformers with the real vocabulary."""

import json

import numpy as np
import pytest
from opened import call

from t5x_like import interop
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.eval import evaluate
from t5x_like.objectives.prompted_lm import PromptedLM

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

TOKENIZER = (("vocab.json", "encoder.json"), ("merges.txt", "vocab.bpe"))


@pytest.fixture(scope="module")
def gpt2(test_data, tmp_path_factory):
    """Returns a directory with a random model and GPT-2's tokenizer, and both loaded by transformers."""
    directory = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=256, initializer_range=0.3)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(directory)
    for name, source in TOKENIZER:
        (directory / name).write_bytes((test_data / "vocab/gpt2" / source).read_bytes())
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    return str(directory), model, transformers.GPT2TokenizerFast.from_pretrained(directory)


def log_probabilities(model, ids):
    """Returns the log-probabilities of the next token at each position, float64 `[length, vocab]`."""
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), dim=-1).numpy()


def run(directory, task, lengths, split, **arguments):
    return call(
        evaluate,
        model=interop.config_from_huggingface(directory),
        objective=PromptedLM(),
        data=SeqIOSource(
            mixture_or_task_name=task,
            task_feature_lengths=lengths,
            batch_size=8,
            split=split,
            pack=False,
            task_arguments=arguments,
            vocabulary_path=directory,
        ),
        checkpoint_path=directory,
    )


def test_lambada_equals_a_loop_over_words(gpt2, test_data, tmp_path):
    directory, model, tokenizer = gpt2
    lines = (test_data / "eval/lambada/lambada_test.jsonl").read_text().splitlines()
    passages = [json.loads(line)["text"] for line in lines[:40]]
    # A random model never predicts the word, so some passages get the word that it predicts.
    for number, passage in enumerate(passages):
        context = passage.rsplit(" ", 1)[0]
        word = tokenizer.decode([int(log_probabilities(model, tokenizer.encode(context))[-1].argmax())])
        if number % 2 and word[0] == " " and word[1:].isalpha() and word.isascii():
            passages[number] = context + word
    passages = passages[:16]
    (tmp_path / "lambada_test.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in passages))

    scores, greedy = [], []
    for passage in passages:
        ids, start = tokenizer.encode(passage), len(tokenizer.encode(passage.rsplit(" ", 1)[0]))
        found = log_probabilities(model, ids)
        scores.append(sum(found[place - 1, ids[place]] for place in range(start, len(ids))))
        greedy.append(all(found[place - 1].argmax() == ids[place] for place in range(start, len(ids))))
    results = run(directory, "lambada", {"inputs": 250, "targets": 6}, "test", data_dir=str(tmp_path))
    assert 0 < np.mean(greedy) < 1
    assert results["lambada/accuracy_by_score"] == pytest.approx(100 * np.mean(greedy))
    assert results["lambada/perplexity"] == pytest.approx(np.exp(-np.mean(scores)), rel=1e-4)


@pytest.mark.parametrize(("window", "stride"), [(32, 12), (32, 31)])
def test_sliding_window_equals_the_loop_of_transformers(gpt2, test_data, tmp_path, window, stride):
    directory, model, tokenizer = gpt2
    text = (test_data / "text/wikitext2/test.txt").read_text()[:600]
    (tmp_path / "test.txt").write_text(text)
    ids = tokenizer.encode(text)
    total, predicted, previous = 0.0, 0, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + window, len(ids))
        found = log_probabilities(model, ids[begin:end])
        for place in range(max(previous, begin + 1), end):
            total, predicted = total + found[place - begin - 1, ids[place]], predicted + 1
        previous = end
        if end == len(ids):
            break
    assert predicted == len(ids) - 1  # every token once, except the first

    lengths = {"inputs": window - stride, "targets": stride}
    results = run(directory, "text_files_perplexity", lengths, "validation", pattern=str(tmp_path / "test.txt"))
    results = {name.removeprefix("text_files_perplexity/"): value for name, value in results.items()}
    assert results["tokens"] == predicted
    assert results["token_perplexity"] == pytest.approx(np.exp(-total / predicted), rel=1e-4)
    assert results["word_perplexity"] == pytest.approx(np.exp(-total / len(text.split())), rel=1e-4)
    assert results["byte_perplexity"] == pytest.approx(np.exp(-total / len(text.encode())), rel=1e-4)
    assert results["bits_per_byte"] == pytest.approx(-total / len(text.encode()) / np.log(2), rel=1e-4)
    assert results["loss"] == pytest.approx(-total / predicted, rel=1e-4)
