#!/usr/bin/env python3
"""Measures test binaries and their cases. `.ci/run` uses it as cargo's runner, and prints the report.

    test-times.py run PROGRAM [ARGUMENT]...   runs PROGRAM and records its times, if it is a test binary
    test-times.py go [ARGUMENT]...            runs `go test` with these arguments and records its times
    test-times.py report                      prints the recorded times

CAPCMI_TEST_TIMES names the folder of the records. Without it, nothing is recorded.

libtest prints when a case ends, but not when it starts: `--report-time` is unstable, and the variable that unlocks it
would make every cargo that a test starts rebuild its dependencies. The start follows from the order: libtest starts
the cases as it lists them, and the next one whenever one ends.
"""

import json
import mmap
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

SLOWEST = 20
RESULT = re.compile(rb"^test (.+?)(?: - should panic.*?)? \.\.\. (ok|FAILED|ignored)")
# Every program with libtest reads this variable, and nothing else in this repository does.
LIBTEST = b"RUST_TEST" b"_THREADS"


def is_test(program, arguments):
    """Whether a program is a run of libtest that has cases to measure."""
    # Benchmarks are measured by themselves.
    if "--bench" in arguments or "--list" in arguments:
        return False
    with open(program, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return text.find(LIBTEST) >= 0


def cpus():
    """Returns libtest's number of threads: the CPUs of the affinity, or of the container's quota."""
    affinity = len(os.sched_getaffinity(0))
    groups = Path("/sys/fs/cgroup")
    try:
        if (groups / "cpu.max").exists():
            quota, period = (groups / "cpu.max").read_text().split()
        else:
            quota = (groups / "cpu/cpu.cfs_quota_us").read_text()
            period = (groups / "cpu/cpu.cfs_period_us").read_text()
        return max(1, min(affinity, int(quota) // int(period))) if int(quota) > 0 else affinity
    except (OSError, ValueError):
        return affinity


def thread_count(arguments):
    """How many cases run at the same time."""
    for at, argument in enumerate(arguments):
        if argument.startswith("--test-threads="):
            return int(argument.partition("=")[2])
        if argument == "--test-threads":
            return int(arguments[at + 1])
    return int(os.environ.get("RUST_TEST_THREADS") or cpus())


class Cases:
    """The cases of one run, with their start times."""

    def __init__(self, names, threads, now):
        self.waiting = list(reversed(names))
        self.started = {}
        self.line = b""
        for _ in range(min(threads, len(names))):
            self._start_next(now)

    def _start_next(self, now):
        if self.waiting:
            self.started[self.waiting.pop()] = now

    def read(self, output, now):
        """Yields name, result and seconds of each case that ends in a piece of output."""
        *lines, self.line = (self.line + output).split(b"\n")
        for line in lines:
            result = RESULT.match(line)
            start = self.started.pop(result[1].decode(), None) if result else None
            if start is not None:
                yield result[1].decode(), result[2].decode(), now - start
                self._start_next(now)


def record(file, seconds, text):
    """Adds a line to a file of records."""
    with (Path(os.environ["CAPCMI_TEST_TIMES"]) / file).open("a") as lines:
        lines.write(f"{seconds:.3f}\t{text}\n")


def run_go(arguments):
    """Runs `go test`, records the times of packages and cases, and returns its exit code."""
    process = subprocess.Popen(["go", "test", "-json", *arguments], stdout=subprocess.PIPE, text=True)
    forward_signals(process)
    said = {}
    for line in process.stdout:
        event = json.loads(line)
        if "Package" not in event:  # Of a build.
            print(event.get("Output", ""), end="")
            continue
        case, action = (event.get("Package"), event.get("Test")), event["Action"]
        said.setdefault(case, []).append(event.get("Output", ""))
        if action not in ("pass", "fail", "skip"):
            continue
        output = "".join(said.pop(case))
        if action == "skip":
            continue
        name = " ".join(["go", *filter(None, case)]) + (": FAILED" if action == "fail" else "")
        if event.get("Test"):
            record("cases", event["Elapsed"], name)
            if action == "fail":
                print(output, end="")
            continue
        record("binaries", event["Elapsed"], name)
        # Cases that were running when their package ended.
        for package, test in [case for case in said if case[0] == event["Package"] and action == "fail"]:
            record("cases", event["Elapsed"], f"go {package} {test}: did not end")
            print("".join(said.pop((package, test))), end="")
        print(output, end="", flush=True)
    code = process.wait()
    return 128 - code if code < 0 else code


def forward_signals(process):
    """Passes the signals that end this process on to another."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: process.send_signal(number))
    # The terminal sends this one to the process as well.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run(program, arguments):
    """Runs a test binary, records its times, and returns its exit code."""
    binary = f"{os.environ.get('CARGO_PKG_NAME', '')} {re.sub('-[0-9a-f]{16}$', '', Path(program).name)}"
    listed = subprocess.run([program, *arguments, "--list"], capture_output=True, text=True).stdout
    names = [line.removesuffix(": test") for line in listed.splitlines() if line.endswith(": test")]

    start = time.monotonic()
    cases = Cases(names, thread_count(arguments), start)
    process = subprocess.Popen([program, *arguments], stdout=subprocess.PIPE)
    forward_signals(process)
    # Until the process ends, not until the pipe does: a process that a test left behind may keep it open.
    while True:
        ended = process.poll() is not None
        readable, _, _ = select.select([process.stdout], [], [], 0 if ended else 0.1)
        output = os.read(process.stdout.fileno(), 1 << 20) if readable else b""
        sys.stdout.buffer.write(output)
        sys.stdout.buffer.flush()
        for name, result, seconds in cases.read(output, time.monotonic()):
            if result != "ignored":
                record("cases", seconds, f"{binary} {name}" + (": FAILED" if result == "FAILED" else ""))
        if not output and (ended or readable):
            break
    process.wait()

    now = time.monotonic()
    for name, start_of_case in cases.started.items():
        record("cases", now - start_of_case, f"{binary} {name}: did not end")
    code = process.returncode
    record("binaries", now - start, binary + (": FAILED" if code else ""))
    if code < 0:
        print(f"{program} was ended by {signal.Signals(-code).name}", file=sys.stderr)
        return 128 - code
    return code


def read_records(file):
    """Seconds and text of each line of a file of records."""
    if not file.exists():
        return []
    lines = (line.split("\t", 1) for line in file.read_text().splitlines())
    return [(float(seconds), text) for seconds, text in lines]


def read_pytest(file):
    """Seconds and name of each case that pytest has written to a file."""
    cases = ElementTree.parse(file).iter("testcase")
    return [(float(case.get("time")), f"pytest {case.get('classname')}.{case.get('name')}") for case in cases]


def report():
    """Prints the times of steps, of test binaries, and of the slowest cases."""
    records = Path(os.environ["CAPCMI_TEST_TIMES"])
    steps, binaries, cases = (read_records(records / name) for name in ("steps", "binaries", "cases"))
    in_python = [case for file in sorted(records.glob("pytest-*.xml")) for case in read_pytest(file)]
    if in_python:
        binaries.append((sum(seconds for seconds, _ in in_python), "pytest"))
    slowest = sorted(cases + in_python, reverse=True)[:SLOWEST]
    steps.append((sum(seconds for seconds, _ in steps), "all steps"))
    binaries.append((sum(seconds for seconds, _ in binaries), "all test binaries"))
    for title, lines in (("Steps", steps), ("Test binaries", binaries), (f"Slowest {len(slowest)} cases", slowest)):
        print(f"\n== {title}")
        for seconds, text in lines:
            print(f"{int(seconds) // 60:4} min {seconds % 60:5.2f} s  {text}")


def main():
    action, *rest = sys.argv[1:]
    if action == "report":
        report()
        return 0
    if action == "go":
        if "CAPCMI_TEST_TIMES" not in os.environ:
            os.execvp("go", ["go", "test", *rest])
        return run_go(rest)
    program, *arguments = rest
    if "CAPCMI_TEST_TIMES" not in os.environ or not is_test(program, arguments):
        os.execv(program, rest)
    return run(program, arguments)


if __name__ == "__main__":
    sys.exit(main())
