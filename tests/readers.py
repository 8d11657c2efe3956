"""Artefacts of all readers of files that others write, to damage them: see `damage` and `test_damaged_readers`.

The lists of families, formats, layouts and kinds of adapters are those of the project: a new one is damaged, too.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import peft_models
from adapted_models import base_of, randomized, stacked
from damage import Artefact, digest, safetensors_payload
from families import CONFIGS, random_model
from file_formats import PACKAGES, WRITERS
from stored_weights import leaves as leaves_of
from t5x_layouts import LAYOUTS, to_t5x

from data_tasks.corpora.formats import format_of
from data_tasks.corpora.formats.base import BadRecord, Cursor, OtherRecord, Reading, check_text
from t5x_like import convert_vectors, interop
from t5x_like.adapters.bottleneck import BottleneckAdapter
from t5x_like.checkpoints import weight_files
from t5x_like.data.subwords import Subwords
from t5x_like.errors import UserError
from t5x_like.interop import (
    adapter_files,
    adapter_hub,
    fasttext_files,
    model_tokens,
    registry,
    safetensors_files,
    t5x,
    tensorflow_checkpoints,
    word_vectors,
)
from t5x_like.interop.adapter_base import Base
from t5x_like.models.albert import AlbertConfig
from t5x_like.models.bart import BartConfig
from t5x_like.models.elmo import ElmoConfig
from t5x_like.models.gpt import GPTConfig
from t5x_like.models.t5 import T5Config
from t5x_like.vocabularies.word_counts import WordCounts

SMALL_T5 = T5Config(
    vocab_size=12, embed_dim=4, mlp_dim=6, num_heads=2, head_dim=2, encoder_layers=1, decoder_layers=1, relpos_buckets=4
)
SMALL_ELMO = ElmoConfig(
    character_dim=3, filters=((1, 4), (2, 5)), highway_layers=1, cell_dim=6, projection_dim=5, num_layers=1
)
# Sizes that the classes of transformers have.
CHANGES = {AlbertConfig: {"embedding_dim": 6}, BartConfig: {"head_dim": 6}, GPTConfig: {"mlp_dim": 48}}
# transformers cannot hold this family, which is read by the code of BERT.
NOT_WRITTEN = ("unilm",)  # Corpora that can end after any record.
_ENDLESS = ("tfrecord-00000-of-00001", ".warc.wet.gz")
Make = Callable[[Path], Artefact]
_TEXTS = ["the first text", "another text", "", "a third"] * 3
# Corpora with checksums: a change is an error.
_WITH_CHECKSUMS = (".gz", ".bz2", ".xz", "tfrecord-00000-of-00001", ".array_record")


def small_config(config_class, describe=None):
    """Returns a small configuration of a family, which a format can describe."""
    if config_class is ElmoConfig:
        return SMALL_ELMO
    for config in CONFIGS.values():
        if type(config) is config_class:
            config = dataclasses.replace(config, **CHANGES.get(config_class, {}))
            with contextlib.suppress(UserError):
                if describe is not None:
                    describe(config, [])
                return config
    raise AssertionError(config_class)


def _hugging_face(family) -> Make:
    def make(directory):
        config = small_config(family.config_class, family.config_to_json)
        interop.to_huggingface({"model": random_model(config)}, config, str(directory))

        def read(path):
            path = str(path)
            model = interop.config_from_huggingface(path)
            return (
                repr(model),
                interop.task_head(path),
                model_tokens.generation_settings(path),
                digest(interop.read(path, model)),
            )

        return Artefact(directory, read, texts=("config.json", "generation_config.json"), payload=safetensors_payload)

    return make


def _published(published) -> Make:
    def make(directory):
        config = small_config(published.config_class)
        published.write(config, leaves_of({"model": random_model(config)}), str(directory))
        # The names of arrays and their chunks have no checksums; the values are most of the file.
        texts = {
            path.name for path in directory.iterdir() if path.suffix in (".json", ".hdf5") or path.name == "checkpoint"
        }

        def read(path):
            found = [
                each for each in (path, *path.glob("*.index")) if published.is_input(str(each).removesuffix(".index"))
            ]
            if not found:
                raise UserError(weight_files.explain_missing(str(path)))
            return digest(published.read(str(found[0]).removesuffix(".index"))[1])

        return Artefact(directory, read, texts)

    return make


def _tensorflow(family) -> Make:
    def make(directory):
        config = small_config(family.config_class, family.config_to_json)
        objective, settings = family.tensorflow.objective(config, {})
        sources = tensorflow_checkpoints._sources(family, config, objective(**settings)).values()
        rng, shapes = (
            np.random.default_rng(0),
            {name: each.mapping.hf_shape(each.shape) for each in sources for name in each.names},
        )
        directory.mkdir()
        variables = {name: rng.normal(size=shape) for name, shape in shapes.items()}
        tensorflow_checkpoints.write(str(directory / "model.ckpt"), variables)

        def read(path):
            if (prefix := weight_files.find_tensorflow(str(path))) is None:
                raise UserError(weight_files.explain_missing(str(path)))
            return digest(tensorflow_checkpoints.read(prefix, config).leaves)

        return Artefact(directory, read)

    return make


def _t5x(layout) -> Make:
    def make(directory):
        tensors = to_t5x(random_model(SMALL_T5))
        LAYOUTS[layout](directory, tensors)

        def payload(path):
            """Returns the arrays of a msgpack file, and the files of arrays."""
            if path.name.startswith("checkpoint"):
                contents, values = path.read_bytes(), [array.tobytes() for array in tensors.values()]
                starts = [contents.find(each) for each in values]
                return [
                    range(start, start + len(each)) for start, each in zip(starts, values, strict=True) if start >= 0
                ]
            is_index = path.name.startswith((".z", "_", "manifest"))
            return [] if is_index else [range(path.stat().st_size)]

        def read(path):
            if (index := weight_files.find_t5x(str(path))) is None:
                raise UserError(weight_files.explain_missing(str(path)))
            return digest(t5x.read(index, SMALL_T5))

        return Artefact(directory, read, payload=payload)

    return make


def _adapters(adapters, write) -> Make:
    def make(directory):
        config = base_of("bert")
        adapted = dataclasses.replace(config, adapters=adapters)
        leaves = stacked(randomized(adapted))
        write(adapted, leaves, str(directory))
        kernels = {name: leaf for name, leaf in leaves.items() if "/adapter/" not in name}

        def read(path):
            if not weight_files.is_adapter(str(path)):
                raise UserError(weight_files.explain_missing(str(path)))
            adapters, found, _ = adapter_files.read(str(path), Base(config, kernels), adapter_files.LoralibSettings())
            return repr(adapters), digest(found)

        return Artefact(directory, read, ("adapter_config.json",), payload=safetensors_payload)

    return make


def _one_file(name, write, read_file) -> Make:
    def make(directory):
        directory.mkdir()
        write(directory / name)

        def read(path):
            if not (path / name).exists():
                raise UserError(f"{path / name}: not found. Give another file.")
            return read_file(str(path / name))

        return Artefact(directory, read, texts=(name,), payload=safetensors_payload)

    return make


def _loralib() -> Make:
    config = base_of("bert")
    kernels = stacked(randomized(config))
    names = [f"bert.encoder.layer.{layer}.attention.self.query" for layer in range(config.num_layers)]
    updates = {f"{name}.lora_A": np.ones((2, config.embed_dim), np.float32) for name in names}
    updates |= {f"{name}.lora_B": np.ones((config.num_heads * config.head_dim, 2), np.float32) for name in names}
    settings = adapter_files.LoralibSettings(alpha=2.0)
    return _one_file(
        "updates.safetensors",
        lambda path: safetensors_files.write(str(path.parent), updates, file=path.name),
        lambda path: digest(adapter_files.read(path, Base(config, kernels), settings)[1]),
    )


def _prompt() -> Make:
    config = base_of("bert")
    kernels = stacked(randomized(config))
    return _one_file(
        "prompt.npy",
        lambda path: np.save(path, np.ones((3, config.embed_dim), np.float32)),
        lambda path: digest(adapter_files.read(path, Base(config, kernels), adapter_files.LoralibSettings())[1]),
    )


def _vectors(suffix) -> Make:
    vectors = word_vectors.Vectors(("the", "lemon"), np.arange(8, dtype=np.float32).reshape(2, 4))
    return _one_file(
        f"vectors{suffix}",
        lambda path: path.write_bytes(word_vectors.to_bytes(str(path), vectors)),
        lambda path: digest(convert_vectors.read(path, None)[1]),
    )


def _fasttext() -> Make:
    words = WordCounts(("the", "lemon"), np.array([7, 2]))
    rows = np.arange(20, dtype=np.float32).reshape(5, 4)
    model = fasttext_files.FastTextModel(words, Subwords(3, 2, 4), rows, rows[:2])
    return _one_file(
        "model.bin",
        lambda path: path.write_bytes(fasttext_files.to_bytes(model)),
        lambda path: digest(convert_vectors.read(path, None)[1]),
    )


def _corpus(name) -> Make:
    def make(directory):
        directory.mkdir()
        WRITERS[name](directory / name, _TEXTS)

        def read(path):
            file = str(path / name)
            if not (path / name).exists():
                raise UserError(f"{file}: not found. Give another file.")
            known, reading, texts = format_of(file), Reading(), []
            for record in known.records(fsspec.open(file), Cursor(), reading):
                try:
                    texts.append(check_text(known.text(record.raw, reading)))
                except OtherRecord as other:
                    texts.append(str(other))
                except BadRecord as error:
                    raise UserError(f"{file}: {error}") from error
            return texts

        texts, endless = () if name.endswith(_WITH_CHECKSUMS) else (name,), (name,) if name.endswith(_ENDLESS) else ()
        return Artefact(directory, read, texts=texts, endless=endless)

    return make


READERS: dict[str, Make] = {
    **{
        f"transformers {family.model_types[0]}": _hugging_face(family)
        for family in registry.families()
        if family.model_types[0] not in NOT_WRITTEN
    },
    **{f"published {each.config_class.__name__}": _published(each) for each in registry.formats()},
    **{f"tensorflow {each.model_types[0]}": _tensorflow(each) for each in registry.families() if each.tensorflow},
    **{f"t5x {layout}": _t5x(layout) for layout in LAYOUTS},
    **{f"peft {name}": _adapters(each, interop.peft.write) for name, each in peft_models.METHODS.items()},
    **{f"peft {name}": _adapters(each, interop.peft.write) for name, each in peft_models.PROMPT.items()},
    **{f"peft {name}": _adapters(each, interop.peft.write) for name, each in peft_models.PREFIX.items()},
    "adapters": _adapters((BottleneckAdapter(size=3),), adapter_hub.write),
    "loralib": _loralib(),
    "prompt-tuning": _prompt(),
    **{f"vectors {suffix}": _vectors(suffix) for suffix in (*word_vectors.SUFFIXES, word_vectors.GLOVE_SUFFIX)},
    "fasttext": _fasttext(),
    **{f"corpus {name}": _corpus(name) for name in WRITERS},
}
"""Name -> function that writes what a reader reads to a new directory."""


def package_of(name: str) -> str | None:
    """Returns the optional package of a reader, or None."""
    packages = PACKAGES | {"ElmoConfig": "h5py", "EtcConfig": "tensorflow", "tensorflow": "tensorflow"}
    return next((package for part, package in packages.items() if part in name), None)
