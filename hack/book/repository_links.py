"""A preprocessor of mdBook: links to files that are not pages of the book lead to GitHub."""

import json
import posixpath
import re
import sys

FILES = "https://github.com/capcmi/cluster-api-provider-cmi/blob/main/"
LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
# The page that is the README has links as they are seen from the top folder.
INTRODUCTION = "introduction.md"


def rewritten(content, page):
    folder = "" if page == INTRODUCTION else "docs"

    def replace(match):
        path = posixpath.normpath(posixpath.join(folder, match[2]))
        if path == "README.md":
            return match[1] + INTRODUCTION + match[3]
        if posixpath.dirname(path) == "docs" and path.endswith((".md", ".svg")):
            return match[1] + posixpath.basename(path) + match[3]
        return match[1] + FILES + path + match[3]

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
        for item in value.values():
            walk(item)


def main():
    if sys.argv[1:2] == ["supports"]:
        return
    _context, book = json.load(sys.stdin)
    walk(book)
    json.dump(book, sys.stdout)


main()
