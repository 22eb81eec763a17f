"""A preprocessor of mdBook. Links to files outside the book become links to GitHub.

The introduction includes the README. mdBook also writes its first page as index.html, so its links must be right in the
top folder of the book. The preprocessor moves the page there.
"""

import json
import posixpath
import re
import sys

FILES = "https://github.com/capcmi/cluster-api-provider-cmi/blob/main/"
# The folder of the book's pages.
PAGES = "docs/"
# Files below PAGES that mdBook renders or copies.
OF_THE_BOOK = (".md", ".svg", ".png")
# The page that includes the README, and its place in the book.
INTRODUCTION, FRONT = "start/introduction.md", "introduction.md"
LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")


def rewritten(content, page):
    """The content with its links as the book needs them. `page` is a path below PAGES."""
    of_readme = page == INTRODUCTION
    # Links of the README are relative to the repository.
    source = "" if of_readme else posixpath.dirname(PAGES + page)
    here = "" if of_readme else posixpath.dirname(page)

    def replace(match):
        path = posixpath.normpath(posixpath.join(source, match[2]))
        if path in ("README.md", PAGES + INTRODUCTION):
            target = FRONT
        elif path.startswith(PAGES) and path.endswith(OF_THE_BOOK):
            target = path.removeprefix(PAGES)
        else:
            return match[1] + FILES + path + match[3]
        return match[1] + posixpath.relpath(target, here or ".") + match[3]

    # Blocks and words of code are left alone.
    parts = re.split(r"(^```.*?^```|`[^`\n]*`)", content, flags=re.MULTILINE | re.DOTALL)
    # A link's text may be a word of code, which splits the link: only its end is rewritten then.
    return "".join(part if part.startswith("`") else LINK.sub(replace, part) for part in parts)


def walk(value):
    if isinstance(value, list):
        for item in value:
            walk(item)
    elif isinstance(value, dict):
        if isinstance(value.get("content"), str) and value.get("path"):
            value["content"] = rewritten(value["content"], value["path"])
            if value["path"] == INTRODUCTION:
                value["path"] = FRONT
        for item in value.values():
            walk(item)


def main():
    if sys.argv[1:2] == ["supports"]:
        return
    _context, book = json.load(sys.stdin)
    walk(book)
    json.dump(book, sys.stdout)


main()
