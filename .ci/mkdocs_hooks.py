"""Hooks of the documentation site: patterns in the navigation, and links to files outside of docs/."""

import posixpath
import re
from pathlib import Path


def on_config(config):
    """Replaces patterns of the navigation, such as `families/*.md`, by the pages that match."""
    for section in config.nav:
        for title, entries in section.items():
            if isinstance(entries, list):
                section[title] = [page for entry in entries for page in _expand(entry, Path(config.docs_dir))]
    return config


def _expand(entry, docs: Path) -> list:
    if not isinstance(entry, str) or "*" not in entry:
        return [entry]
    return sorted(path.relative_to(docs).as_posix() for path in docs.glob(entry))


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
