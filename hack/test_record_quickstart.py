"""Tests of record-quickstart.py: `python3 -m unittest discover --start-directory hack`."""

import importlib.util
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

PROGRAM = Path(__file__).with_name("record-quickstart.py")
SPEC = importlib.util.spec_from_file_location("record_quickstart", PROGRAM)
recorder = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(recorder)

GREEN = recorder.COLOURS[2]


def screen(*parts, columns=10, rows=4):
    terminal = recorder.Terminal(columns, rows)
    for part in parts:
        terminal.feed(part)
    return terminal


def text(*parts, **size):
    return recorder.plain(screen(*parts, **size).frame())


class TerminalTest(unittest.TestCase):
    def test_lines(self):
        self.assertEqual(text("a\r\nb\r\n"), "a\nb")
        self.assertEqual(text("a\nb"), "a\n b")
        self.assertEqual(text("long\rs"), "song")
        self.assertEqual(text("ab\bc\td"), "ac      d")

    def test_full_screen_scrolls(self):
        self.assertEqual(text("1\r\n2\r\n3\r\n4", rows=3), "2\n3\n4")

    def test_long_line_wraps(self):
        self.assertEqual(text("abcdef", columns=4), "abcd\nef")
        self.assertEqual(text("abcd\r\nef", columns=4), "abcd\nef")

    def test_long_line_without_wrapping_ends_at_the_edge(self):
        self.assertEqual(text("\x1b[?7labcdef", columns=4), "abcf")
        self.assertEqual(text("\x1b[?7l\x1b[?7habcdef", columns=4), "abcd\nef")

    def test_cursor_moves(self):
        self.assertEqual(text("\x1b[2;3Hx"), "\n  x")
        self.assertEqual(text("ab\x1b[Hx"), "xb")
        self.assertEqual(text("a\r\nb\x1b[Ac"), "ac\nb")
        self.assertEqual(text("abc\x1b[2Gx\x1b[5Gy"), "axc y")
        self.assertEqual(text("abc\x1b[2Dx\x1b[2Cy\x1b[Bz"), "axc y\n     z")

    def test_cursor_stays_on_the_screen(self):
        self.assertEqual(text("\x1b[99;99Hx", columns=3, rows=2), "\n  x")

    def test_erases_parts_of_a_line(self):
        self.assertEqual(text("abcd\x1b[3G\x1b[K"), "ab")
        self.assertEqual(text("abcd\x1b[2G\x1b[1K"), "  cd")
        self.assertEqual(text("abcd\x1b[2G\x1b[2Kx"), " x")

    def test_erases_parts_of_the_screen(self):
        lines = "ab\r\ncd\r\nef\x1b[2;2H"
        self.assertEqual(text(lines, "\x1b[J"), "ab\nc")
        self.assertEqual(text(lines, "\x1b[1J"), "\n\nef")
        self.assertEqual(text(lines, "\x1b[2J"), "")

    def test_alternate_screen_gives_back_the_main_one(self):
        terminal = screen("main\r\n", "\x1b[?1049h", "table")
        self.assertEqual(recorder.plain(terminal.frame()), "table")
        terminal.feed("\x1b[?1049lend")
        self.assertEqual(recorder.plain(terminal.frame()), "main\nend")

    def test_synchronized_update(self):
        self.assertTrue(screen("\x1b[?2026h").updating)
        self.assertFalse(screen("\x1b[?2026h", "\x1b[?2026l").updating)

    def test_styles(self):
        bold = ("", True)
        self.assertEqual(screen("\x1b[1mab\x1b[0mc").frame(), ((("ab", bold), ("c", recorder.PLAIN)),))
        for green in ("\x1b[32m", "\x1b[92m", "\x1b[38;5;10m"):
            frame = screen(green + "a\x1b[39mb").frame()
            self.assertEqual(frame, ((("a", (GREEN, False)), ("b", recorder.PLAIN)),))
        self.assertEqual(screen("\x1b[1;32ma\x1b[mb").frame()[0][0], ("a", (GREEN, True)))

    def test_sequence_in_two_reads(self):
        self.assertEqual(text("ab\x1b", "[1", "Gx"), "xb")

    def test_ignores_other_sequences(self):
        self.assertEqual(text("\x1b[?25l\x1b]0;title\x07\x1b(Ba\x1b[4hb"), "ab")

    def test_frame_ends_with_the_last_text(self):
        self.assertEqual(screen("a  \r\n\r\n   \r\n").frame(), ((("a", recorder.PLAIN),),))

    def test_spinner_and_ages_are_no_change(self):
        first, second = (screen(f"{spin} up\r\nx  {age}") for spin, age in (("|", "9s"), ("/", "1m10s")))
        self.assertEqual(recorder.without_clocks(first.frame()), recorder.without_clocks(second.frame()))


class AnimationTest(unittest.TestCase):
    def frames(self, *texts):
        return [(float(at), screen(line).frame()) for at, line in enumerate(texts)]

    def test_replaces_paths(self):
        replace = recorder.replacement([(r"/tmp/capcmi-\w+", "/tmp/capcmi"), ("/home/me", "~")])
        frame = screen("cat /tmp/capcmi-a1b2/x /home/me/y", columns=40).frame(replace)
        self.assertEqual(recorder.plain(frame), "cat /tmp/capcmi/x ~/y")

    def test_thins_out_the_shortest_frames(self):
        frames = [(at, str(at)) for at in (0, 1, 1.1, 3, 3.2, 6)]
        self.assertEqual([at for at, _ in recorder.thin_out(frames, 4)], [0, 1.1, 3.2, 6])
        self.assertEqual(recorder.thin_out(frames, 6), frames)

    def test_line_of_several_frames_is_there_once(self):
        picture = recorder.svg(self.frames("a\r\nsame", "b\r\nsame", "a\r\nsame"), "title")
        body = picture.split("</style>")[1]
        self.assertEqual((body.count(">same<"), body.count(">a<"), body.count(">b<")), (1, 1, 1))

    def test_is_xml_with_title_and_last_screen(self):
        root = ElementTree.fromstring(recorder.svg(self.frames("a", "<&\x1b[32mz"), "a & b"))
        names = {child.tag.split("}")[1]: child.text for child in root}
        self.assertEqual((names["title"], names["desc"]), ("a & b", "<&z"))

    def test_every_moment_shows_the_lines_of_its_frame(self):
        frames = self.frames("a", "b", "a")
        begin = recorder.timeline(frames)
        self.assertEqual(
            recorder.keyframes("k", [(begin[0], begin[1]), (begin[2], begin[3])], begin[3]),
            ".k{animation-name:k}@keyframes k{0.00%{visibility:visible}10.00%{visibility:hidden}"
            "20.00%{visibility:visible}}",
        )


class CommandTest(unittest.TestCase):
    def record(self, script):
        output = Path(self.enterContext(tempfile.TemporaryDirectory())) / "out.svg"
        arguments = ["--command", f'sh -c "{script}"', "--output", output, "--until", "ready", "--timeout", "20"]
        done = subprocess.run([sys.executable, PROGRAM, *arguments], capture_output=True, text=True, check=False)
        return done, output

    def test_interrupts_the_command_and_writes_the_file(self):
        done, output = self.record("stty size; echo ready; sleep 60")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(">ready<", output.read_text())
        self.assertIn(">24 130<", output.read_text())

    def test_failed_command_writes_nothing(self):
        done, output = self.record("echo broken; exit 3")
        self.assertEqual(done.returncode, 1)
        self.assertIn("ended with 3", done.stderr)
        self.assertIn("broken", done.stderr)
        self.assertFalse(output.exists())


if __name__ == "__main__":
    unittest.main()
