"""The vocabulary of a run, which commands make again from its directory, without the task and without TensorFlow."""

import importlib
import json
from typing import TYPE_CHECKING, Any

from t5x_like import paths
from t5x_like.data import tokenizer_files, vocabulary_digest, vocabulary_kind
from t5x_like.data.vocabulary_kind import VocabularyKind
from t5x_like.runtime.run_files import TOKENIZER, VOCABULARY
from t5x_like.training import checkpoint_choice, weight_files

if TYPE_CHECKING:
    from data_tasks.vocabularies.base import Vocabulary

_DIGEST, _KIND, _IDS, _PROBE = "digest", "kind", "ids", "probe"
# The argument of tasks, as in `SeqIOSource`.
_PATH = "vocabulary_path"


def store(model_dir: str, kind: VocabularyKind | None) -> None:
    """Adds the kind of a vocabulary to its digest in the run directory.

    Args:
      model_dir: the run directory.
      kind: the kind; None if the text has no single vocabulary.
    """
    if kind is not None:
        about = {**_read(model_dir), _KIND: kind.name, _IDS: kind.ids, _PROBE: kind.probe}
        paths.write_atomic(paths.join(model_dir, VOCABULARY), json.dumps(about) + "\n")


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
    # By name, as tasks are: this package does not depend on the shipped tasks and vocabularies.
    stored = importlib.import_module("data_tasks.vocabularies.stored")
    path = tokenizer_files.find(paths.join(model_dir, TOKENIZER))
    probe = about.get(_PROBE)
    for made in stored.candidates(about[_KIND], about[_IDS], path, guess=probe is not None):
        kind = vocabulary_kind.of_vocabulary(made)
        # The digest of files may count added tokens that are not pieces.
        digests = (vocabulary_digest.of_vocabulary(made), path and vocabulary_digest.of_path(path))
        if probe in (None, kind.probe) and kind.ids == about[_IDS] and about[_DIGEST] in digests:
            return made
    return None


def _model_dir(checkpoint_path: str) -> str:
    return checkpoint_choice.locate(checkpoint_path)[0].rpartition("/")[0]


def _read(model_dir: str) -> dict[str, Any]:
    path = paths.join(model_dir, VOCABULARY)
    return json.loads(paths.read_text(path)) if paths.is_file(path) else {}
