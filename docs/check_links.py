"""Every link of the built site leads somewhere; references to code that became no link are found too.

python docs/check_links.py docs/_build/html              # pages, figures and anchors within the site
python docs/check_links.py docs/_build/html --external   # and addresses elsewhere, over the network
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Parts of a link that a theme or Sphinx makes and that are no files.
_IGNORED = ("data:", "mailto:", "javascript:")


class Page(HTMLParser):
    """What a page links to, what can be linked to in it, and which references to code are no links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = {""}
        self.unresolved: set[str] = set()
        self._open_links = 0
        self._reference = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect."""
        values = {name: value or "" for name, value in attrs}
        self.links |= {values[name] for name in ("href", "src") if values.get(name)}
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        self._open_links += tag == "a"
        names = values.get("class", "").split()
        self._reference = tag == "code" and "xref" in names and "py" in names and not self._open_links

    def handle_endtag(self, tag: str) -> None:
        """Count links that are open: a reference inside of one is resolved."""
        self._open_links -= tag == "a"
        if tag == "code":
            self._reference = False

    def handle_data(self, data: str) -> None:
        """The name of a reference that is not inside of a link."""
        if self._reference:
            self.unresolved.add(data)


def check_site(root: Path) -> tuple[list[str], set[str]]:
    """What is wrong within the site, in words, and the addresses elsewhere."""
    pages = {path: Page(path.read_text()) for path in sorted(root.rglob("*.html"))}
    problems, external = [], set()
    for path, page in pages.items():
        name = path.relative_to(root)
        problems += [
            f"{name}: {code} is no link: nothing of that name is documented" for code in page.unresolved
        ]
        for link in page.links:
            if link.startswith(("http://", "https://", "//")):
                external.add(link)
            elif not link.startswith(_IGNORED):
                problem = _internal_problem(path, link, root, pages)
                problems += [f"{name}: {link} {problem}"] if problem else []
    return sorted(problems), external


def _internal_problem(path: Path, link: str, root: Path, pages: dict[Path, Page]) -> str | None:
    parts = urlsplit(link)
    place = unquote(parts.path)
    target = root / place.lstrip("/") if place.startswith("/") else (path.parent / place)
    target = path if not place else target.resolve()
    if not target.exists():
        return "leads nowhere"
    if target.is_dir():
        target /= "index.html"
    if target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return "leads to a page without that anchor"
    return None


def check_external(address: str) -> str | None:
    """Why an address cannot be reached, or None."""
    request = urllib.request.Request(address, headers={"User-Agent": "Mozilla/5.0 (link check)"})
    try:
        with urllib.request.urlopen(request, timeout=20):
            return None
    except (urllib.error.URLError, TimeoutError, OSError) as error:
        return str(error)


def main(arguments: list[str]) -> int:
    """0 where every link is good."""
    root = Path(arguments[0]).resolve()
    problems, external = check_site(root)
    if not any(root.rglob("*.html")):
        problems.append(f"{root} holds no page")
    if "--external" in arguments:
        reasons = {address: check_external(address) for address in sorted(external) if "://" in address}
        problems += [f"{address}: {reason}" for address, reason in reasons.items() if reason]
    print("\n".join(problems) or f"all links are good ({len(external)} of them lead elsewhere)")
    return bool(problems)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
