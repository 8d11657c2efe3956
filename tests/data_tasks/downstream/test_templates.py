"""Tests of templates: special tokens, token types and truncation equal transformers' tokenizers."""

import itertools

import exported_families
import pytest
import seqio
import tensorflow as tf
from tokenizer_directories import save_bert, save_gpt2, save_llama, save_llama3, save_roberta, save_t5_fast

from data_tasks.downstream import templates
from t5x_like.errors import UserError
from t5x_like.vocabularies.from_folder import from_folder
from t5x_like.vocabularies.late import LateVocabulary
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL
from t5x_like.vocabularies.template import Template, template_of

WORDS = "the quick brown fox jumps over a very lazy dog and runs far away from it all".split()
# Numbers of words: shorter than half, about half and longer than the lengths below.
SIZES = (0, 1, 3, 4, 5, 6, 12)


TOKENIZERS = {
    "bert": lambda data, path: save_bert(data, path, "uncased"),
    "gpt2": save_gpt2,
    "roberta": save_roberta,
    "bart": lambda data, path: save_roberta(data, path, "Bart"),
    "llama": save_llama,
    "t5": save_t5_fast,
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request, test_data, tmp_path_factory):
    """Returns the tokenizer of transformers and the vocabulary of the same directory."""
    directory = tmp_path_factory.mktemp(request.param)
    reference = TOKENIZERS[request.param](test_data, directory)
    return reference, LateVocabulary(lambda: str(directory))


def encoded(vocabulary, texts):
    """Returns the ids of each text, encoded together because byte-level BPE is slow outside a graph."""
    return dict(zip(texts, vocabulary.encode_tf(tf.constant(texts)), strict=True))


def filled(vocabulary, ids, length, **options):
    template = template_of(vocabulary)
    result = (
        templates.single(template, *ids, length) if len(ids) == 1 else templates.pair(template, *ids, length, **options)
    )
    return [result.inputs.numpy().tolist(), result.token_types.numpy().tolist()], result


def expected(reference, texts, length, truncation="longest_first"):
    # In lists, because a single empty second text would be ignored.
    texts = [[text] for text in texts]
    found = reference(*texts, truncation=truncation, max_length=length, return_token_type_ids=True)
    found = {name: rows[0] for name, rows in found.items()}
    # Llama's tokenizer gives types 0 and 1, which its model does not read.
    has_types = "token_type_ids" in reference.model_input_names
    return [found["input_ids"], found["token_type_ids"] if has_types else [0] * len(found["input_ids"])]


@pytest.mark.parity
def test_texts_are_filled_and_truncated_as_in_transformers(tokenizer):
    reference, vocabulary = tokenizer
    texts = [" ".join(WORDS[-size:] if size else []) for size in SIZES]
    singles = [(text,) for text in texts]
    cases = [*singles, *itertools.product(texts, texts)]
    ids = encoded(vocabulary, texts)
    for length in (9, 12, 13):
        different = [
            (given, length)
            for given in cases
            if filled(vocabulary, [ids[text] for text in given], length)[0] != expected(reference, given, length)
        ]
        assert different == []


@pytest.mark.parity
@pytest.mark.parametrize("name", exported_families.STARTS)
def test_pairs_are_filled_as_in_transformers(name, tmp_path):
    import transformers

    for file, contents in exported_families.STARTS[name].tokenizer().items():
        (tmp_path / file).write_bytes(contents)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    vocabulary = from_folder(tmp_path)
    found = reference("The river", "near stone")
    ids = encoded(vocabulary, ("The river", "near stone")).values()
    (inputs, token_types), _ = filled(vocabulary, list(ids), len(found["input_ids"]))
    assert inputs == found["input_ids"]
    if name in ("bert", "electra", "mobilebert", "albert", "xlnet"):  # whose models read types
        assert token_types == found["token_type_ids"]


@pytest.mark.parity
def test_only_the_second_text_is_truncated_as_in_transformers(tokenizer):
    reference, vocabulary = tokenizer
    texts = ("the dog", " ".join(WORDS))
    ids = list(encoded(vocabulary, texts).values())
    found, result = filled(vocabulary, ids, 14, truncation="only_second")
    assert found == expected(reference, texts, 14, "only_second")
    inputs = found[0]
    assert inputs[result.first_start :][:2] == vocabulary.encode("the dog")[:2]
    assert inputs[result.second_start :][:4] == vocabulary.encode(texts[1])[:4]
    # transformers raises an error if the first text leaves no room; here it is truncated too
    (inputs, _), result = filled(vocabulary, ids[::-1], 8, truncation="only_second")
    assert len(inputs) == 8
    assert inputs[result.first_start :][:3] == vocabulary.encode(texts[1])[:3]


@pytest.mark.parity
def test_llama_3_begins_each_text_with_its_bos(test_data, tmp_path):
    save_llama3(test_data, tmp_path)
    bos = LateVocabulary(lambda: str(tmp_path)).bos_id
    template = template_of(LateVocabulary(lambda: str(tmp_path)))
    assert (template.prefix, template.separator, template.suffix) == ((bos,), (bos,), ())


def test_albert_has_the_template_of_bert(test_data):
    vocabulary = seqio.SentencePieceVocabulary(str(test_data / "vocab/albert/spiece.model"))
    assert template_of(vocabulary) == Template((2,), (3,), (3,), second_type=1)


def test_vocabularies_with_eos_only_have_the_template_of_t5():
    expected = Template(separator=(1,), suffix=(1,))
    assert template_of(seqio.ByteVocabulary()) == expected
    assert template_of(seqio.SentencePieceVocabulary(str(PYTHON_DOCS_MODEL))) == expected


def test_vocabulary_without_special_tokens_raises():
    with pytest.raises(UserError, match="UnigramVocabulary has neither"):
        template_of(seqio.vocabularies.UnigramVocabulary(["a"]))


def test_fill_replaces_texts_by_model_inputs():
    vocabulary = LateVocabulary(lambda: str(PYTHON_DOCS_MODEL))
    features = {"inputs": seqio.Feature(vocabulary)}
    ds = tf.data.Dataset.from_tensors({"a": "one", "b": "two", "idx": 7})
    (row,) = templates.fill(ds, {"inputs": 32}, features, texts=("a", "b")).as_numpy_iterator()
    assert sorted(row) == ["idx", "inputs", "token_types"]
    assert row["inputs"].tolist() == [*vocabulary.encode("one"), 1, *vocabulary.encode("two"), 1]
    assert row["inputs"].dtype == row["token_types"].dtype == "int32"
    with pytest.raises(UserError, match=r"inputs=2 has no room for a text beside 2 special tokens. Set it to 3"):
        templates.fill(ds, {"inputs": 2}, features, texts=("a", "b"))
    with pytest.raises(UserError, match="needs 'inputs'"):
        templates.fill(ds, None, features, texts=("a", "b"))
