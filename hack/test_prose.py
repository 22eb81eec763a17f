"""Tests of prose.py: `python3 -m unittest discover hack`."""

import contextlib
import io
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import prose

# One finding each.
BAD = "The page shows what is wrong here."
GOOD = "The page names the wrong field."


class Habits(unittest.TestCase):
    def test_each_habit_is_found_once(self):
        for name, sentence in {
            'clause with "what"': BAD,
            "negation by noun": "The orphan is none for this provider.",
            "pronoun chain": "It deletes those that are orphans.",
            'clause with "of which"': "The time at which it ended is known.",
            "literal translation": "The file is written anew each time.",
            prose.LONG: " ".join(["word"] * (prose.LONGEST + 1)),
        }.items():
            self.assertEqual(prose.findings(sentence), [name], sentence)

    def test_plain_sentences_have_no_finding(self):
        for sentence in (GOOD, " ".join(["word"] * prose.LONGEST)):
            self.assertEqual(prose.findings(sentence), [])


class Texts(unittest.TestCase):
    def test_code_is_no_prose(self):
        text = "Set `what is it` and ``what is `x` `` to [a page](what-is)."
        self.assertEqual(list(prose.sentences(text)), ["Set CODE and CODE to a page."])
        page = "```sh\nwhat is this\n```\n<!-- what is\nthis -->\nA text."
        self.assertEqual(prose.markdown(page), [(6, "A text.")])

    def test_markdown_has_paragraphs_items_and_cells(self):
        page = "# A title\n\nA line\nand another.\n\n* One item\n  goes on.\n* Two.\n\n| a | b\\|c |\n"
        self.assertEqual(
            prose.markdown(page),
            [
                (1, "A title"),
                (3, "A line and another."),
                (6, "One item goes on."),
                (8, "Two."),
                (10, " a "),
                (10, " b\\|c "),
            ],
        )

    def test_sentences_end_with_a_stop_or_a_semicolon(self):
        text = "The first one ends here. The second one has parts; the third is long. Too short."
        self.assertEqual(len(list(prose.sentences(text))), 3)


class Code(unittest.TestCase):
    def test_comments_of_several_lines_are_one_paragraph(self):
        code = prose.Source(
            "//! A crate\n//! of code.\n\n"
            "/// A function.\n///\n/// ```\n/// not this\n/// ```\nfn f() {} // It ends.\n"
        )
        comments = [(1, "A crate of code."), (4, "A function."), (9, "It ends.")]
        self.assertEqual(code.comments, comments)

    def test_messages_are_strings_of_several_words(self):
        code = prose.Source(
            'fn f<\'a>(x: &\'a str, c: char) {\n'
            '    let quote = \'"\';\n'
            '    bail!("cannot read `{x}` of the \\\n        file"); // not "a message in a comment"\n'
            '    let key = "status.phase";\n'
            '    let text = r#"the "raw" text counts too"#;\n'
            '    let document = r"a: document\nof several lines of words";\n'
            "}\n"
        )
        self.assertEqual(
            code.messages, [(3, "cannot read `X` of the file"), (6, 'the "raw" text counts too')]
        )

    def test_messages_of_tests_do_not_count(self):
        code = prose.Source(
            '#[cfg(test)]\nmod tests {\n    fn f() { panic!("a message of a test here") }\n}\n'
            'fn f() { panic!("a message of the program here") }\n'
            '#[cfg(test)]\nmod more;\nconst X: &str = "a message after a test module";\n'
        )
        self.assertEqual([line for line, _ in code.messages], [5, 8])
        self.assertTrue(prose.is_test(pathlib.PurePath("src/plan/tests.rs")))
        self.assertFalse(prose.is_test(pathlib.PurePath("src/plan/test_clock.rs")))

    def test_comments_can_be_nested(self):
        code = prose.Source('/* "one /* two */ three" */ const X: &str = "a message of four words";')
        self.assertEqual(len(code.messages), 1)


    def test_comments_of_python_are_docstrings_and_hashes(self):
        code = prose.PythonSource(
            '"""A module.\n\n    not = this\n\nIt ends.\n"""\n# A comment\n# of two lines.\nx = 1  # One.\n'
            'def f():\n    """A function."""\n    return "# not a comment"\n'
        )
        comments = [(1, "A module."), (5, "It ends."), (7, "A comment of two lines."), (9, "One."), (11, "A function.")]
        self.assertEqual(sorted(code.comments), comments)

    def test_messages_of_python_are_strings_of_several_words(self):
        code = prose.PythonSource(
            '"""A docstring of four words."""\nraise ValueError(f"cannot read `{x}` of the "\n    "file")\n'
            'key = "status.phase"\n'
            'document = """a: document\nof several lines of words"""\n'
        )
        self.assertEqual(code.messages, [(2, "cannot read `X` of the file")])

    def test_comments_of_scripts_include_the_help_of_make_targets(self):
        code = prose.Script("#!/bin/sh\n# A comment.\nx=1 # no comment\nall: a b ## Build it all.\n")
        self.assertEqual(code.comments, [(2, "A comment."), (4, "Build it all.")])

    def test_cells_of_a_table_in_a_comment_are_apart(self):
        code = prose.Source("// Codes:\n//\n//   OK        it is there\n//   ABORTED   another call runs\n")
        cells = [(1, "Codes:"), (3, "OK"), (3, "it is there"), (4, "ABORTED"), (4, "another call runs")]
        self.assertEqual(code.comments, cells)


class Limits(unittest.TestCase):
    def run_in(self, texts):
        """Returns the exit code and the errors of a run in a folder with these files."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder).resolve()
            for name, text in texts.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            errors = io.StringIO()
            with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
                code = prose.main([], root)
            return code, errors.getvalue()

    def test_a_short_text_may_have_one_finding(self):
        self.assertEqual(self.run_in({"README.md": BAD})[0], 0)
        code, errors = self.run_in({"README.md": f"{GOOD} {BAD} {BAD}"})
        self.assertEqual(code, 1)
        self.assertIn("README.md: 2 findings in 3 sentences", errors)
        self.assertIn(f'README.md:1: clause with "what"\n        {BAD}', errors)

    def test_a_long_text_may_have_40_in_1000(self):
        text = "\n\n".join([GOOD] * 24 + [BAD])
        self.assertEqual(self.run_in({"docs/a/b.md": text})[0], 0)
        self.assertEqual(self.run_in({"docs/a/b.md": text.replace(GOOD, BAD, 1)})[0], 1)

    def test_comments_and_messages_have_the_same_limit(self):
        self.assertEqual(self.run_in({"src/lib.rs": f"// {BAD}\n// {BAD}\n"})[0], 1)
        messages = f'const A: &str = "{BAD}";\nconst B: &str = "{BAD}";\n'
        code, errors = self.run_in({"crates/x/src/a.rs": messages})
        self.assertEqual(code, 1)
        self.assertIn("messages of crates/x", errors)

    def test_each_kind_of_file_is_checked(self):
        for name, comment in {
            "CHANGELOG.md": "{}",
            "proto/a.proto": "// {}",
            "sdk/go/a.go": "// {}",
            "sdk/python/a.py": "# {}",
            "hack/a.sh": "# {}",
            "Makefile": "# {}",
            "config/a.yaml": "# {}",
        }.items():
            text = "\n\n".join([comment.format(BAD)] * 2)
            self.assertEqual(self.run_in({name: text})[0], 1, name)
            self.assertEqual(self.run_in({f"images/node/{name}": text})[0], 0, name)
        self.assertEqual(self.run_in({"a/gen/a.go": f"// {BAD}\n\n// {BAD}\n"})[0], 0)


if __name__ == "__main__":
    unittest.main()
