"""Gin files are found and composed, the shipped ones, a user's, and those of a run."""


def test_shipped_files_are_found_from_anywhere_with_what_they_include(toy, tmp_path):
    toy.write("parts/base.gin", "DIM = 32\nIDLE = 1\n", shipped=True, imports=False)
    toy.write("runs/small.gin", "include 'parts/base.gin'\n", shipped=True, imports=False)
    toy.write("parts/base.gin", "DIM = 99\n", imports=False)  # of the user's own: a shipped file does not mean this one
    result = toy.load("TASK=a", files=["run.gin", "runs/small.gin"]).configured()()
    assert result["model"].dim == 32
    toy.write("searched/mine.gin", "include 'beside.gin'\n", imports=False)
    toy.write("searched/beside.gin", "DIM = 64\n", imports=False)
    found = toy.load("TASK=a", files=["run.gin", "mine.gin"], search_paths=[str(tmp_path / "searched")])
    assert found.configured()()["model"].dim == 64


def test_a_missing_file_is_named_with_the_places_and_the_nearest_name(toy):
    toy.write("models/base.gin", "", shipped=True, imports=False)
    toy.write("runs/pretrain.gin", "", shipped=True, imports=False)
    message = toy.refused(files=["base.gin"], search_paths=["searched"])
    assert message == (
        "there is no gin file base.gin in the working directory, searched, the shipped gin_configs; "
        "did you mean models/base.gin?"
    )
    assert "did you mean runs/pretrain.gin?" in toy.refused(files=["runs/pretrian.gin"])
    assert toy.refused(files=["/no/such.gin"]) == "there is no gin file /no/such.gin"


def test_shipped_files_may_set_what_a_run_does_not_read(toy):
    text = "IDLE = 3\ntoy.linear.peak = 2.0\n"
    toy.write("extra.gin", text, shipped=True)
    assert "linear" not in toy.load("TASK=a", files=["run.gin", "extra.gin"]).text


def test_a_shipped_file_cannot_undo_a_users_setting_in_silence(toy):
    toy.write("mine.gin", "DIM = 16\n", imports=False)
    toy.write("late.gin", "DIM = 32\n", shipped=True, imports=False)
    assert (
        "DIM (mine.gin:1) is set again by gin_configs/late.gin:1, which is read later: give your file after"
        in toy.refused("TASK=a", files=["run.gin", "mine.gin", "late.gin"])
    )


def test_a_shipped_requirement_keeps_what_a_user_gave_before(toy):
    toy.write("mine.gin", "DIM = 16\n", imports=False)
    toy.write("late.gin", "DIM = %gin.REQUIRED\n", shipped=True, imports=False)
    assert toy.load("TASK=a", files=["run.gin", "mine.gin", "late.gin"]).configured()()["model"].dim == 16
    toy.write("early.gin", "WIDTH = 5\nSIZE = None\n", shipped=True, imports=False)
    toy.write("ask.gin", "SIZE = %gin.REQUIRED\ntoy.Model.dim = %SIZE\n", shipped=True)
    assert "SIZE is required" in toy.refused("TASK=a", files=["run.gin", "early.gin", "ask.gin"])


def test_shipped_files_that_set_a_missing_macro_are_named(toy):
    toy.write("models/family.gin", "MODEL = 3\n", shipped=True, imports=False)
    toy.write("models/small.gin", "include 'models/family.gin'\n", shipped=True, imports=False)
    toy.write("models/large.gin", "include 'models/family.gin'\n", shipped=True, imports=False)
    toy.write("runs/ask.gin", "MODEL = %gin.REQUIRED\n", shipped=True, imports=False)
    toy.write("mine.gin", "toy.train.model = %MODEL\n")
    assert (
        "nothing sets %MODEL: give a file that does before, such as --gin_file=models/large.gin (2 shipped"
        in toy.refused("TASK=a", files=["run.gin", "mine.gin"])
    )


def test_a_run_gives_its_model_and_task_but_not_its_set_up(toy, tmp_path):
    task = "MIXTURE_OR_TASK_NAME = 'trained_on'\nBATCH_SIZE = 512\ntoy.Source.task = %MIXTURE_OR_TASK_NAME\n"
    toy.write("task.gin", task + "toy.Source.seed = %BATCH_SIZE\ntoy.keeper.keep = 9\n")
    stored = toy.load("DIM=24", "MODEL_DIR=elsewhere", files=["run.gin", "task.gin"])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.gin").write_text(stored.text)
    text = """
        MIXTURE_OR_TASK_NAME = %gin.REQUIRED
        BATCH_SIZE = 32
        CHECKPOINT_PATH = %gin.REQUIRED
        toy.train.model = @toy.Model()
        toy.train.model_dir = %CHECKPOINT_PATH
        toy.train.data = @toy.Source()
        toy.train.extra = @toy.keeper
        toy.Source:
          task = %MIXTURE_OR_TASK_NAME
          split = 'validation'
    """
    toy.write("eval.gin", text, shipped=True)
    result = toy.load(files=["eval.gin"], run_directory=str(tmp_path / "run")).configured()()
    assert result["model"].dim == 24  # the run's
    assert (result["data"].task, result["data"].split, result["data"].seed) == ("trained_on", "validation", 0)
    assert result["model_dir"] == str(tmp_path / "run")
    assert result["extra"]("x") == ("x", 9)  # which eval.gin does not set up
