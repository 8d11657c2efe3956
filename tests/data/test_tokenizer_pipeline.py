"""Tasks that tokenize text live resume bit-exactly."""

import numpy as np
import pytest
import small_models

from t5x_like.data import specs
from t5x_like.data.seqio_feed import SeqIOSource


@pytest.fixture
def source(tmp_path):
    """Returns a function that makes a task on text, with the tokenizer of a directory."""
    lines = [f"the river {number} and a stone, don't wait {number * 7}!" for number in range(40)]
    (tmp_path / "text.txt").write_text("\n\n".join(lines))

    def make(task, directory):
        return SeqIOSource(
            mixture_or_task_name=task,
            task_feature_lengths={"inputs": 24, "targets": 24},
            batch_size=4,
            data_files=str(tmp_path / "text.txt"),
            vocabulary_path=str(directory),
        )

    return make


@pytest.mark.parametrize(
    ("write", "task", "spec"),
    [
        (small_models.write_bert, "text_files_masked_lm", specs.MASKED_LM),
        (small_models.write_gpt2, "text_files_causal_lm", specs.CAUSAL_LM),
    ],
)
def test_live_tokenization_resumes_bit_exactly(source, tmp_path, write, task, spec):
    write(tmp_path / "model")
    iterator = source(task, tmp_path / "model").host_iterator(spec)
    for _ in range(3):
        next(iterator)
    state = iterator.state()
    assert iterator.can_be_saved
    expected = [next(iterator) for _ in range(4)]
    resumed = source(task, tmp_path / "model").host_iterator(spec)
    resumed.restore(state)
    for batch, again in zip(expected, (next(resumed) for _ in expected), strict=True):
        assert batch.keys() == again.keys()
        for name, rows in batch.items():
            np.testing.assert_array_equal(again[name], rows)
    assert len(np.unique(np.concatenate([rows.ravel() for rows in expected[0].values()]))) > 10
