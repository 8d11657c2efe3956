"""Heads beside adapters: outputs of every class of transformers with a head, beside peft's, in each direction."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from adapted_models import bare, base_of, randomized, stacked
from families import FAMILIES, first_of_each_class, others_are_slow
from numerics import assert_close
from peft_models import write_base

from t5x_like import interop, parameters
from t5x_like.adapters.lora import LoRA
from t5x_like.errors import UserError
from t5x_like.interop import adapted_matrices as matrices
from t5x_like.interop import adapter_heads, peft, safetensors_files, tables
from t5x_like.interop.adapter_base import Base
from t5x_like.interop.head_classes import CHOICES, SEQUENCE, SPANS, TOKENS
from t5x_like.objectives import conditional_spans

IDS = [[5, 7, 9, 11, 6, 2, 1]]  # the end of text of BART and T5 is its last token
LABELS = 3
TASKS = {SEQUENCE: "SEQ_CLS", TOKENS: "TOKEN_CLS", SPANS: "QUESTION_ANS", conditional_spans.NAME: "QUESTION_ANS"}
# transformers 4.57 does not have EuroBERT, and none has NeoBERT.
OTHERS = ("mobilebert_tiny", "eurobert", "neobert")
NAMES = [name for name, family in FAMILIES.items() if family.huggingface and name not in OTHERS]


def head_classes(name):
    config = base_of(name)
    family = interop.family_of(config)
    return [each for each in family.head_classes(family.config_to_json(config, [])) if not each.settings]


# Longformer's other classes choose global tokens, which the configuration of the family's case does not have.
CLASSES = [(name, each) for name in NAMES for each in head_classes(name) if name != "longformer" or each.head == TOKENS]
PRETRAINED = [name for name in NAMES if FAMILIES[name].pretraining is not None]


def form_of(name, head_class):
    config = base_of(name)
    return head_class.head, type(head_class.form(interop.family_of(config).config_to_json(config, [])))


FIRST_OF_FORM = {form_of(*case): case for case in reversed(CLASSES)}.values()


def adapted(name, adapters=None):
    config = base_of(name)
    found = matrices.find(interop.family_of(config), config).values()
    pattern = matrices.pattern_of([each for matrix in found for each, *_ in matrix.projections.values()])
    return dataclasses.replace(config, adapters=adapters or (LoRA(pattern=pattern, rank=2, alpha=3.0),))


def random_leaves(shapes, prefix=tables.OBJECTIVE):
    draw = np.random.default_rng(2).normal
    named = parameters.named_leaves(shapes).items()
    return {f"{prefix}{name}": draw(size=leaf.shape).astype(np.float32) / 3 for name, leaf in named}


def head_leaves(name, class_name):
    config = base_of(name)
    (head_class,) = (each for each in head_classes(name) if each.name == class_name)
    form = head_class.form(interop.family_of(config).config_to_json(config, []))
    outputs = {SPANS: 2, CHOICES: 1}.get(head_class.head, LABELS)
    given = () if head_class.head == conditional_spans.NAME else (outputs,)
    made = jax.eval_shape(lambda key: form.make(config, *given, key=key), jax.random.key(0))
    return head_class, random_leaves(made, f"{tables.OBJECTIVE}{head_class.head}/")


def write_merged(config, leaves, directory):
    interop.to_huggingface(leaves, config, str(directory))
    return json.loads((directory / "config.json").read_text())["architectures"][0]


def their_outputs(model):
    import torch

    ids = torch.tensor(IDS)
    is_choice = type(model.get_base_model() if hasattr(model, "get_base_model") else model).__name__.endswith("Choice")
    with torch.no_grad():
        found = model.eval()(input_ids=torch.stack([ids, ids.flip(1)], dim=1) if is_choice else ids)
    return {str(i): x.numpy() for i, x in enumerate(found.to_tuple()) if hasattr(x, "numpy") and x.is_floating_point()}


def randomize(model):
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.add_(torch.randn_like(parameter) / 3)
    return model


def check_written(tmp_path, config, leaves):
    """Compares what peft loads from a directory with the same adapters, merged."""
    transformers, library = pytest.importorskip("transformers"), pytest.importorskip("peft")
    zeros = {name: leaf * (0 if name.startswith(tables.OBJECTIVE) else 1) for name, leaf in bare(leaves).items()}
    architecture = write_merged(dataclasses.replace(config, adapters=()), zeros, tmp_path / "base")
    write_merged(config, leaves, tmp_path / "merged")
    peft.write(config, leaves, str(tmp_path / "ours"), base=str(tmp_path / "base"))
    base = getattr(transformers, architecture).from_pretrained(tmp_path / "base")
    found = their_outputs(library.PeftModel.from_pretrained(base, tmp_path / "ours"))
    merged = getattr(transformers, architecture).from_pretrained(tmp_path / "merged")
    assert_close(found, their_outputs(merged), 1e-5)


def check_read(tmp_path, config, leaves, task=None):
    """Compares what is read of a directory of peft, merged, with peft's outputs, and returns the head."""
    transformers, library = pytest.importorskip("transformers"), pytest.importorskip("peft")
    base, config = str(tmp_path / "base"), dataclasses.replace(config, adapters=())
    architecture = write_merged(config, bare(leaves), tmp_path / "base")
    target = next(iter(matrices.find(interop.family_of(config), config))).rpartition(".")[2]
    settings = library.LoraConfig(r=2, lora_alpha=5, target_modules=[target], task_type=task)
    theirs = getattr(transformers, architecture).from_pretrained(base)
    theirs = randomize(library.get_peft_model(theirs, settings))
    theirs.save_pretrained(tmp_path / "theirs")
    model = Base.read(base)
    adapters, read, head = peft.read(str(tmp_path / "theirs"), model)
    of_model = {name: leaf for name, leaf in model.leaves.items() if name.startswith(tables.MODEL)}
    write_merged(dataclasses.replace(model.config, adapters=adapters), of_model | read, tmp_path / "merged")
    merged = getattr(transformers, architecture).from_pretrained(tmp_path / "merged")
    assert_close(their_outputs(merged), their_outputs(theirs), 1e-5)
    return head


@pytest.mark.parity
@pytest.mark.parametrize(
    ("name", "class_name"),
    [
        pytest.param(name, each.name, marks=[] if (name, each) in FIRST_OF_FORM else [pytest.mark.slow])
        for name, each in CLASSES
    ],
)
def test_heads_of_tasks_have_the_same_outputs_in_each_direction(tmp_path, name, class_name):
    config = adapted(name)
    head_class, heads = head_leaves(name, class_name)
    leaves = stacked(randomized(config)) | heads
    check_written(tmp_path, config, leaves)
    head = check_read(tmp_path, config, leaves, TASKS.get(head_class.head))
    assert head.name == head_class.head and len(head.labels) in (LABELS, 0)


@pytest.mark.parity
@pytest.mark.parametrize("name", others_are_slow(PRETRAINED, first_of_each_class(PRETRAINED)))
def test_heads_of_pretraining_have_the_same_outputs_in_each_direction(tmp_path, name):
    config = adapted(name)
    model = randomized(config)
    shapes = jax.eval_shape(FAMILIES[name].pretraining.init, jax.random.key(0), model)
    leaves = stacked(model) | random_leaves(shapes)
    check_written(tmp_path, config, leaves)
    assert check_read(tmp_path, config, leaves) is None


@pytest.mark.parity
@pytest.mark.parametrize(("name", "prefix"), [("bert", "Bert"), ("albert", "Albert"), ("roberta", "Roberta")])
def test_the_ordinary_classifier_of_peft_has_the_pooler_of_the_base_model(tmp_path, run_command, name, prefix):
    """peft stores the classifier alone; the base model is the bare one, with its pooler."""
    import torch

    transformers, library = pytest.importorskip("transformers"), pytest.importorskip("peft")
    write_base(base_of(name), stacked(randomized(base_of(name))), tmp_path / "empty")
    torch.manual_seed(1)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "empty")
    getattr(transformers, f"{prefix}Model")(config).save_pretrained(tmp_path / "base")
    kind = getattr(transformers, f"{prefix}ForSequenceClassification")
    settings = library.LoraConfig(r=2, lora_alpha=4, target_modules=["query", "value"], task_type="SEQ_CLS")
    theirs = library.get_peft_model(kind.from_pretrained(tmp_path / "base", num_labels=LABELS), settings)
    randomize(theirs).save_pretrained(tmp_path / "adapter")
    base = f"--gin.BASE_PATH={tmp_path / 'base'}"
    for source, output, *flags in (("adapter", "run", base), ("run", "hf")):
        code, text = run_command(["convert", f"--input={tmp_path / source}", f"--output={tmp_path / output}", *flags])
        assert code == 0, text
    found = kind.from_pretrained(tmp_path / "hf")
    assert_close(their_outputs(found), their_outputs(theirs), 1e-5)


def write_classifier(tmp_path, **changes):
    """Writes an adapter of a BERT classifier without its pooler, as peft does, and returns the base model."""
    config = adapted("bert")
    _, heads = head_leaves("bert", "BertForSequenceClassification")
    leaves = stacked(randomized(config)) | heads
    peft.write(config, leaves, str(tmp_path))
    tensors = dict(safetensors_files.Tensors(str(tmp_path), peft.WEIGHTS))
    kept = {name: tensor for name, tensor in tensors.items() if "pooler" not in name}
    safetensors_files.write(str(tmp_path), kept, file=peft.WEIGHTS)
    settings = json.loads((tmp_path / peft.CONFIG).read_text()) | changes
    (tmp_path / peft.CONFIG).write_text(json.dumps(settings))
    return Base(base_of("bert"), bare({name: leaf for name, leaf in leaves.items() if name not in heads}))


def test_a_head_that_is_not_known_raises(tmp_path):
    base = write_classifier(tmp_path, task_type=None)
    with pytest.raises(UserError, match="its head fits BertForSequenceClassification or BertForTokenClassification. G"):
        peft.read(str(tmp_path), base)
    base = write_classifier(tmp_path)
    with pytest.raises(UserError, match="'bert.pooler.dense.weight' of its BertForSequenceClassification is neither h"):
        peft.read(str(tmp_path), base)
    named = {"base_model_class": "BertForTokenClassification", "parent_library": "transformers"}
    base = write_classifier(tmp_path, task_type=None, auto_mapping=named)
    assert peft.read(str(tmp_path), base)[2].name == TOKENS
    base = write_classifier(tmp_path, task_type="QUESTION_ANS")
    with pytest.raises(UserError, match="qa_outputs.weight' of its BertForQuestionAnswering is neither here nor in"):
        peft.read(str(tmp_path), base)


def test_one_output_is_a_score(tmp_path):
    base = write_classifier(tmp_path, task_type="TOKEN_CLS")
    assert peft.read(str(tmp_path), base)[2].labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    config = adapted("roberta")
    width = config.embed_dim
    heads = {"dense/kernel": (width, width), "dense/bias": (width,), "classifier/kernel": (width, 1)}
    heads = {f"objective/{SEQUENCE}/{name}": np.ones(shape) for name, shape in heads.items()}
    heads[f"objective/{SEQUENCE}/classifier/bias"] = np.ones(1)
    leaves = stacked(randomized(config))
    peft.write(config, leaves | heads, str(tmp_path / "score"))
    head = peft.read(str(tmp_path / "score"), Base(base_of("roberta"), bare(leaves)))[2]
    assert head.predicts == "scores" and head.labels == ()


def test_a_head_of_another_width_raises(tmp_path):
    base = write_classifier(tmp_path, task_type="TOKEN_CLS")
    tensors = dict(safetensors_files.Tensors(str(tmp_path), peft.WEIGHTS))
    name = "base_model.model.classifier.weight"
    safetensors_files.write(str(tmp_path), tensors | {name: np.ones((LABELS, 5), np.float32)}, file=peft.WEIGHTS)
    with pytest.raises(UserError, match=r"classifier/kernel of the head of its \w+ has shape \(5, 3\), not \(12, 3\)"):
        peft.read(str(tmp_path), base)


def test_modules_to_save_are_not_in_one_another():
    tensors = ["classifier.dense.weight", "classifier.out_proj.bias", "cls.predictions.transform.dense.weight"]
    tensors += ["cls.predictions.bias", "bert.pooler.dense.weight", "qa_outputs.bias", "lm_head.bias"]
    expected = ["bert.pooler.dense", "classifier", "cls.predictions", "lm_head", "qa_outputs"]
    assert adapter_heads.modules(tensors) == expected
