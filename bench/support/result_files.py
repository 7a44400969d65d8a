#!/usr/bin/env python3
"""The result files of bench/results: found by name, cited by path, checked.

A result lies at bench/results/MACHINE/COMMIT/NAME: COMMIT is the first twelve digits of the commit
that was measured. Repeats of one measurement lie in one file, as a list under "runs".

    bench/support/result_files.py --check
        checks the files and what cites them; 1 where one is wrong
    bench/support/result_files.py --write
        writes the table of bench/results/README.md, and moves citations of files that are gone to
        the newest file of that name
    bench/support/result_files.py --add MACHINE FILE...
        takes new results in; files of one name become repeats
    bench/support/result_files.py --self-test
        the check finds each fault that it is for
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "bench/results"
CITATION = re.compile(r"\bbench/results/([\w./*\-]*[\w*])")
# A word in capitals stands for a name: MACHINE/COMMIT/NAME is a pattern, not a path.
PLACEHOLDER = re.compile(r"(^|/)(MACHINE|COMMIT|NAME)\b")
BUILD = re.compile(r"\b([0-9a-f]{12})(-dirty)?\b")
TEXTS = (".md", ".cpp", ".hpp", ".cu", ".c", ".h", ".py", ".sh", ".cmake", ".txt", ".toml", "")
BEGIN, END = "<!-- files: begin -->", "<!-- files: end -->"
DIRTY_HEADING = "## Measured from a dirty tree"

# Results of builds before the words changed are read by the words of now.
KEYS_OF_NOW = {
    "activations": "stitch_reuses",
    "cold_moves": "cold_stitches",
    "lane_hit": "thread_cache_hit",
    "lane_hits": "thread_cache_hits",
    "lane_pair_us": "cache_pair_us",
    "lanes": "groups",
    "lanes_flushed": "thread_caches_flushed",
    "lanes_kept": "caches_kept",
    "moves": "stitches",
    "shelf_hit": "stream_cache_hit",
    "shelf_hits": "stream_cache_hits",
}
NAMES_OF_NOW = {"millpond lane handle": "millpond cache handle", "planned lane": "planned stream"}


def in_words_of_now(value):
    if isinstance(value, dict):
        return {KEYS_OF_NOW.get(key, key): in_words_of_now(each) for key, each in value.items()}
    if isinstance(value, list):
        return [in_words_of_now(each) for each in value]
    return NAMES_OF_NOW.get(value, value) if isinstance(value, str) else value


def runs(path):
    """Every run of a JSON result, one where the file is of one."""
    read = in_words_of_now(json.loads(Path(path).read_text()))
    return read["runs"] if isinstance(read, dict) and set(read) == {"runs"} else [read]


def load(path):
    (one,) = runs(path)
    return one


def build_of(path):
    """What the file says of the tree that was measured: the commit, with -dirty where it was; none
    where it says nothing."""
    if path.suffix != ".json":
        found = re.search(r"^#.*\bcommit ([0-9a-f]{12}(?:-dirty)?)", path.read_text()[:400], re.M)
        return found.group(1) if found else None
    said = []
    for run in runs(path):
        own, parts = run.get("millpond"), run.get("measured_with") or {}
        said += [run.get("commit"), run.get("version"), *parts.values()]
        said += [own.get("commit")] if isinstance(own, dict) else []
    found = [BUILD.search(each) for each in said if isinstance(each, str)]
    found = [each.group(0) for each in found if each]
    # A file of several parts is as dirty as the dirtiest of them.
    return next((each for each in found if each.endswith("-dirty")), found[0] if found else None)


def why_not_kept(out, build, scratch=False):
    """Why a build may not write a result, empty where it may: bench/support/result_file.cpp for
    measurements that are not C++. `build` is the commit, with -dirty where sources were changed;
    none where nobody knows it."""
    if scratch or (build and not build.endswith("-dirty")):
        return ""
    of = (
        f"is of {build}, sources that no commit holds"
        if build
        else "does not say which commit it is of"
    )
    return (
        f"{out}: not written, since the build {of}; commit and build again, or say --scratch for "
        "numbers that are not kept"
    )


def check_may_write(out, version, scratch=False):
    """The commit in what `millpond --version` says. Ends the program with 2 where that build may
    not write a result."""
    found = BUILD.search(version or "")
    build = found.group(0) if found else None
    if why := why_not_kept(out, build, scratch):
        print(why, file=sys.stderr)
        sys.exit(2)
    return build


def is_scratch(path):
    return path.suffix == ".json" and any(run.get("scratch") for run in runs(path))


class results:
    def __init__(self, root=ROOT):
        self.root, self.folder = root, root / FOLDER
        self.readme = self.folder / "README.md"
        self.files = sorted(self.folder.glob("*/*/*"))
        text = self.readme.read_text() if self.readme.exists() else ""
        table = text.split(BEGIN)[-1].split(END)[0]
        self.dates = dict(re.findall(r"^\| `([^`]+)` \| ([\d :-]+?) \|", table, re.M))
        apart = re.split(r"^## ", text.partition(DIRTY_HEADING)[2], flags=re.M)[0]
        self.dirty_ones = set(re.findall(r"^\| `([^`]+)` \|", apart, re.M))

    def name(self, path):
        return str(path.relative_to(self.folder))

    def cited_as(self, path):
        return f"{FOLDER}/{self.name(path)}"

    def all(self, pattern, machine="h200"):
        """The files of that name, newest first; without an ending it is a JSON file."""
        pattern = pattern if "." in pattern else pattern + ".json"
        found = [p for p in self.files if p.parts[-3] == machine and p.match(pattern)]
        # What the table does not have yet has just come.
        return sorted(found, key=lambda p: self.dates.get(self.name(p), "9"), reverse=True)

    def newest(self, name, machine="h200"):
        return next(iter(self.all(name, machine)), None)


def document_with(mark, root=ROOT):
    """The document that holds a mark, wherever the documents lie."""
    found = [path for path in sorted((root / "docs").rglob("*.md")) if mark in path.read_text()]
    if len(found) != 1:
        where = ", ".join(str(path.relative_to(root)) for path in found) or "no document"
        raise SystemExit(f"{mark} must stand in one document; it stands in {where}")
    return found[0]


def texts(root):
    """What may cite a result: documents, comments, scripts."""
    found = list(root.glob("*.md")) + list(root.glob("*.toml"))
    for folder in (
        *("docs", "src", "include", "bench", "examples"),
        *("tests", "data", "python", "scripts", "cmake"),
    ):
        for path in (root / folder).rglob("*"):
            inside = FOLDER not in path.as_posix()
            if inside and path.suffix in TEXTS and path.is_file():
                found.append(path)
    return sorted(found)


def citations(root):
    """(text, line number, path or pattern below bench/results)."""
    for path in texts(root):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            for cited in CITATION.findall(line):
                if not PLACEHOLDER.search(cited) and not cited.endswith(".md"):
                    yield path, number, cited


def check(root=ROOT):
    here, faults, cited_files = results(root), [], set()
    for path, number, cited in citations(root):
        found = list(here.folder.glob(cited))
        cited_files |= {p for p in found if p.is_file()}
        if not found:
            faults.append(f"{path.relative_to(root)}:{number}: no {FOLDER}/{cited}")
    for path in sorted(p for p in here.folder.rglob("*") if p.is_file() and p != here.readme):
        name, build = here.name(path), None
        if path not in here.files:
            faults.append(f"{name}: a result lies at MACHINE/COMMIT/NAME")
            continue
        try:
            build = build_of(path)
            if is_scratch(path):
                faults.append(f"{name}: is of a scratch run, which proves nothing")
        except ValueError as why:
            faults.append(f"{name}: is no JSON: {why}")
        if path not in cited_files:
            faults.append(f"{name}: no document and no comment cites it")
        if not re.fullmatch(r"[0-9a-f]{12}", path.parent.name):
            faults.append(f"{name}: {path.parent.name} is not twelve digits of a commit")
        elif build and build[:12] != path.parent.name:
            faults.append(f"{name}: says that it is of commit {build}")
        if build and build.endswith("-dirty") and name not in here.dirty_ones:
            faults.append(f"{name}: is of a dirty tree ({build}); measure a commit")
        if name in here.dirty_ones and not (build and build.endswith("-dirty")):
            faults.append(f"{name}: is not of a dirty tree, as {here.cited_as(here.readme)} says")
        if name not in here.dates:
            faults.append(f"{name}: is not in the table of README.md; --write puts it there")
    for name in sorted((set(here.dates) | here.dirty_ones) - {here.name(p) for p in here.files}):
        faults.append(f"{here.cited_as(here.readme)}: names {name}, which is not there")
    return faults


def date_of(root, path):
    """The commit's, or where git does not know it, of the newest commit there is."""
    for commit in (path.parent.name, "HEAD"):
        how = ["git", "show", "-s", "--date=format:%Y-%m-%d %H:%M", "--format=%cd", commit]
        done = subprocess.run(how, cwd=root, capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout.strip()
    sys.exit(f"git knows no date for {path}")


def write(root=ROOT):
    here = results(root)
    lines = ["| file | date of the commit | its tree |", "| -- | -- | -- |"]
    for path in here.files:
        name, build = here.name(path), build_of(path)
        tree = "not recorded" if build is None else "dirty" if "-dirty" in build else "clean"
        lines.append(f"| `{name}` | {here.dates.get(name) or date_of(root, path)} | {tree} |")
    before, _, rest = here.readme.read_text().partition(BEGIN)
    here.readme.write_text(
        f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{rest.partition(END)[2]}"
    )
    here = results(root)
    for path, _, cited in list(citations(root)):
        if "*" in cited or (here.folder / cited).exists():
            continue
        machine, name = cited.split("/")[0], cited.rpartition("/")[2]
        if there := here.newest(name, machine):
            text = path.read_text().replace(f"{FOLDER}/{cited}", here.cited_as(there))
            path.write_text(text)


def add(machine, files, root=ROOT):
    by_place = {}
    for path in map(Path, files):
        build = build_of(path)
        if is_scratch(path):
            sys.exit(f"{path}: is of a scratch run, which proves nothing")
        if build is None:
            sys.exit(f"{path}: does not say which commit it is of")
        if build.endswith("-dirty"):
            sys.exit(f"{path}: is of a dirty tree ({build}); measure a commit")
        by_place.setdefault(root / FOLDER / machine / build / path.name, []).append(path)
    for to, of in by_place.items():
        if to.exists():
            sys.exit(f"{to} is there already; give all repeats at once")
        to.parent.mkdir(parents=True, exist_ok=True)
        if len(of) == 1:
            to.write_bytes(of[0].read_bytes())
        else:
            repeats = [json.loads(path.read_text()) for path in of]
            to.write_text(json.dumps({"runs": repeats}, indent=1) + "\n")
        print(
            f"{to.relative_to(root)}; --write puts it into the table and into what cites the older"
        )


def self_test():
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        place = root / FOLDER / "card/0123456789ab"
        place.mkdir(parents=True)
        (root / "docs").mkdir()
        clean, dirty = '{"commit": "0123456789ab"}', '{"commit": "0123456789ab-dirty"}'
        good, odd = place / "good.json", place / "odd.json"
        good.write_text(clean)
        odd.write_text(dirty)
        table = "".join(
            f"| `card/0123456789ab/{n}` | 2026-01-01 00:00 | clean |\n"
            for n in ("good.json", "odd.json")
        )
        dirty_table = f"{DIRTY_HEADING}\n\n| `card/0123456789ab/odd.json` | why |\n"
        readme, doc = root / FOLDER / "README.md", root / "docs/a.md"
        readme.write_text(f"{BEGIN}\n{table}{END}\n{dirty_table}")
        cite = f"{FOLDER}/card/0123456789ab"
        doc.write_text(f"`{FOLDER}/card/*/good.json`, {cite}/odd.json.\n")
        assert check(root) == [], check(root)
        assert results(root).newest("good", "card") == good

        def found(*words):
            faults = check(root)
            assert len(faults) == 1 and all(w in faults[0] for w in words), (words, faults)

        text = doc.read_text()
        doc.write_text(f"{text}{cite}/none.json\n")
        found("docs/a.md:2", "none.json")
        doc.write_text(text.replace("odd.json", "good.json"))
        found("odd.json", "cites")
        doc.write_text(text)
        readme.write_text(f"{BEGIN}\n{table}{END}\n")
        found("odd.json", "dirty tree")
        readme.write_text(f"{BEGIN}\n{table}{END}\n{dirty_table}")
        good.write_text('{"runs": [{"commit": "0123456789ab", "scratch": true}]}')
        found("good.json", "scratch")
        good.write_text('{"commit": "ba9876543210"}')
        found("good.json", "says that it is of commit")
        good.write_text(clean)
        odd.write_text(clean)
        found("odd.json", "not of a dirty tree")
        odd.write_text(dirty)
        (place / "new.json").write_text(clean)
        doc.write_text(f"{text}{cite}/new.json\n")
        found("new.json", "--write")
    assert why_not_kept("a.json", "0123456789ab") == ""
    for build in ("0123456789ab-dirty", None):
        assert why_not_kept("a.json", build, scratch=True) == ""
        assert "--scratch" in why_not_kept("a.json", build), build
    return 0


def main():
    what = sys.argv[1:2]
    if what == ["--write"]:
        return write()
    if what == ["--add"] and len(sys.argv) > 3:
        return add(sys.argv[2], sys.argv[3:])
    if what == ["--self-test"]:
        return self_test()
    if what != ["--check"]:
        sys.exit(__doc__)
    faults = check()
    print("\n".join(faults) if faults else "every result is cited, and every citation is there")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
