"""Tokenizer directories of all families, as published and as transformers saves them: ids, roles, copies in runs."""

import functools
import io
import json
import shutil

import pytest
import sentencepiece
import tokenizer_layouts
from sentencepiece import sentencepiece_model_pb2
from tokenizer_layouts import FAMILIES, LAYOUTS, ROLES, SAVED_BY_5, TEXTS

from t5x_like.interop import tokenizer_export
from t5x_like.stored import run_tokenizer
from t5x_like.vocabularies import tokenizer_files, tokenizer_folder, vocabulary_digest
from t5x_like.vocabularies.from_folder import from_folder

# Conversions of transformers 4 keep a space at the end of a text, which the released code, the slow tokenizers and
# transformers 5 remove.
KEEPS_LAST_SPACE = ("albert", "xlnet")
# Roles with another meaning here: bytes encode any text, so GPT-2 has no unknown token, and documents of XLNet end with
# <eod>, not with </s>.
OTHER_ROLES = {"gpt2": {"unk": None}, "xlnet": {"eos": 7}}


def role(vocabulary, name):
    """Returns the id of a role; None if the vocabulary does not have it."""
    return getattr(vocabulary, f"{name}_id", None)


def without_last_space(family, texts):
    return [text for text in texts if family not in KEEPS_LAST_SPACE or text == text.rstrip()]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Returns a function that writes a family in a layout, each once."""
    root = tmp_path_factory.mktemp("layouts")

    @functools.cache
    def make(family, layout):
        source = root / family
        if not source.exists():
            tokenizer_layouts.write(family, source)
        layout(source, path := root / f"{family}-{layout.__name__}")
        return path

    return make


@pytest.fixture(params=[layout.__name__ for layout in LAYOUTS])
def layout(request):
    return getattr(tokenizer_layouts, request.param)


@pytest.mark.parity
@pytest.mark.parametrize("family", FAMILIES)
def test_ids_and_roles_are_those_of_transformers(directory, family, layout):
    transformers = pytest.importorskip("transformers")
    path = directory(family, layout)
    reference, vocabulary = transformers.AutoTokenizer.from_pretrained(path), from_folder(path)
    texts = without_last_space(family, TEXTS)
    expected = reference(texts, add_special_tokens=False)["input_ids"]
    assert [list(vocabulary.encode(text)) for text in texts] == expected
    assert vocabulary.encode_tf(list(texts)).to_list() == expected
    assert vocabulary.vocab_size == len(reference)
    roles = {name: getattr(reference, f"{name}_token_id") for name in ROLES}
    assert {name: role(vocabulary, name) for name in ROLES} == roles | OTHER_ROLES.get(family, {})
    listed = tokenizer_folder.special_ids(str(path))
    if family == "deberta_v3" and layout in (tokenizer_layouts.bare,):
        roles["mask"] = None  # no file lists [MASK], which is added after the pieces
    assert listed == {name: number for name, number in roles.items() if number is not None}


@pytest.mark.parity
@pytest.mark.parametrize("family", FAMILIES)
def test_copy_in_a_run_and_export_need_no_source(directory, family, layout, tmp_path):
    transformers = pytest.importorskip("transformers")
    shutil.copytree(directory(family, layout), source := tmp_path / "source")
    vocabulary = from_folder(source)
    expected = vocabulary.encode_tf(list(TEXTS)).to_list()
    found = vocabulary_digest.location(vocabulary)
    assert found == str(source)
    run_tokenizer.store(str(tmp_path / "run"), vocabulary_digest.TextVocabulary(None, found), None)
    reference = transformers.AutoTokenizer.from_pretrained(source)
    expected_ids = reference(list(TEXTS)).input_ids
    shutil.rmtree(source)
    copy = from_folder(tmp_path / "run/tokenizer")
    assert copy.encode_tf(list(TEXTS)).to_list() == expected
    assert [role(copy, name) for name in ROLES] == [role(vocabulary, name) for name in ROLES]
    reader = tokenizer_export.Reader(shape="encoder", vocab_size=copy.vocab_size)
    tokenizer_files.write(tokenizer_export.files(str(tmp_path / "run/tokenizer"), reader), str(tmp_path / "exported"))
    # The export has a config.json of its own, which need not imply the class of the tokenizer.
    (tmp_path / "exported/config.json").write_text(json.dumps({"model_type": "fnet"}))
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert exported(list(TEXTS)).input_ids == expected_ids


@pytest.mark.parity
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5"])
def test_saved_tokenizer_with_tokens_of_its_own(directory, family, tmp_path):
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(directory(family, tokenizer_layouts.bare))
    spaced = transformers.AddedToken("River!", lstrip=True, normalized=True)
    reference.add_tokens(["wxyz", spaced])
    reference.add_special_tokens({"additional_special_tokens": ["<ctl>"]})
    reference.save_pretrained(tmp_path)
    text = "a wxyz b <ctl> River! wxyzq"
    expected = reference(text, add_special_tokens=False, split_special_tokens=True).input_ids
    assert set(reference.convert_tokens_to_ids(["wxyz", "River!"])) <= set(expected)
    vocabulary = from_folder(tmp_path)
    assert list(vocabulary.encode(text)) == expected
    assert vocabulary.extra_ids == 0  # sentinels of T5 are not the last ids, where tasks would take others for them


@pytest.mark.parity
def test_sentinels_take_the_spaces_around_them_as_in_tokenizer_json(directory):
    transformers = pytest.importorskip("transformers")
    path = directory("t5", tokenizer_layouts.tokenizer_json_alone)
    text = "The <extra_id_0> river<extra_id_1> lights"
    assert (
        list(from_folder(path).encode(text))
        == transformers.AutoTokenizer.from_pretrained(path)(text, add_special_tokens=False).input_ids
    )


@pytest.mark.parametrize("name", ["MT5Tokenizer", None])
def test_sentinels_of_mt5_are_pieces_of_its_model(tmp_path, name):
    model = io.BytesIO()
    sentinels = [f"▁<extra_id_{number}>" for number in reversed(range(3))]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the river and the stone"] * 9),
        model_writer=model,
        vocab_size=30,
        hard_vocab_limit=False,
        minloglevel=2,
        **{"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    )
    contents = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    for sentinel in sentinels:
        contents.pieces.add(piece=sentinel, score=0.0, type=type(contents.pieces[0]).USER_DEFINED)
    (tmp_path / "spiece.model").write_bytes(contents.SerializeToString())
    config = {"extra_ids": 0} | ({} if name is None else {"tokenizer_class": name})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mt5"}))
    vocabulary = from_folder(tmp_path)
    assert (vocabulary.vocab_size, vocabulary.extra_ids) == (len(contents.pieces), 3)
    ids = list(vocabulary.encode("the river<extra_id_0> and <extra_id_2>"))
    assert [index for index in ids if index >= vocabulary.vocab_size - 3] == [
        vocabulary.vocab_size - 1,
        vocabulary.vocab_size - 3,
    ]
    assert vocabulary.encode_tf("the river<extra_id_0> and <extra_id_2>").numpy().tolist() == ids


SAVED = json.loads(SAVED_BY_5.read_text())


@pytest.mark.parametrize("family", SAVED)
def test_directories_that_transformers_5_saves(family, tmp_path):
    for name, contents in SAVED[family]["files"].items():
        (tmp_path / name).write_text(json.dumps(contents))
    vocabulary = from_folder(tmp_path)
    assert vocabulary.encode_tf(list(TEXTS)).to_list() == SAVED[family]["ids"]
    assert [list(vocabulary.encode(text)) for text in TEXTS] == SAVED[family]["ids"]
    roles = SAVED[family]["roles"]
    assert {name: role(vocabulary, name) for name in ROLES} == roles | OTHER_ROLES.get(family, {})
    known = {name: number for name, number in roles.items() if number is not None}
    assert tokenizer_folder.special_ids(str(tmp_path)) == known
    run_tokenizer.store(str(tmp_path / "run"), vocabulary_digest.of_location(str(tmp_path)), None)
    assert from_folder(tmp_path / "run/tokenizer").encode_tf(list(TEXTS)).to_list() == SAVED[family]["ids"]
