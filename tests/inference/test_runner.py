"""Batches of similar length, in the order of the records, with few compilations."""

import jax.numpy as jnp
import numpy as np

from t5x_like.data.records import Record
from t5x_like.decoding.score import Scored
from t5x_like.inference.codec import Codec
from t5x_like.inference.examples import TextExamples
from t5x_like.inference.layout import Layout
from t5x_like.inference.runner import Runner
from t5x_like.partitioning import Partitioner

LENGTHS = {"inputs": 64, "targets": 8}


class Sums:
    """Computes a number of each row, and counts how often it is compiled."""

    def __init__(self):
        self.shapes = []

    def compute(self, params, batch, example_ids, key):
        self.shapes.append(batch["encoder_input_tokens"].shape)
        sums = jnp.sum(batch["encoder_input_tokens"], axis=1) * params
        return Scored(log_probability=sums, tokens=example_ids, greedy=sums > 0)


def test_results_are_in_order_and_one_program_is_compiled_per_length():
    lengths = np.random.default_rng(0).integers(1, 65, 50)
    records = [Record(1, {"inputs": [index + 1] * length, "targets": [1]}) for index, length in enumerate(lengths)]
    examples = TextExamples("q.jsonl", records, Codec(None, LENGTHS), Layout(), LENGTHS, "score")
    predictor, partitioner = Sums(), Partitioner(rules="dp", ici={"data": 8})
    runner, shares = Runner(predictor, jnp.int32(2), partitioner, 6), []
    results = runner.run(examples, 10, 50, lambda share, tokens: shares.append((share, tokens)))
    assert [example.record for example, _ in results] == list(range(10, 50))
    assert [int(found.log_probability) for _, found in results] == [2 * (i + 1) * lengths[i] for i in range(10, 50)]
    assert [int(found.tokens) for _, found in results] == list(range(10, 50))  # ids of the examples
    # Six rows are rounded up to the eight shards; the batches are as long as the longest of eight similar rows.
    assert sorted(predictor.shapes) == [(8, 16), (8, 32), (8, 64)]
    assert sorted(runner.lengths) == [16, 32, 64] and sum(runner.lengths.values()) == 5
    assert [tokens for _, tokens in shares] == [8] * 5 and sum(share for share, _ in shares) == 1
