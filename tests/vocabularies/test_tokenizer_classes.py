"""The tokenizers are discovered in the modules of `vocabularies.tokenizers`."""

import importlib.util
import json
import sys

from t5x_like.vocabularies import tokenizer_classes, tokenizers
from t5x_like.vocabularies.base import ByteVocabulary
from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles

MODULE = """
from t5x_like.vocabularies.tokenizers.base import Layout, TokenizerClass


def build(files):
    from t5x_like.vocabularies.base import ByteVocabulary

    return ByteVocabulary(extra_ids=files.config["extra_ids"])


LETTERS = TokenizerClass(name="LettersTokenizer", special_tokens={"eos": "</s>"}, model_types=("letters",), build=build)
TOKENIZERS = (LETTERS,)
LAYOUTS = {"letters": Layout(ids={"pad": 0, "eos": 1, "unk": 2, "bos": -1})}
"""


def test_new_module_adds_a_tokenizer_and_a_layout(tmp_path, monkeypatch):
    (tmp_path / "letters.py").write_text(MODULE)
    monkeypatch.setattr(tokenizers, "__path__", [*tokenizers.__path__, str(tmp_path)])
    spec = importlib.util.spec_from_file_location("classes_with_letters", tokenizer_classes.__file__)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    del sys.modules[f"{tokenizers.__name__}.letters"], tokenizers.letters
    assert found.CLASSES.keys() - tokenizer_classes.CLASSES.keys() == {"LettersTokenizer"}
    assert found.LAYOUTS.keys() - tokenizer_classes.LAYOUTS.keys() == {"letters"}
    assert found.find_class({}, {"model_type": "letters"}, has_tokenizer=False) == "LettersTokenizer"
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps({"extra_ids": 3}))
    vocabulary = found.CLASSES["LettersTokenizer"].build(TokenizerFiles(tmp_path / "model"))
    assert vocabulary.vocab_size == ByteVocabulary(extra_ids=3).vocab_size


def test_each_tokenizer_is_in_one_module():
    names = [each.name for module in tokenizer_classes._MODULES for each in getattr(module, "TOKENIZERS", ())]
    assert len(names) == len(set(names)) == len(tokenizer_classes.CLASSES) > 15
