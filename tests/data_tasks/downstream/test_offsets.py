"""The characters of pieces: equal to Hugging Face's tokenizers', and answers of SQuAD found by them."""

import functools
import io
import json

import pytest
import sentencepiece
import seqio
import tensorflow as tf

from data_tasks.downstream.offsets import encode_with_offsets
from data_tasks.downstream.span_extraction import answer_pieces
from data_tasks.metrics.question_answering import normalize_squad
from t5x_like.errors import UserError
from t5x_like.interop import sentencepiece_tokenizers
from t5x_like.vocabularies import converters, vocabulary_files
from t5x_like.vocabularies.from_folder import from_folder
from t5x_like.vocabularies.late import LateVocabulary
from t5x_like.vocabularies.tokenizer_vocabulary import TokenizerVocabulary
from t5x_like.vocabularies.word_vocabularies import WordSequenceVocabulary

pytestmark = pytest.mark.full

TEXTS = [
    "",
    "  \n",
    "Ünïcode naïve ﬁancé, e\u0301te\u0301 x\u0301\u0302y.",
    "  two  spaces\tand\nlines ",
    "日本語 東京 각 x",
    "ΟΔΟΣ İstanbul \u037e ≠ €5 😀!",
    "a\u200bb c\x00d \u00ad \ufffd e\ufe0f",
    f"{'x' * 120} y",
]


def wordpiece(data, case):
    return vocabulary_files.word_pieces(str(data / f"vocab/bert/bert_base_{case}_vocab.txt"), case == "uncased")


def gpt2(data, **options):
    """Returns GPT-2's vocabulary of files whose names are those of the release."""
    ids = vocabulary_files.read_ids(str(data / "vocab/gpt2/encoder.json"))
    merges = vocabulary_files.read_merges(str(data / "vocab/gpt2/vocab.bpe"), ids)
    made = converters.byte_level(ids, merges, **options)
    return TokenizerVocabulary(made.to_str(), str(data / "vocab/gpt2"), {"eos": "<|endoftext|>"})


VOCABULARIES = {
    "cased": lambda data: wordpiece(data, "cased"),
    "uncased": lambda data: wordpiece(data, "uncased"),
    "gpt2": gpt2,
    "space": lambda data: gpt2(data, add_prefix_space=True),
    "t5": lambda data: seqio.SentencePieceVocabulary(str(data / "vocab/t5_32k/cc_all.32000.sentencepiece.model")),
    "bytes": lambda data: seqio.ByteVocabulary(),
}


@functools.lru_cache(maxsize=1)
def squad(data):
    """Returns some contexts of the real dev set, with the first answer of each question."""
    articles = json.loads((data / "squad/cs224n_dev-v2.0.json").read_text())["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    chosen = [
        (paragraph["context"], [question["answers"][0] for question in paragraph["qas"] if question["answers"]])
        for paragraph in paragraphs[::9]
    ]
    return [(context, answers) for context, answers in chosen if answers]


def encoded(vocabulary, texts):
    """Returns the pieces of each text as numpy arrays."""
    ds = tf.data.Dataset.from_tensor_slices(list(texts)).map(lambda text: encode_with_offsets(vocabulary, text))
    return list(ds.as_numpy_iterator())


@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_are_those_of_the_vocabulary_and_pieces_cover_the_text(test_data, name):
    vocabulary = VOCABULARIES[name](test_data)
    expected = tf.data.Dataset.from_tensor_slices(TEXTS).map(vocabulary.encode_tf).as_numpy_iterator()
    for text, ids, pieces in zip(TEXTS, expected, encoded(vocabulary, TEXTS), strict=True):
        assert pieces.ids.tolist() == ids.tolist()
        assert (pieces.starts <= pieces.ends).all() and (pieces.starts[1:] >= pieces.starts[:-1]).all()
        covered = {place for start, end in zip(pieces.starts, pieces.ends, strict=True) for place in range(start, end)}
        assert (
            {place for place, character in enumerate(text) if character.isalnum()} <= covered <= set(range(len(text)))
        )


def test_offsets_of_byte_fallback_equal_those_of_hugging_face(tmp_path):
    model = io.BytesIO()
    settings = dict(byte_fallback=True, model_type="bpe", normalization_rule_name="identity", minloglevel=2)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the river and the stone"] * 9), model_writer=model, vocab_size=290, **settings
    )
    (tmp_path / "tokenizer.model").write_bytes(model.getvalue())
    vocabulary = seqio.SentencePieceVocabulary(str(tmp_path / "tokenizer.model"), 0)
    parsed = converters.parse_sentencepiece(model.getvalue(), "model")
    reference = sentencepiece_tokenizers.tokenizer(parsed, {}, None)
    texts = ["the é river 中x", "river😀é"]
    for text, pieces in zip(texts, encoded(vocabulary, texts), strict=True):
        expected = reference.encode(text)
        assert pieces.ids.tolist() == expected.ids
        offsets = list(zip(pieces.starts, pieces.ends, strict=True))
        # Spaces, which answers do not have, belong to other pieces there.
        found = [
            (text[a:b].strip(), text[c:d].strip()) for (a, b), (c, d) in zip(offsets, expected.offsets, strict=True)
        ]
        assert all(one == other for one, other in found), found


@pytest.mark.parametrize("name", ["cased", "uncased", "gpt2", "t5"])
def test_answers_of_squad_are_found(test_data, name):
    """One answer is part of a word that no vocabulary here divides there."""
    vocabulary, found = VOCABULARIES[name](test_data), []
    for (context, answers), pieces in zip(squad(test_data), encoded(vocabulary, dict(squad(test_data))), strict=True):
        for answer in answers:
            first, last = answer_pieces(pieces, tf.constant(answer["text"]), tf.constant(answer["answer_start"]))
            found.append((answer["text"], context[pieces.starts[first] : pieces.ends[last]].strip()))
    wrong = [pair for pair in found if len(set(map(normalize_squad, pair))) > 1]
    assert len(found) > 250
    assert wrong == [("Japan", "Japanese")]


def test_words_keep_their_characters(tmp_path):
    (tmp_path / "vocab.txt").write_text("the 9\nu.s. 5\n. 4\nnaïve 2\nParis 1\n")
    vocabulary = WordSequenceVocabulary(str(tmp_path / "vocab.txt"))
    text = " \x0bThe\tu.s.\x0c(Naïve) 日本語\u2003İx\r\nParis. "
    (pieces,) = encoded(vocabulary, [text])
    assert pieces.ids.tolist() == vocabulary.encode(text)
    found = [text[start:end] for start, end in zip(pieces.starts, pieces.ends, strict=True)]
    assert found == ["The", "u.s.", "(", "Naïve", ")", "日本語\u2003İx", "Paris", "."]
    assert encoded(vocabulary, [" "])[0].ids.tolist() == []


def test_word_bpe_counts_characters(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "openai-gpt"}))
    (tmp_path / "vocab.json").write_text(json.dumps({"<unk>": 0, "a": 1, "b": 2, "b</w>": 3, "ab</w>": 4}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b</w>\n")
    (pieces,) = encoded(from_folder(tmp_path), ["ÁB  xé bab"])
    assert pieces.ids.tolist() == [4, 0, 0, 2, 4]
    assert list(zip(pieces.starts, pieces.ends, strict=True)) == [(0, 2), (4, 5), (5, 6), (7, 8), (8, 10)]


def test_offsets_are_those_of_the_text_before_its_characters_change(test_data):
    path = str(test_data / "vocab/albert/spiece.model")
    text = "  The  naïve 'river'\tand  Thé ﬁne stone."
    (pieces,) = encoded(vocabulary_files.albert(path, lower_case=True), [text])
    words = [text[start:end].strip() for start, end in zip(pieces.starts, pieces.ends, strict=True)]
    assert [word for word in words if len(word) > 1] == ["The", "naïve", "river", "and", "Thé", "ﬁne", "stone"]


def test_noncharacters_count_as_characters(test_data):
    text = "\U0010ffffone two"
    for name in ("uncased", "gpt2"):
        (pieces,) = encoded(VOCABULARIES[name](test_data), [text])
        assert text[pieces.starts[-1] : pieces.ends[-1]].strip() == "two"


def test_late_vocabulary_is_looked_up(test_data):
    path = str(test_data / "vocab/t5_32k/cc_all.32000.sentencepiece.model")
    (pieces,) = encoded(LateVocabulary(lambda: path), ["one two"])
    assert list(zip(pieces.starts, pieces.ends, strict=True)) == [(0, 3), (3, 7)]


def test_vocabulary_of_another_kind_is_rejected():
    with pytest.raises(UserError, match="PassThroughVocabulary: the characters of its pieces are not known"):
        encode_with_offsets(seqio.PassThroughVocabulary(size=3), tf.constant("a"))
