"""Batch ramps: the published schedules, steps over some microbatches, and runs that resume within a ramp."""

import dataclasses
import math

import copying_run
import jax
import numerics
import numpy as np
import pytest
import recipes

from t5x_like import optimizers
from t5x_like.data import numbered
from t5x_like.data.feed import DataMismatchError, PrefetchingFeed
from t5x_like.data.mixing import Stages
from t5x_like.data.specs import ENCODER_DECODER
from t5x_like.errors import UserError
from t5x_like.metrics import read_metrics
from t5x_like.optimizers import schedules
from t5x_like.partitioning import Partitioner
from t5x_like.training import batch_ramp, program, run_feed
from t5x_like.training.batch_ramp import BatchShape, LinearRamp, Sizes, TimeRamp, TokenRamp
from t5x_like.training.recipe import Update

MICROBATCHES = 4


@pytest.mark.parametrize(("start", "microbatches", "steps", "total"), [(0.25, 16, 7812, 7812), (0.3, 10, 77, 100)])
def test_linear_ramp_rounds_up_to_microbatches(start, microbatches, steps, total):
    found = LinearRamp(start, steps).sizes(BatchShape(microbatches, 1, total))
    expected = [math.ceil(microbatches * min(1, start + (1 - start) * s / steps) - 1e-9) for s in range(total)]
    assert [found(step) for step in range(total)] == expected
    assert [found.before(step) for step in range(total)] == [sum(expected[:step]) for step in range(total)]
    assert LinearRamp(start, 0.77).sizes(BatchShape(10, 1, 100)) == LinearRamp(start, 77).sizes(BatchShape(10, 1, 100))


def test_token_ramp_equals_modernberts_thresholds():
    tokens, shape = 10_000, BatchShape(6, 40, 1000)
    # Each size lasts while the tokens so far are below a threshold that is proportional to the sum of sizes up to it.
    sizes, expected, read = list(range(2, 7)), [], 0
    for number, size in enumerate(sizes, 1):
        while (size == 6 and len(expected) < 200) or (size < 6 and read < tokens * sum(sizes[:number]) / sum(sizes)):
            expected.append(size)
            read += size * shape.tokens
    found = TokenRamp(tokens, start=2).sizes(shape)
    assert [found(step) for step in range(200)] == expected
    assert found.before(found.changes[-1]) * shape.tokens < tokens < found.before(found.changes[-1] + 20) * shape.tokens


@pytest.mark.parametrize(("hours", "seconds", "ramp", "microbatches"), [(24, 0.25, 0.6, 64), (0.01, 1.5, 1.0, 4)])
def test_time_ramp_equals_crammings_rule_for_steps_of_equal_microbatches(hours, seconds, ramp, microbatches):
    budget, elapsed, expected = hours * 3600, 0.0, []
    while elapsed < budget - 1e-6:
        expected.append(min(int(elapsed / (ramp * budget) * microbatches + 1e-9) + 1, microbatches))
        elapsed += expected[-1] * seconds
    found = TimeRamp(hours, seconds, ramp)
    sizes = found.sizes(BatchShape(microbatches, 1, 1))
    assert [sizes(step) for step in range(len(expected))] == expected
    assert found.total_steps(microbatches) == len(expected)


def test_schedule_by_time_reads_the_part_of_the_budget_that_is_spent():
    ramp = TimeRamp(0.01, 1.0, 0.5)  # 36 microbatches
    assert [ramp.sizes(BatchShape(4, 1, 1))(step) for step in range(14)] == [1] * 5 + [2] * 2 + [3] * 2 + [4] * 5
    spent = [0, 1, 2, 3, 4, 5, 7, 9, 12, 15, 19, 23, 27, 31, 35]
    assert ramp.total_steps(4) == len(spent)
    schedule = batch_ramp.by_time(schedules.triangle(1.0, total_steps=100), ramp=ramp, microbatches=4, total_steps=100)
    expected = [min(0.25 + n / 36, (1 - n / 36) * 4) for n in spent]
    np.testing.assert_allclose([schedule(step) for step in range(len(spent))], expected, rtol=1e-5)
    with pytest.raises(UserError, match="BATCH_RAMP=None: the learning rate is a schedule over the time"):
        batch_ramp.by_time(schedules.constant(), ramp=None, microbatches=4, total_steps=100)


def make(update, batch_size, **changes):
    data = copying_run.Copying(batch_size=batch_size)
    return copying_run.recipe(
        "unused", data=data, update=update, optimizer=optimizers.adamw(learning_rate=1e-2), **changes
    )


def one_step(recipe, batch):
    made = program.make_program(recipe)
    state, frozen = made.init(jax.random.key(0))
    state, pairs = made.train_step(state, frozen, made.partitioner.put_batch(batch, ENCODER_DECODER.axes))
    return jax.device_get(state.params), jax.device_get(pairs)


@pytest.mark.parametrize("used", [3, pytest.param(1, marks=pytest.mark.full)])
def test_step_equals_that_of_a_batch_of_its_rows_bit_for_bit(used):
    rows, shape = 2, {"dropout_rate": 0.1}
    model = dataclasses.replace(copying_run.CONFIG, **shape)
    whole = copying_run.Copying(batch_size=rows * used).make(1)
    ramped = make(Update(microbatches=MICROBATCHES, batch_ramp=LinearRamp()), rows * MICROBATCHES, model=model)
    params, pairs = one_step(ramped, batch_ramp.padded(whole, rows, MICROBATCHES))
    small = make(Update(microbatches=used), rows * used, model=model)
    expected, metrics = one_step(small, batch_ramp.padded(whole, rows, used))
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    assert pairs.pop("batch_fraction")[0] == used / MICROBATCHES
    for name in pairs:
        assert pairs[name] == metrics[name], name


@pytest.mark.full
@pytest.mark.parametrize("gather", ["per_use", "per_step"])
def test_one_program_computes_all_sizes_on_several_devices(gather):
    update = Update(microbatches=MICROBATCHES, batch_ramp=LinearRamp(), gather_parameters=gather)
    devices = Partitioner(devices=jax.devices()[:2], ici={"fsdp": 2}, rules="fsdp")
    made = program.make_program(make(update, 4 * MICROBATCHES, partitioner=devices))
    for used in (1, 2, 4):
        whole = copying_run.Copying(batch_size=4 * used).make(used)
        batch = batch_ramp.padded(whole, 4, MICROBATCHES)
        _, pairs = made.train_step(
            *made.init(jax.random.key(0)), made.partitioner.put_batch(batch, ENCODER_DECODER.axes)
        )
        small = make(Update(microbatches=used), 4 * used)
        _, expected = one_step(small, batch_ramp.padded(whole, 4, used))
        names = ("loss", "grad_norm", "param_norm", "tokens")
        numerics.assert_close(*({name: each[name][0] / each[name][1] for name in names} for each in (pairs, expected)))
    assert made.train_step._cache_size() == 1


class Units(copying_run.Copying):
    """Rows that depend on their number alone, whatever the size of a batch; seekable, as a cache."""

    def make(self, seed):
        first = (seed - 1) * self.batch_size
        rows = [copying_run.Copying(batch_size=1).make(1 + row) for row in range(first, first + self.batch_size)]
        mine = slice(*(self.batch_size * (self.shard[0] + k) // self.shard[1] for k in (0, 1)))
        return {name: np.concatenate([row[name] for row in rows])[mine] for name in rows[0]}

    def state_before(self, batches):
        return b"%d" % (self.batches_read - batches)


def rows_of(directory):
    names = ("step", "loss", "grad_norm", "batch_fraction")
    return [tuple(row[name] for name in names) for row in read_metrics(str(directory)) if row["split"] == "train"]


@pytest.mark.full
@pytest.mark.parametrize("source", [Units, copying_run.Copying])
def test_run_that_resumes_within_a_ramp_has_the_same_losses(tmp_path, source):
    ramp = {"batch_ramp": LinearRamp(0.25, 4), "microbatches": MICROBATCHES, "data": source(batch_size=8)}
    copying_run.run(tmp_path / "whole", total=6, evaluations=None, **ramp)
    assert [row[-1] for row in rows_of(tmp_path / "whole")] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    for total in (2, 6):
        copying_run.run(tmp_path / "parts", total=total, evaluations=None, **ramp)
    assert rows_of(tmp_path / "parts") == rows_of(tmp_path / "whole")


def test_rows_are_read_once_and_in_order_on_any_number_of_processes():
    sizes, data = Sizes(1, (1, 3)), Units(batch_size=8)  # units of 2 rows: 1, 2, 2, 3 of them
    expected = [row["encoder_input_tokens"] for row in (Units(batch_size=1).make(1 + row) for row in range(16))]
    for processes in (1, 2):
        iterators = [
            batch_ramp.host_iterator(data, ENCODER_DECODER, sizes, 4, process_index=index, process_count=processes)
            for index in range(processes)
        ]
        steps = [[next(each) for each in iterators] for _ in range(4)]
        assert [sum(len(part["encoder_input_tokens"]) for part in step) for step in steps] == [2, 4, 4, 6]
        units = [  # a process has a part of each unit
            part["encoder_input_tokens"].reshape(-1, 2 // processes, 6) for step in steps for part in step
        ]
        read = np.concatenate(
            [np.concatenate(units[at : at + processes], axis=1) for at in range(0, len(units), processes)]
        )
        np.testing.assert_array_equal(read.reshape(16, 6), np.concatenate(expected))
        # The position two steps before the last one, as a feed with two prefetched batches stores it.
        position = iterators[0].state_before(2)
        assert position[8:] == b"3"
        iterators[0].restore(position)
        np.testing.assert_array_equal(next(iterators[0])["encoder_input_tokens"], steps[2][0]["encoder_input_tokens"])


class Numbers(numbered.NumberedSource):
    name = "numbers"

    def batch(self, spec, number, rows):
        return {"x": number * self.batch_size + np.array(rows)}


@pytest.mark.parametrize("ramped", [False, True])
def test_fork_reads_other_data_from_its_beginning_if_one_of_both_runs_has_a_ramp(ramped, caplog):
    data, shard = Numbers(batch_size=8), {"process_index": 0, "process_count": 1}
    sources = [
        data.host_iterator(ENCODER_DECODER, **shard),
        batch_ramp.host_iterator(data, ENCODER_DECODER, Sizes(1, (2,)), 4, **shard),
    ]
    feeds = [PrefetchingFeed(source, lambda batch: batch) for source in sources]
    for feed in feeds:
        next(feed)
    old, new = feeds[::-1] if ramped else feeds
    with pytest.raises(DataMismatchError, match="not a position in numbered batches"):
        run_feed.restore_position(new, old.state(), reason=None)
    run_feed.restore_position(new, old.state(), reason="the fork")
    assert "because of the fork, the data starts from its beginning" in caplog.text
    rows = 8 if ramped else 2
    np.testing.assert_array_equal(next(new)["x"], np.arange(rows, 2 * rows))  # the second batch: nothing has moved
    for feed in feeds:
        feed.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"microbatches": 1}, "BATCH_RAMP: a batch grows by microbatches, and MICROBATCHES=1. Give more."),
        ({"batch_ramp": TokenRamp(100, start=5)}, "BATCH_RAMP_START=5: not a number of microbatches from 1 to MICROB"),
        ({"batch_ramp": TokenRamp(100, start=1.5)}, "BATCH_RAMP_START=1.5: not a number of microbatches from 1 to MI"),
        ({"continuous": True}, "BATCH_RAMP: the rows of rows to copy continue in the next batch"),
        ({"rates": Stages(stages={0: {"a": 1}})}, "BATCH_RAMP: the rates of rows to copy change at steps of"),
    ],
)
def test_ramps_that_do_not_fit_raise(changes, message):
    data = copying_run.Copying(batch_size=8)
    for name in ("continuous", "rates"):
        setattr(data, name, changes.pop(name, None))
    update = Update(**{"microbatches": 4, "batch_ramp": LinearRamp()} | changes)
    recipe = recipes.change(copying_run.recipe("unused"), data=data, update=update)
    with pytest.raises(UserError, match=message):
        program.make_program(recipe)


def test_settings_out_of_range_raise():
    with pytest.raises(UserError, match=r"BATCH_RAMP_START=0: not in \(0, 1\]"):
        LinearRamp(0)
    for tokens in (0, float("inf"), "50B"):
        with pytest.raises(UserError, match=f"BATCH_RAMP_TOKENS={tokens!r}: not a positive number"):
            TokenRamp(tokens)
    for setting, arguments in (
        ("BUDGET_HOURS=-1", (-1, 0.1)), ("SECONDS_PER_MICROBATCH='x'", (24, "x")), ("BATCH_RAMP_TIME=0", (24, 0.1, 0)),
    ):  # fmt: skip
        with pytest.raises(UserError, match=f"{setting}: not "):
            TimeRamp(*arguments)
