"""Links pages of the site to files outside of docs/, such as `../launch/README.md`, in the repository."""

import posixpath
import re


def on_page_markdown(markdown: str, *, page, config, files) -> str:
    """Replaces relative links that leave docs/ by links to the file in the repository."""

    def replaced(match: re.Match) -> str:
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), match[1]))
        return match[0] if target.startswith("docs/") else f"]({config.repo_url}/blob/main/{target})"

    return re.sub(r"\]\((\.\./[^)\s]+)\)", replaced, markdown)
