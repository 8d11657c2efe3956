"""Predictions in blanks, and scores of sentences, beside transformers; and that a blank is not seen."""

import json
import types

import numpy as np
import pytest
import small_models
from numerics import assert_close

from data_tasks.vocabulary_training import trainers
from t5x_like.analysis import blanks, cloze, minimal_pairs, relations
from t5x_like.analysis.analyzed_model import AnalyzedModel
from t5x_like.analysis.blanks import Blank
from t5x_like.analysis.scorer import Scorer
from t5x_like.errors import UserError
from t5x_like.loading import open_model
from t5x_like.vocabularies.from_folder import from_folder

FAMILIES = ["bert", "gpt2", "t5", "bart"]
TEXT, POSITION = "ab cd ef", 3


@pytest.fixture(scope="module")
def analyzed_models(tmp_path_factory):
    made = {}

    def analyzed(family):
        if family not in made:
            directory = tmp_path_factory.mktemp("models") / family
            options = {"pretraining": True} if family == "bert" else {}
            getattr(small_models, f"write_{family}")(directory, **options)
            made[family] = AnalyzedModel(open_model(str(directory)), batch_size=4)
        return made[family]

    return analyzed


def predicted(analyzed, ids):
    reader = blanks.reader_of(analyzed)
    (found,) = blanks.log_probabilities(analyzed, reader, [Blank(ids, POSITION, POSITION + 1)], what="texts")
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_tokens_are_not_seen(analyzed_models, family):
    analyzed = analyzed_models(family)
    ids = list(analyzed.vocabulary.encode(TEXT))
    others = {at: [*ids[:at], ids[1], *ids[at + 1 :]] for at in (POSITION, POSITION + 1)}
    assert all(other != ids for other in others.values())
    rows = [ids, *others.values()]
    alone, with_next = (
        list(blanks.log_probabilities(analyzed, blanks.reader_of(analyzed), made, what="texts"))
        for made in ([Blank(row, POSITION, POSITION + hidden) for row in rows] for hidden in (1, 2))
    )
    np.testing.assert_allclose(np.exp(alone[0]).sum(), 1, rtol=1e-5)
    assert np.array_equal(alone[0], alone[1])
    # A decoder does not read what follows.
    assert np.array_equal(alone[0], alone[2]) == (family == "gpt2")
    assert np.array_equal(with_next[0], with_next[1]) and np.array_equal(with_next[0], with_next[2])


@pytest.mark.parity
@pytest.mark.parametrize("family", FAMILIES)
def test_blanks_equal_transformers(analyzed_models, family):
    import torch
    import transformers

    analyzed = analyzed_models(family)
    path = analyzed.loaded.path
    ids = list(analyzed.vocabulary.encode(TEXT))
    found = predicted(analyzed, ids)
    before, after = ids[:POSITION], ids[POSITION + 1 :]
    with torch.no_grad():
        if family == "bert":
            model = transformers.BertForPreTraining.from_pretrained(path).eval()
            cls, sep, mask = (small_models.PIECES.index(each) for each in ("[CLS]", "[SEP]", "[MASK]"))
            logits = model(torch.tensor([[cls, *before, mask, *after, sep]])).prediction_logits[0, POSITION + 1]
        elif family == "gpt2":
            model = transformers.GPT2LMHeadModel.from_pretrained(path).eval()
            logits = model(torch.tensor([[small_models.BOS_ID, *before]])).logits[0, -1]
        elif family == "t5":
            model = transformers.T5ForConditionalGeneration.from_pretrained(path).eval()
            sentinel = transformers.T5Tokenizer.from_pretrained(path).convert_tokens_to_ids("<extra_id_0>")
            decoder = torch.tensor([[0, sentinel]])
            inputs = torch.tensor([[*before, sentinel, *after, 1]])
            logits = model(input_ids=inputs, decoder_input_ids=decoder).logits[0, -1]
        else:
            model = transformers.BartForConditionalGeneration.from_pretrained(path).eval()
            mask = analyzed.vocabulary.mask_id
            inputs, decoder = torch.tensor([[0, *before, mask, *after, 2]]), torch.tensor([[2, 0, *before]])
            logits = model(input_ids=inputs, decoder_input_ids=decoder).logits[0, -1]
        expected = torch.log_softmax(logits, dim=-1).numpy()
    assert_close({"log_probabilities": found}, {"log_probabilities": expected})


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_sums_of_blanks(analyzed_models, family):
    """Each score of a sentence is the sum of single predictions; of the decoder, each after all tokens before it."""
    analyzed = analyzed_models(family)
    sentences = [list(analyzed.vocabulary.encode(text)) for text in (TEXT, "xy")]
    found = minimal_pairs._scores(analyzed, sentences)
    reader = blanks.reader_of(analyzed)

    def summed(ids, stops):
        singles = [Blank(ids, position, stop) for position, stop in enumerate(stops)]
        of = blanks.log_probabilities(analyzed, reader, singles, what="texts")
        return sum(each[ids[position]] for position, each in enumerate(of))

    name = "log-probability" if family == "gpt2" else "pseudo-log-likelihood"
    assert len(found) == {"bert": 2, "gpt2": 1}.get(family, 3)
    expected = [summed(ids, range(1, len(ids) + 1)) for ids in sentences]
    np.testing.assert_allclose(found[name], expected, rtol=2e-5)
    if family == "bert":  # "ab cd ef": each word has two pieces
        of_words = found["pseudo-log-likelihood, rest of the word hidden"]
        np.testing.assert_allclose(of_words, [summed(sentences[0], [2, 2, 4, 4, 6, 6]), summed(sentences[1], [2, 2])])


@pytest.mark.parity
def test_score_of_the_decoder_of_t5_equals_transformers(analyzed_models):
    import torch
    import transformers

    analyzed = analyzed_models("t5")
    ids, path = list(analyzed.vocabulary.encode(TEXT)), analyzed.loaded.path
    sentinel = transformers.T5Tokenizer.from_pretrained(path).convert_tokens_to_ids("<extra_id_0>")
    model = transformers.T5ForConditionalGeneration.from_pretrained(path).eval()
    with torch.no_grad():
        inputs, decoder = torch.tensor([[sentinel, 1]]), torch.tensor([[0, sentinel, *ids[:-1]]])
        logits = model(input_ids=inputs, decoder_input_ids=decoder).logits[0]
        expected = sum(torch.log_softmax(logits, -1)[1 + at, index].item() for at, index in enumerate(ids))
    found = minimal_pairs._scores(analyzed, [ids])["log-probability of the decoder"]
    np.testing.assert_allclose(found, [expected], rtol=2e-5)


def test_ties_count_as_half(analyzed_models, tmp_path):
    lines = [("a b", "a b", "same"), ("a b c", "b a c", "order"), ("b a c", "a b c", "order")]
    path = tmp_path / "pairs.jsonl"
    keys = ("sentence_good", "sentence_bad", "UID")
    path.write_text("".join(json.dumps(dict(zip(keys, line, strict=True))) + "\n" for line in lines))
    section = minimal_pairs.MinimalPairs(pairs=str(path)).run(analyzed_models("gpt2"))
    of = section.data["log-probability"]
    assert of["ties"] == 1 and of["accuracy"] == 0.5
    assert of["paradigms"]["same"] == {"pairs": 1, "accuracy": 0.5, "ties": 1}
    assert of["paradigms"]["order"]["accuracy"] == 0.5
    path.write_text('{"sentence_good": "a"}\n')
    with pytest.raises(UserError, match="pairs.jsonl:1: field 'sentence_bad' is None, not text"):
        minimal_pairs.MinimalPairs(pairs=str(path)).run(analyzed_models("gpt2"))
    path.write_text(json.dumps(dict(zip(keys, ("a", "b" * 65, "long"), strict=True))))
    with pytest.raises(UserError, match="pairs.jsonl:1: 'bbb.* has 65 tokens; the model reads 1 to 64"):
        minimal_pairs.MinimalPairs(pairs=str(path)).run(analyzed_models("gpt2"))


def test_long_sentences_name_their_line(analyzed_models, tmp_path):
    (tmp_path / "cloze.jsonl").write_text(json.dumps({"text": "a" * 70 + " ___", "answers": ["b"]}))
    with pytest.raises(UserError, match="cloze.jsonl:1: the row has 71 tokens, and the model reads 64"):
        cloze.ClozeSentences(path=str(tmp_path)).run(analyzed_models("gpt2"))


def test_ranks_and_means_by_hand(analyzed_models, tmp_path):
    analyzed = analyzed_models("bert")
    path = tmp_path / "cloze.jsonl"
    lines = [
        {"kind": "k", "text": "a ___ b", "answers": ["c", "long"]},
        {"kind": "k", "text": "___ b", "compared": ["c", "d"]},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    section = cloze.ClozeSentences(path=str(path)).run(analyzed)
    first, second = section.data["sentences"]
    letters = {letter: small_models.PIECES.index(letter) for letter in "abcd"}
    blank = Blank([letters["a"], 0, letters["b"]], 1, 2)
    (scores,) = blanks.log_probabilities(analyzed, blanks.reader_of(analyzed), [blank], what="texts")
    assert first["rank"] == 1 + int(np.sum(scores > scores[letters["c"]]))  # "long" has several pieces
    assert list(first["probabilities"]) == ["c"] and second["rank"] is None
    assert set(second["probabilities"]) == {"c", "d"}
    filled = [cloze.Filled(rank, (), {}) for rank in (1, 4, 20, 10_000)]
    assert cloze.means(filled) == (25.0, 50.0, pytest.approx((1 + 0.25 + 0.05 + 1e-4) / 4))
    assert cloze.means(filled, lowest=5000)[2] == pytest.approx(1.3 / 4)


def test_facts(analyzed_models, tmp_path):
    """The rank of an object is the rank of its token in the template; equal facts count once."""
    analyzed = analyzed_models("bert")
    facts = [("a", "c"), ("a", "c"), ("b", "d"), ("b", "long")]
    lines = [json.dumps({"sub_label": name, "obj_label": value}) for name, value in facts]
    (tmp_path / "facts").mkdir()
    (tmp_path / "facts" / "P1.jsonl").write_text("\n".join(lines))
    templates = tmp_path / "templates.jsonl"
    templates.write_text('{"relation": "P1", "template": "[X] x [Y] ."}')
    analysis = relations.Relations(relations=str(tmp_path / "facts"), templates=str(templates))
    asked = [cloze.Cloze("", "", f"{name} x ___ .", [value], []) for name, value in (facts[0], facts[2])]
    ranks = np.array([of.rank for _, of in cloze.fill(analyzed, asked)])
    found = analysis.run(analyzed).data["P1"]
    assert found["facts"] == 2 and found["P@10"] == np.mean(ranks <= 10)
    assert found["MRR"] == pytest.approx(np.mean(1 / ranks))
    templates.write_text('{"relation": "P2", "template": "[X] x [Y] ."}')
    with pytest.raises(UserError, match="no template for P1 of RELATIONS"):
        analysis.check()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "cloze.jsonl:1: not JSON"),
        ('{"text": "no blank", "answers": ["a"]}', "has 0 blanks. Write ___ once"),
        ('{"text": "a ___"}', "neither answers nor compared"),
        ('{"text": "a ___", "answers": "b"}', "'answers' is 'b', not a list of words"),
    ],
)
def test_invalid_sentences_name_their_line(tmp_path, line, message):
    (tmp_path / "cloze.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match=message):
        cloze.read("CLOZE", str(tmp_path / "cloze.jsonl"))


def test_shipped_sentences():
    kinds = {}
    for each in cloze.read("CLOZE", cloze.SHIPPED):
        kinds.setdefault(each.kind, []).append(each)
    assert len(kinds) == 10 and min(map(len, kinds.values())) >= 20


# ---- scores for other programs ---------------------------------------------------------------------------------------


@pytest.mark.parity
@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_loglikelihood_equals_transformers(analyzed_models, family):
    import torch
    import transformers

    scorer = Scorer(analyzed_models(family).loaded, batch_size=2)
    path, context, continuation = analyzed_models(family).loaded.path, "ab c", " de"
    found = scorer.loglikelihood([(context, continuation), ("", "xy"), ("ab c ", "de")])
    with torch.no_grad():
        if family == "gpt2":
            model = transformers.GPT2LMHeadModel.from_pretrained(path).eval()
            ids = scorer.encode(context + continuation)
            logits = model(torch.tensor([ids])).logits[0, len(scorer.encode(context)) - 1 : -1]
            targets = ids[len(scorer.encode(context)) :]
        else:
            model = transformers.T5ForConditionalGeneration.from_pretrained(path).eval()
            targets = scorer.encode(continuation)
            inputs, decoder = torch.tensor([[*scorer.encode(context), 1]]), torch.tensor([[0, *targets[:-1]]])
            logits = model(input_ids=inputs, decoder_input_ids=decoder).logits[0]
        scores = torch.log_softmax(logits, dim=-1)
        expected = sum(scores[at, index].item() for at, index in enumerate(targets))
        is_greedy = logits.argmax(-1).tolist() == targets
    assert found[0] == (pytest.approx(expected, rel=2e-5), is_greedy) and found[2] == found[0]
    assert found[1][0] < 0


def test_rolling_windows_and_generation(analyzed_models):
    """Each token of a long text is predicted once; the last window has the context that a row has room for."""
    scorer = Scorer(analyzed_models("gpt2").loaded, batch_size=2)
    text = "abcdefghij" * 13  # 130 bytes, rows of 64
    windows = [("", text[:64]), (text[63], text[64:128]), (text[65:128], text[128:])]
    (found,) = scorer.loglikelihood_rolling([text])
    assert found == pytest.approx(sum(score for score, _ in scorer.loglikelihood(windows)), rel=1e-5)
    (whole,) = scorer.generate_until(["ab"], max_tokens=6)
    (cut,) = scorer.generate_until(["ab"], max_tokens=6, until=[whole[2]])
    assert len(whole) <= 6 and cut == whole[: whole.index(whole[2])]
    with pytest.raises(UserError, match="BertConfig has no decoder"):
        Scorer(analyzed_models("bert").loaded)


def test_text_after_a_blank_begins_as_in_the_whole_text(analyzed_models):
    """SentencePiece puts a space before a text, and byte-level BPE has it in the token."""
    for family in FAMILIES:
        vocabulary = analyzed_models(family).vocabulary
        for after in (". ab", " cd ef."):
            whole = list(vocabulary.encode(f"ab{after}"))
            assert whole[len(vocabulary.encode("ab")) :] == analyzed_models(family).encode_continuation(after)


def test_mask_of_an_encoder_is_that_of_training(tmp_path):
    for name, contents in trainers.KINDS["bigbird"](["the river and the stone"] * 9, 114).items():
        (tmp_path / name).write_bytes(contents)
    vocabulary = from_folder(tmp_path)
    analyzed = types.SimpleNamespace(stacks=("encoder",), vocabulary=vocabulary)
    assert blanks.mask_id(analyzed) == vocabulary.library_tokenizer.token_to_id("[MASK]")
