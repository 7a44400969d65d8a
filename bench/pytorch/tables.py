"""Fills the tables of docs/pytorch.md and docs/install.md from the result files in bench/results.

    python3 bench/pytorch/tables.py            writes the documents
    python3 bench/pytorch/tables.py --check    ends with 1 where a document says something else than the files

A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`. Where its file is missing, the table says so.
"""
import json
import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench/results"


def load(name):
    path = RESULTS / name
    return json.loads(path.read_text()) if path.exists() else None


def one_of_each(result, seeds):
    """A round of each seed: the medians, added up. Without seeds (an older file): the last round, whose shapes the first had met."""
    if seeds is None:
        return result["round_ms"][-1]
    return sum(statistics.median(result["round_ms"][seed::seeds]) for seed in range(seeds))


def pytorch():
    got = load("pytorch_h200.json")
    if got is None:
        return ["*Not measured yet.*"]
    by = got["allocators"]
    rows = ["| workload | ms: millpond / default / expandable | reserved of requested: millpond / default / expandable | outputs |",
            "| --- | --- | --- | --- |"]

    def cells(name, what):
        out = []
        for allocator in ("millpond", "default", "expandable"):
            if allocator not in by:
                continue
            r = by[allocator].get(name, {"error": "not run"})
            out.append("failed" if "error" in r else what(r))
        return " / ".join(out)

    for name in dict.fromkeys(n for results in by.values() for n in results):
        runs = {a: by[a].get(name, {}) for a in ("millpond", "default", "expandable") if a in by}
        digests = {a: r.get("digest") for a, r in runs.items()}
        if None in digests.values():
            same = "—"
        elif len(set(digests.values())) == 1:
            same = "the same, bit for bit"
        elif digests.get("default") != digests.get("expandable", digests.get("default")):
            same = "differ among PyTorch's own allocators too"
        elif runs["default"].get("repeatable") is False:
            same = "differ from round to round with PyTorch's own allocator too"
        else:
            same = "**differ**"
        ms = cells(name, lambda r: f"{one_of_each(r, got.get('seeds')):.0f}")
        ratio = cells(name, lambda r: f"{r['peak_reserved'] / max(1, r['peak_requested']):.2f}")
        rows.append(f"| {name} | {ms} | {ratio} | {same} |")
    facts = next((m for m in got["machine"].values() if "torch" in m), {})
    rows += ["", f"`bench/results/pytorch_h200.json`: PyTorch {facts.get('torch', '?')} on one {facts.get('gpu', '?')}, "
             + (f"a round of either seed, the medians of {got['rounds']} rounds after the first ones." if "seeds" in got else
                "one warm round, the last.")]
    later = load("pytorch_millpond_h200.json")
    if later is not None and "seeds" not in got:
        rows += ["", "millpond alone, as measured later (`bench/results/pytorch_millpond_h200.json`), a round of either seed, medians:", "",
                 "| workload | ms | reserved of requested |", "| --- | --- | --- |"]
        for name, r in later["allocators"]["millpond"].items():
            rows.append(f"| {name} | {one_of_each(r, later['seeds']):.0f} | {r['peak_reserved'] / max(1, r['peak_requested']):.2f} |")
        rows.append("")
        # Another run of other rounds: nothing of the first is compared with it.
        by = {"millpond": later["allocators"]["millpond"]}
    for name, r in by.get("millpond", {}).items():
        needed = r.get("millpond.peak_needed_bytes", 0)
        if needed > 1.02 * r.get("peak_requested", 0) > 0:
            of_needed = cells(name, lambda of: f"{of['peak_reserved'] / needed:.2f}")
            rows.append(f"{name}: a graph keeps the memory of its capture for its replays, whatever tensors live. With that the program needs "
                        f"{needed / 2**20:.0f} MiB at its peak, of which are reserved {of_needed}.")
    failed = [(a, n, r["error"]) for a, results in got["allocators"].items() for n, r in results.items() if "error" in r]
    rows += [f"{a}, {n}: {why[:200]}" for a, n, why in failed]
    return rows


def rmm():
    got = load("rmm_containers_h200.json")
    if got is None:
        return ["*Not measured yet.*"]
    rows = ["| resource | ns an operation, first 5000: 1 / 4 / 16 threads | the same again | reserved of peak live | wrong bytes |",
            "| --- | --- | --- | --- | --- |"]
    for name in dict.fromkeys(r["resource"] for r in got["rows"]):
        mine = sorted((r for r in got["rows"] if r["resource"] == name), key=lambda r: r["threads"])
        rows.append(f"| {name} | {' / '.join(str(r['ns']) for r in mine)} | "
                    f"{' / '.join(str(r.get('ns_again', 'not measured')) for r in mine)} | "
                    f"{' / '.join(format(r['reserved'] / max(1, r['peak_live']), '.2f') for r in mine)} | {sum(r['wrong'] for r in mine)} |")
    return rows + ["", f"`bench/results/rmm_containers_h200.json`: RMM 26.10 on one {got['gpu']}."]


def checks():
    got = load("torch_checks.json")
    if got is None:
        return ["*Not run yet.*"]
    bad = [n for n, r in got["results"].items() if r != "ok"]
    line = f"{len(got['results']) - len(bad)} of {len(got['results'])} pass (`bench/results/torch_checks.json`)."
    return [line] + ([f"Failing: {', '.join(bad)}."] if bad else [])


def preload():
    path = RESULTS / "preload_h200.txt"
    if not path.exists():
        return ["*Not run yet.*"]
    runs = re.findall(r"^(\w+ \(\w+\)): (same|DIFFERENT)", path.read_text(), re.M)
    other = [name for name, answer in runs if answer != "same"]
    line = f"{len(runs) - len(other)} of {len(runs)} runs print the same with and without (`bench/results/preload_h200.txt`)."
    return [line] + ([f"Different: {', '.join(other)}."] if other else [])


TABLES = {"docs/pytorch.md": {"pytorch": pytorch, "rmm": rmm, "checks": checks}, "docs/install.md": {"preload": preload}}


def filled(document, text):
    for name, make in TABLES[document].items():
        pattern = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end of table -->)", re.S)
        assert pattern.search(text), f"{document} has no table {name}"
        text = pattern.sub(lambda m: m.group(1) + "\n".join(make()) + "\n" + m.group(2), text)
    return text


if __name__ == "__main__":
    stale = 0
    for document in TABLES:
        now = (ROOT / document).read_text()
        new = filled(document, now)
        if sys.argv[1:] != ["--check"]:
            (ROOT / document).write_text(new)
        elif now != new:
            print(f"{document} does not say what bench/results does: run python3 bench/pytorch/tables.py")
            stale = 1
    sys.exit(stale)
