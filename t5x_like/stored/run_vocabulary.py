"""The vocabulary of a run, which commands make again from its directory, without the task and without TensorFlow."""

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from t5x_like import paths
from t5x_like.checkpoints import checkpoint_choice, weight_files
from t5x_like.data import task_arguments
from t5x_like.errors import UserError
from t5x_like.runtime.run_files import TOKENIZER, VOCABULARY
from t5x_like.vocabularies import stored as stored_vocabularies
from t5x_like.vocabularies import tokenizer_files, vocabulary_digest, vocabulary_kind
from t5x_like.vocabularies.vocabulary_kind import VocabularyKind

if TYPE_CHECKING:
    from t5x_like.vocabularies.base import Vocabulary

_DIGEST, _KIND, _IDS, _PROBE, _TASK, _ADD_EOS = "digest", "kind", "ids", "probe", "task", "add_eos"
# Name -> SHA-256 of the files in `MODEL_DIR/tokenizer`.
_FILES = "files"
# A hash of all other entries. Runs of earlier versions have none.
_HASH = "hash"
_KNOWN = {_DIGEST, _KIND, _IDS, _PROBE, _TASK, _ADD_EOS, _FILES, _HASH}
# The argument of tasks and of `SeqIOSource`.
_PATH = task_arguments.VOCABULARY


def store(
    model_dir: str, digest: str | None, kind: VocabularyKind | None, task: str, add_eos: Mapping[str, bool]
) -> None:
    """Writes what is known of the vocabulary of a run: its digest, its kind, its files, and which texts end in EOS.

    The copy of the tokenizer, if the run has one, must be complete.

    Args:
      model_dir: the run directory.
      digest: the digest of the vocabulary; None if it is not known.
      kind: the kind; None if the text has no single vocabulary.
      task: the name of the task.
      add_eos: task feature -> whether its text ends in EOS.
    """
    about: dict[str, Any] = {} if digest is None else {_DIGEST: digest}
    if kind is not None:
        about |= {_KIND: kind.name, _IDS: kind.ids, _PROBE: kind.probe, _TASK: task, _ADD_EOS: dict(add_eos)}
    if files := _hashes(model_dir):
        about[_FILES] = files
    if about:
        about[_HASH] = _hash(about)
        paths.write_atomic(paths.join(model_dir, VOCABULARY), json.dumps(about) + "\n")


def read_digest(model_dir: str) -> str | None:
    """Returns the stored digest of the vocabulary of a run; None if the run has stored none."""
    return _read(model_dir).get(_DIGEST)


def check_ids_are_equal(model_dir: str, kind: VocabularyKind | None) -> None:
    """Checks that the text of a run to resume has the token ids that it had; see `stored.check_resumed`.

    Args:
      model_dir: the run directory.
      kind: the kind of the vocabulary of the data; None if it is not known.
    """
    if kind is not None and kind.name != (earlier := _read(model_dir).get(_KIND)):
        stored_vocabularies.check_resumed(earlier, tokenizer_files.find(paths.join(model_dir, TOKENIZER)))


def of_text(checkpoint_path: str, data: Any) -> "Vocabulary | None":
    """Returns the vocabulary of a run for text that needs no preprocessors; see `load`.

    Args:
      checkpoint_path: a run directory, one of its checkpoints, or another path of weights.
      data: the task, or a source with only a vocabulary. If it names the files of another vocabulary, the result is
        None; if it names none, the text has the vocabulary of the run, whatever the task.
    """
    if (vocabulary := load(checkpoint_path)) is None:
        return None
    named = [getattr(data, "vocabulary_path", None), (getattr(data, "task_arguments", None) or {}).get(_PATH)]
    digests = {vocabulary_digest.of_vocabulary(vocabulary), _read(_model_dir(checkpoint_path))[_DIGEST]}
    return vocabulary if all(vocabulary_digest.of_path(path) in digests for path in named if path) else None


def inputs_eos(checkpoint_path: str, data: Any) -> bool | None:
    """Returns whether the `inputs` of a run end with EOS; None if its task has none, or if `data` is another task.

    Args:
      checkpoint_path: a run directory, or one of its checkpoints.
      data: the task, or a source without one.
    """
    about = _read(_model_dir(checkpoint_path))
    if getattr(data, "mixture_or_task_name", None) not in (None, "", about.get(_TASK)):
        return None
    return about.get(_ADD_EOS, {}).get("inputs")


def load(checkpoint_path: str) -> "Vocabulary | None":
    """Makes the vocabulary of a run.

    Args:
      checkpoint_path: a run directory, one of its checkpoints, or another path of weights.

    Returns:
      The vocabulary, with the token ids of the run; None if only its task knows it, or if the path is not a run.

    Raises:
      UserError: a file of the stored vocabulary is invalid.
    """
    if weight_files.is_huggingface(checkpoint_path) or weight_files.find_t5x(checkpoint_path):
        return None
    model_dir = _model_dir(checkpoint_path)
    about = _read(model_dir)
    if not {_DIGEST, _KIND, _IDS} <= about.keys():
        return None
    path = tokenizer_files.find(paths.join(model_dir, TOKENIZER))
    probe = None if about[_KIND] in stored_vocabularies.OTHER_PROBES else about.get(_PROBE)
    for made in stored_vocabularies.candidates(about[_KIND], about[_IDS], path, guess=probe is not None):
        kind = vocabulary_kind.of_vocabulary(made)
        # The digest of files may count added tokens that are not pieces.
        digests = (vocabulary_digest.of_vocabulary(made), path and vocabulary_digest.of_path(path))
        if probe in (None, kind.probe) and kind.ids == about[_IDS] and about[_DIGEST] in digests:
            return made
    return None


def _model_dir(checkpoint_path: str) -> str:
    return checkpoint_choice.run_of(checkpoint_path)


def _read(model_dir: str) -> dict[str, Any]:
    """Returns what `store` has written, after a comparison with the files of the tokenizer."""
    path = paths.join(model_dir, VOCABULARY)
    if not paths.is_file(path):
        return {}
    try:
        about = dict(json.loads(paths.read_text(path)))
        if unknown := sorted(about.keys() - _KNOWN):
            raise ValueError(f"unknown key {unknown[0]!r:.80}")
        if about.get(_HASH, expected := _hash(about)) != expected:
            raise ValueError("its entries do not match their hash")
        # Runs of earlier versions have no hashes.
        stored = dict(about.get(_FILES) or {})
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: damaged, {error}. Restore it from a copy of the run.") from error
    if not paths.exists(paths.join(model_dir, TOKENIZER)):
        return about  # nothing reads the copy; the digest recognizes a vocabulary that is given instead
    found = _hashes(model_dir) if stored else {}
    for name, digest in sorted(stored.items()):
        if found.get(name) != digest:
            raise UserError(
                f"{paths.join(model_dir, TOKENIZER, name)}: {'changed' if name in found else 'missing'} since the run "
                f"stored it. Restore it from a copy of the run; if the change is intended, delete {path}."
            )
    return about


def _hash(about: Mapping[str, Any]) -> str:
    entries = {name: value for name, value in about.items() if name != _HASH}
    return hashlib.blake2b(json.dumps(entries, sort_keys=True).encode(), digest_size=8).hexdigest()


def _hashes(model_dir: str) -> dict[str, str]:
    directory = paths.join(model_dir, TOKENIZER)
    names = paths.listdir(directory) if paths.exists(directory) else ()
    files = {name: file for name in names if paths.is_file(file := paths.join(directory, name))}
    return {name: hashlib.sha256(paths.read_bytes(file)).hexdigest() for name, file in files.items()}
