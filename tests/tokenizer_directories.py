"""Writes the tokenizer files of Hugging Face directories with real vocabularies, by means of transformers.

Each function takes the directory of real data and the directory to write, and returns the tokenizer of transformers.
"""

import io
import json

import sentencepiece

from t5x_like.vocabularies import word_splits


def save_bert(test_data, directory, case, **settings):
    import transformers

    vocab = str(test_data / f"vocab/bert/bert_base_{case}_vocab.txt")
    reference = transformers.BertTokenizerFast(vocab, do_lower_case=case == "uncased", **settings)
    reference.save_pretrained(directory)
    return reference


def save_gpt2(test_data, directory, **settings):
    import transformers

    files = (str(test_data / "vocab/gpt2" / name) for name in ("encoder.json", "vocab.bpe"))
    reference = transformers.GPT2TokenizerFast(*files, **settings)
    reference.save_pretrained(directory)
    return reference


def save_roberta(test_data, directory, family="Roberta", **settings):
    """Writes a RoBERTa or BART directory, with ids in the order of fairseq's dict.txt."""
    import transformers

    gpt2 = json.loads((test_data / "vocab/gpt2/encoder.json").read_text())
    names = {str(index): name for name, index in gpt2.items()}
    listed = [line.split()[0] for line in (test_data / "vocab/roberta_dict/dict.txt").read_text().splitlines()]
    order = ["<s>", "<pad>", "</s>", "<unk>", *(names.get(name, name) for name in listed)]
    order += [f"madeupword{number:04}" for number in range(len(order), 50264) if len(order) < 50264]
    ids = {name: index for index, name in enumerate([*order[:50264], "<mask>"])}
    (directory / "given.json").write_text(json.dumps(ids))
    merges = str(test_data / "vocab/gpt2/vocab.bpe")
    reference = getattr(transformers, f"{family}TokenizerFast")(str(directory / "given.json"), merges, **settings)
    reference.save_pretrained(directory)
    return reference


def save_llama3(test_data, directory):
    """Writes a tokenizer.json like Llama 3's, with GPT-2's pieces, some of which are not the result of a merge."""
    import transformers

    save_gpt2(test_data, directory)
    contents = json.loads((directory / "tokenizer.json").read_text())
    model = contents["model"]
    model["merges"] = model["merges"][:-20_000]
    model["ignore_merges"] = True
    split = {
        "type": "Split",
        "pattern": {"Regex": word_splits.LLAMA_3_PATTERN},
        "behavior": "Isolated",
        "invert": False,
    }
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    contents["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, byte_level]}
    token = {**contents["added_tokens"][0], "normalized": False}
    names = ("<|begin_of_text|>", "<|end_of_text|>")
    contents["added_tokens"] = [{**token, "content": name, "id": 50257 + n} for n, name in enumerate(names)]
    for path in directory.iterdir():
        path.unlink()
    (directory / "tokenizer.json").write_text(json.dumps(contents))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": names[0], "eos_token": names[1]}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return transformers.PreTrainedTokenizerFast.from_pretrained(directory)


def save_albert(test_data, directory, **settings):
    import transformers

    reference = transformers.AlbertTokenizer(str(test_data / "vocab/albert/spiece.model"), **settings)
    reference.save_pretrained(directory)
    return reference


def save_deberta(test_data, directory):
    """Saves a tokenizer with GPT-2's pieces after those of the special tokens, as DeBERTa's."""
    import transformers

    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    encoder = json.loads((test_data / "vocab/gpt2/encoder.json").read_text())
    pieces = [*special, *sorted(encoder, key=encoder.get), "[MASK]"]
    (directory / "vocab.json").write_text(json.dumps({piece: index for index, piece in enumerate(pieces)}))
    (directory / "merges.txt").write_text((test_data / "vocab/gpt2/vocab.bpe").read_text())
    reference = transformers.DebertaTokenizer(str(directory / "vocab.json"), str(directory / "merges.txt"))
    reference.save_pretrained(directory)
    return transformers.DebertaTokenizerFast.from_pretrained(directory)


def save_deberta_v2(test_data, directory):
    """Trains a small SentencePiece model with the special pieces of DeBERTa v2, and saves its tokenizer."""
    import transformers

    text = (test_data / "text/gutenberg/dracula.txt").read_text(encoding="utf-8", errors="replace")
    special = dict(pad_id=0, bos_id=1, eos_id=2, unk_id=3)
    special |= dict(pad_piece="[PAD]", bos_piece="[CLS]", eos_piece="[SEP]", unk_piece="[UNK]")
    model = directory / "spm.model"
    with model.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text.split("\n")[:2000]), model_writer=file, vocab_size=800, **special
        )
    reference = transformers.DebertaV2Tokenizer(str(model))
    reference.save_pretrained(directory)
    return reference


def save_t5(test_data, directory, **settings):
    import transformers

    model = str(test_data / "vocab/t5_32k/cc_all.32000.sentencepiece.model")
    reference = transformers.T5Tokenizer(model, **settings)
    reference.save_pretrained(directory)
    return reference


def train_llama_model(test_data, directory):
    """Trains a small model with the settings of Llama's: BPE with bytes, no normalization, <unk> 0, <s> 1, </s> 2."""
    text = (test_data / "text/gutenberg/dracula.txt").read_text(encoding="utf-8", errors="replace")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.split("\n")[:2000]),
        model_writer=model,
        model_type="bpe",
        vocab_size=1200,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        byte_fallback=True,
        split_digits=True,
        minloglevel=2,
    )
    path = directory / "tokenizer.model"
    path.write_bytes(model.getvalue())
    return path


def save_t5_fast(test_data, directory):
    import transformers

    save_t5(test_data, directory)
    return transformers.T5TokenizerFast.from_pretrained(directory)


def save_llama(test_data, directory):
    import transformers

    reference = transformers.LlamaTokenizerFast(str(train_llama_model(test_data, directory)), legacy=False)
    reference.save_pretrained(directory)
    return reference
