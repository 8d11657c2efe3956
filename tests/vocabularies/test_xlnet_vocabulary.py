"""A trained SentencePiece model of XLNet: special pieces, template, and the ids of transformers."""

import json

import pytest
import tensorflow as tf

from data_tasks.downstream import templates
from data_tasks.pretraining.xlnet_tasks import read_vocabulary
from data_tasks.vocabulary_training.trainers import with_layout
from t5x_like.vocabularies.from_folder import from_folder
from t5x_like.vocabularies.template import template_of

TEXT = "It was a bright cold day in April, and the clocks were striking thirteen (13). Café ``Süß''!\nSmith: 1984, 3.5"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary")
    for name, contents in with_layout("xlnet", [TEXT], 60).items():
        (path / name).write_bytes(contents)
    return path


def test_special_pieces_and_template(directory):
    vocabulary = from_folder(str(directory))
    assert vocabulary.encode(TEXT) == read_vocabulary(str(directory / "spiece.model")).encode(TEXT)
    ids = {name: getattr(vocabulary, f"{name}_id") for name in ("unk", "cls", "sep", "pad", "mask", "eos")}
    assert ids == {"unk": 0, "cls": 3, "sep": 4, "pad": 5, "mask": 6, "eos": 7}
    filled = templates.pair(template_of(vocabulary), tf.constant([20, 21]), tf.constant([22]), 9)
    assert filled.inputs.numpy().tolist() == [20, 21, 4, 22, 4, 3]
    assert filled.token_types.numpy().tolist() == [0, 0, 0, 1, 1, 2]
    assert templates.single(template_of(vocabulary), tf.constant([20]), 9).token_types.numpy().tolist() == [0, 0, 2]
    assert vocabulary.encode_tf(TEXT).numpy().tolist() == list(vocabulary.encode(TEXT))


@pytest.mark.parity
def test_ids_equal_those_of_transformers(directory):
    transformers = pytest.importorskip("transformers", reason="compares with transformers (extra `parity`)")
    vocabulary = from_folder(str(directory))
    fast = transformers.XLNetTokenizerFast.from_pretrained(str(directory))
    for line in TEXT.splitlines():
        assert list(vocabulary.encode(line)) == fast(line, add_special_tokens=False)["input_ids"]
    first, second = TEXT.splitlines()
    filled = templates.pair(template_of(vocabulary), vocabulary.encode_tf(first), vocabulary.encode_tf(second), 500)
    expected = fast(first, second)
    assert filled.inputs.numpy().tolist() == expected["input_ids"]
    assert filled.token_types.numpy().tolist() == expected["token_type_ids"]
    assert json.loads((directory / "tokenizer_config.json").read_text())["tokenizer_class"] == "XLNetTokenizer"
