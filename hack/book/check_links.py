"""Fails if a link or redirect of a built book leads to no page or to no heading: `check_links.py FOLDER`."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The targets that a page has, and where its links lead."""

    def __init__(self, path):
        super().__init__()
        self.ids = set()
        self.links = []
        self.redirect = None
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids.update(attrs[name] for name in ("id", "name") if attrs.get(name))
        if tag == "meta" and attrs.get("http-equiv") == "refresh":
            self.redirect = attrs["content"].partition("URL=")[2]
        link = attrs.get("href") if tag in ("a", "link") else attrs.get("src")
        if link:
            self.links.append(link)


def faults(folder):
    pages = {path.resolve(): Page(path) for path in folder.rglob("*.html")}
    redirects = {path for path, page in pages.items() if page.redirect is not None}
    if len(pages) - len(redirects) < 20:
        yield f"{folder} has only {len(pages) - len(redirects)} pages"
    for path, page in pages.items():
        # The first is shown in any folder, the second has all pages in one.
        if path.name in ("404.html", "print.html"):
            continue
        name = path.relative_to(folder.resolve())
        for link in [page.redirect] if path in redirects else page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                yield f"{name} links to {link}, which is not there"
            elif target in redirects:
                yield f"{name} links to {link}, which only redirects"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                yield f"{name} links to {link}: there is no such heading"


def main():
    found = sorted(set(faults(Path(sys.argv[1]))))
    for fault in found:
        print(fault, file=sys.stderr)
    sys.exit(1 if found else 0)


main()
