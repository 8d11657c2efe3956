"""SentencePiece vocabularies from the tokenizer files of a directory: a model, or a tokenizer.json."""

from typing import Any

from google.protobuf import message

from t5x_like.vocabularies import from_tokenizer_json, sentencepiece_json
from t5x_like.vocabularies.from_tokenizer_json import Spaces
from t5x_like.vocabularies.hugging_face_sentencepiece import HuggingFaceSentencePieceVocabulary, sentencepiece_pieces
from t5x_like.vocabularies.tokenizer_classes import CLASSES
from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles
from t5x_like.vocabularies.tokenizers.base import CONFIG, TOKENIZER


def model_of(files: TokenizerFiles, name: str | None = None) -> tuple[str, bytes | None]:
    """Returns the path of the SentencePiece model of a class, and its contents if only tokenizer.json has it."""
    name = name or CLASSES[files.tokenizer_class].files[0]
    contents = None
    if not files.has(name) and files.tokenizer:
        tokens = files.special_tokens()
        special = [*tokens.values(), *(token for token, is_special in files.listed_tokens().items() if is_special)]
        user_defined = [token for token, is_special in files.listed_tokens().items() if not is_special]
        made = sentencepiece_json.to_model(files, special, user_defined)
        name, contents = TOKENIZER, made.SerializeToString(deterministic=True)
    path = files.path(name)
    try:
        sentencepiece_pieces(path, contents)
    except (RuntimeError, message.DecodeError) as error:
        raise files.error(name, None, f"not a SentencePiece model ({error}). Download the file again") from error
    return path, contents


def prepared(spaces: Spaces) -> dict[str, Any]:
    """Returns the arguments of a vocabulary that prepares texts as a tokenizer.json does."""
    keeps = spaces.prefix == "unless_present" and not spaces.merged
    return {"keeps_first_space": keeps, "rules": spaces.rules}


def vocabulary(
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
    model, contents = model_of(files, name)
    name, pieces = model.rpartition("/")[2], sentencepiece_pieces(model, contents)
    size = pieces.GetPieceSize()
    for token, index in files.added_tokens(tokens).items():
        sentinel = sentencepiece_json.SENTINEL.fullmatch(token)
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
        **({} if spaces is None else prepared(spaces)),
    )
