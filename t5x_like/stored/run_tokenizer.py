"""The copy of the tokenizer in a run directory, which makes the run independent of the directory it started from."""

import json
from collections.abc import Mapping

from t5x_like import paths
from t5x_like.checkpoints import checkpoint_choice, weight_files
from t5x_like.data.features import FeatureSpec
from t5x_like.data.source import DataSource
from t5x_like.errors import UserError
from t5x_like.runtime.run_files import TOKENIZER
from t5x_like.stored import run_vocabulary
from t5x_like.stored.weight_source import InitialWeights
from t5x_like.vocabularies import tokenizer_classes, tokenizer_files, vocabulary_digest
from t5x_like.vocabularies.chat_template import ChatTemplate
from t5x_like.vocabularies.vocabulary_digest import TextVocabulary


def of_data(data: DataSource, spec: FeatureSpec, vocabulary_path: str | None) -> TextVocabulary:
    """Returns the vocabulary of the text of a run.

    Args:
      data: the training data.
      spec: the features that the objective reads.
      vocabulary_path: a Hugging Face directory or the file of a vocabulary, for data whose vocabulary is not in files.

    Raises:
      UserError: `vocabulary_path` is another vocabulary than the cache's.
    """
    found = data.text_vocabulary(spec)
    if found.location is None:
        return TextVocabulary(found.digest, vocabulary_path)
    theirs = vocabulary_digest.of_location(found.location)
    if not theirs.may_have(found.digest):
        raise UserError(
            f"VOCABULARY_PATH={found.location}: its vocabulary ({theirs.digest}) differs from the vocabulary of "
            f"{data.name} ({found.digest}). Give the vocabulary that the data was tokenized with."
        )
    return found


def store(model_dir: str, vocabulary: TextVocabulary, initial_checkpoint_path: str | None) -> None:
    """Copies the tokenizer, and the files that describe the initial model, to `MODEL_DIR/tokenizer`.

    Args:
      model_dir: the run directory.
      vocabulary: the vocabulary of the run.
      initial_checkpoint_path: the initial weights. A Hugging Face directory has files that describe the model.

    Raises:
      UserError: the location of the vocabulary has no tokenizer files.
    """
    files: Mapping[str, bytes] = tokenizer_files.read(vocabulary.location) if vocabulary.location else {}
    if initial_checkpoint_path and weight_files.is_huggingface(initial_checkpoint_path):
        model = tokenizer_files.read(initial_checkpoint_path, tokenizer_files.MODEL)
        # A config.json determines the class of a tokenizer without tokenizer_config.json.
        is_other = _class(files) not in (None, _class({**files, **model}))
        if is_other or tokenizer_files.is_single_file(files):
            model.pop(tokenizer_classes.MODEL_CONFIG, None)
        files = {**files, **model}
    tokenizer_files.write(files, paths.join(model_dir, TOKENIZER))


def _class(files: Mapping[str, bytes]) -> str | None:
    """Returns the class of a tokenizer in transformers."""
    read = (json.loads(files.get(name, b"{}")) for name in (tokenizer_classes.CONFIG, tokenizer_classes.MODEL_CONFIG))
    return tokenizer_classes.find_class(*read, has_tokenizer=tokenizer_classes.TOKENIZER in files)


def stored_digest(directory: str) -> str | None:
    """Returns the digest of the vocabulary of a run or of a Hugging Face directory, or None if it does not have one.

    Args:
      directory: a run directory, whose tokenizer has a digest also if the run stored none, or a Hugging Face directory.
    """
    if (digest := run_vocabulary.read_digest(directory)) is not None:
        return digest
    return vocabulary_digest.of_path(paths.join(directory, TOKENIZER)) or vocabulary_digest.of_path(directory)


def has_settings(path: str) -> bool:
    """Returns whether a model has the files of a tokenizer of transformers, and not a vocabulary alone.

    Args:
      path: a run directory, one of its checkpoints, or a Hugging Face directory.
    """
    for directory in (path, paths.join(checkpoint_choice.run_of(path), TOKENIZER)):
        if (found := tokenizer_files.find(directory)) is not None:
            return not paths.is_file(found)
    return False


def chat_template(path: str) -> ChatTemplate:
    """Returns the chat template of a model.

    Args:
      path: a run directory, one of its checkpoints, or a Hugging Face directory.

    Raises:
      UserError: the model has no tokenizer of transformers, or one without a template.
    """
    for directory in (path, paths.join(checkpoint_choice.run_of(path), TOKENIZER)):
        found = tokenizer_files.find(directory)
        if found is not None and not paths.is_file(found):
            return ChatTemplate(directory)
    raise UserError(f"{path}: has no tokenizer with a chat template. Give texts as 'inputs', or a model with one.")


def check(model_dir: str, vocabulary: TextVocabulary) -> None:
    """Checks that the vocabulary of a run to resume is the one that it started with.

    Raises:
      UserError: a file differs from the copy in the run directory, or the digest from the run's.
    """
    copy = paths.join(model_dir, TOKENIZER)
    # A cache knows the digest of its vocabulary, whose files may have been moved since it was written.
    if None in (vocabulary.location and tokenizer_files.find(vocabulary.location), tokenizer_files.find(copy)):
        _check_digest(vocabulary, stored_digest(model_dir), f"MODEL_DIR={model_dir}", "Give another MODEL_DIR.")
        return
    stored = tokenizer_files.read(copy, tokenizer_files.TOKENIZER)
    given = tokenizer_files.read(vocabulary.location, tokenizer_files.TOKENIZER)
    if stored.keys() == {vocabulary_digest.DEBERTA_V2}:
        given = {name: given[name] for name in stored.keys() & given.keys()}
    if different := sorted(name for name in stored.keys() | given.keys() if stored.get(name) != given.get(name)):
        raise UserError(
            f"VOCABULARY_PATH={vocabulary.location}: {different[0]} differs from the tokenizer of the run, {copy}. "
            f"Give that one with --gin.VOCABULARY_PATH={copy}, or another MODEL_DIR."
        )


def check_initial(source: InitialWeights, vocabulary: TextVocabulary) -> None:
    """Checks that pretrained weights have the token ids of the data.

    Raises:
      UserError: their vocabulary is another one.
    """
    if source.has_vocabulary_of_run:
        theirs = _digest_of_weights(source.path)
        remedy = "Give the vocabulary of the weights, or set INITIAL_OTHER_VOCABULARY=True."
        _check_digest(vocabulary, theirs, f"INITIAL_CHECKPOINT_PATH={source.path}", remedy)


def check_checkpoint(
    checkpoint_path: str,
    vocabulary: TextVocabulary,
    remedy: str = "set OTHER_VOCABULARY=True",
    setting: str = "CHECKPOINT_PATH",
) -> None:
    """Checks that a model reads the token ids of the data.

    Args:
      checkpoint_path: a run directory, one of its checkpoints, a Hugging Face directory, or a T5X checkpoint.
      vocabulary: the vocabulary of the data.
      remedy: what else to do, for the message.
      setting: the setting that `checkpoint_path` comes from, for the message.

    Raises:
      UserError: the vocabulary of the model is another one.
    """
    remedy = f"Give the vocabulary of the model, or {remedy}."
    _check_digest(vocabulary, _digest_of_weights(checkpoint_path), f"{setting}={checkpoint_path}", remedy)


def _digest_of_weights(path: str) -> str | None:
    """Returns the digest of the vocabulary of weights, or None if it is not known."""
    if weight_files.is_huggingface(path):
        return stored_digest(path)
    if weight_files.find_t5x(path):
        return None
    return stored_digest(checkpoint_choice.run_of(path))


def _check_digest(vocabulary: TextVocabulary, theirs: str | None, shown: str, remedy: str) -> None:
    if not vocabulary.may_have(theirs):
        ours = " ".join(filter(None, (vocabulary.location, f"({vocabulary.digest})")))
        raise UserError(f"{shown}: its vocabulary ({theirs}) differs from the vocabulary of the data, {ours}. {remedy}")
