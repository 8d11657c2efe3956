"""A grid of runs is trained, resumed and compared."""

import dataclasses
import fnmatch
import json
import textwrap
import types

import pytest

from t5x_like import ablate, config
from t5x_like.errors import UserError
from t5x_like.reporting.ablation import Cell, plot, plot_scores, plot_trained, table
from t5x_like.runtime import protocol


def cell(row, column, loss, parameters=10, seed=None):
    curve, values = ((10, loss + 1), (20, loss)), {"loss": loss, "accuracy": 1 / loss}
    return Cell(row, column, seed, "loss", parameters, parameters, curve, values, 0.1, 1e9)


def by(metric, cells):
    return [dataclasses.replace(cell, metric=metric) for cell in cells]


CELLS = [cell("a", "left", 2.0), cell("a", "right", 4.0), cell("b", "left", 2.5, 20), cell("b", "right", 3.0, 20)]


def test_best_value_of_each_column_is_bold():
    lines = table(CELLS, title="Some grid").splitlines()
    assert lines[0] == "## Some grid" and "loss after 20 steps" in lines[2]
    assert lines[4:] == [
        "| | parameters | left | right |",
        "|---|---|---|---|",
        "| a | 10 | **2.000** | 4.000 |",
        "| b | 20 | 2.500 | **3.000** |",
    ]
    assert "| a | 10 | **0.500** | 0.250 |" in table(by("accuracy", CELLS))


def test_table_of_incomplete_grid_has_empty_cells():
    lines = table([CELLS[0], CELLS[1], CELLS[3]]).splitlines()
    assert "| a | 10 | 2.000 | 4.000 |" in lines and "| b | 20 |  | **3.000** |" in lines


def test_larger_values_of_task_metrics_are_best():
    cells = [dataclasses.replace(cell, values={"task/f1": cell.values["loss"]}) for cell in CELLS]
    by_f1 = table(by("task/f1", cells)).replace("task/f1", "loss")
    assert table(CELLS).replace("**", "") == by_f1.replace("**", "") and table(CELLS) != by_f1
    assert table(by("f1", cells)).replace("f1", "loss") == by_f1


def test_table_of_several_seeds_has_mean_and_standard_deviation():
    losses = {("a", 0): 1.0, ("a", 1): 2.0, ("a", 2): 3.0, ("b", 0): 2.5, ("b", 1): 2.5, ("b", 2): 2.5}
    lines = table([cell(row, "left", loss, seed=seed) for (row, seed), loss in losses.items()]).splitlines()
    assert "mean ± standard deviation of 3 seeds" in lines[2]
    assert lines[6:] == ["| a | 10 | **2.000 ± 1.000** |", "| b | 10 | 2.500 ± 0.000 |"]


def test_rows_of_different_lengths_state_their_steps():
    longer = dataclasses.replace(CELLS[2], curve=((10, 3.0), (40, 2.5)))
    lines = table([CELLS[0], longer]).splitlines()
    assert lines[2].startswith("Held-out loss at the end of training;")
    assert lines[6:] == ["| a, 20 steps | 10 | **2.000** |", "| b, 40 steps | 20 | 2.500 |"]


def test_table_of_cells_that_start_from_another_column():
    fine_tuned = by("accuracy", [cell("a", "task", 2.0, 11), cell("b", "task", 4.0, 21), cell("c", "task", 5.0, 31)])
    lines = table([CELLS[0], CELLS[2], *fine_tuned], "left").splitlines()
    assert lines[4:] == [
        "| | parameters | left, loss | task, accuracy | left, ms/step |",
        "|---|---|---|---|---|",
        "| a | 10 | 2.000 | **0.500** | 100 |",
        "| b | 20 | 2.500 | 0.250 | 100 |",
        "| c | 31 |  | 0.200 |  |",
    ]


def test_table_of_frozen_rows_has_the_share_of_trained_parameters():
    lines = table([CELLS[0], dataclasses.replace(CELLS[2], trained=5)]).splitlines()
    assert lines[4:] == [
        "| | parameters | trained | left |",
        "|---|---|---|---|",
        "| a | 10 | 100.00% | **2.000** |",
        "| b | 20 | 25.00% | 2.500 |",
    ]


def test_plots_are_pngs(tmp_path):
    cells = [*CELLS, cell("a", "left", 3.0, seed=1), cell("c", "right", 3.0)]
    cells.append(dataclasses.replace(CELLS[0], row="of one step", seconds_per_step=None))
    plot(cells, str(tmp_path / "curves.png"))
    plot_scores(cells, "left", str(tmp_path / "scores.png"))
    plot_trained([CELLS[0], dataclasses.replace(CELLS[2], trained=5)], str(tmp_path / "trained.png"))
    for name in ("curves.png", "scores.png", "trained.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


TINY = {
    "VOCAB_SIZE": 1024,
    "EMBED_DIM": 8,
    "MLP_DIM": 8,
    "NUM_HEADS": 2,
    "HEAD_DIM": 4,
    "LAYERS": 2,
    "HALF_LAYERS": 1,
    "BATCH_SIZE": 8,
    "TRAIN_STEPS": 2,
    "WARMUP_STEPS": 1,
    "EVAL_PERIOD": 2,
    "EVAL_STEPS": 1,
    "LM_LENGTHS": {"targets": 16},
    "PREFIX_LM_LENGTHS": {"inputs": 16, "targets": 16},
}

SHARED_LM = ("models/t5_study/shared.gin", "studies/encoder_decoder_lm.gin")


@pytest.mark.full
def test_ablation_trains_and_compares_cells_and_resumes(monkeypatch, tmp_path):
    grid = {
        "language model": {"LM": ("models/t5_study/decoder.gin", "studies/language_model_lm.gin")},
        "half the layers": {"LM": ("models/t5_study/six_layers.gin", "studies/encoder_decoder_lm.gin")},
        "one step": {"LM": (*SHARED_LM, "TRAIN_STEPS=1", "EVAL_PERIOD=1", "WARMUP_STEPS=0")},
    }
    arguments = {"grid": grid, "output_dir": str(tmp_path), "gin_files": ["studies/small.gin"], "settings": TINY}
    cells = ablate.ablate(**arguments)
    assert [(cell.row, cell.curve[-1][0]) for cell in cells] == [*((row, 2) for row in list(grid)[:2]), ("one step", 1)]
    assert cells[1].seconds_per_step > 0 and cells[2].seconds_per_step is None
    assert cells[1].parameters > cells[0].parameters
    assert {"language_model-lm", "half_the_layers-lm", "table.md", "results.json"} <= {
        path.name for path in tmp_path.iterdir()
    }
    written = (tmp_path / "language_model-lm/metrics.jsonl").read_text()
    with monkeypatch.context() as context:
        context.setattr(config.Resolved, "configured", lambda run: pytest.fail("a finished run is trained"))
        again = ablate.ablate(**arguments)
    assert again == cells
    assert (tmp_path / "language_model-lm/metrics.jsonl").read_text() == written
    results = json.loads((tmp_path / "results.json").read_text())
    assert [entry["row"] for entry in results] == list(grid)


@pytest.mark.parametrize(
    ("stopped_by", "supervised", "expected"), [("SIGINT", "", 130), ("SIGTERM", "", 0), ("SIGINT", "1", 75)]
)
def test_exit_code_of_a_stopped_ablation_is_that_of_its_run(
    monkeypatch, tmp_path, run_command, stopped_by, supervised, expected
):
    for name in protocol.SUPERVISORS:
        monkeypatch.setenv(name, supervised)
    run = types.SimpleNamespace(
        text="", configured=lambda: lambda run_config: types.SimpleNamespace(stopped_by=stopped_by, step=3)
    )
    monkeypatch.setattr(ablate, "resolve_cells", lambda **_: [("a", "LM", None, str(tmp_path), run)])
    code, output = run_command(["ablate", f"--output={tmp_path}"])
    assert f"ablate: stopped by {stopped_by} in a, LM. The same command resumes from step 3." in output
    assert code == expected


def test_error_in_any_cell_raises_before_training(tmp_path):
    (tmp_path / "wrong.gin").write_text(
        textwrap.dedent("""
            include 'models/t5_study/shared.gin'
            include 'studies/encoder_decoder_lm.gin'
            EMBED_DIMM = 3
        """)
    )
    grid = {"a": {"LM": SHARED_LM}, "b": {"LM": str(tmp_path / "wrong.gin")}}
    with pytest.raises(ValueError, match="EMBED_DIMM"):
        ablate.ablate(grid=grid, output_dir=str(tmp_path / "out"), settings={"TRAIN_STEPS": 1})
    assert not (tmp_path / "out").exists()


def test_setting_that_no_cell_uses_raises(tmp_path):
    grid = {"a": {"LM": SHARED_LM}}
    settings = {"TRAIN_STEPS": 1, "LEARNING_RATES": 1}
    with pytest.raises(ValueError, match="no cell of the grid uses LEARNING_RATES. Did you mean LEARNING_RATE?"):
        ablate.ablate(grid=grid, output_dir=str(tmp_path / "out"), settings=settings)
    assert not (tmp_path / "out").exists()


def test_seeds_and_settings_of_a_cell(tmp_path):
    grid = {"a": {"LM": (*SHARED_LM, "LEARNING_RATE=0.5")}}
    runs = ablate.resolve_cells(grid=grid, output_dir="out", settings={"TRAIN_STEPS": 1}, seeds=(3, 4))
    assert [(seed, directory) for _, _, seed, directory, _ in runs] == [(3, "out/a-lm-seed_3"), (4, "out/a-lm-seed_4")]
    assert all("LEARNING_RATE = 0.5" in run.text for *_, run in runs)
    assert "SEED = 3" in runs[0][-1].text and "SEED = 4" in runs[1][-1].text


def test_other_columns_start_from_the_run_of_the_initial_column():
    grid = {"a": {"task": SHARED_LM, "first": SHARED_LM}, "b": {"task": SHARED_LM}}
    runs = ablate.resolve_cells(grid=grid, output_dir="out", seeds=(3, 4), initial_column="first")
    names = [directory for _, _, _, directory, _ in runs]
    assert names == ["out/a-first-seed_3", *(f"out/{row}-task-seed_{seed}" for row in "ab" for seed in (3, 4))]
    initial = "INITIAL_CHECKPOINT_PATH = 'out/a-first-seed_3'"
    assert [initial in run.text for *_, run in runs] == [False, True, True, False, False]


def test_files_of_a_column_come_before_those_of_its_cells():
    columns = {"LM": SHARED_LM, "more": (*SHARED_LM, "LEARNING_RATE=0.25", "WARMUP_STEPS=7")}
    grid = {"plain": (), "fast": "LEARNING_RATE=0.5", "some": {"more": ()}}
    runs = ablate.resolve_cells(grid=grid, columns=columns, output_dir="out", settings={"TRAIN_STEPS": 1})
    found = {(row, column): run.text for row, column, *_, run in runs}
    assert list(found) == [*((row, column) for row in ("plain", "fast") for column in columns), ("some", "more")]
    assert "LEARNING_RATE = 0.25" in found["plain", "more"] and "LEARNING_RATE = 0.5" in found["fast", "more"]
    assert "WARMUP_STEPS = 7" in found["fast", "more"] and "LEARNING_RATE = 0.5" in found["fast", "LM"]


def test_patterns_of_columns_give_files_to_the_cells_that_they_match():
    columns = {"LM": SHARED_LM, "LM, fast": (*SHARED_LM, "LEARNING_RATE=0.25")}
    grid = {"a": {"first": SHARED_LM, "*": "WARMUP_STEPS=7", "*, fast": "SEED=3", "LM": "SEED=4"}, "b": {"L*M": ()}}
    runs = ablate.resolve_cells(grid=grid, columns=columns, output_dir="out", settings={"TRAIN_STEPS": 1})
    found = {(row, column): run.macros for row, column, *_, run in runs}
    assert list(found) == [("a", "first"), ("a", "LM"), ("a", "LM, fast"), ("b", "LM")]
    assert [found["a", column]["SEED"] for column in columns] == [4, 3]
    assert all(found["a", column]["WARMUP_STEPS"] == 7 for column in columns)
    assert found["a", "first"]["WARMUP_STEPS"] != 7 and found["a", "LM, fast"]["LEARNING_RATE"] == 0.25
    with pytest.raises(UserError, match=r"'M\*' of 'a' matches none of LM, LM, fast"):
        ablate.resolve_cells(grid={"a": {"M*": ()}}, columns=columns, output_dir="out")


def test_columns_that_no_row_has_raise(tmp_path):
    arguments = {"grid": {"a": {"LM": SHARED_LM}}, "output_dir": str(tmp_path / "out")}
    with pytest.raises(UserError, match=r"INITIAL_COLUMN='first': not a column of the grid \(LM\)"):
        ablate.ablate(**arguments, initial_column="first")
    with pytest.raises(UserError, match="METRIC={'lm': 'loss'}: LM, lm: missing, or not a column. Give one"):
        ablate.ablate(**arguments, metric={"lm": "loss"})
    assert not (tmp_path / "out").exists()


def test_bert_ablations_fine_tune_models_of_their_size():
    study = config.load(
        "t5x_like.ablate.ablate", files=["studies/bert_ablations.gin"], bindings=[("OUTPUT_DIR", "'bert_ablations'")]
    )
    arguments = {name: value for name, value in study.build().items() if name not in ("metric", "title")}
    runs = ablate.resolve_cells(**arguments)
    assert len(runs) == 26
    sizes, pretrained = ("MODEL", "LAYERS", "EMBED_DIM", "NUM_HEADS", "HEAD_DIM"), {}
    for row, column, _, directory, run in runs:
        initial, model = run.macros["INITIAL_CHECKPOINT_PATH"], [run.macros[name] for name in sizes]
        if column == "pretraining":
            pretrained[directory] = model
        else:
            assert pretrained[initial] == model, (row, column)


def test_word_models_fine_tune_the_model_that_they_pretrained():
    study = config.load(
        "t5x_like.ablate.ablate",
        files=["studies/words.gin"],
        bindings=[("OUTPUT_DIR", "'out'"), ("SEEDS", "(0,)")],
    )
    arguments = {name: value for name, value in study.build().items() if name not in ("metric", "title")}
    columns = ("pretraining", "STS-B, frozen", "WNUT-17")
    arguments["columns"] = {name: files for name, files in arguments["columns"].items() if name in columns}
    arguments["grid"] = {
        row: {key: files for key, files in cells.items() if fnmatch.filter(columns, key)}
        for row, cells in arguments["grid"].items()
    }
    runs = ablate.resolve_cells(**arguments)
    assert len(runs) == 20
    pretrained = {row: run.macros for row, column, *_, run in runs if column == "pretraining"}
    assert set(pretrained) == {"ELMo", "skip-thoughts", "LM-LSTM", "BERT"}
    for row, column, _, _, run in runs:
        assert (run.macros.get("FROZEN") == "^model/") == column.endswith(", frozen"), (row, column)
        if row in pretrained and row != "ELMo":  # ELMo reads characters of other words
            assert run.macros["VOCABULARY_PATH"] == pretrained[row]["VOCABULARY_PATH"], (row, column)


def test_seeds_and_names_that_give_no_directories_of_their_own_raise():
    for seeds in (3, ()):
        with pytest.raises(UserError, match="not a list of seeds. Give a tuple such as"):
            ablate.resolve_cells(grid={"a": {"LM": SHARED_LM}}, output_dir="out", seeds=seeds)
    with pytest.raises(UserError, match="GRID: 2 cells have MODEL_DIR=out/bert-lm. Give rows and columns names"):
        ablate.resolve_cells(grid={"BERT": {"LM": SHARED_LM}, "BERT+": {"LM": SHARED_LM}}, output_dir="out")


def test_invalid_grid_raises(tmp_path):
    with pytest.raises(ValueError, match="the grid is empty"):
        ablate.ablate(grid={}, output_dir=str(tmp_path))
    with pytest.raises(UserError, match="GRID={'a': 'runs/pretrain.gin'}: 'a' is not column -> gin files. Give"):
        ablate.ablate(grid={"a": "runs/pretrain.gin"}, output_dir=str(tmp_path))
    with pytest.raises(UserError, match=r"GRID: \('a', 5\) are not names of a row and a column"):
        ablate.ablate(grid={"a": {5: "runs/pretrain.gin"}}, output_dir=str(tmp_path))
