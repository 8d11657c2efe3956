"""Rows of 4,096 tokens of whole documents: live, and from a cache."""

import collections
import itertools

import numpy as np
import pytest

from t5x_like.data.cached import CachedSource, manifest
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.objectives.masked_lm import MaskedLM

pytestmark = pytest.mark.full

LENGTHS = {"inputs": 4096, "targets": 615}
TASK = "text_files_long_documents"


@pytest.fixture
def books(tmp_path):
    """Returns task arguments of files with a document each: one of more than two rows, and two of less than a row."""
    rng = np.random.default_rng(0)
    for name, words in (("long", 9000), ("short", 700), ("shorter", 500), ("held_out", 300)):
        text = " ".join(rng.choice(["module", "function", "returns", "value", "list", "string"], words))
        (tmp_path / f"{name}.txt").write_text(text)
    patterns = {"pattern": str(tmp_path / "*.txt"), "validation_pattern": str(tmp_path / "held_out.txt")}
    return patterns | {"max_document_bytes": 1 << 20}


def pieces(batches):
    """Returns the number of times that each masked or unmasked piece of a document is in rows, and the rows."""
    found, rows = collections.Counter(), 0
    for batch in batches:
        tokens, segments = np.array(batch["encoder_input_tokens"]), batch["encoder_segment_ids"]
        assert tokens.shape == (1, LENGTHS["inputs"])
        is_target = batch["masked_weights"][0] > 0
        assert 0 < is_target.sum() <= LENGTHS["targets"]
        tokens[0, batch["masked_positions"][0][is_target]] = batch["masked_targets"][0][is_target]
        rows += 1
        for segment in range(1, segments.max() + 1):
            found[tuple(tokens[0, segments[0] == segment].tolist())] += 1
    return found, rows


def test_cached_rows_have_the_pieces_of_live_rows(books, tmp_path, run_command):
    options = {"task_feature_lengths": LENGTHS, "batch_size": 1, "pack": True, "shuffle": False}
    live = SeqIOSource(mixture_or_task_name=TASK, task_arguments=books, num_epochs=1, **options)
    expected, rows = pieces(live.host_iterator(MaskedLM().features))
    assert rows == 3 and len(expected) == 5 and max(map(len, expected)) == LENGTHS["inputs"]
    command = ["cache", "--gin_file=models/longformer/tiny.gin", "--gin_file=runs/longformer.gin", "--processes=1"]
    command += [f"--gin.TASK_ARGUMENTS={books}", "--gin.NUM_SHARDS=1", f"--cache_dir={tmp_path / 'cache'}"]
    code, output = run_command(command)
    assert code == 0, output
    cached = CachedSource(cache_dir=str(tmp_path / "cache"), **options)
    assert manifest.read(str(tmp_path / "cache" / "train")).rows_of_passes == [rows]
    found, _ = pieces(itertools.islice(cached.host_iterator(MaskedLM().features), rows))
    assert found == expected
