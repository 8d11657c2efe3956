"""Tokenizers of decoders: `AutoTokenizer` adds BOS as in training, and pads and truncates prompts at the left."""

import json

import pytest
import small_models

from t5x_like.data import tokenizer_files
from t5x_like.errors import UserError
from t5x_like.interop import tokenizer_export, tokenizer_ids

pytestmark = pytest.mark.parity

WRITERS = {"gpt2": small_models.write_gpt2, "llama": small_models.write_llama}


def exported(write, tmp_path, bos_id):
    """Writes a directory and its exported tokenizer; returns transformers' tokenizers of both."""
    import transformers

    source, output = tmp_path / "source", tmp_path / "output"
    write(source)
    reader = tokenizer_export.Reader(
        shape="decoder", vocab_size=300, bos_id=bos_id, continues=True, sentencepiece="tokenizer.model"
    )
    tokenizer_files.write(tokenizer_export.files(str(source), reader), str(output))
    (output / "config.json").write_text((source / "config.json").read_text())
    return [transformers.AutoTokenizer.from_pretrained(path) for path in (source, output)]


@pytest.mark.parametrize("has_bos", [True, False])
@pytest.mark.parametrize("family", WRITERS)
def test_tokenizer_adds_the_bos_of_training(family, has_bos, tmp_path):
    bos_id = {"gpt2": small_models.BOS_ID, "llama": 1}[family] if has_bos else None
    original, found = exported(WRITERS[family], tmp_path, bos_id)
    for text in ("a letter", "", "x  y"):
        expected = original(text, add_special_tokens=False).input_ids
        assert found(text).input_ids == [bos_id] * has_bos + expected
    assert found.eos_token_id == original.eos_token_id and found.decode([*expected]) == original.decode([*expected])


@pytest.mark.parametrize("family", WRITERS)
def test_batches_are_padded_and_truncated_at_the_left(family, tmp_path):
    _, found = exported(WRITERS[family], tmp_path, {"gpt2": small_models.BOS_ID, "llama": 1}[family])
    rows = found(["a letter", "a"], padding=True).input_ids
    assert rows[1][:2] == [found.eos_token_id] * 2 and rows[1][-1:] == found("a").input_ids[-1:]
    assert found("a letter", truncation=True, max_length=3).input_ids[-2:] == found("a letter").input_ids[-2:]


def test_token_that_a_class_cannot_add_raises(tmp_path):
    with pytest.raises(UserError, match="BOS_ID=7: a LlamaTokenizer of transformers cannot begin a text"):
        exported(small_models.write_llama, tmp_path, 7)


def test_template_of_a_tokenizer_json_is_replaced(tmp_path):
    small_models.write_gpt2(tmp_path / "source")
    reader = tokenizer_export.Reader(shape="decoder", vocab_size=300, bos_id=256, continues=True)
    files = tokenizer_export.files(str(tmp_path / "source"), reader)
    tokenizer_files.write(files, str(tmp_path / "first"))
    reader = tokenizer_export.Reader(shape="decoder", vocab_size=300, bos_id=None, continues=True)
    files = tokenizer_export.files(str(tmp_path / "first"), reader)
    assert json.loads(files[tokenizer_ids.TOKENIZER])["post_processor"] is None
