"""From a Hugging Face directory with a real vocabulary to a fine-tuned run, and back: the run needs no other files."""

import json
import re
import shutil

import pytest

pytestmark = [pytest.mark.full, pytest.mark.parity]

LENGTHS = "--gin.TASK_FEATURE_LENGTHS={'inputs': 16}"


@pytest.fixture(scope="module")
def directory(tmp_path_factory, test_data):
    """Returns a random BERT with the published vocabulary, as transformers writes it."""
    import torch
    import transformers

    path = tmp_path_factory.mktemp("huggingface") / "bert"
    torch.manual_seed(0)
    vocabulary = test_data / "vocab/bert/bert_base_uncased_vocab.txt"
    tokenizer = transformers.BertTokenizerFast(str(vocabulary), do_lower_case=True)
    config = transformers.BertConfig(
        hidden_size=8, intermediate_size=8, num_attention_heads=2, num_hidden_layers=1, max_position_embeddings=16
    )
    tokenizer.save_pretrained(path)
    transformers.BertForMaskedLM(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Returns a directory with a small SST-2."""
    path = tmp_path_factory.mktemp("sst2")
    lines = [f"{text}\t{label}" for text, label in [("a fine film", 1), ("a dull film", 0)] * 8]
    for split in ("train", "dev"):
        (path / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    return path


def test_fine_tuned_run_needs_no_other_files(directory, rows, tmp_path, run_command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source, run, moved = tmp_path / "bert", tmp_path / "run", tmp_path / "moved"
    shutil.copytree(directory, source)
    words = ["train", "--gin_file=runs/finetune_classification.gin", f"--gin.HF_PATH={source}", LENGTHS]
    words += ["--gin.MIXTURE_OR_TASK_NAME=glue_sst2_classification", f"--gin.TASK_ARGUMENTS={{'data_dir': '{rows}'}}"]
    words += [
        "--gin.BATCH_SIZE=4",
        "--gin.TRAIN_STEPS=1",
        f"--gin.MODEL_DIR={run}",
        "--gin.schedules.linear.total_steps=2",
    ]
    code, output = run_command(words)
    assert code == 0, output
    copied = {path.name for path in (run / "tokenizer").iterdir()}
    assert copied >= {"config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}

    shutil.rmtree(source)
    code, output = run_command([*words, "--gin.TRAIN_STEPS=2"])
    assert code == 0 and "restored step 1" in output, output

    shutil.move(run, moved)
    (tmp_path / "in.jsonl").write_text('{"inputs": "a fine film"}\n')
    code, output = run_command(["eval", f"--gin.MODEL_DIR={moved}"])
    assert code == 0 and "accuracy" in output, output

    exported = tmp_path / "exported"
    code, output = run_command(["convert", f"--input={moved}", f"--output={exported}"])
    assert code == 0, output
    import transformers

    model = transformers.AutoModelForSequenceClassification.from_pretrained(exported)
    assert model.config.id2label == {0: "negative", 1: "positive"}
    tokenizers = [transformers.AutoTokenizer.from_pretrained(path) for path in (directory, exported)]
    ids, expected = (tokenizer("A naïve film, [MASK]!").input_ids for tokenizer in tokenizers)
    assert ids == expected

    with_transformers, _ = re.findall(r"```python\n(.*?)```", (exported / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(exported)
    exec(with_transformers, loaded := {})
    assert type(loaded["model"]) is type(model)
    assert loaded["tokenizer"]("A naïve film, [MASK]!").input_ids == expected
    monkeypatch.chdir(tmp_path)

    bare, imported = tmp_path / "bare", tmp_path / "imported"
    assert run_command(["convert", f"--input={moved}", f"--output={bare}", "--heads=none"])[0] == 0
    assert json.loads((bare / "config.json").read_text())["architectures"] == ["BertModel"]
    assert run_command(["convert", f"--input={exported}", f"--output={imported}"])[0] == 0
    assert "SequenceClassification" in (imported / "config.gin").read_text()
    assert {path.name for path in (imported / "tokenizer").iterdir()} >= copied - {"generation_config.json"}


def test_pretraining_continues_from_a_directory(directory, test_data, tmp_path, run_command):
    arguments = {"pattern": str(test_data / "text/bert_sample_text/sample_text.txt"), "validation_fraction": 0.0}
    words = ["train", "--dry_run", "--gin_file=runs/bert.gin", f"--gin.HF_PATH={directory}", "--gin.EVAL_DATA=None"]
    words += ["--gin.MIXTURE_OR_TASK_NAME=text_files_sentence_pairs", f"--gin.TASK_ARGUMENTS={arguments}"]
    words += ["--gin.TASK_FEATURE_LENGTHS={'inputs': 16, 'targets': 3}", f"--gin.MODEL_DIR={tmp_path / 'run'}"]
    code, output = run_command(words)
    assert code == 0 and "next_sentence" in output, output
