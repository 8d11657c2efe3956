"""A model that is open for predictions from texts in memory."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like.data.records import Record
from t5x_like.inference import predictors, runner
from t5x_like.inference.records import TEXT_FIELD
from t5x_like.stored.loaded import Loaded


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenModel(Loaded):
    """A model that predicts; `loading.open_model` opens one."""

    def predict(
        self,
        texts: Sequence[str | Mapping[str, Any]],
        *,
        mode: str = "predict",
        batch_size: int = 32,
        seed: int = 0,
    ) -> list[dict[str, Any]]:
        """Predicts from texts in memory, or scores them, as `infer` does for the records of a file.

        The parameters are read by the first call, and stay in memory.

        Args:
          texts: Texts, or records: the columns of the task, or `inputs` and, to score, `targets`, as text or token ids.
          mode: `predict` or `score`.
          batch_size: Examples per batch.
          seed: Seed of sampling.

        Returns:
          The fields that `infer` adds to each record, such as `prediction`.

        Raises:
          UserError: A text cannot be encoded, or the settings do not fit together.
        """
        if not texts:
            return []
        are_texts = all(isinstance(text, str) for text in texts)
        records = [
            Record(line, {TEXT_FIELD: text} if isinstance(text, str) else dict(text))
            for line, text in enumerate(texts, 1)
        ]
        predictor = predictors.predictor_for(self, predictors.TextOptions(mode=mode, decoding=self.decoding))
        path = "texts.txt" if are_texts else "texts.jsonl"  # for messages; the suffix says what the records are
        examples = predictors.make_examples(self, predictor, path, records)
        # The end of a generated text depends on whether the records are token ids.
        key = mode, getattr(predictor, "decoding", None), batch_size, seed
        if key not in self._runners:
            if mode not in self._read:
                self._read[mode] = predictor.load()
            self._runners[key] = runner.Runner(predictor, self._read[mode], self.partitioner, batch_size, seed)
        return [dict(fields) for fields in runner.fields_of(self._runners[key], examples, len(records))[0]]

    @functools.cached_property
    def _read(self) -> dict[str, Any]:
        """Mode -> the parameters that its predictor reads."""
        return {}

    @functools.cached_property
    def _runners(self) -> dict[tuple, runner.Runner]:
        return {}
