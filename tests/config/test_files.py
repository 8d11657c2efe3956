"""Gin files are found and composed: shipped files, files of the user, and stored configurations."""


def test_includes_of_shipped_files_do_not_depend_on_the_working_directory(toy, tmp_path):
    toy.write("parts/base.gin", "DIM = 32\nIDLE = 1\n", shipped=True, imports=False)
    toy.write("runs/small.gin", "include 'parts/base.gin'\n", shipped=True, imports=False)
    toy.write("parts/base.gin", "DIM = 99\n", imports=False)  # not included by the shipped file
    result = toy.load("TASK=a", files=["run.gin", "runs/small.gin"]).configured()()
    assert result["model"].dim == 32
    toy.write("searched/mine.gin", "include 'other.gin'\n", imports=False)
    toy.write("searched/other.gin", "DIM = 64\n", imports=False)
    found = toy.load("TASK=a", files=["run.gin", "mine.gin"], search_paths=[str(tmp_path / "searched")])
    assert found.configured()()["model"].dim == 64


def test_earlier_names_of_shipped_folders_are_found(toy):
    toy.write("studies/small.gin", "DIM = 32\n", shipped=True, imports=False)
    toy.write("mine.gin", "include 'runs/study/small.gin'\n", imports=False)
    assert toy.load("TASK=a", files=["run.gin", "mine.gin"]).configured()()["model"].dim == 32
    assert "gin file runs/study/smal.gin not found" in toy.error_of(files=["runs/study/smal.gin"])


def test_missing_file_error_names_directories_and_nearest_file(toy):
    toy.write("models/base.gin", "", shipped=True, imports=False)
    toy.write("runs/pretrain.gin", "", shipped=True, imports=False)
    message = toy.error_of(files=["base.gin"], search_paths=["searched"])
    assert message == (
        "gin file base.gin not found in the working directory, searched or the shipped gin_configs; "
        "did you mean models/base.gin?"
    )
    assert "did you mean runs/pretrain.gin?" in toy.error_of(files=["runs/pretrian.gin"])
    toy.write("a/base.gin", "", shipped=True, imports=False)
    assert "did you mean models/base.gin?" in toy.error_of(files=["modles/base.gin"])
    assert toy.error_of(files=["/no/such.gin"]) == "gin file /no/such.gin not found"


def test_unused_setting_of_shipped_file_is_ignored(toy):
    text = "IDLE = 3\ntoy.linear.peak = 2.0\n"
    toy.write("extra.gin", text, shipped=True)
    assert "linear" not in toy.load("TASK=a", files=["run.gin", "extra.gin"]).text


def test_shipped_file_that_overwrites_a_users_setting_raises(toy):
    toy.write("mine.gin", "DIM = 16\n", imports=False)
    toy.write("late.gin", "DIM = 32\n", shipped=True, imports=False)
    assert (
        "DIM (mine.gin:1) is overwritten by gin_configs/late.gin:1, which is read later. Give your file after"
        in toy.error_of("TASK=a", files=["run.gin", "mine.gin", "late.gin"])
    )


def test_shipped_requirement_keeps_earlier_value_of_user(toy):
    toy.write("mine.gin", "DIM = 16\n", imports=False)
    toy.write("late.gin", "DIM = %gin.REQUIRED\n", shipped=True, imports=False)
    assert toy.load("TASK=a", files=["run.gin", "mine.gin", "late.gin"]).configured()()["model"].dim == 16
    toy.write("early.gin", "WIDTH = 5\nSIZE = None\n", shipped=True, imports=False)
    toy.write("ask.gin", "SIZE = %gin.REQUIRED\ntoy.Model.dim = %SIZE\n", shipped=True)
    assert "SIZE is required" in toy.error_of("TASK=a", files=["run.gin", "early.gin", "ask.gin"])


def test_undefined_macro_error_names_shipped_files(toy):
    toy.write("models/family.gin", "MODEL = 3\n", shipped=True, imports=False)
    toy.write("models/small.gin", "include 'models/family.gin'\n", shipped=True, imports=False)
    toy.write("models/large.gin", "include 'models/family.gin'\n", shipped=True, imports=False)
    toy.write("runs/ask.gin", "MODEL = %gin.REQUIRED\n", shipped=True, imports=False)
    toy.write("mine.gin", "toy.train.model = %MODEL\n")
    assert (
        "undefined macro %MODEL: give a file that defines it first, such as --gin_file=models/large.gin (2 shipped"
        in toy.error_of("TASK=a", files=["run.gin", "mine.gin"])
    )


def test_stored_configuration_provides_model_and_task_but_not_bindings_of_shipped_callables(toy, tmp_path):
    task = "MIXTURE_OR_TASK_NAME = 'trained_on'\nBATCH_SIZE = 512\ntoy.Source.task = %MIXTURE_OR_TASK_NAME\n"
    toy.write("task.gin", task + "toy.Source.seed = %BATCH_SIZE\ntoy.checkpointer.keep = 9\n")
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
        toy.train.extra = @toy.checkpointer
        toy.Source:
          task = %MIXTURE_OR_TASK_NAME
          split = 'validation'
    """
    toy.write("eval.gin", text, shipped=True)
    result = toy.load(files=["eval.gin"], run_directory=str(tmp_path / "run")).configured()()
    assert result["model"].dim == 24  # from the run
    assert (result["data"].task, result["data"].split, result["data"].seed) == ("trained_on", "validation", 0)
    assert result["model_dir"] == str(tmp_path / "run")
    assert result["extra"]("x") == ("x", 9)  # eval.gin does not configure it
