#!/usr/bin/env python3
"""Records `make quickstart` in a pseudo-terminal and writes docs/images/quickstart.svg, an animated SVG.

    hack/record-quickstart.py
    hack/record-quickstart.py --command 'make quickstart DRIVER=libvirt' --output libvirt.svg

The recording ends when the screen matches --until. The command then gets SIGINT, as from Ctrl-C. If the command ends
earlier or the time is up, the exit code is 1 and no file is written.

The animation shows frames at an even pace, not in real time. It has its own colours, uses fonts of the system only,
and shows the last frame where animation is switched off.
"""

import argparse
import codecs
import contextlib
import fcntl
import html
import os
import pty
import re
import select
import shlex
import signal
import struct
import sys
import tempfile
import termios
import time
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UNTIL = r"(\d+) of \1 Machines are Running\. Ctrl-C"
SIZE_LIMIT = 80_000
# Seconds: how long a frame is shown, at least and at most; how long the last one; between --until and its frame.
SHORTEST, LONGEST, LAST, SETTLE = 0.8, 2.0, 8.0, 2.0
CELL_WIDTH, LINE_HEIGHT, MARGIN = 7.2, 16, 14
BACKGROUND, FOREGROUND, BORDER = "#0d1117", "#e6edf3", "#30363d"
# The colours 1 to 6 of a terminal, from red to cyan.
COLOURS = ("", "#ff7b72", "#3fb950", "#d29922", "#58a6ff", "#bc8cff", "#39c5cf", "")
PLAIN = ("", False)
ESCAPE = re.compile(r"\x1b(?:\[([?\d;]*)([@-~])|[()].|[=>78cDEHM]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
# A longer sequence is not waited for.
LONGEST_ESCAPE = 64


class Terminal:
    """The screen of a terminal, for the escape sequences of make, cargo and examples/quickstart.

    A cell is a character and its style; a style is a colour and whether it is bold.
    """

    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.main_screen = None
        self.style = PLAIN
        self.wraps = True
        # Whether a synchronized update is under way, and the screen is half painted.
        self.updating = False
        self.pending = ""
        self.clear()

    def clear(self):
        self.lines = [[] for _ in range(self.rows)]
        self.row = self.column = 0

    def feed(self, text):
        """Interprets output. An incomplete escape sequence waits for the next call."""
        text, self.pending = self.pending + text, ""
        at = 0
        while at < len(text):
            if text[at] != "\x1b":
                self.put(text[at])
                at += 1
            elif match := ESCAPE.match(text, at):
                if match[2]:
                    self.control(match[1], match[2])
                at = match.end()
            elif len(text) - at < LONGEST_ESCAPE:
                self.pending = text[at:]
                return
            else:
                at += 1

    def put(self, character):
        if character == "\n":
            self.line_feed()
        elif character == "\r":
            self.column = 0
        elif character == "\b":
            self.column = max(self.column - 1, 0)
        elif character == "\t":
            self.column = min(self.column // 8 * 8 + 8, self.columns - 1)
        elif character >= " " and character != "\x7f":
            if self.column == self.columns:
                if self.wraps:
                    self.line_feed()
                    self.column = 0
                else:
                    self.column -= 1
            line = self.lines[self.row]
            line.extend([(" ", PLAIN)] * (self.column + 1 - len(line)))
            line[self.column] = (character, self.style)
            self.column += 1

    def line_feed(self):
        if self.row + 1 < self.rows:
            self.row += 1
        else:
            self.lines = [*self.lines[1:], []]

    def control(self, parameters, name):
        if parameters.startswith("?"):
            for mode in parameters[1:].split(";"):
                self.set_mode(mode, name == "h")
            return
        numbers = [int(number or 0) for number in parameters.split(";") if number.isdigit() or not number]
        first = numbers[0]
        if name in "Hf":
            second = numbers[1] if len(numbers) > 1 else 1
            self.row = min(max(first, 1), self.rows) - 1
            self.column = min(max(second, 1), self.columns) - 1
        elif name == "A":
            self.row = max(self.row - max(first, 1), 0)
        elif name == "B":
            self.row = min(self.row + max(first, 1), self.rows - 1)
        elif name == "C":
            self.column = min(self.column + max(first, 1), self.columns - 1)
        elif name == "D":
            self.column = max(self.column - max(first, 1), 0)
        elif name == "G":
            self.column = min(max(first, 1), self.columns) - 1
        elif name == "K":
            self.erase_in_line(first)
        elif name == "J":
            self.erase_in_screen(first)
        elif name == "m":
            self.paint(numbers)

    def set_mode(self, mode, on):
        if mode == "7":
            self.wraps = on
        elif mode == "2026":
            self.updating = on
        elif mode == "1049" and on:
            self.main_screen = (self.lines, self.row, self.column)
            self.clear()
        elif mode == "1049" and self.main_screen:
            self.lines, self.row, self.column = self.main_screen
            self.main_screen = None

    def erase_in_line(self, part):
        line = self.lines[self.row]
        if part == 0:
            del line[self.column :]
        elif part == 1:
            line[: self.column + 1] = [(" ", PLAIN)] * min(self.column + 1, len(line))
        else:
            line.clear()

    def erase_in_screen(self, part):
        if part < 2:
            self.erase_in_line(part)
        erased = {0: range(self.row + 1, self.rows), 1: range(self.row)}.get(part, range(self.rows))
        for row in erased:
            self.lines[row] = []

    def paint(self, numbers):
        colour, bold = self.style
        if numbers[:2] == [38, 5] and len(numbers) > 2:
            colour = COLOURS[numbers[2] % 8] if numbers[2] < 16 else ""
        else:
            for number in numbers:
                if number == 0:
                    colour, bold = PLAIN
                elif number in (1, 22):
                    bold = number == 1
                elif 30 <= number <= 37 or 90 <= number <= 97:
                    colour = COLOURS[number % 10]
                elif number == 39:
                    colour = ""
        self.style = (colour, bold)

    def frame(self, replace=lambda text: text):
        """The lines down to the last one with text. A line is a tuple of pairs: a text and its style."""
        lines = [runs(line, replace) for line in self.lines]
        while lines and not lines[-1]:
            lines.pop()
        return tuple(lines)


def runs(line, replace):
    """Joins the cells of a line that have the same style."""
    joined = []
    for character, style in line:
        if joined and joined[-1][1] == style:
            joined[-1][0] += character
        else:
            joined.append([character, style])
    while joined and not joined[-1][0].rstrip():
        joined.pop()
    if joined:
        joined[-1][0] = joined[-1][0].rstrip()
    return tuple((replace(text), style) for text, style in joined)


def replacement(pairs):
    """A function that replaces each pattern in a text."""
    compiled = [(re.compile(pattern), text) for pattern, text in pairs]

    def replace(text):
        for pattern, new in compiled:
            text = pattern.sub(lambda _, new=new: new, text)
        return text

    return replace


def paths_of_this_computer():
    """Patterns of paths that differ between computers, and a neutral text for each."""
    target = os.environ.get("CARGO_TARGET_DIR") or ROOT / "target"
    folder = re.escape(tempfile.gettempdir())
    paths = [(folder + r"/capcmi-\w+", "/tmp/capcmi")]
    for path, text in ((target, "target"), (ROOT, "."), (Path.home(), "~")):
        paths.append((re.escape(str(path)) + r"(?=/|\b)", text))
    return paths


def record(command, columns, rows, limit, until, replace):
    """The frames of a run, with their times. The run is interrupted when its screen matches `until`."""
    pid, terminal = pty.fork()
    if pid == 0:
        start(command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    screen, frames, started = Terminal(columns, rows), [], time.monotonic()
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    screen.feed(f"\x1b[1m$ {shlex.join(command)}\x1b[0m\r\n")
    status = stop = None
    try:
        while stop is None or time.monotonic() < stop:
            now = time.monotonic() - started
            if now > limit:
                sys.exit(f"record-quickstart: {limit} s are over, and the screen is\n{plain(screen.frame())}")
            if not screen.updating:
                frame = screen.frame(replace)
                if not frames or without_clocks(frame) != without_clocks(frames[-1][1]):
                    frames.append((now, frame))
                if stop is None and re.search(until, plain(frame)):
                    stop = time.monotonic() + SETTLE
            if select.select([terminal], [], [], 0.05)[0]:
                data = read(terminal)
                if not data:
                    break
                screen.feed(decoder.decode(data))
    finally:
        status = end(pid, terminal)
    if stop is None:
        code = os.waitstatus_to_exitcode(status)
        sys.exit(f"record-quickstart: the command ended with {code}, and the screen is\n{plain(screen.frame())}")
    return frames


def start(command):
    """Turns the child of the fork into the command."""
    try:
        os.chdir(ROOT)
        # Of the make that may run this program.
        for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "NO_COLOR"):
            os.environ.pop(name, None)
        os.environ.update(TERM="xterm-256color", CARGO_TERM_QUIET="true")
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error}", flush=True)
    finally:
        os._exit(127)


def read(terminal):
    """The next output; nothing when the command has closed the terminal."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def end(pid, terminal):
    """Interrupts the process group and waits for the command's end. SIGTERM and SIGKILL follow if it is late."""
    status = None
    for number, seconds in ((signal.SIGINT, 60), (signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        # A command that has just ended keeps its status.
        ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)
        expiry = time.monotonic() + seconds
        while not ended and time.monotonic() < expiry:
            # The command blocks while nobody reads its last output.
            if not select.select([terminal], [], [], 0.05)[0] or not read(terminal):
                time.sleep(0.05)
            ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
    os.close(terminal)
    return status


def plain(frame):
    return "\n".join("".join(text for text, _ in line) for line in frame)


def without_spinner(text):
    return re.sub(r"(?m)^[|/\\-] ", "", text)


def without_clocks(frame):
    """The text without the parts that change all the time: the spinner and the ages."""
    return re.sub(r"(?m)\s+(\d+h)?(\d+m)?\d+s$", "", without_spinner(plain(frame)))


def thin_out(frames, count):
    """Returns at most this many frames, and drops the shortest ones first. The first and the last stay."""
    frames = list(frames)
    while len(frames) > max(count, 2):
        shown = [later[0] - earlier[0] for earlier, later in pairwise(frames[1:])]
        del frames[1 + shown.index(min(shown))]
    return frames


def timeline(frames):
    """Returns the start of each frame of the animation, and last the length of the animation."""
    times = [0.0]
    for (begin, _), (until, _) in pairwise(frames):
        times.append(times[-1] + min(max(until - begin, SHORTEST), LONGEST))
    return [*times, times[-1] + LAST]


def svg(frames, title):
    """The animation. A line that several frames share is in it once."""
    times = timeline(frames)
    length = times[-1]
    spans = {}
    for index, (_, frame) in enumerate(frames):
        for row, line in enumerate(frame):
            parts = spans.setdefault((row, line), [])
            if parts and parts[-1][1] == times[index]:
                parts[-1][1] = times[index + 1]
            else:
                parts.append([times[index], times[index + 1]])
    names, body = {}, []
    for (row, line), parts in spans.items():
        drawn = draw(row, line)
        if not drawn:
            continue
        if parts == [[0.0, length]]:
            body.append(drawn)
            continue
        name = names.setdefault(tuple(map(tuple, parts)), f"k{len(names)}")
        last = " l" if parts[-1][1] == length else ""
        body.append(f'<g class="f{last} {name}">{drawn}</g>')
    width = max(len(text) for _, frame in frames for text in plain(frame).split("\n")) * CELL_WIDTH + 2 * MARGIN
    height = max(len(frame) for _, frame in frames) * LINE_HEIGHT + 2 * MARGIN
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
        f"<title>{html.escape(title)}</title>",
        f"<desc>{html.escape(without_spinner(plain(frames[-1][1])))}</desc>",
        "<style>",
        f"text{{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:{FOREGROUND}}}",
        ".b{font-weight:bold}.f{visibility:hidden}.l{visibility:visible}",
        *(f".c{number}{{fill:{colour}}}" for number, colour in enumerate(COLOURS) if colour),
        f"@media(prefers-reduced-motion:no-preference){{.f{{animation:{length:.2f}s step-end infinite}}",
        *(keyframes(name, parts, length) for parts, name in names.items()),
        "}",
        "</style>",
        f'<rect x=".5" y=".5" width="{width - 1:.0f}" height="{height - 1:.0f}" rx="8" fill="{BACKGROUND}" '
        f'stroke="{BORDER}"/>',
        *body,
        "</svg>",
        "",
    ])  # fmt: skip


def keyframes(name, parts, length):
    steps = {0.0: "hidden"}
    for begin, until in parts:
        steps[begin] = "visible"
        if until < length:
            steps[until] = "hidden"
    stops = "".join(f"{100 * at / length:.2f}%{{visibility:{value}}}" for at, value in sorted(steps.items()))
    return f".{name}{{animation-name:{name}}}@keyframes {name}{{{stops}}}"


def draw(row, line):
    """The line as text elements at fixed places, so that the columns are straight in every font."""
    column, drawn = 0, ""
    for text, (colour, bold) in line:
        classes = ([f"c{COLOURS.index(colour)}"] if colour else []) + ["b"] * bold
        attribute = f' class="{" ".join(classes)}"' if classes else ""
        # Wide gaps separate elements: renderers join spaces.
        for part in re.finditer(r"\S+(?: \S+)*", text):
            x, y = MARGIN + (column + part.start()) * CELL_WIDTH, MARGIN + (row + 0.75) * LINE_HEIGHT
            words = html.escape(part[0], quote=False)
            length = len(part[0]) * CELL_WIDTH
            drawn += f'<text x="{x:.1f}" y="{y:.0f}" textLength="{length:.1f}"{attribute}>{words}</text>'
        column += len(text)
    return drawn


def write(path, text):
    """Writes the whole file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def pattern_and_text(argument):
    pattern, separator, text = argument.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError("expected PATTERN=TEXT")
    re.compile(pattern)
    return pattern, text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", type=shlex.split, default=["make", "quickstart"], help="default: make quickstart")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/images/quickstart.svg", metavar="FILE")
    parser.add_argument("--until", default=UNTIL, metavar="PATTERN", help="the screen at the end of the recording")
    parser.add_argument("--timeout", type=float, default=1800, metavar="SECONDS", help="default: 30 minutes")
    parser.add_argument("--size", default="130x24", metavar="COLUMNSxROWS", help="of the terminal; default: 130x24")
    parser.add_argument("--frames", type=int, default=14, help="at most; default: 14")
    parser.add_argument(
        "--replace", type=pattern_and_text, action="append", default=[], metavar="PATTERN=TEXT",
        help="replace text on the screen; temporary folders, the repository and the home folder are always replaced",
    )  # fmt: skip
    arguments = parser.parse_args()
    columns, rows = map(int, arguments.size.split("x"))
    replace = replacement(arguments.replace + paths_of_this_computer())
    frames = record(arguments.command, columns, rows, arguments.timeout, arguments.until, replace)
    frames = thin_out(frames, arguments.frames)
    text = svg(frames, f"{shlex.join(arguments.command)} in a terminal")
    if len(text) > SIZE_LIMIT:
        sys.exit(f"record-quickstart: {len(text)} bytes are too many; use fewer --frames")
    write(arguments.output, text)
    print(f"{arguments.output}: {len(frames)} frames, {timeline(frames)[-1]:.0f} s, {len(text)} bytes")


if __name__ == "__main__":
    main()
