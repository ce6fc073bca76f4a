"""Write the pages of docs, and what they link to, as a site with a search (`make site`): build/site/index.html.

README, CONTRIBUTING and CHANGELOG become pages beside those of docs, sources that a page links to become listings.
Sphinx makes HTML of them, with the search; nothing of the site is fetched from the network.
"""

import os
import re
import shutil
import sys
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build" / "pages"
SITE = ROOT / "build" / "site"
GROUPS = {
    "Learn": ("overview", "tour", "gallery", "coming-from", "howto", "glossary"),
    "Frontends": ("jax", "pytorch", "array-api", "gradients", "random", "lengths", "weights"),
    "Layouts and hints": ("propagation", "placement", "hints", "symbolic", "verify", "see"),
    "Running": ("performance", "ranks", "serving", "gpu", "security"),
    "Reference": ("api", "passes", "dialects/dist", "dialects/hint", "dialects/mw"),
    "Contributing": ("CONTRIBUTING", "CHANGELOG"),
}
"""The site's table of contents; decisions come last."""

ABOVE = {"README.md": "overview.md"}
"""Pages of the root that have another name in the site."""

_LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?(?=\))")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_FENCES = {"console": "console", "python": "python", "diff": "diff", "pycon": "pycon"}
_SETTINGS = {
    "project": "meshweave",
    "extensions": "myst_parser",
    "html_theme": "furo",
    "html_title": "meshweave",
    "myst_heading_anchors": "6",
    "suppress_warnings": "misc.highlighting_failure,myst.header",
}


def place(path: str) -> str:
    """Return where a file of the repository lies in the site."""
    if path.startswith("docs/"):
        return path[len("docs/") :]
    if "/" not in path and path.endswith(".md"):
        return ABOVE.get(path, path)
    return f"source/{path}.md"


def linked_from(path: str) -> list[str]:
    """Return the files of the repository that a page links to."""
    here = PurePosixPath(path).parent
    found = [os.path.normpath(here / target) for target, _ in _LINK.findall(read(path))]
    return sorted({each for each in found if (ROOT / each).is_file()})


def read(path: str) -> str:
    """Return the text of a file of the repository."""
    return (ROOT / path).read_text(encoding="utf-8")


def moved(path: str) -> str:
    """Return the text of a page with its links to files of the repository turned to pages of the site."""
    here, page = PurePosixPath(path).parent, PurePosixPath(place(path)).parent

    def turned(match: "re.Match[str]") -> str:
        target = os.path.normpath(here / match[1])
        if (ROOT / target).is_dir():  # of decisions: the first one
            target = str(min((ROOT / target).glob("*.md")).relative_to(ROOT))
        return os.path.relpath(place(target), page) + (match[2] or "")

    def fenced(match: "re.Match[str]") -> str:
        kind, _, body = match[0][3:].partition("\n")
        return f"```{_FENCES.get(kind.split(' ')[0], 'text')}\n{body}"

    return _FENCE.sub(fenced, _LINK.sub(turned, read(path)))


def site_pages() -> dict[str, str]:
    """Return the texts of all pages, by their places: those of docs, and all that they lead to."""
    waiting = [str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").rglob("*.md"))]
    seen, made = set(waiting), {}
    while waiting:
        path = waiting.pop()
        if path.endswith(".md"):
            made[place(path)] = moved(path)
            new = [each for each in linked_from(path) if each not in seen]
            seen.update(new)
            waiting += new
        elif path.endswith((".ipynb", ".svg")):
            made[place(path)] = read(path)
        else:
            language = {".py": "python"}.get(Path(path).suffix, "text")
            made[place(path)] = f"# {path}\n\n````{language}\n{read(path)}````\n"
    made["index.md"] += contents(made)
    return made


def contents(made: "dict[str, str]") -> str:
    """Return the table of contents, as Sphinx reads it: what is beside a page in the site."""
    decisions = sorted(name[:-3] for name in made if name.startswith("adr/"))
    listings = sorted(name[:-3] for name in made if name.startswith("source/"))
    groups = {**GROUPS, "Decisions": decisions, "Sources": listings}
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(names) + "\n```\n"
        for caption, names in groups.items()
    )


def write() -> None:
    """Write all pages into PAGES, afresh."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for name, text in site_pages().items():
        (PAGES / name).parent.mkdir(parents=True, exist_ok=True)
        (PAGES / name).write_text(text, encoding="utf-8")


def main() -> int:
    """Write the site; return 1 where a link of a page leads nowhere, or a page is missing in the contents."""
    from sphinx.cmd.build import build_main  # the rest of this file is tested without it

    write()
    settings = [part for name, value in _SETTINGS.items() for part in ("-D", f"{name}={value}")]
    return build_main(
        ["-q", "-W", "--keep-going", "-C", *settings, "-b", "html", str(PAGES), str(SITE)]
    )


if __name__ == "__main__":
    sys.exit(main())
