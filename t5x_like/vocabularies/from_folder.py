"""SeqIO vocabularies from the tokenizer files of a Hugging Face model directory, in TensorFlow operations alone.

Neither transformers nor tokenizers is needed. A vocabulary encodes text as the tokenizer that `AutoTokenizer` returns
does (the "fast" one), with two differences. It adds no special tokens, since SeqIO's preprocessors do. Special tokens
in a text, such as `[MASK]`, are encoded as characters.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google.protobuf import message

from t5x_like.vocabularies import from_tokenizer_json, sentencepiece_json, text_rules
from t5x_like.vocabularies.base import ByteVocabulary, Vocabulary
from t5x_like.vocabularies.bpe_files import MERGES_FILE, VOCAB_FILE
from t5x_like.vocabularies.byte_bpe import ByteBPEVocabulary
from t5x_like.vocabularies.from_tokenizer_json import Spaces
from t5x_like.vocabularies.hugging_face_sentencepiece import (
    AlbertVocabulary,
    DebertaV2Vocabulary,
    HuggingFaceSentencePieceVocabulary,
    XLNetVocabulary,
    sentencepiece_pieces,
)
from t5x_like.vocabularies.tokenizer_classes import ADDED_TOKENS, CLASSES, CONFIG, GENERIC, SENTENCEPIECE, TOKENIZER
from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles
from t5x_like.vocabularies.word_bpe import WordBPEVocabulary
from t5x_like.vocabularies.wordpiece import WordPieceVocabulary

# The number of sentinels of T5Tokenizer if tokenizer_config.json has none.
_T5_EXTRA_IDS = 100
_SENTINEL = sentencepiece_json.SENTINEL
BYTE_SENTINELS = 125
"""The number of sentinels of ByT5Tokenizer if tokenizer_config.json has none."""


def from_folder(path: str | os.PathLike) -> Vocabulary:
    """Returns the vocabulary of a Hugging Face model directory.

    Supported are WordPiece (BERT, DistilBERT, ELECTRA, MobileBERT), byte-level BPE (GPT-2, RoBERTa, Longformer, BART,
    DeBERTa, Llama 3), BPE of words (GPT-1), bytes (ByT5) and SentencePiece (T5, Llama 1 and 2, Mistral, ALBERT, XLNet,
    BigBird, DeBERTa v2 and v3).

    Args:
      path: the directory, with at least the vocabulary (`vocab.txt`; `vocab.json` and `merges.txt`; `spiece.model`,
        `tokenizer.model` or `spm.model`; or `tokenizer.json`), and `tokenizer_config.json` or `config.json`.

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
    normalizer = from_tokenizer_json.bert_normalizer(files)
    if files.config.get("do_lower_case") is None and normalizer.get("lowercase") is None:
        raise files.error(CONFIG, "do_lower_case", "not found. Set it to true for an uncased model, else to false")
    lower_case = files.setting("do_lower_case", normalizer.get("lowercase"), True)
    for key, supported in (("do_basic_tokenize", True), ("never_split", None)):
        if files.config.get(key, supported) != supported:
            raise files.unsupported(CONFIG, key, files.config[key], str(supported))
    known = CLASSES["BertTokenizer"].special_tokens
    tokens = files.special_tokens(known)
    for role, token in tokens.items():
        if token != known.get(role):
            raise files.unsupported(CONFIG, f"{role}_token", token, str(known.get(role)))
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


def _byte_bpe(files: TokenizerFiles, defaults: Mapping[str, str] | None = None) -> ByteBPEVocabulary:
    split, prefix_space = from_tokenizer_json.byte_level_split(files)
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


def _word_bpe(files: TokenizerFiles) -> WordBPEVocabulary:
    if not files.config.get("do_lower_case", True):
        raise files.unsupported(CONFIG, "do_lower_case", False, "true")
    tokens = files.special_tokens()
    if "unk" not in tokens:
        raise files.unsupported(CONFIG, "unk_token", None, 'a token such as "<unk>"')
    from_tokenizer_json.check_word_bpe(files, tokens["unk"])
    names = (TOKENIZER, TOKENIZER) if files.tokenizer else (VOCAB_FILE, MERGES_FILE)
    vocabulary = WordBPEVocabulary(*(files.path(name) for name in names), special_tokens=tokens)
    _require_pieces(files, tokens, vocabulary.pieces)
    return vocabulary


def _t5(files: TokenizerFiles) -> HuggingFaceSentencePieceVocabulary:
    return _sentencepiece(files, files.config.get("extra_ids", _T5_EXTRA_IDS))


def _bytes(files: TokenizerFiles) -> ByteVocabulary:
    return ByteVocabulary(extra_ids=files.config.get("extra_ids", BYTE_SENTINELS))


def _llama(files: TokenizerFiles) -> Vocabulary:
    if from_tokenizer_json.is_byte_level(files):  # Llama 3, in files that do not name a class
        return _byte_bpe(files, {})
    # With `legacy`, the default, transformers adds a space before each text; without it, before texts without one.
    is_legacy = files.config.get("legacy") in (None, True)
    spaces = Spaces(prefix="always" if is_legacy else "unless_present")
    return _sentencepiece(files, spaces=None if files.config.get("add_prefix_space") is False else spaces)


def _albert(files: TokenizerFiles) -> HuggingFaceSentencePieceVocabulary:
    if files.tokenizer:
        return _sentencepiece(files)
    lower_case, accents = files.config.get("do_lower_case", True), files.config.get("keep_accents", False)
    tokens, (model, _) = files.special_tokens(), _model(files)
    return AlbertVocabulary(model, text_rules.albert(lower_case, keep_accents=accents), tokens)


def _xlnet(files: TokenizerFiles) -> XLNetVocabulary:
    lower_case, accents = files.config.get("do_lower_case", False), files.config.get("keep_accents", False)
    model, contents = _model(files)
    rules = text_rules.albert(lower_case, keep_accents=accents)
    return XLNetVocabulary(model, rules, contents=contents, divides_numbers=not files.tokenizer)


def _bigbird(files: TokenizerFiles) -> HuggingFaceSentencePieceVocabulary:
    inputs = files.config.get("model_input_names")
    return _sentencepiece(files, has_token_types=inputs is None or "token_type_ids" in inputs)


def _deberta_v2(files: TokenizerFiles) -> DebertaV2Vocabulary:
    for key in ("do_lower_case", "split_by_punct"):
        if files.config.get(key, False):
            raise files.unsupported(CONFIG, key, True, "false")
    tokens, (model, contents) = files.special_tokens(), _model(files)
    spaces = None if contents is None else from_tokenizer_json.sentencepiece_spaces(files)
    vocabulary = DebertaV2Vocabulary(model, tokens, contents=contents, **({} if spaces is None else _prepared(spaces)))
    ids, name = vocabulary.token_ids, model.rpartition("/")[2]
    for role, token in tokens.items():
        if token not in ids:
            raise files.unsupported(CONFIG, f"{role}_token", token, f"pieces of {name} and [MASK]")
    for token, index in files.added_tokens(tokens).items():
        if ids.get(token) != index:
            raise files.unsupported(ADDED_TOKENS, token, index, f"special pieces of {name} and a [MASK] after them")
    return vocabulary


def _model(files: TokenizerFiles, name: str | None = None) -> tuple[str, bytes | None]:
    """Returns the path of the SentencePiece model of a class, and its contents if only tokenizer.json has it."""
    name = name or CLASSES[files.tokenizer_class].files[0]
    contents = None
    if not files.has(name) and files.tokenizer:
        tokens = files.special_tokens()
        special = [*tokens.values(), *(token for token, is_special in files.listed_tokens().items() if is_special)]
        user_defined = [token for token, is_special in files.listed_tokens().items() if not is_special]
        model = sentencepiece_json.to_model(files, special, user_defined)
        name, contents = TOKENIZER, model.SerializeToString(deterministic=True)
    path = files.path(name)
    try:
        sentencepiece_pieces(path, contents)
    except (RuntimeError, message.DecodeError) as error:
        raise files.error(name, None, f"not a SentencePiece model ({error}). Download the file again") from error
    return path, contents


def _prepared(spaces: Spaces) -> dict[str, Any]:
    """Returns the arguments of a vocabulary that prepares texts as a tokenizer.json does."""
    keeps = spaces.prefix == "unless_present" and not spaces.merged
    return {"keeps_first_space": keeps, "rules": spaces.rules}


def _sentencepiece(
    files: TokenizerFiles,
    extra_ids: int = 0,
    *,
    name: str | None = None,
    spaces: Spaces | None = None,
    has_token_types: bool = True,
) -> HuggingFaceSentencePieceVocabulary:
    """Returns a SentencePiece vocabulary, from `tokenizer.json` if the directory does not have the model.

    Args:
      files: the files of a directory.
      extra_ids: number of sentinels.
      name: the file of the model; None for that of the class.
      spaces: how texts are prepared without a tokenizer.json; None for as the model says.
      has_token_types: see `HuggingFaceSentencePieceVocabulary`.
    """
    in_file = from_tokenizer_json.sentencepiece_spaces(files)
    prefix_space = files.setting("add_prefix_space", None if in_file is None else in_file.prefix != "never", None)
    spaces = in_file or spaces
    tokens = files.special_tokens()
    model, contents = _model(files, name)
    name, pieces = model.rpartition("/")[2], sentencepiece_pieces(model, contents)
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
        has_token_types=has_token_types,
        **({} if spaces is None else _prepared(spaces)),
    )


def _generic(files: TokenizerFiles) -> Vocabulary:
    model_type = files.tokenizer.get("model", {}).get("type")
    if sentencepiece_json.is_sentencepiece(files):
        return _generic_sentencepiece(files)
    if model_type == "WordPiece":
        return _word_piece(files)
    if model_type == "BPE":
        return _byte_bpe(files)
    raise files.unsupported(TOKENIZER, "model.type", model_type, "WordPiece, BPE, and Unigram without ByteLevel")


def _generic_sentencepiece(files: TokenizerFiles) -> HuggingFaceSentencePieceVocabulary:
    """Returns the vocabulary of a `tokenizer.json`, or of the SentencePiece model next to it with equal pieces."""
    names, known = sentencepiece_json.pieces(files), files.added_tokens(files.special_tokens({}))
    vocab = files.tokenizer["model"]["vocab"]
    listed = (piece for piece, _ in vocab) if isinstance(vocab, list) else vocab
    sentinels = {token for token in (*listed, *known) if _SENTINEL.fullmatch(token)}
    models = [name for name in SENTENCEPIECE if files.has(name)]
    if models:
        pieces = sentencepiece_pieces(files.path(models[0]), None)
        if [pieces.IdToPiece(number) for number in range(pieces.GetPieceSize())] != names:
            raise files.error(models[0], None, f"other pieces than {TOKENIZER}. Remove one of the two files")
    return _sentencepiece(files, len(sentinels), name=(models or ["spiece.model"])[0])


_BUILDERS: dict[str, Callable[[TokenizerFiles], Vocabulary]] = {
    "BertTokenizer": _word_piece,
    "DistilBertTokenizer": _word_piece,
    "ElectraTokenizer": _word_piece,
    "MobileBertTokenizer": _word_piece,
    "GPT2Tokenizer": _byte_bpe,
    "RobertaTokenizer": _byte_bpe,
    "LongformerTokenizer": _byte_bpe,
    "BartTokenizer": _byte_bpe,
    "OpenAIGPTTokenizer": _word_bpe,
    "T5Tokenizer": _t5,
    "ByT5Tokenizer": _bytes,
    "LlamaTokenizer": _llama,
    "AlbertTokenizer": _albert,
    "XLNetTokenizer": _xlnet,
    "BigBirdTokenizer": _bigbird,
    "DebertaTokenizer": _byte_bpe,
    "DebertaV2Tokenizer": _deberta_v2,
    GENERIC: _generic,
}


def is_readable(tokenizer_class: str) -> bool:
    """Returns whether `from_folder` reads directories with a class of tokenizers."""
    return tokenizer_class in _BUILDERS
