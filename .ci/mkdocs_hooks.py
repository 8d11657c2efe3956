"""Hooks of the documentation site: patterns in the navigation, generated pages, links to files outside docs/."""

import fnmatch
import importlib.util
import posixpath
import re
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
# The page of docs/generate_settings.py.
SETTINGS = "settings.md"


def on_config(config):
    """Replaces patterns of the navigation, such as `families/*.md`, by the pages that match."""
    names = [path.relative_to(config.docs_dir).as_posix() for path in Path(config.docs_dir).rglob("*.md")]
    names += api_pages()
    for section in config.nav:
        for title, entries in section.items():
            if isinstance(entries, list):
                section[title] = [page for entry in entries for page in _expand(entry, names)]
    return config


def _expand(entry, names: list[str]) -> list:
    if not isinstance(entry, str) or "*" not in entry:
        return [entry]
    return sorted(fnmatch.filter(names, entry))


def on_files(files, *, config):
    """Adds the generated pages: the settings and the Python API."""
    from mkdocs.structure.files import File  # here, because tests read the pages without mkdocs

    for name, text in {SETTINGS: _settings_page(), **api_pages()}.items():
        if written := files.get_file_from_path(name):  # docs/generate_settings.py writes a copy of its page
            files.remove(written)
        files.append(File.generated(config, name, content=text))
    return files


def _settings_page() -> str:
    spec = importlib.util.spec_from_file_location("generate_settings", _ROOT / "docs" / "generate_settings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.page()


def api_pages() -> dict[str, str]:
    """Returns a page per package of the library, with all of its modules.

    Returns:
      Name of the page -> Markdown.
    """
    pages = {}
    for init in sorted(_ROOT.glob("t5x_like/**/__init__.py")):
        package = ".".join(init.parent.relative_to(_ROOT).parts)
        modules = sorted(path.stem for path in init.parent.glob("*.py") if not path.stem.startswith("_"))
        identifiers = [package, *(f"{package}.{module}" for module in modules)]
        pages[f"api/{package}.md"] = "\n\n".join([f"# {package}", *(f"::: {name}" for name in identifiers), ""])
    return pages


def on_page_markdown(markdown: str, *, page, config, files) -> str:
    """Replaces relative links that leave docs/, such as `../launch/README.md`.

    They link to the repository if mkdocs.yml has `repo_url`; otherwise the path is shown.
    """

    def replaced(match: re.Match) -> str:
        text, link = match.groups()
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), link))
        if target.startswith("docs/"):
            return match[0]
        if config.repo_url:
            return f"[{text}]({config.repo_url}/blob/main/{target})"
        return f"`{target}`" if target in text.strip("`") else f"{text} (`{target}`)"

    return re.sub(r"\[([^\]]+)\]\((\.\./[^)\s]+)\)", replaced, markdown)
