"""`analyze`: its page, numbers and tables, the checkpoints of a run, and errors."""

import dataclasses
import json
import os

import copying_run
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_models

from t5x_like.analysis import probe_training, probes, structural_probe
from t5x_like.analysis.analyzed_model import AnalyzedModel
from t5x_like.analysis.attention_heads import AttentionHeads
from t5x_like.analysis.base import Section, Table
from t5x_like.analysis.head_ablation import HeadAblation
from t5x_like.analysis.head_view import HeadView
from t5x_like.analysis.probes import Examples, Probes
from t5x_like.analyze import analyze
from t5x_like.cli import main
from t5x_like.errors import UserError
from t5x_like.loading import open_model
from t5x_like.models.lstm import LSTMConfig
from t5x_like.partitioning import Partitioner


def conllu(number):
    """Returns sentences whose nouns depend on the verb before them."""
    words = [("a", "DET", 2, "det"), ("b", "NOUN", 3, "nsubj"), ("c", "VERB", 0, "root"), ("de", "NOUN", 3, "obj")]
    rows = [
        "\t".join([str(index), word, word, tag, "_", "_", str(head), relation, "_", "_"])
        for index, (word, tag, head, relation) in enumerate(words, 1)
    ]
    return "\n".join([*rows, ""]) + "\n", number


@pytest.fixture(scope="module")
def treebank(tmp_path_factory):
    path = tmp_path_factory.mktemp("treebank") / "a.conllu"
    sentence, number = conllu(12)
    path.write_text(sentence * number)
    return str(path)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models")
    small_models.write_bert(directory / "bert", num_layers=2, pretraining=True)
    small_models.write_t5(directory / "t5")
    return directory


def test_the_command_writes_a_page_and_its_numbers(models, treebank, tmp_path, capsys):
    output = str(tmp_path / "bert.html")
    arguments = [
        f"--treebank={treebank}",
        f"--output={output}",
        "--gin.MIN_COUNT=5",
        "--analyses=attention_heads,pictures",
        "--gin.ENLARGED_HEAD=2-1",
    ]
    assert main(["analyze", str(models / "bert"), *arguments, "--sentences=a b <c>!"]) == 0
    printed = capsys.readouterr().out
    assert "Heads of words by self-attention" in printed and "nsubj" in printed
    page = open(output).read()
    assert page.startswith("<!doctype html>") and "http" not in page.replace("http://www.w3.org", "")
    assert page.count('title="layer ') == 2 * 3 and "&lt;" not in printed
    assert '<p class="name">layer 2, head 1</p>' in page
    (checkpoint,) = json.load(open(tmp_path / "bert.json"))["checkpoints"]
    heads = checkpoint["analyses"]["Attention heads"]
    assert np.shape(heads["self-attention"]["accuracy"]["nsubj"]["dependent to head"]) == (2, 2)
    assert heads["words"] == {"det": 12, "nsubj": 12, "obj": 12}
    assert np.shape(checkpoint["analyses"]["Pictures of attention"]["self-attention"]) == (1, 2, 2, 8, 8)
    assert main(["analyze", str(models / "bert"), *arguments]) == 2
    assert "--overwrite" in capsys.readouterr().err


@pytest.mark.full
def test_encoder_decoder_has_three_kinds_of_attention(models):
    analyzed = AnalyzedModel(open_model(str(models / "t5")))
    data = HeadView(sentences="ab c").run(analyzed).data
    encoder, decoder, cross = (np.array(data[name][0]) for name in ("encoder", "decoder", "cross-attention"))
    assert encoder.shape == decoder.shape == cross.shape
    np.testing.assert_allclose(encoder.sum(-1), 1, atol=2e-3)
    # The position that reads a token of the decoder attends to it and to earlier ones; the last token is not read.
    assert np.all(np.triu(decoder, 1) == 0) and np.all(decoder[..., -1, :] == 0) and decoder[0, 0, 1, 1] > 0
    np.testing.assert_allclose(cross[..., :-1, :].sum(-1), 1, atol=2e-3)


class _Steps:
    """An analysis whose result is the checkpoint."""

    setting, is_ready = "", True

    def check(self):
        pass

    def run(self, analyzed):
        step = int(os.path.basename(analyzed.name_of_model))
        return Section("Steps", "lead", [Table("t", ["step"], [[step]])], (), {"step": step}, {"value": step / 2})


@pytest.mark.full
def test_checkpoints_of_a_run(tmp_path, capsys):
    copying_run.run(tmp_path / "run", total=8)
    loaded = open_model(str(tmp_path / "run"), model=copying_run.CONFIG, partitioner=Partitioner())
    output = str(tmp_path / "steps.html")
    analyze(loaded, available={"steps": _Steps()}, output_path=output, every=6)
    found = json.load(open(tmp_path / "steps.json"))["checkpoints"]
    assert [each["analyses"]["Steps"]["step"] for each in found] == [6, 8]
    assert "Over the steps" in open(output).read() and capsys.readouterr().out.splitlines()[-1].strip() == "8"
    single = dataclasses.replace(loaded, path=str(tmp_path / "run" / "checkpoints" / "6"))
    with pytest.raises(UserError, match="EVERY=6: .*/6 is one checkpoint"):
        analyze(single, available={"steps": _Steps()}, every=6)
    with pytest.raises(UserError, match="CHECKPOINT=best: one checkpoint, but EVERY=6"):
        analyze(dataclasses.replace(loaded, checkpoint="best"), available={"steps": _Steps()}, every=6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(analyses="probes"), "ANALYSES: 'probes' is unknown. Give some of heads, masks"),
        (dict(analyses="heads"), "ANALYSES: heads needs data. Give TREEBANK or COREFERENCE"),
        (dict(analyses="masks"), "ANALYSES: masks needs data. Give ABLATION_BATCHES"),
        (dict(output_path="a.pdf"), "OUTPUT_PATH=a.pdf: not a .html file"),
        (dict(every=0), "EVERY=0: not a positive integer"),
        (dict(every=5), "EVERY=5: .* is not a run with checkpoints"),
    ],
)
def test_invalid_settings_raise(models, options, message):
    loaded = open_model(str(models / "bert"))
    with pytest.raises(UserError, match=message):
        analyze(loaded, available={"heads": AttentionHeads(), "masks": HeadAblation()}, **options)


def test_data_are_checked_before_an_analysis_runs(models):
    """The second analysis has no data: the first one does not run."""
    available = {"fails": _Steps(), "pictures": HeadView(sentences="missing.txt")}
    with pytest.raises(UserError, match="SENTENCES=missing.txt: file not found"):
        analyze(open_model(str(models / "bert")), available=available)


class _Unfit(_Steps):
    def run(self, analyzed):
        raise UserError("the model does not fit")


def test_an_analysis_that_the_model_does_not_fit_is_left_out_unless_it_was_asked_for(models, capsys):
    loaded = open_model(str(models / "bert"))
    fits = HeadView(sentences="a b")
    analyze(loaded, available={"unfit": _Unfit(), "pictures": fits})
    assert "Pictures of attention" in capsys.readouterr().out
    with pytest.raises(UserError, match="the model does not fit"):
        analyze(loaded, available={"unfit": _Unfit(), "pictures": fits}, analyses="unfit,pictures")
    with pytest.raises(UserError, match="the model does not fit"):
        analyze(loaded, available={"unfit": _Unfit()})


def test_invalid_data_raise(models, treebank):
    analyzed = AnalyzedModel(open_model(str(models / "bert")))
    with pytest.raises(UserError, match="MIN_COUNT=100: no relation of .* has so many words"):
        AttentionHeads(treebank=treebank).run(analyzed)
    with pytest.raises(UserError, match=r"ENLARGED_HEAD='9-1': not a head. Give 1-1 … 2-2"):
        HeadView(sentences="a b", head="9-1").run(analyzed)
    with pytest.raises(UserError, match="SENTENCES: .* has 70 tokens; the model reads 1 to 62"):
        HeadView(sentences="a" * 70).run(analyzed)


# ---- probes ----------------------------------------------------------------------------------------------------------


def test_probes_find_what_is_linear():
    """The first layer has the class in a feature, the second one only noise."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 600)
    noise = random.normal(size=(600, 4))
    first = np.concatenate([np.eye(3)[labels], noise], axis=1)
    second = np.concatenate([noise[:, :3], noise], axis=1)
    examples = Examples(np.stack([second, first]), labels, np.arange(600) % 5 == 0, 3)
    by_layer = probes.accuracies(examples, hidden=0, steps=400, seed=0)
    assert by_layer[1] > 0.95 and by_layer[0] < 0.6
    weights = probes.mix_weights(examples, steps=400, seed=0)
    assert weights[1] > 0.55 and sum(weights) == pytest.approx(1)


def test_classifiers_converge_to_those_of_scikit_learn():
    """Many classes, few examples of each: a few hundred updates of a small rate end far from the minimum."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    random = np.random.default_rng(0)
    labels, is_test = random.integers(0, 60, 1500), np.arange(1500) % 5 == 0
    vectors = random.normal(size=(60, 32))[labels] + random.normal(size=(1500, 32)) * 1.6
    examples = Examples(vectors[None].astype(np.float32), labels, is_test, 60)
    scaled = probes._standardized(examples)[0]
    known = linear_model.LogisticRegression(max_iter=500).fit(scaled[~is_test], labels[~is_test])
    expected = known.score(scaled[is_test], labels[is_test])
    (found,) = probes.accuracies(examples, hidden=0, steps=500, seed=0)
    assert found == pytest.approx(expected, abs=1 / is_test.sum()) and expected < 0.9


def test_unfinished_probe_is_said(caplog):
    x, labels = np.random.default_rng(0).normal(size=(50, 3)), np.arange(50)
    loss = lambda params, x, labels: ((x @ params - labels) ** 2).sum()  # noqa: E731
    probe_training.fit(loss, jnp.zeros(3), x.astype(np.float32), labels.astype(np.float32), steps=1)
    assert "PROBE_STEPS=1: a probe has not converged" in caplog.text


def test_tree_distances_and_spanning_trees():
    heads = [1, -1, 1, 2]  # 0 - 1 - 2 - 3
    distances = structural_probe.tree_distances(heads)
    assert distances.tolist() == [[0, 1, 2, 3], [1, 0, 1, 2], [2, 1, 0, 1], [3, 2, 1, 0]]
    sentence = structural_probe.Sentence(list("abcd"), ["X"] * 4, heads, ["dep"] * 4)
    assert structural_probe._edge_accuracy([sentence], distances[None].astype(float)) == 1
    star = np.array([[0, 9, 1, 9], [9, 0, 1, 9], [1, 1, 0, 1], [9, 9, 1, 0]], float)
    assert structural_probe._edge_accuracy([sentence], star[None]) == pytest.approx(2 / 3)
    assert structural_probe.adjacent_share([sentence]) == 1


@pytest.mark.full
def test_probes_of_a_model(models, treebank):
    section = Probes(treebank=treebank, steps=20, rank=4).run(AnalyzedModel(open_model(str(models / "bert"))))
    accuracy = section.data["accuracy"]
    assert {len(of) for of in accuracy.values()} == {3} and "part of speech, linear" in accuracy
    assert section.data["majority"] == 0.5
    assert section.data["layers"] == [0, 1, 2] and set(section.data["trees"]) == {"UUAS", "distance correlation"}
    best = next(row for row in section.tables[0].rows if row[0] == "UUAS, %")
    assert max(best[1:]) == pytest.approx(100 * section.summary["UUAS, best layer"])


@pytest.mark.full
def test_a_projected_embedding_is_not_layer_0(tmp_path, treebank):
    """The embedding of an LSTM is smaller than its states."""
    config = LSTMConfig(vocab_size=small_models.GPT2_IDS, embedding_dim=4, embed_dim=8, num_layers=1)
    small_models.write_gpt2(tmp_path / "gpt2")
    analyzed = AnalyzedModel(open_model(str(tmp_path / "gpt2")))
    vars(analyzed).update(stacks=("decoder",), model=config.make(jax.random.key(0)))
    vars(analyzed.loaded).update(resolved=config)
    assert Probes(treebank=treebank, steps=1, rank=2).run(analyzed).data["layers"] == [1]
    with pytest.raises(UserError, match="ANALYSES: LSTMConfig has no attention heads"):
        HeadView(sentences="a b").run(analyzed)


def test_words_alone_have_no_trees(models, tmp_path):
    (tmp_path / "a.conllu").write_text("1\ta\t_\tX\t_\t_\t0\troot\t_\t_\n\n" * 10)
    with pytest.raises(UserError, match="TREEBANK: the structural probe reads sentences of 2 to 60 words"):
        Probes(treebank=str(tmp_path), steps=1).run(AnalyzedModel(open_model(str(models / "bert"))))


# ---- interventions ---------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_masked_heads_and_importance(tmp_path):
    """Importance is the gradient by the mask: compared with finite differences."""
    copying_run.run(tmp_path / "run", model=copying_run.TWO_LAYERS, total=3)
    loaded = open_model(
        str(tmp_path / "run"),
        model=copying_run.TWO_LAYERS,
        objective=copying_run.SequenceToSequence(),
        partitioner=Partitioner(devices=jax.devices()[:1], ici={"data": 1}),
    )
    data = copying_run.Copying()
    section = HeadAblation(data=data, batches=1).run(AnalyzedModel(loaded))
    assert set(section.data) == {"encoder", "decoder", "cross-attention", "pruning"}
    assert np.shape(section.data["decoder"]["without"]) == (2, 4)
    curve = section.data["pruning"]
    assert (
        curve[0]["heads"] == 1 and curve[-1]["heads"] <= 0.15 and len({each["heads"] for each in curve}) == len(curve)
    )

    from t5x_like.analysis.head_ablation import _Measured

    measured = _Measured(AnalyzedModel(loaded), data, 1)
    gradients = measured._differentiate(measured._params, measured.batches[0], dict(measured.ones))
    step = 1e-2
    for kind, layer, head in (("encoder", 0, 1), ("decoder", 1, 3), ("cross-attention", 0, 2)):
        losses = []
        for sign in (-1, 1):
            mask = measured.ones[kind].copy()
            mask[layer, head] += sign * step
            losses.append(measured.loss({**measured.ones, kind: mask})[0])
        slope = (losses[1] - losses[0]) / (2 * step)
        assert float(gradients[kind][layer, head]) == pytest.approx(slope, rel=2e-2, abs=2e-5)
    importance = measured.importance(measured.ones)
    np.testing.assert_allclose(np.linalg.norm(importance["encoder"], axis=1), 1, rtol=1e-5)


def test_the_page_in_a_browser(models, tmp_path):
    """Heads are enlarged by a click, in the browser of Qt."""
    pytest.importorskip("PySide6.QtWebEngineWidgets", reason="no browser: PySide6 is not installed")
    import subprocess
    import sys

    output = str(tmp_path / "page.html")
    view = HeadView(sentences="a b c")
    analyze(open_model(str(models / "bert")), available={"pictures": view}, output_path=output)
    script = os.path.join(os.path.dirname(__file__), "analysis", "browser.py")
    picture = str(tmp_path / "page.png")
    done = subprocess.run([sys.executable, script, output, picture], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["layer 2, head 1", "true"] and os.path.getsize(picture) > 10_000
