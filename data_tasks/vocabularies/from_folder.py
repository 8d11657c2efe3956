"""SeqIO vocabularies from the tokenizer files of a Hugging Face model directory, in TensorFlow operations alone.

Neither transformers nor tokenizers is needed. A vocabulary encodes text as the tokenizer that `AutoTokenizer` returns
does (the "fast" one), with two differences. It adds no special tokens, since SeqIO's preprocessors do. Special tokens
in a text, such as `[MASK]`, are encoded as characters.
"""

import os
from collections.abc import Callable, Mapping, Sequence

from google.protobuf import message

from data_tasks.vocabularies import byte_bpe, sentencepiece_json, text_rules, tokenizer_json, wordpiece
from data_tasks.vocabularies.base import ByteVocabulary, Vocabulary
from data_tasks.vocabularies.bpe_files import MERGES_FILE, VOCAB_FILE
from data_tasks.vocabularies.byte_bpe import ByteBPEVocabulary
from data_tasks.vocabularies.hugging_face_sentencepiece import (
    AlbertVocabulary,
    DebertaV2Vocabulary,
    HuggingFaceSentencePieceVocabulary,
    XLNetVocabulary,
    sentencepiece_pieces,
)
from data_tasks.vocabularies.text_rules import UNCHANGED
from data_tasks.vocabularies.tokenizer_files import ADDED_TOKENS, CONFIG, GENERIC_CLASS, TOKENIZER, TokenizerFiles
from data_tasks.vocabularies.word_bpe import WordBPEVocabulary
from data_tasks.vocabularies.wordpiece import WordPieceVocabulary

# The special tokens that the classes of transformers have if the files name none.
_BERT_TOKENS = {
    "unk": wordpiece.UNKNOWN,
    "sep": wordpiece.SEP,
    "pad": wordpiece.PAD,
    "cls": wordpiece.CLS,
    "mask": wordpiece.MASK,
}
_GPT2_TOKENS = {**byte_bpe.GPT2_SPECIAL, "unk": byte_bpe.END_OF_TEXT}
_GPT1_TOKENS = {"unk": "<unk>"}
_T5_TOKENS = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
_ALBERT_TOKENS = {**_BERT_TOKENS, "unk": "<unk>", "pad": "<pad>"}
_BIGBIRD_TOKENS = {**_ALBERT_TOKENS, "bos": "<s>", "eos": "</s>"}
_DEBERTA_TOKENS = {**_BERT_TOKENS, "bos": wordpiece.CLS, "eos": wordpiece.SEP}
_LLAMA_TOKENS = {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}
# The number of sentinels of T5Tokenizer if tokenizer_config.json has none.
_T5_EXTRA_IDS = 100
_SENTINEL = sentencepiece_json.SENTINEL
BYTE_SENTINELS = 125
"""The number of sentinels of ByT5Tokenizer if tokenizer_config.json has none."""


def from_folder(path: str | os.PathLike) -> Vocabulary:
    """Returns the vocabulary of a Hugging Face model directory.

    Supported are WordPiece (BERT, DistilBERT, ELECTRA), byte-level BPE (GPT-2, RoBERTa, BART, DeBERTa, Llama 3), BPE of
    words (GPT-1), bytes (ByT5) and SentencePiece (T5, Llama 1 and 2, Mistral, ALBERT, BigBird, DeBERTa v2 and v3).

    Args:
      path: the directory, with at least the vocabulary (`vocab.txt`; `vocab.json` and `merges.txt`; `spiece.model`,
        `tokenizer.model` or `spm.model`; or `tokenizer.json`) and `tokenizer_config.json`.

    Returns:
      The vocabulary. Its attributes `bos_id`, `eos_id`, `pad_id`, `unk_id` and, where the tokenizer has such tokens,
      `cls_id`, `sep_id` and `mask_id` are the special ids of the tokenizer, or None.

    Raises:
      UserError: a file is missing or invalid, or a setting cannot be reproduced exactly. The message names file and
        key.
    """
    files = TokenizerFiles(path)
    build = _BUILDERS.get(files.tokenizer_class)
    if build is None:
        raise files.unsupported(CONFIG, "tokenizer_class", files.tokenizer_class, ", ".join(_BUILDERS))
    return build(files)


def _word_piece(files: TokenizerFiles) -> WordPieceVocabulary:
    normalizer = tokenizer_json.bert_normalizer(files)
    if files.config.get("do_lower_case") is None and normalizer.get("lowercase") is None:
        raise files.error(CONFIG, "do_lower_case", "not found. Set it to true for an uncased model, else to false")
    lower_case = files.setting("do_lower_case", normalizer.get("lowercase"), True)
    for key, supported in (("do_basic_tokenize", True), ("never_split", None)):
        if files.config.get(key, supported) != supported:
            raise files.unsupported(CONFIG, key, files.config[key], str(supported))
    tokens = files.special_tokens(_BERT_TOKENS)
    for role, token in tokens.items():
        if token != _BERT_TOKENS.get(role):
            raise files.unsupported(CONFIG, f"{role}_token", token, str(_BERT_TOKENS.get(role)))
    vocabulary = WordPieceVocabulary(
        files.path(TOKENIZER if files.tokenizer else "vocab.txt"),
        lower_case,
        strip_accents=files.setting("strip_accents", normalizer.get("strip_accents"), lower_case),
        split_cjk=files.setting("tokenize_chinese_chars", normalizer.get("handle_chinese_chars"), True),
        compose=False,
    )
    _require_pieces(files, tokens, vocabulary.pieces)
    return vocabulary


def _require_pieces(files: TokenizerFiles, tokens: Mapping[str, str], pieces: Sequence[str]) -> None:
    """Checks that all added tokens are pieces of the vocabulary."""
    for token, index in files.added_tokens(tokens).items():
        if tuple(pieces[index : index + 1]) != (token,):
            raise files.unsupported(ADDED_TOKENS, token, index, "tokens that are in the vocabulary")


def _byte_bpe(defaults: Mapping[str, str]) -> Callable[[TokenizerFiles], ByteBPEVocabulary]:
    def build(files: TokenizerFiles) -> ByteBPEVocabulary:
        split, prefix_space = tokenizer_json.byte_level_split(files)
        tokens = files.special_tokens(defaults)
        added = files.added_tokens(tokens)
        if tokens.get("unk") == tokens.get("eos"):
            tokens.pop("unk", None)  # bytes encode any text, and ids outside the vocabulary are not the end of a text
        names = (TOKENIZER, TOKENIZER) if files.tokenizer else (VOCAB_FILE, MERGES_FILE)
        vocabulary = ByteBPEVocabulary(
            *(files.path(name) for name in names),
            special_tokens=tokens,
            added_tokens=added,
            split=split,
            add_prefix_space=files.setting("add_prefix_space", prefix_space, False),
            keep_whole_words=files.tokenizer.get("model", {}).get("ignore_merges", False),
        )
        _ = vocabulary.pieces  # reads the files
        return vocabulary

    return build


def _word_bpe(files: TokenizerFiles) -> WordBPEVocabulary:
    if not files.config.get("do_lower_case", True):
        raise files.unsupported(CONFIG, "do_lower_case", False, "true")
    tokens = files.special_tokens(_GPT1_TOKENS)
    if "unk" not in tokens:
        raise files.unsupported(CONFIG, "unk_token", None, f'a token such as "{_GPT1_TOKENS["unk"]}"')
    tokenizer_json.check_word_bpe(files, tokens["unk"])
    names = (TOKENIZER, TOKENIZER) if files.tokenizer else (VOCAB_FILE, MERGES_FILE)
    vocabulary = WordBPEVocabulary(*(files.path(name) for name in names), special_tokens=tokens)
    _require_pieces(files, tokens, vocabulary.pieces)
    return vocabulary


def _t5(files: TokenizerFiles) -> HuggingFaceSentencePieceVocabulary:
    return _sentencepiece(files, "spiece.model", _T5_TOKENS, files.config.get("extra_ids", _T5_EXTRA_IDS))


def _bytes(files: TokenizerFiles) -> ByteVocabulary:
    return ByteVocabulary(extra_ids=files.config.get("extra_ids", BYTE_SENTINELS))


def _llama(files: TokenizerFiles) -> HuggingFaceSentencePieceVocabulary:
    return _sentencepiece(files, "tokenizer.model", _LLAMA_TOKENS, 0)


def _albert(files: TokenizerFiles) -> HuggingFaceSentencePieceVocabulary:
    if files.tokenizer:
        return _sentencepiece(files, "spiece.model", _ALBERT_TOKENS, 0)
    lower_case, accents = files.config.get("do_lower_case", True), files.config.get("keep_accents", False)
    return AlbertVocabulary(files.path("spiece.model"), text_rules.albert(lower_case, keep_accents=accents))


def _xlnet(files: TokenizerFiles) -> XLNetVocabulary:
    lower_case, accents = files.config.get("do_lower_case", False), files.config.get("keep_accents", False)
    name = "spiece.model"
    try:
        return XLNetVocabulary(files.path(name), text_rules.albert(lower_case, keep_accents=accents))
    except (RuntimeError, message.DecodeError) as error:
        raise files.error(name, None, f"not a SentencePiece model ({error}). Download the file again") from error


def _bigbird(files: TokenizerFiles) -> HuggingFaceSentencePieceVocabulary:
    return _sentencepiece(files, "spiece.model", _BIGBIRD_TOKENS, 0)


def _deberta_v2(files: TokenizerFiles) -> DebertaV2Vocabulary:
    for key in ("do_lower_case", "split_by_punct"):
        if files.config.get(key, False):
            raise files.unsupported(CONFIG, key, True, "false")
    tokens = files.special_tokens(_DEBERTA_TOKENS)
    try:
        vocabulary = DebertaV2Vocabulary(files.path("spm.model"), tokens)
        ids = vocabulary.token_ids
    except (RuntimeError, message.DecodeError) as error:
        raise files.error("spm.model", None, f"not a SentencePiece model ({error}). Download the file again") from error
    for role, token in tokens.items():
        if token not in ids:
            raise files.unsupported(CONFIG, f"{role}_token", token, "pieces of spm.model and [MASK]")
    for token, index in files.added_tokens(tokens).items():
        if ids.get(token) != index:
            raise files.unsupported(ADDED_TOKENS, token, index, "special pieces of spm.model and a [MASK] after them")
    return vocabulary


def _sentencepiece(
    files: TokenizerFiles, name: str, defaults: Mapping[str, str], extra_ids: int
) -> HuggingFaceSentencePieceVocabulary:
    """Returns a SentencePiece vocabulary, from `tokenizer.json` if the directory does not have the model.

    The setting `legacy` of transformers is not read: it only changes the text after a special token.
    """
    spaces = tokenizer_json.sentencepiece_spaces(files)
    in_tokenizer = None if spaces is None else spaces.prefix != "never"
    prefix_space = files.setting("add_prefix_space", in_tokenizer, None)
    tokens = files.special_tokens(defaults)
    contents = None
    if not files.has(name) and files.tokenizer:
        special = [*tokens.values(), *files.added_tokens(tokens)]
        name, contents = TOKENIZER, sentencepiece_json.to_model(files, special).SerializeToString(deterministic=True)
    model = files.path(name)
    try:
        pieces = sentencepiece_pieces(model, contents)
    except (RuntimeError, message.DecodeError) as error:
        raise files.error(name, None, f"not a SentencePiece model ({error}). Download the file again") from error
    size = pieces.GetPieceSize()
    for token, index in files.added_tokens(tokens).items():
        sentinel = _SENTINEL.fullmatch(token)
        if index < size:
            known = pieces.IdToPiece(index) in (token, f"▁{token}")
        else:
            known = sentinel is not None and index == size + extra_ids - 1 - int(sentinel[1])
        if not known:
            supported = f"the pieces of {name} and {extra_ids} sentinels after them, <extra_id_0> last"
            raise files.unsupported(CONFIG, "added_tokens_decoder", {token: index}, supported)
    special_ids = {}
    for role in ("bos", "eos", "pad", "unk"):
        if role in tokens:
            special_ids[role] = pieces.PieceToId(tokens[role])
            if pieces.IdToPiece(special_ids[role]) != tokens[role]:
                raise files.unsupported(CONFIG, f"{role}_token", tokens[role], f"pieces of {name}")
    return HuggingFaceSentencePieceVocabulary(
        model,
        special_ids,
        extra_ids,
        prefix_space,
        contents=contents,
        keeps_first_space=contents is not None and spaces.prefix == "unless_present",
        rules=UNCHANGED if spaces is None else spaces.rules,
    )


def _generic(files: TokenizerFiles) -> Vocabulary:
    model_type = files.tokenizer.get("model", {}).get("type")
    if sentencepiece_json.is_sentencepiece(files):
        return _generic_sentencepiece(files)
    if model_type == "WordPiece":
        return _word_piece(files)
    if model_type == "BPE":
        return _byte_bpe({})(files)
    raise files.unsupported(TOKENIZER, "model.type", model_type, "WordPiece, BPE, and Unigram without ByteLevel")


def _generic_sentencepiece(files: TokenizerFiles) -> HuggingFaceSentencePieceVocabulary:
    """Returns the vocabulary of a `tokenizer.json`, or of the SentencePiece model next to it with equal pieces."""
    names, known = sentencepiece_json.pieces(files), files.added_tokens(files.special_tokens({}))
    vocab = files.tokenizer["model"]["vocab"]
    listed = (piece for piece, _ in vocab) if isinstance(vocab, list) else vocab
    sentinels = {token for token in (*listed, *known) if _SENTINEL.fullmatch(token)}
    models = [name for name in ("spiece.model", "tokenizer.model") if files.has(name)]
    if models:
        pieces = sentencepiece_pieces(files.path(models[0]), None)
        if [pieces.IdToPiece(number) for number in range(pieces.GetPieceSize())] != names:
            raise files.error(models[0], None, f"other pieces than {TOKENIZER}. Remove one of the two files")
    return _sentencepiece(files, (models or ["spiece.model"])[0], {}, len(sentinels))


_BUILDERS: dict[str, Callable[[TokenizerFiles], Vocabulary]] = {
    "BertTokenizer": _word_piece,
    "DistilBertTokenizer": _word_piece,
    "ElectraTokenizer": _word_piece,
    "GPT2Tokenizer": _byte_bpe(_GPT2_TOKENS),
    "RobertaTokenizer": _byte_bpe(byte_bpe.ROBERTA_ROLES),
    "BartTokenizer": _byte_bpe(byte_bpe.ROBERTA_ROLES),
    "OpenAIGPTTokenizer": _word_bpe,
    "T5Tokenizer": _t5,
    "ByT5Tokenizer": _bytes,
    "LlamaTokenizer": _llama,
    "AlbertTokenizer": _albert,
    "XLNetTokenizer": _xlnet,
    "BigBirdTokenizer": _bigbird,
    "DebertaTokenizer": _byte_bpe(_DEBERTA_TOKENS),
    "DebertaV2Tokenizer": _deberta_v2,
    GENERIC_CLASS: _generic,
}


def is_readable(tokenizer_class: str) -> bool:
    """Returns whether `from_folder` reads directories with a class of tokenizers."""
    return tokenizer_class in _BUILDERS
