"""Fills the tables of the documents on PyTorch and on installing from the result files in
bench/results.

    python3 bench/pytorch/tables.py            writes the documents
    python3 bench/pytorch/tables.py --check    ends with 1 where a document says something else

A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`, in whichever document has
it. Where its file is missing, the table says so.
"""

import re
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import document_tables
import result_files

RESULTS = result_files.results()


def load(name):
    path = RESULTS.newest(name)
    return result_files.load(path) if path else None


def cited(name):
    return f"`{RESULTS.cited_as(RESULTS.newest(name))}`"


ALLOCATORS = ("millpond", "default", "expandable")
NOT_REACHED = "not reached in the time given"  # as bench/pytorch/measure.py says it


def one_of_each(result, seeds):
    """A timed round of each seed, added up, turn by turn."""
    rounds = result["round_ms"]
    return [sum(rounds[at : at + seeds]) for at in range(0, len(rounds) - seeds + 1, seeds)]


def same_outputs(runs):
    digests = {a: r.get("digest") for a, r in runs.items()}
    if None in digests.values():
        return "—"
    if len(set(digests.values())) == 1:
        return "the same, bit for bit"
    if digests.get("default") != digests.get("expandable", digests.get("default")):
        return "differ among PyTorch's own allocators too"
    if runs["default"].get("repeatable") is False:
        return "differ from round to round with PyTorch's own allocator too"
    return "**differ**"


def conclusions(by, names, shown, seeds):
    """How often 1.1 is met, and how the times compare, in words."""
    whole = [n for n in names if all("round_ms" in by[a].get(n, {}) for a in shown)]
    if "millpond" not in shown or not whole:
        return []
    met = {
        a: sum(by[a][n]["peak_reserved"] <= 1.1 * by[a][n]["peak_requested"] for n in whole)
        for a in shown
    }
    rows = [
        f"At most 1.1 reserved of requested: {', '.join(f'{a} {met[a]}' for a in shown)} of "
        f"{len(whole)} workloads."
    ]

    def median(allocator, name):
        return statistics.median(one_of_each(by[allocator][name], seeds))

    for other in [a for a in shown if a != "millpond"]:
        change = {n: median("millpond", n) / median(other, n) - 1 for n in whole}
        slower = ", ".join(f"{n} {c:+.0%}" for n, c in change.items() if c > 0.02)
        quicker = ", ".join(f"{n} {c:+.0%}" for n, c in change.items() if c < -0.02)
        rows.append(
            f"Against PyTorch's {other}, medians: more time on {slower or 'none'}; less on "
            f"{quicker or 'none'}; within 2% on the others."
        )
    return rows


def pytorch():
    got = load("pytorch")
    if got is None:
        return ["*Not measured yet.*"]
    seeds = got["seeds"]
    by = {
        a: {n: r for n, r in results.items() if r.get("error") != NOT_REACHED}
        for a, results in got["allocators"].items()
    }
    names = list(dict.fromkeys(n for results in by.values() for n in results))
    shown = [a for a in ALLOCATORS if a in by]
    columns = " / ".join(shown)

    def cells(name, what, of=shown):
        runs = [by[a].get(name, {"error": "not run"}) for a in of]
        return " / ".join("failed" if "error" in r else what(r) for r in runs)

    def ms(r):
        turns = one_of_each(r, seeds)
        return f"{statistics.median(turns):.0f} ({min(turns):.0f}–{max(turns):.0f})"

    def ratio(r):
        return f"{r['peak_reserved'] / max(1, r['peak_requested']):.3f}"

    rows = [
        f"| workload | ms, median (least–most): {columns} | reserved of requested: {columns} | "
        "outputs |",
        "| -- | -- | -- | -- |",
    ]
    for name in names:
        same = same_outputs({a: by[a].get(name, {}) for a in shown})
        rows.append(f"| {name} | {cells(name, ms)} | {cells(name, ratio)} | {same} |")
        if "digest" in (waits := by.get("millpond_may_wait", {}).get(name, {})):
            same = same_outputs(
                {"millpond_may_wait": waits, **{a: by[a].get(name, {}) for a in shown}}
            )
            rows.append(f'| {name}, `reuse="may_wait"` | {ms(waits)} | {ratio(waits)} | {same} |')
    facts = next((m for m in got["machine"].values() if "torch" in m), {})
    turns = (
        max(
            len(r["round_ms"])
            for results in by.values()
            for r in results.values()
            if "round_ms" in r
        )
        // seeds
    )
    rows += [
        "",
        f"{cited('pytorch')}: PyTorch {facts.get('torch', '?')} on one {facts.get('gpu', '?')}; a "
        "round of either seed, "
        f"{turns} turns (of generation fewer), the allocators one after the other in each.",
    ]
    for name, r in by.get("millpond", {}).items():
        needed = r.get("millpond.peak_needed_bytes", 0)
        if needed > 1.02 * r.get("peak_requested", 0) > 0:
            of_needed = cells(name, lambda of, needed=needed: f"{of['peak_reserved'] / needed:.3f}")
            rows += [
                "",
                f"{name}: a graph keeps the memory of its capture for its replays, whatever "
                "tensors live. With that the program needs "
                f"{needed / 2**20:.0f} MiB at its peak, {needed / r['peak_requested']:.2f} of what "
                "is requested, so that no allocator can reserve less; "
                f"of those are reserved {of_needed}.",
            ]
    rows += ["", *conclusions(by, names, shown, seeds)]
    if any("counts" in r for r in by.get("millpond", {}).values()):
        rows += [
            "",
            "What millpond did in a timed round, on average:",
            "",
            "| workload | allocations | of them past the thread caches | new pages | stitches | "
            "events recorded | fences asked | thread caches emptied |",
            "| -- | -- | -- | -- | -- | -- | -- | -- |",
        ]
    for name, r in by.get("millpond", {}).items():
        timed = r.get("counts", [])[seeds:]
        if not timed:
            continue

        def mean(key, timed=timed):
            return sum(each.get(key, 0) for each in timed) / len(timed)

        rows.append(
            f"| {name} | {mean('allocations'):.0f} | "
            f"{mean('allocations') - mean('thread_cache_hits'):.0f} | "
            + " | ".join(
                f"{mean(key):.1f}"
                for key in (
                    "growths",
                    "stitches",
                    "seals",
                    "fence_queries",
                    "thread_caches_flushed",
                )
            )
            + " |"
        )
    failed = [
        (a, n, r["error"]) for a, results in by.items() for n, r in results.items() if "error" in r
    ]
    return (
        rows
        + earlier(names)
        + ([""] if failed else [])
        + [f"{a}, {n}: {why[:200]}" for a, n, why in failed]
    )


def earlier(measured):
    """Workloads that the last run did not come to: millpond alone, as an older build was
    measured."""
    older = load("pytorch_millpond")
    left = (
        {}
        if older is None
        else {
            n: r
            for n, r in older["allocators"]["millpond"].items()
            if n not in measured and "error" not in r
        }
    )
    if not left:
        return []
    rows = [
        "",
        "What that run did not reach in its time, by millpond alone and an older build "
        f"({cited('pytorch_millpond')}):",
        "",
        "| workload | ms, the median turn | reserved of requested | of what is needed with what "
        "graphs keep |",
        "| -- | -- | -- | -- |",
    ]
    for name, r in left.items():
        needed = max(r.get("millpond.peak_needed_bytes", 0), r["peak_requested"])
        rows.append(
            f"| {name} | {statistics.median(one_of_each(r, older['seeds'])):.0f} | "
            f"{r['peak_reserved'] / max(1, r['peak_requested']):.3f} | "
            f"{r['peak_reserved'] / max(1, needed):.3f} |"
        )
    return rows


def rmm():
    got = load("rmm_containers")
    if got is None:
        return ["*Not measured yet.*"]
    rows = [
        "| resource | ns an operation, first 5000: 1 / 4 / 16 threads | the same again | reserved "
        "of peak live | wrong bytes |",
        "| -- | -- | -- | -- | -- |",
    ]
    for name in dict.fromkeys(r["resource"] for r in got["rows"]):
        mine = sorted((r for r in got["rows"] if r["resource"] == name), key=lambda r: r["threads"])
        rows.append(
            f"| {name} | {' / '.join(str(r['ns']) for r in mine)} | "
            f"{' / '.join(str(r.get('ns_again', 'not measured')) for r in mine)} | "
            f"{' / '.join(format(r['reserved'] / max(1, r['peak_live']), '.2f') for r in mine)} | "
            f"{sum(r['wrong'] for r in mine)} |"
        )
    return rows + ["", f"{cited('rmm_containers')}: RMM 26.10 on one {got['gpu']}."]


def checks():
    got = load("torch_checks")
    if got is None:
        return ["*Not run yet.*"]
    bad = [n for n, r in got["results"].items() if r != "ok"]
    line = (
        f"{len(got['results']) - len(bad)} of {len(got['results'])} pass ({cited('torch_checks')})."
    )
    return [line] + ([f"Failing: {', '.join(bad)}."] if bad else [])


def preload():
    path = RESULTS.newest("preload.txt")
    if path is None:
        return ["*Not run yet.*"]
    runs = re.findall(r"^(\w+ \(\w+\)): (same|DIFFERENT)", path.read_text(), re.M)
    other = [name for name, answer in runs if answer != "same"]
    line = (
        f"{len(runs) - len(other)} of {len(runs)} runs print the same with and without "
        f"({cited('preload.txt')})."
    )
    return [line] + ([f"Different: {', '.join(other)}."] if other else [])


TABLES = {"pytorch": pytorch, "rmm": rmm, "checks": checks, "preload": preload}

if __name__ == "__main__":
    made = {
        (f"<!-- table: {name} -->", "<!-- end of table -->"): "\n".join(make())
        for name, make in TABLES.items()
    }
    if sys.argv[1:] == ["--check"]:
        sys.exit(document_tables.check(made, "python3 bench/pytorch/tables.py"))
    document_tables.put(made, write=True)
