"""Writes the tokenizer files of each family as directories of the Hub have them, with small vocabularies.

`python tests/tokenizer_layouts.py` writes `SAVED_BY_5`, with transformers 5 and its ids.
"""

import io
import json
import os
import shutil
import sys
from pathlib import Path

LINES = (
    "The river and the stone were near the winter garden, and 1,234 letters lay on the table.",
    "Don't they'll see I'm here? \"Quotes\" ``tex'' – dashes — naïve café Ångström straße 3.14 (50%)",
    "Music, bread and light; a window of paper: north winds blow over tables! HELLO World",
)
TEXTS = (
    *("The river", "", "x", "  two  spaces \t tab\nnewline ends", " one space", "Don't they'LL", "lights and  windows"),
    *("naïve café ÅNGSTRÖM 12345 1,234 3.14,", "``quoted'' \"x\" – “curly”", "東京 😀 zzz", "a1b22 (50%) [brackets]"),
    *("HELLO World's tables", "e\u0301 and \u00e9"),
)
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
SAVED_BY_5 = Path(__file__).with_name("tokenizers_saved_by_transformers_5.json")
# Families whose tokenizers transformers 5 saves as those of another family.
_SAME_IN_5 = ("bert_cased", "distilbert", "electra", "mobilebert", "longformer", "bart")

_SPECIAL = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
_DEBERTA = _SPECIAL | {f"{role}_piece": f"[{role.upper()}]" for role in ("pad", "unk")}
_DEBERTA |= {"bos_piece": "[CLS]", "eos_piece": "[SEP]"}
_T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
_BIGBIRD = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3}
_ALBERT = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": "[CLS],[SEP],[MASK]"}
_XLNET = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "control_symbols": "<cls>,<sep>,<pad>,<mask>,<eod>"}
_XLNET |= {"user_defined_symbols": "<eop>"}
_LLAMA = {"model_type": "bpe", "vocab_size": 360, "byte_fallback": True, "split_digits": True}
_LLAMA |= {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
_LLAMA_CONFIG = {"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "legacy": False}
_LLAMA_CONFIG |= {"tokenizer_class": "LlamaTokenizer"}
_ROBERTA = ("<s>", "<pad>", "</s>", "<unk>"), ("<mask>",)


def word_pieces(directory, lower_case):
    from tokenizers import Tokenizer, models, normalizers, trainers

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.normalizer, trained.pre_tokenizer = normalizers.BertNormalizer(lowercase=lower_case), _bert_words()
    trained.train_from_iterator(
        LINES * 40, trainers.WordPieceTrainer(vocab_size=160, special_tokens=special, show_progress=False)
    )
    vocab = trained.get_vocab()
    (directory / "vocab.txt").write_text("\n".join(sorted(vocab, key=vocab.get)) + "\n")
    _write(directory / "tokenizer_config.json", {"do_lower_case": lower_case})


def byte_bpe(directory, before=(), after=("<|endoftext|>",), config=None):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    byte_level = pre_tokenizers.ByteLevel
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = byte_level(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=byte_level.alphabet(), show_progress=False)
    trained.train_from_iterator(LINES * 40, trainer)
    model = json.loads(trained.to_str())["model"]
    pieces = [*before, *sorted(model["vocab"], key=model["vocab"].get), *after]
    _write(directory / "vocab.json", {piece: number for number, piece in enumerate(pieces)})
    merges = (" ".join(merge) for merge in model["merges"])
    (directory / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{merge}\n" for merge in merges))
    if config is not None:
        _write(directory / "tokenizer_config.json", config)


def word_bpe(directory):
    from tokenizers import Tokenizer, models, normalizers, trainers

    trained = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    trained.normalizer, trained.pre_tokenizer = normalizers.BertNormalizer(lowercase=True), _bert_words()
    settings = {"special_tokens": ["<unk>"], "end_of_word_suffix": "</w>", "show_progress": False}
    trained.train_from_iterator(LINES * 40, trainers.BpeTrainer(vocab_size=160, **settings))
    trained.model.save(str(directory))


def _bert_words():
    from tokenizers import pre_tokenizers

    return pre_tokenizers.BertPreTokenizer()


def sentencepiece(directory, name, config=None, **settings):
    import sentencepiece as library

    model = io.BytesIO()
    given = {"vocab_size": 120, "minloglevel": 2, "hard_vocab_limit": False} | settings
    library.SentencePieceTrainer.train(sentence_iterator=iter(LINES * 40), model_writer=model, **given)
    (directory / name).write_bytes(model.getvalue())
    if config is not None:
        _write(directory / "tokenizer_config.json", config)


_SPM = {"do_lower_case": False, "vocab_type": "spm"}
# Family -> model_type, and what writes the vocabulary and the tokenizer_config.json of published directories.
FAMILIES = {
    "bert": ("bert", lambda path, **_: word_pieces(path, lower_case=True)),
    "bert_cased": ("bert", lambda path, **_: word_pieces(path, lower_case=False)),
    "distilbert": ("distilbert", lambda path, **_: word_pieces(path, lower_case=True)),
    "electra": ("electra", lambda path, **_: word_pieces(path, lower_case=True)),
    "mobilebert": ("mobilebert", lambda path, **_: word_pieces(path, lower_case=True)),
    "roberta": ("roberta", lambda path, **_: byte_bpe(path, *_ROBERTA)),
    "longformer": ("longformer", lambda path, **_: byte_bpe(path, *_ROBERTA)),
    "bart": ("bart", lambda path, **_: byte_bpe(path, *_ROBERTA)),
    "gpt2": ("gpt2", lambda path, **_: byte_bpe(path)),
    "deberta": (
        "deberta",
        lambda path, **_: byte_bpe(path, ("[PAD]", "[CLS]", "[SEP]", "[UNK]"), ("[MASK]",), {"vocab_type": "gpt2"}),
    ),
    "deberta_v2": (
        "deberta-v2",
        lambda path, **rule: sentencepiece(path, "spm.model", _SPM, user_defined_symbols="[MASK]", **_DEBERTA, **rule),
    ),
    "deberta_v3": ("deberta-v2", lambda path, **rule: sentencepiece(path, "spm.model", _SPM, **_DEBERTA, **rule)),
    "albert": ("albert", lambda path, **rule: sentencepiece(path, "spiece.model", **_ALBERT, **rule)),
    "xlnet": ("xlnet", lambda path, **rule: sentencepiece(path, "spiece.model", **_XLNET, **rule)),
    "bigbird": (
        "big_bird",
        lambda path, **rule: sentencepiece(
            path, "spiece.model", control_symbols="[CLS],[SEP],[MASK]", **_BIGBIRD, **rule
        ),
    ),
    "t5": ("t5", lambda path, **rule: sentencepiece(path, "spiece.model", {"model_max_length": 512}, **_T5, **rule)),
    "llama": ("llama", lambda path, **_: sentencepiece(path, "tokenizer.model", _LLAMA_CONFIG, **_LLAMA)),
    "llama_bare": ("llama", lambda path, **_: sentencepiece(path, "tokenizer.model", **_LLAMA)),
    "mistral": ("mistral", lambda path, **_: sentencepiece(path, "tokenizer.model", _LLAMA_CONFIG, **_LLAMA)),
    "gpt1": ("openai-gpt", lambda path, **_: word_bpe(path)),
}


def write(family, directory, **rule):
    """Writes the files of a family as published, without tokenizer.json.

    Args:
      family: a key of `FAMILIES`.
      directory: the directory to make.
      rule: settings of SentencePiece.
    """
    directory.mkdir()
    model_type, make = FAMILIES[family]
    make(directory, **rule)
    _write(directory / "config.json", {"model_type": model_type})


def bare(source, directory):
    """Copies the files."""
    shutil.copytree(source, directory)


def with_tokenizer_json(source, directory):
    """Adds a tokenizer.json."""
    shutil.copytree(source, directory)
    _load(source).backend_tokenizer.save(str(directory / "tokenizer.json"))


def tokenizer_json_alone(source, directory):
    """Adds a tokenizer.json, and removes the vocabulary."""
    with_tokenizer_json(source, directory)
    for file in directory.iterdir():
        if file.name in ("vocab.txt", "vocab.json", "merges.txt") or file.suffix == ".model":
            file.unlink()


def saved(source, directory):
    """Saves the tokenizer that `AutoTokenizer` returns."""
    _load(source).save_pretrained(directory)
    shutil.copy(source / "config.json", directory)


def saved_slow(source, directory):
    """Saves the tokenizer that is written in Python."""
    _load(source, use_fast=False).save_pretrained(directory)
    shutil.copy(source / "config.json", directory)


LAYOUTS = (bare, with_tokenizer_json, tokenizer_json_alone, saved, saved_slow)


def _load(directory, **options):
    import transformers

    return transformers.AutoTokenizer.from_pretrained(directory, **options)


def _write(file, contents):
    file.write_text(json.dumps(contents))


def main():
    """Writes the directories that transformers 5 saves, and the ids that it gives."""
    import tempfile

    import transformers

    if int(transformers.__version__.split(".")[0]) < 5:
        sys.exit(f"transformers {transformers.__version__}: give version 5")
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        for family in (name for name in FAMILIES if name not in _SAME_IN_5):
            # Without rules of normalization, which are long.
            write(family, source := Path(temporary, family), normalization_rule_name="identity")
            saved(source, directory := Path(temporary, f"{family}_saved"))
            tokenizer = _load(directory)
            found[family] = {
                "files": {file.name: json.loads(file.read_text()) for file in sorted(directory.iterdir())},
                "ids": [tokenizer(text, add_special_tokens=False).input_ids for text in TEXTS],
                "roles": {role: getattr(tokenizer, f"{role}_token_id") for role in ROLES},
            }
    SAVED_BY_5.write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("USE_TF", "0")
    main()
