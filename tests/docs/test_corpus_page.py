"""The six commands of the page about a corpus, from a folder of web archives to an evaluated model."""

import random
import shlex

import page_commands
import pytest
import web_archives

pytestmark = [pytest.mark.beam, pytest.mark.clean]

COMMANDS = [command for command in page_commands.commands("corpus") if "gs://" not in command][:6]
NOUNS = "lemon orange garden kitchen farmer market river valley winter summer teacher letter window story".split()
VERBS = "found kept brought carried watched followed painted remembered".split()


def sentence(rng):
    first, second, third, fourth = rng.sample(NOUNS, 4)
    return f"The {first} that we {rng.choice(VERBS)} near the {second} was better than the {third} of the old {fourth}."


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Returns a directory with the folder `crawl`, of two small archives."""
    path = tmp_path_factory.mktemp("corpus")
    (path / "crawl").mkdir()
    rng = random.Random(0)
    for number in range(2):
        pages = {
            f"http://example.org/{number}/{index}": "\n".join(["Menu", *(sentence(rng) for _ in range(12)), "Imprint"])
            for index in range(40)
        }
        web_archives.write(path / "crawl" / f"{number}.warc.wet.gz", pages)
    return path


def test_page_has_six_commands():
    assert [command.split()[1] for command in COMMANDS] == ["clean", "vocabulary", "inspect", "cache", "train", "eval"]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[1])
def test_command_succeeds(command, directory, run_command, monkeypatch):
    monkeypatch.chdir(directory)
    words = shlex.split(command)[1:]
    # A small text has few pieces, and worker processes would take longer than the work.
    words = [word.replace("--size=1000", "--size=330") for word in words]
    words += ["--processes=1", "--gin.NUM_SHARDS=1"] if words[0] == "cache" else []
    code, output = run_command(words)
    assert code == 0, output
    if words[0] == "clean":
        assert "kept 80 of 80 pages" in output
    if words[0] == "inspect":
        assert "no problems found" in output
    if words[0] == "eval":
        assert "loss" in output
