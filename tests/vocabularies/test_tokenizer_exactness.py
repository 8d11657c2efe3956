"""Ids, offsets and decoded texts of random strings equal `AutoTokenizer`'s, in batches and alone, live and not.

`T5X_LIKE_RANDOM_TEXTS=20000 pytest tests/vocabularies/test_tokenizer_exactness.py` compares more of them.
"""

import os

import numpy as np
import pytest
import tensorflow as tf
import tokenizer_directories
from random_texts import SPECIAL, random_texts

from data_tasks.downstream.offsets import encode_with_offsets
from t5x_like.vocabularies.from_folder import from_folder
from t5x_like.vocabularies.template import template_of

NUMBER = int(os.environ.get("T5X_LIKE_RANDOM_TEXTS", "300"))
KINDS = {
    "bert_uncased": lambda data, path: tokenizer_directories.save_bert(data, path, "uncased"),
    "bert_cased": lambda data, path: tokenizer_directories.save_bert(data, path, "cased"),
    "gpt2": tokenizer_directories.save_gpt2,
    "roberta": tokenizer_directories.save_roberta,
    "bart": lambda data, path: tokenizer_directories.save_roberta(data, path, "Bart"),
    "llama3": tokenizer_directories.save_llama3,
    "qwen": tokenizer_directories.save_qwen,
    "modernbert": tokenizer_directories.save_modernbert,
    "gemma": tokenizer_directories.save_gemma,
    "albert": tokenizer_directories.save_albert_fast,
    "xlnet": tokenizer_directories.save_xlnet,
    "deberta_v3": tokenizer_directories.save_deberta_v3,
}
# Others have the same path of the code.
PARAMETERS = [
    pytest.param(kind, marks=pytest.mark.slow) if kind in ("bert_cased", "gpt2", "bart", "qwen", "xlnet") else kind
    for kind in KINDS
]
UNIGRAM = ("albert", "xlnet", "deberta_v3")


@pytest.mark.parity
@pytest.mark.parametrize("kind", PARAMETERS)
def test_random_texts_have_the_ids_offsets_and_texts_of_transformers(kind, test_data, tmp_path):
    transformers = pytest.importorskip("transformers")
    KINDS[kind](test_data, tmp_path)
    vocabulary = from_folder(tmp_path)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path, split_special_tokens=True)
    # A unigram model of the reference finds special tokens in texts, although it should not.
    texts = random_texts(NUMBER, special=kind not in UNIGRAM)
    expected = reference(texts, add_special_tokens=False, return_offsets_mapping=True)
    ids = vocabulary.encode_batch(texts)
    assert [text for text, a, b in zip(texts, ids, expected["input_ids"], strict=True) if a != b] == []
    assert [list(vocabulary.encode(text)) for text in texts[:200]] == ids[:200]
    live = tf.data.Dataset.from_tensor_slices(texts).batch(7).map(vocabulary.encode_tf)
    assert [row for batch in live for row in batch.to_list()] == ids
    for text, offsets in zip(texts[:200], expected["offset_mapping"], strict=False):
        found = encode_with_offsets(vocabulary, tf.constant(text))
        assert list(zip(found.starts.numpy(), found.ends.numpy(), strict=True)) == offsets
    decoded = reference.batch_decode(ids, clean_up_tokenization_spaces=False)
    assert [vocabulary.decode(row) for row in ids] == decoded
    assert [text.decode() for text in vocabulary.decode_tf(tf.ragged.constant(ids, dtype=tf.int32)).numpy()] == decoded


@pytest.mark.parity
@pytest.mark.parametrize("kind", PARAMETERS)
def test_special_tokens_around_texts_are_those_of_transformers(kind, test_data, tmp_path):
    transformers = pytest.importorskip("transformers")
    KINDS[kind](test_data, tmp_path)
    vocabulary = from_folder(tmp_path)
    reference, template = transformers.AutoTokenizer.from_pretrained(tmp_path), template_of(vocabulary)
    first, second = (list(vocabulary.encode(text)) for text in ("The river", "a stone"))
    assert [*template.prefix, *first, *template.suffix] == reference("The river").input_ids
    pair = [*template.prefix, *first, *template.separator, *second, *template.suffix]
    assert pair == reference("The river", "a stone").input_ids


@pytest.mark.parity
@pytest.mark.parametrize("kind", PARAMETERS)
def test_no_text_has_the_id_of_a_special_token(kind, test_data, tmp_path):
    KINDS[kind](test_data, tmp_path)
    vocabulary = from_folder(tmp_path)
    special = {index for index, token in vocabulary.special_names.items() if index != vocabulary.unk_id}
    names = [*SPECIAL, *vocabulary.special_names.values()]
    ids = vocabulary.encode_batch([text for name in names for text in (name, f"a{name}b", f" {name} {name}")])
    assert special and not special & set(np.concatenate(ids).tolist())


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["bert_uncased", "albert", "deberta_v3"])
def test_documents_have_the_ids_of_the_library_although_words_are_cached(kind, test_data, tmp_path):
    KINDS[kind](test_data, tmp_path)
    vocabulary = from_folder(tmp_path)
    book = min((test_data / "text/gutenberg").glob("*.txt")).read_text(encoding="utf-8")[:60_000]
    texts = [book[start : start + 997] for start in range(0, len(book), 997)]
    expected = [found.ids for found in vocabulary.library_tokenizer.encode_batch(texts, add_special_tokens=False)]
    assert vocabulary.encode_batch(texts) == expected  # words that the cache lacks
    assert [vocabulary.encode_batch([text])[0] for text in texts] == expected
