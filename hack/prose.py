#!/usr/bin/env python3
"""Checks that the project's texts are easy to read.

    hack/prose.py                  check all texts; the counts by page, crate and folder
    hack/prose.py PATH...          only texts below these paths, with a line for each file
    hack/prose.py --worst N        also the N worst sentences

The texts are Markdown pages, comments in code, shell scripts, the Makefile and YAML, and messages. Docstrings are
comments, and so is the help of a make target. A message is a string literal of at least four words in code outside
tests. The check counts habits that make a sentence hard to read, and tolerates 40 for each 1,000 sentences.
"""

import argparse
import ast
import inspect
import io
import os
import pathlib
import re
import sys
import tokenize

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Findings for each 1,000 sentences.
LIMIT = 40
# A text with fewer sentences may have one finding, whatever its rate.
FEW = 25
# Words of the longest sentence, and of the shortest that counts as a sentence.
LONGEST, SHORTEST = 32, 4

MESSAGE_FOLDERS = ("src", "crates", "drivers", "sdk")
# Folders of generated and foreign files, and the ends of names of generated files.
SKIPPED = {"gen", "target", "out", "node_modules", ".git", ".venv", "build", "crd"}
GENERATED = ("_pb2.py", "_pb2_grpc.py")
# Sources of cached programs and images, except in Rust: a changed comment would build them again.
CACHED = ("crates/management-cluster/", "drivers/container/tests/", "drivers/libvirt/tests/", "images/node/")


def words(text):
    return "(?:" + "|".join(text.split()) + ")"


VERBS = words("is was are were has had can may comes? goes keeps stands came must")
NOUNS = words("of it they the a an to one else this that those there")
PREPOSITIONS = words("of at from by in after before for with to under")
CALQUES = (
    "anew|as ever|beforehand|all the same|belongs? into|by itself|of its own|says? so|said so|go(?:es)? by|"
    r"takes? [a-z ]{1,20} for (?:gone|one|an?)|in words|at once|(?:from )?(?:then|there) on|meanwhile|thereof|"
    "besides|as a rule|(?:gets?|got) away"
)
HABITS = {
    'clause with "what"': rf"\b(?:what|whatever) (?:{VERBS}|{NOUNS})\b",
    "negation by noun": (
        r"\b(?:is|are|was|were|be) none\b|\b(?:is|are|was|were) no [a-z]+(?: [a-z]+)? of\b|"
        r"\b(?:nothing but|any more)\b"
    ),
    "pronoun chain": (
        r"\b(?:one|those|that) of (?:which|those|them|what)\b|\bof (?:that|those) of\b|"
        r"\bthe one (?:that|of|which)\b|\b(?:that|those) of the\b|"
        r"\b(?:one|those) that (?:is|are|has|have|was|were)\b"
    ),
    'clause with "of which"': rf"\b{PREPOSITIONS} which\b",
    "literal translation": rf"\b(?:{CALQUES})\b",
}
HABITS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in HABITS.items()}
LONG = f"more than {LONGEST} words"


def findings(sentence):
    """Returns the names of the habits in a sentence, once for each occurrence."""
    found = [name for name, pattern in HABITS.items() for _ in pattern.finditer(sentence)]
    if len(sentence.split()) > LONGEST:
        found.append(LONG)
    return found


def sentences(text):
    """Yields the sentences of a paragraph. Code and links count as their text."""
    text = re.sub(r"(`+)(?:(?!\1).)+\1", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\[([^\]]*)\]", r"\1", text)
    text = re.sub(r"\b(e\.g|i\.e|etc|vs)\.", r"\1", text)
    for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z\"(])|;\s+", text):
        if len(sentence.split()) >= SHORTEST:
            yield sentence.strip()


class Paragraphs:
    """Joins lines of text to paragraphs, each with its first line."""

    ITEM = re.compile(r"(?:[*+-]|\d+\.|#+|>)\s+")

    def __init__(self):
        self.done, self.lines, self.start, self.in_code = [], [], 0, False

    def end(self):
        if self.lines:
            self.done.append((self.start, " ".join(self.lines)))
        self.lines = []

    def add(self, number, line):
        text = line.strip()
        if text.startswith("```"):
            self.in_code = not self.in_code
            self.end()
        elif self.in_code:
            pass
        elif text.startswith("|"):
            self.end()
            self.done.extend((number, cell) for cell in re.split(r"(?<!\\)\|", text.strip("|")))
        elif text == "":
            self.end()
        else:
            item = self.ITEM.match(text)
            if item:
                self.end()
                text = text[item.end() :]
            if not self.lines:
                self.start = number
            self.lines.append(text)

    def add_comment(self, number, content):
        """Adds a line of a comment. Indented lines are code, and wide gaps separate the cells of a table."""
        cells = re.split(r"(?<=\S) {2,}(?=\S)", content)
        if content.startswith("     "):
            return
        if len(cells) == 1:
            self.add(number, content)
            return
        self.end()
        self.done.extend((number, cell.strip()) for cell in cells)


def markdown(text):
    """Returns the paragraphs, list items and table cells of a Markdown page."""
    text = re.sub(r"<!--.*?-->", lambda comment: "\n" * comment.group().count("\n"), text, flags=re.DOTALL)
    paragraphs = Paragraphs()
    for number, line in enumerate(text.splitlines(), 1):
        paragraphs.add(number, line)
    paragraphs.end()
    return paragraphs.done


TOKEN = re.compile(
    r"""
    (?P<comment>//[^\n]*)
    | (?P<block>/\*)
    | \b[bc]?r(?P<hashes>\#*)"(?P<raw>.*?)"(?P=hashes)
    | (?:\b[bc])?"(?P<string>(?:[^"\\]|\\.)*)"
    | '(?:[^'\\\n]|\\u\{[^}]*\}|\\x..|\\.)'
    | (?P<test>\#\[cfg\(test\)\])
    | (?P<bracket>[{};])
    """,
    re.VERBOSE | re.DOTALL,
)


class Source:
    """The comments of a file in Rust or Go, and its messages outside tests."""

    def __init__(self, text):
        self.comments, self.messages = [], []
        paragraphs, last, style = Paragraphs(), 0, ""
        # The depth of braces, and the depth at which the item under #[cfg(test)] began.
        depth, test = 0, None
        position = 0
        while token := TOKEN.search(text, position):
            position = token.end()
            kind = token.lastgroup
            if kind == "comment":
                line = text.count("\n", 0, token.start()) + 1
                marker = re.match(r"//[/!]?", token.group()).group()
                begins_line = text[: token.start()].rpartition("\n")[2].strip() == ""
                if line != last + 1 or marker != style or not begins_line:
                    paragraphs.end()
                    paragraphs.in_code = False
                paragraphs.add_comment(line, token.group()[len(marker) :])
                last, style = line, marker
            elif kind == "block":
                position = self.end_of_block(text, position)
            elif kind == "test":
                test = depth if test is None else test
            elif kind == "bracket":
                depth += {"{": 1, "}": -1}.get(token.group(), 0)
                # The item ends with its closing brace, or with a semicolon when it has no body.
                if test is not None and depth <= test and token.group() != "{":
                    test = None
            elif kind in ("raw", "string") and test is None:
                self.add_message(text, token, kind)
        paragraphs.end()
        self.comments = paragraphs.done

    @staticmethod
    def end_of_block(text, position):
        depth = 1
        for mark in re.finditer(r"/\*|\*/", text[position:]):
            depth += 1 if mark.group() == "/*" else -1
            if depth == 0:
                return position + mark.end()
        return len(text)

    def add_message(self, text, token, kind):
        message = token.group(kind)
        if kind == "string":
            message = re.sub(r"\\\n\s*", "", message)
            message = re.sub(r"\\n", "\n", message)
            message = re.sub(r'\\(["\\])', r"\1", message)
        elif "\n" in message:
            return  # a document, such as YAML
        message = re.sub(r"\{[^{}]*\}", "X", message)
        if len(re.findall(r"[A-Za-z]{2,}", message)) >= SHORTEST:
            line = text.count("\n", 0, token.start()) + 1
            self.messages.extend((line, part) for part in message.split("\n"))


class Count:
    """The sentences of a text and their findings."""

    def __init__(self, name):
        self.name, self.sentences, self.found = name, 0, []

    def add(self, path, paragraphs):
        for line, paragraph in paragraphs:
            for sentence in sentences(paragraph):
                self.sentences += 1
                found = findings(sentence)
                if found:
                    self.found.append((path, line, sentence, found))

    @property
    def total(self):
        return sum(len(found) for *_, found in self.found)

    @property
    def rate(self):
        return 1000 * self.total / max(self.sentences, 1)

    def is_good(self):
        return self.rate <= LIMIT or (self.sentences < FEW and self.total <= 1)

    def worst(self, number):
        order = sorted(self.found, key=lambda found: (-len(found[3]), -len(found[2]), found[:2]))
        return order[:number]


class PythonSource:
    """The comments and docstrings of a file in Python, and its messages."""

    def __init__(self, text):
        tree = ast.parse(text)
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docstrings = {
            node.body[0].value
            for node in ast.walk(tree)
            if isinstance(node, documented) and ast.get_docstring(node, clean=False)
        }
        self.comments = comments_after_hash(hash_lines(text))
        for docstring in docstrings:
            self.comments += indented(docstring.lineno, inspect.cleandoc(docstring.value))
        self.messages = []
        parts = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if node not in docstrings and node not in parts:
                self.add_message(node)

    def add_message(self, node):
        if isinstance(node, ast.JoinedStr):
            constants = (part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
            message = "".join(constants)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            message = node.value
        else:
            return
        # A string of several lines is a document, such as YAML.
        if "\n" not in message.strip() and len(re.findall(r"[A-Za-z]{2,}", message)) >= SHORTEST:
            self.messages.append((node.lineno, message))


def hash_lines(text):
    """Yields the comments of Python code, with their lines and whether nothing is before them."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string[1:], token.line.lstrip().startswith("#")


def comments_after_hash(comments):
    """Returns the paragraphs of comments. Comments on adjacent lines belong together."""
    paragraphs, last = Paragraphs(), 0
    for line, content, begins_line in comments:
        if line != last + 1 or not begins_line:
            paragraphs.end()
            paragraphs.in_code = False
        paragraphs.add_comment(line, content)
        last = line if begins_line else 0
    paragraphs.end()
    return paragraphs.done


def indented(line, text):
    """Returns the paragraphs of a text whose indented lines are code, unless they continue an item."""
    paragraphs = Paragraphs()
    for number, content in enumerate(text.splitlines(), line):
        if not content.startswith("    "):
            paragraphs.add(number, content)
    paragraphs.end()
    return paragraphs.done


class Script:
    """The comments of a shell script, a Makefile or a YAML file, with the help of the Makefile's targets."""

    COMMENT = re.compile(r"\s*#(?!!)#*(?P<comment>.*)|[\w./-]+:.*?## (?P<help>.*)")

    def __init__(self, text):
        comments = []
        for number, line in enumerate(text.splitlines(), 1):
            if found := self.COMMENT.fullmatch(line):
                begins_line = found["help"] is None
                comments.append((number, found["comment"] if begins_line else found["help"], begins_line))
        self.comments, self.messages = comments_after_hash(comments), []


# The reader of each kind of file with code, by its suffix or name.
CODE = {".rs": Source, ".go": Source, ".proto": Source, ".py": PythonSource}
CODE |= {".sh": Script, "Makefile": Script, ".yaml": Script, ".yml": Script}


def files(root):
    """Returns the checked files, in order."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = set(folders) - SKIPPED
        found += (pathlib.Path(folder, name).relative_to(root) for name in names if not name.endswith(GENERATED))
    return sorted(path for path in found if path.suffix == ".rs" or not path.as_posix().startswith(CACHED))


def is_test(path):
    is_python = path.stem == "conftest" or (path.suffix == ".py" and path.stem.startswith("test_"))
    return "tests" in path.parts or path.stem == "tests" or path.stem.endswith(("_tests", "_test")) or is_python


def crate(path):
    """Returns the folder of the crate or kit that a file belongs to."""
    return path.parts[0] if path.parts[0] == "src" else "/".join(path.parts[:2])


def counts(root):
    """Returns the counts of pages, of files with code, and of messages by crate."""
    of_pages, of_comments, of_messages = [], [], {}
    for path in files(root):
        count = Count(path.as_posix())
        if path.suffix == ".md":
            count.add(path.as_posix(), markdown((root / path).read_text()))
            of_pages.append(count)
        reader = CODE.get(path.suffix or path.name)
        if reader is None:
            continue
        code = reader((root / path).read_text())
        count.add(path.as_posix(), code.comments)
        of_comments.append(count)
        if path.parts[0] in MESSAGE_FOLDERS and not is_test(path):
            name = f"messages of {crate(path)}"
            of_messages.setdefault(name, Count(name)).add(path.as_posix(), code.messages)
    return of_pages, of_comments, list(of_messages.values())


def merged(of_comments):
    """Returns the counts of comments by crate and folder."""
    folders = {}
    for count in of_comments:
        path = pathlib.Path(count.name)
        folder = crate(path) if path.parts[0] in MESSAGE_FOLDERS else path.parts[0]
        total = folders.setdefault(folder, Count(f"comments of {folder}"))
        total.sentences += count.sentences
        total.found += count.found
    return list(folders.values())


def problems(texts):
    """Returns the errors in the counts of texts."""
    errors = []
    for count in texts:
        if not count.is_good():
            lines = [f"{count.name}: {count.total} findings in {count.sentences} sentences; rewrite these:"]
            for path, line, sentence, found in count.worst(10):
                lines.append(f"    {path}:{line}: {', '.join(found)}\n        {sentence}")
            errors.append("\n".join(lines))
    return errors


def is_below(count, paths):
    names = {path for path, *_ in count.found} | {count.name.removeprefix("messages of ")}
    return any(name == path or name.startswith(f"{path}/") for name in names for path in paths)


def main(arguments=None, root=ROOT):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="print the N worst sentences")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files or folders")
    options = parser.parse_args(arguments)
    pages, comments, messages = counts(root)
    code = comments + messages
    shown = pages + messages + merged(comments)
    if options.paths:
        here = pathlib.Path.cwd()
        paths = [(here / path).resolve().relative_to(root).as_posix() for path in options.paths]
        pages = [count for count in pages if is_below(count, paths)]
        code = [count for count in code if is_below(count, paths)]
        shown = pages + code
    width = max((len(count.name) for count in shown), default=0)
    print(f"{'':{width}}  sentences  findings  per 1000")
    for count in shown:
        print(f"{count.name:{width}}  {count.sentences:9}  {count.total:8}  {count.rate:8.0f}")
    if options.worst:
        total = Count("")
        total.found = [found for count in pages + code for found in count.found]
        for path, line, sentence, found in total.worst(options.worst):
            print(f"{path}:{line}: {', '.join(found)}\n    {sentence}")
    errors = problems(pages + code)
    for error in errors:
        print(error, file=sys.stderr)
    if errors:
        print("hack/prose.py --help explains the limit", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
