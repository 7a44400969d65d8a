"""Runs the commands of the documents on the built tree.

A block of ```sh that follows the line `<!-- run -->` is run as one script and must exit 0;
`<!-- run: exit 1 -->` where another status is right; `<!-- not run: REASON -->` on a block that
cannot be (it needs a card, or installs packages). A block that follows `<!-- output -->` is an
excerpt of what the block run before it printed: each of its lines must be there, in order; a line
`...` stands for any lines. With `<!-- output, numbers may differ -->` a measure is as good as any
other (`3.14 ms`, `892 MiB`, `0.41`), so that a faster allocator need not rewrite the document.

The scripts run in a scratch folder in which build/ is the build tree and the other names are the
source tree's, so that what they write does not land in the repository.

usage: run_commands.py ROOT BUILD SCRATCH | --self-test
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from markdown import documents, split

RUN = re.compile(r"^run(?:: exit (\d+))?$")
SHELLS = ("sh", "bash", "shell", "console")


def prepare(root, build, scratch):
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    for entry in root.iterdir():
        if not entry.name.startswith((".", "build")):
            (scratch / entry.name).symlink_to(entry)
    (scratch / "build").symlink_to(build)


MEASURE = re.compile(r"\d[\d.,]*(?: ?(?:ns|us|ms|s|B|KiB|MiB|GiB|%)(?!\w))?")


def without_numbers(line):
    return re.sub(r"\s+", " ", MEASURE.sub("#", line)).strip()


def excerpt_fault(excerpt, output, seen=str.rstrip):
    """None where the lines of `excerpt` are in `output` in order, else the first line that is
    not."""
    lines = [seen(line) for line in output.splitlines()]
    at = 0
    for wanted in excerpt.splitlines():
        wanted = seen(wanted)
        if wanted in ("", "..."):
            continue
        try:
            at = lines.index(wanted, at) + 1
        except ValueError:
            return wanted
    return None


def check(root, build, scratch):
    prepare(root, build, scratch)
    faults, count = [], 0
    for path in documents(root):
        name, output = path.relative_to(root), None
        for block in split(path)[1]:
            where = f"{name}:{block.line}"
            run = RUN.match(block.mark)
            if block.language in SHELLS:
                output = None
                if not run:
                    if not block.mark.startswith("not run: "):
                        faults.append(f"{where}: marked neither run nor not run")
                    continue
                count += 1
                done = subprocess.run(
                    ["bash", "-euo", "pipefail", "-c", block.text],
                    cwd=scratch,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    timeout=240,
                )
                output = done.stdout
                wanted = int(run.group(1) or 0)
                if done.returncode != wanted:
                    tail = "\n".join(output.splitlines()[-15:])
                    faults.append(
                        f"{where}: exit {done.returncode}, not {wanted}:\n{block.text}\n{tail}"
                    )
            elif block.mark in ("output", "output, numbers may differ"):
                if output is None:
                    faults.append(f"{where}: an excerpt with no command run before it")
                    continue
                line = excerpt_fault(
                    block.text, output, str.rstrip if block.mark == "output" else without_numbers
                )
                if line is not None:
                    faults.append(f"{where}: not printed any more: {line}\nprinted:\n{output}")
    return faults, count


def self_test():
    with tempfile.TemporaryDirectory() as name:
        root, build, scratch = Path(name) / "root", Path(name) / "build", Path(name) / "scratch"
        root.mkdir()
        build.mkdir()
        (build / "word").write_text("pond\n")
        document = root / "README.md"
        good = (
            "<!-- run -->\n```sh\ncat build/word; echo mill; touch made\n```\n"
            "<!-- output -->\n```\npond\n...\nmill\n```\n"
            "<!-- run -->\n```sh\necho 'pool 12.5 us   3 GiB'\n```\n"
            "<!-- output, numbers may differ -->\n```\npool   7 ns 1.25 MiB\n```\n"
            "<!-- run: exit 3 -->\n```sh\nexit 3\n```\n<!-- not run: it needs a card "
            "-->\n```sh\nfalse\n```\n"
        )
        document.write_text(good)
        assert check(root, build, scratch) == ([], 3), check(root, build, scratch)
        assert not (root / "made").exists()
        for bad in (
            good.replace("pond", "lake"),
            good.replace("pool   7", "pond   7"),
            good.replace("exit 3\n", "exit 4\n"),
            good.replace("<!-- not run: it needs a card -->\n", ""),
        ):
            document.write_text(bad)
            assert len(check(root, build, scratch)[0]) == 1, bad
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    found, ran = check(*(Path(argument).resolve() for argument in sys.argv[1:4]))
    print("\n".join(found) if found else f"{ran} blocks of commands ran as the documents say")
    sys.exit(1 if found else 0)
