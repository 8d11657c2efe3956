"""Writes the tokenizer files of Hugging Face directories with real vocabularies, by means of transformers.

Each function takes the directory of real data and the directory to write, and returns the tokenizer of transformers.
"""

import io
import json

import sentencepiece

LLAMA_3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


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
        "pattern": {"Regex": LLAMA_3_PATTERN},
        "behavior": "Isolated",
        "invert": False,
    }
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    contents["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, byte_level]}
    token = {**contents["added_tokens"][0], "normalized": False}
    names = ("<|begin_of_text|>", "<|end_of_text|>")
    contents["added_tokens"] = [{**token, "content": name, "id": 50257 + n} for n, name in enumerate(names)]
    bos = {"SpecialToken": {"id": names[0], "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": type_id}} for type_id, name in enumerate("AB"))
    template = {"type": "TemplateProcessing", "single": [bos, first], "pair": [bos, first, bos, second]}
    template["special_tokens"] = {names[0]: {"id": names[0], "ids": [50257], "tokens": [names[0]]}}
    contents["post_processor"] = {"type": "Sequence", "processors": [contents["post_processor"], template]}
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


def save_albert_fast(test_data, directory):
    """Writes ALBERT's directory as published: user-defined pieces, such as `-`, are not found before the others."""
    import transformers

    save_albert(test_data, directory)
    transformers.AlbertTokenizerFast.from_pretrained(directory).save_pretrained(directory)
    _keep_special_tokens(directory)
    return transformers.AutoTokenizer.from_pretrained(directory)


def save_xlnet(test_data, directory):
    """Trains a small model with the special pieces of XLNet, and saves its tokenizer."""
    import transformers

    special = dict(unk_id=0, bos_id=1, eos_id=2, control_symbols="<cls>,<sep>,<pad>,<mask>,<eod>,<eop>")
    _train(test_data, directory / "spiece.model", vocab_size=1500, **special)
    reference = transformers.XLNetTokenizerFast(str(directory / "spiece.model"))
    reference.save_pretrained(directory)
    return reference


def save_deberta_v3(test_data, directory):
    """Saves the fast tokenizer of `save_deberta_v2`, whose [MASK] follows the pieces."""
    import transformers

    save_deberta_v2(test_data, directory)
    reference = transformers.DebertaV2TokenizerFast(str(directory / "spm.model"))
    reference.save_pretrained(directory)
    return reference


def save_qwen(test_data, directory):
    """Writes a Qwen directory with GPT-2's pieces."""
    import transformers

    files = (str(test_data / "vocab/gpt2" / name) for name in ("encoder.json", "vocab.bpe"))
    reference = transformers.Qwen2TokenizerFast(*files, additional_special_tokens=["<|im_start|>", "<|im_end|>"])
    reference.save_pretrained(directory)
    return reference


def save_modernbert(test_data, directory):
    """Writes a tokenizer.json like ModernBERT's: NFC, pieces of several spaces in texts, and a mask with its space."""
    import transformers

    save_gpt2(test_data, directory)
    contents = json.loads((directory / "tokenizer.json").read_text())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    added = [flags | {"content": token, "lstrip": token == "[MASK]"} for token in special]
    added += [flags | {"content": " " * number, "normalized": True, "special": False} for number in (4, 3, 2)]
    added += [flags | {"content": "|||EMAIL|||", "special": False}]
    contents["added_tokens"] = [contents["added_tokens"][0]]
    contents["added_tokens"] += [token | {"id": 50257 + number} for number, token in enumerate(added)]
    contents["normalizer"] = {"type": "NFC"}
    around = {token: {"id": token, "ids": [50257 + special.index(token)], "tokens": [token]} for token in special[1:3]}
    cls, sep = ({"SpecialToken": {"id": token, "type_id": 0}} for token in special[1:3])
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    template = {"single": [cls, first, sep], "pair": [cls, first, sep, second, sep], "special_tokens": around}
    contents["post_processor"] = {"type": "TemplateProcessing", **template}
    for path in directory.iterdir():
        path.unlink()
    (directory / "tokenizer.json").write_text(json.dumps(contents))
    config = {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "cls", "sep", "pad", "mask")}
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": True}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return transformers.PreTrainedTokenizerFast.from_pretrained(directory)


def save_gemma(test_data, directory):
    """Trains a small model with the settings of Gemma's: BPE with bytes, without a space before texts."""
    import transformers

    special = dict(pad_id=0, eos_id=1, bos_id=2, unk_id=3, bos_piece="<bos>", eos_piece="<eos>")
    settings = dict(model_type="bpe", byte_fallback=True, split_digits=True, normalization_rule_name="identity")
    settings |= dict(add_dummy_prefix=False, remove_extra_whitespaces=False, user_defined_symbols="<mask>,<2mass>")
    _train(test_data, directory / "tokenizer.model", vocab_size=1500, **special, **settings)
    reference = transformers.GemmaTokenizerFast(str(directory / "tokenizer.model"))
    reference.save_pretrained(directory)
    return reference


def _train(test_data, path, **settings):
    text = (test_data / "text/gutenberg/dracula.txt").read_text(encoding="utf-8", errors="replace")
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text.split("\n")[:2000]), model_writer=file, minloglevel=2, **settings
        )


def _keep_special_tokens(directory):
    """Removes the added tokens that are not special from the files of a directory."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        contents = json.loads((directory / name).read_text())
        if "added_tokens" in contents:
            contents["added_tokens"] = [token for token in contents["added_tokens"] if token["special"]]
        decoder = contents.get("added_tokens_decoder", {})
        if decoder:
            contents["added_tokens_decoder"] = {key: token for key, token in decoder.items() if token["special"]}
        (directory / name).write_text(json.dumps(contents))
