"""Tokenizers of exported decoders: they add BOS as in training, and pad and truncate prompts at the left."""

import json

import exported_families
import pytest

from t5x_like.conversion import tokenizers
from t5x_like.conversion.prompt_format import with_inputs, with_prompts
from t5x_like.data.prompts import PromptFormat
from t5x_like.vocabularies import tokenizer_files, tokenizer_folder
from t5x_like.vocabularies.tokenizer_classes import TOKENIZER

pytestmark = pytest.mark.parity

FAMILIES = ("gpt2", "llama")
TEXTS = ("a letter", "", "x  y")


@pytest.fixture
def exported(tmp_path):
    """Returns a function that exports a tokenizer, and returns transformers' tokenizers of source and export."""
    import transformers

    def both(family, has_bos=True):
        source, output = tmp_path / "source", tmp_path / "output"
        config = exported_families.write(family, source)
        ids = tokenizer_folder.special_ids(str(source))
        files = tokenizers.exported_files(str(source), config, None, None)
        prompts = PromptFormat(ids["bos"] if has_bos else None)
        tokenizer_files.write(with_prompts(files, str(source), prompts), str(output))
        (output / "config.json").write_text((source / "config.json").read_text())
        return [transformers.AutoTokenizer.from_pretrained(path) for path in (source, output)]

    return both


@pytest.mark.parametrize("has_bos", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_tokenizer_adds_the_bos_of_training(family, has_bos, exported):
    original, found = exported(family, has_bos)
    for text in TEXTS:
        expected = original(text, add_special_tokens=False).input_ids
        assert found(text).input_ids == [original.bos_token_id] * has_bos + expected
        assert found.decode(expected) == original.decode(expected)
        assert {*found(text)} == {"input_ids", "attention_mask"}
    assert found.eos_token_id == original.eos_token_id


@pytest.mark.parametrize("family", FAMILIES)
def test_batches_are_padded_and_truncated_at_the_left(family, exported):
    _, found = exported(family)
    long, short = found("a letter").input_ids, found("a").input_ids
    rows = found(["a letter", "a"], padding=True).input_ids
    assert rows == [long, [found.pad_token_id] * (len(long) - len(short)) + short]
    assert found("a letter", truncation=True, max_length=3).input_ids == [long[0], *long[-2:]]


def test_bos_of_a_tokenizer_json_is_removed(tmp_path):
    exported_families.write("gpt2", tmp_path / "source")
    source = str(tmp_path / "source")
    files = tokenizer_files.read(source, tokenizer_files.TOKENIZER)
    added = with_prompts(files, source, PromptFormat(tokenizer_folder.special_ids(source)["bos"]))
    assert json.loads(added[TOKENIZER])["post_processor"]["type"] == "TemplateProcessing"
    removed = with_prompts(added, source, PromptFormat(None))
    assert json.loads(removed[TOKENIZER])["post_processor"] is None


def test_inputs_of_an_encoder_decoder_end_as_in_training(tmp_path, monkeypatch):
    exported_families.write("gpt2", tmp_path / "source")
    source = str(tmp_path / "source")
    files = tokenizer_files.read(source, tokenizer_files.TOKENIZER)
    ids = tokenizer_folder.special_ids(source)
    added = with_prompts(files, source, PromptFormat(ids["bos"]))
    last = json.loads(with_inputs(added, source, True)[TOKENIZER])["post_processor"]["single"][-1]
    assert last["SpecialToken"]["id"] == tokenizer_folder.token(source, ids["eos"])
    without = {role: number for role, number in ids.items() if role != "eos"}
    monkeypatch.setattr(tokenizer_folder, "special_ids", lambda path: without)
    assert json.loads(with_inputs(added, source, False)[TOKENIZER])["post_processor"] is None
    assert with_inputs(added, source, True) == added  # no token could end the inputs


@pytest.mark.parametrize(("family", "bos"), [("t5gemma", 2), ("bart", 0)])
def test_inputs_of_an_encoder_decoder_begin_as_in_training(family, bos, tmp_path):
    """As the published tokenizer of T5Gemma encodes them, which does not change; BART's also ends them in EOS."""
    import transformers

    source, output = tmp_path / "source", tmp_path / "output"
    config = exported_families.write(family, source)
    files = tokenizers.exported_files(str(source), config, bos, None)
    begun = with_inputs(files, str(source), True, bos)
    assert (begun == files) == (family == "t5gemma")
    tokenizer_files.write(begun, str(output))
    (output / "config.json").write_text((source / "config.json").read_text())
    original, found = (transformers.AutoTokenizer.from_pretrained(path) for path in (source, output))
    for text in TEXTS:
        expected = original(text, add_special_tokens=False).input_ids
        assert found(text).input_ids == [bos, *expected]
        assert (original(text).input_ids == [bos, *expected]) == (family == "t5gemma")


def test_tokenizer_that_cannot_begin_inputs_with_bos_is_named(tmp_path, caplog):
    config = exported_families.write("t5_1_1", tmp_path)
    files = tokenizers.exported_files(str(tmp_path), config, 0, None)
    assert with_inputs(files, str(tmp_path), True, 0) == files
    assert "the exported tokenizer does not begin inputs with BOS alone" in caplog.text
