"""The pages of the documentation: links, line lengths, navigation, and the program of docs/python.md."""

import fnmatch
import pkgutil
import re
import runpy
from pathlib import Path

import pytest
import small_models

import t5x_like
from t5x_like.conversion.settings import Source, Target
from t5x_like.convert import convert

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
HOOKS = runpy.run_path(str(ROOT / ".ci" / "mkdocs_hooks.py"))
API_PAGES = HOOKS["api_pages"]()
# Pages of the site that are made when it is built. A checkout may have a written copy.
GENERATED = {DOCS / name for name in (HOOKS["SETTINGS"], *API_PAGES)}
PAGES = sorted({*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "launch" / "README.md"} - GENERATED)
MAX_LINE = 110


def prose(path):
    """Returns the text of a page without code blocks."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return "\n".join(line for line in text.splitlines() if not line.startswith("    "))


def anchors(path):
    """Returns the anchors of the headings of a page, as GitHub forms them."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_resolve():
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)\s]+)\)", prose(page))]
    for path, link in links:
        if re.match(r"https?://", link):
            continue
        target, _, anchor = link.partition("#")
        file = (path.parent / target).resolve() if target else path
        on_site = file in GENERATED and path.is_relative_to(DOCS)
        assert file.exists() or on_site, f"{path.name}: {link} not found"
        if anchor:
            assert anchor in anchors(file), f"{path.name}: {link}: heading not found"


def test_lines_of_prose_fit():
    # Tables and lines of badges cannot be wrapped.
    lines = [(path.name, line) for path in PAGES for line in prose(path).splitlines()]
    assert [each for each in lines if len(each[1]) > MAX_LINE and not re.match(r"\||\[!\[", each[1])] == []


def test_named_files_exist():
    for path in PAGES:
        text = prose(path)
        files = re.findall(r"`((?:t5x_like|tests|gin_configs|launch|benchmarks|data_tasks)/[\w/.*]+)`", text)
        folders = "commands|data|hardware|models|objectives|optimizers|runs|studies"
        gin_files = re.findall(rf"`(?:gin_configs/)?((?:{folders})/[\w/]+\.gin)`", text)
        # Capitals stand for names that the reader chooses, such as tests/models/test_FAMILY.py. A stored configuration
        # is in a run directory.
        for name in (*files, *(f"gin_configs/{each}" for each in gin_files)):
            if not re.search(r"[A-Z]{3}", name) and not name.endswith("/config.gin"):
                assert any(ROOT.glob(name.rstrip("/"))), f"{path.name}: {name} not found"


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    entries = re.findall(r"[\w/*]+\.md", navigation)
    pages = {path.relative_to(DOCS).as_posix() for path in {*DOCS.rglob("*.md")} | GENERATED}
    assert {page for entry in entries for page in fnmatch.filter(pages, entry)} == pages
    assert {entry for entry in entries if "*" not in entry} <= pages


def test_every_module_is_on_a_page_of_the_api():
    assert "api/*.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    modules = [module.name for module in pkgutil.walk_packages(t5x_like.__path__, "t5x_like.")]
    entries = [name for text in API_PAGES.values() for name in re.findall(r"^::: (.+)$", text, re.MULTILINE)]
    assert sorted(entries) == sorted(["t5x_like", *(name for name in modules if not name.endswith(".__main__"))])


def test_glossary_is_sorted_and_unique():
    terms = re.findall(r"^\| (?!term|-)([^|]+?) \|", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert len(terms) >= 40
    assert terms == sorted(set(terms), key=str.lower)


@pytest.mark.full
def test_programs_of_the_python_page_run(tmp_path, monkeypatch, capsys):
    """The programs run one after the other. The first one reads a classifier with random weights."""
    pytest.importorskip("seqio")
    monkeypatch.chdir(tmp_path)
    small_models.write_bert(tmp_path / "bert", labels=("negative", "positive"))
    convert(Source("bert"), Target("runs/sst2"))
    with open("runs/sst2/config.gin", "a") as file:
        file.write("MIXTURE_OR_TASK_NAME = 'glue_sst2_classification'\nTASK_FEATURE_LENGTHS = {'inputs': 12}\n")
        file.write("TASK_ARGUMENTS = {'vocabulary_path': 'bert'}\n")
    programs = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/python.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(programs) == 3
    names = {"__name__": "program"}
    for program in programs:
        exec(compile(program, "docs/python.md", "exec"), names)
    printed = capsys.readouterr().out
    assert re.search(r"^(negative|positive) \{'negative': 0\.\d+, 'positive'", printed, re.MULTILINE)
    assert re.search(r"loss \d\.\d+, accuracy 0\.\d+", printed)
    complete = [f"runs/python/checkpoints/{step} is complete" for step in (10, 20)]
    assert [line for line in printed.splitlines() if line.startswith("runs/")] == complete
    assert re.findall(r"^step (\d+): loss", printed, re.MULTILINE) == ["10", "20"]
    assert Path("runs/student/checkpoints/20").is_dir()
