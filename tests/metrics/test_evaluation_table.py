"""The table of evaluations."""

from t5x_like.metrics.evaluation_table import Result, format_table


def result(step, settings, loss, **options):
    return Result(f"run/checkpoints/{step}", step, "f", settings, {"a task": {"loss": loss}}, {}, options)


def test_rows_of_the_same_settings_have_no_column_of_settings():
    assert format_table([result(2, "x", 3.0, BATCH_SIZE="4"), result(4, "x", 2.0, BATCH_SIZE="4")]).splitlines() == [
        *("## a task", "", "| checkpoint | loss |", "|---|---|", "| 2 | 3 |", "| 4 | 2 |"),
    ]


def test_rows_of_other_settings_state_what_differs():
    rows = [
        result(2, "x", 3.0, BATCH_SIZE="4", EVAL_STEPS="1", beams="1"),
        result(2, "y", 2.5, BATCH_SIZE="8", EVAL_STEPS="1", beams="1"),
        result(2, "z", 2.0, BATCH_SIZE="8", EVAL_STEPS="None", beams="1"),
    ]
    assert format_table(rows).splitlines()[2:] == [
        "| checkpoint | settings | loss |",
        "|---|---|---|",
        "| 2 | BATCH_SIZE=4, EVAL_STEPS=1 | 3 |",
        "| 2 | BATCH_SIZE=8, EVAL_STEPS=1 | 2.5 |",
        "| 2 | BATCH_SIZE=8, EVAL_STEPS=None | 2 |",
    ]


def test_settings_that_are_not_described_are_told_apart_by_their_digest():
    rows = [result(2, None, 3.0), result(2, "y", 2.5), result(2, "z", 2.0, beams="4"), result(2, "w", 1.0, beams="4")]
    assert [line.split(" | ")[1] for line in format_table(rows).splitlines()[4:]] == [
        *("(unknown)", "(y)", "beams=4 (z)", "beams=4 (w)"),
    ]
