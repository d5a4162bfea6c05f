"""The table, the targets and the picture of `answers.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from answer_data import COMPONENTS
from mchindex.datasets.edits import EDITS
from verdicts import Target, check

Row = dict[str, Any]
# The share of copies that must find their original first with `best`.
COPIES = {
    "JPEG q30": 0.98, "half size": 0.98, "crop 90 %": 0.98, "brighter": 0.98, "flipped": 0.98,
    "crop 70 %": 0.95, "grey": 0.88,
}  # fmt: skip
QUADRANT = {"best": (0.70, 0.92), "fine": (0.76, 0.95)}  # first, and in the first ten
BYTES = 256  # per image, at most
AGREEMENT = {"own": 0.99, "many": 0.97}  # of `best` with the exhaustive ranking
EQUAL = 0.005  # a peer whose nDCG@10 is less by at most this is as good as ours


def by_label(rows: list[Row]) -> dict[str, Row]:
    return {row["label"]: row for row in rows}


def targets(content: dict[str, Any]) -> list[Target]:
    """What our answers have to show, and whether they do."""
    found = by_label(content["quality"])
    best, fine, floats = found["best"], found["fine"], found["float cosine, flat"]
    one = found["fine, one code per image"]

    def at_least(what: str, value: float, bound: float) -> Target:
        return check(what, value, bound, True, timed=False)

    out = [
        at_least("nDCG@10 ÷ float cosine's", best["ndcg"] / floats["ndcg"], 1.03),
        at_least("P@10, float cosine's", best["precision"], floats["precision"]),
        at_least("idf-weighted Jaccard@10, float cosine's", best["jaccard"], floats["jaccard"]),
        at_least("mAP, that of code", best["map"], found["code"]["map"]),
        at_least("itself first", best["itself"], 1.0),
    ]
    out += [at_least(f"first: {edit}", best["copies"][edit], b) for edit, b in COPIES.items()]
    for rank, (first, in_ten) in QUADRANT.items():
        row = found[rank]
        out.append(at_least(f"first: quadrant, {rank}", row["copies"]["top-left quadrant"], first))
        out.append(at_least(f"in ten: quadrant, {rank}", row["quadrant_in_ten"], in_ten))
    ratio = fine["copies"]["top-left quadrant"] / max(one["copies"]["top-left quadrant"], 1e-9)
    out.append(at_least("quadrant first: fine ÷ one fine code per image", ratio, 1.5))
    for size, rows in content["speed"].items():
        out += speed_targets(size, rows)
    return out


def speed_targets(size: str, rows: list[Row]) -> list[Target]:
    """One thread's rates are compared by processor time, which does not count waiting."""
    found = by_label(rows)
    best, every = found["ours, best"], found["ours, exhaustive"]
    out = [
        check(
            f"{size}: share of the exhaustive ranking's first ten",
            best["agreement"], AGREEMENT[size], True, timed=False,
        ),
    ]  # fmt: skip
    if size == "own":
        return out
    out.append(check("bytes per image", best["bytes_per_image"], BYTES, False, timed=False))
    faster = best["cpu_qps"] / every["cpu_qps"]
    out.append(check(f"{size}: queries per second ÷ exhaustive", faster, 5, True))
    peers = [r for r in rows if not r["ours"] and not r["note"] and r["contender"] != "binary"]
    equal = [r for r in peers if r["ndcg"] >= best["ndcg"] - EQUAL]
    if equal:
        rival = max(equal, key=lambda r: float(r["cpu_qps"]))
        what = f"{size}: queries per second ÷ the fastest float peer as good ({rival['label']})"
        out.append(check(what, best["cpu_qps"] / rival["cpu_qps"], 1, True))
    two = found["ours, best, 2 threads"]["qps"] / best["qps"]
    out.append(check(f"{size}: two threads ÷ one", two, 1.7, True))
    return out


def table(content: dict[str, Any]) -> str:
    """The record of a run as text."""
    images = content["settings"]["images"]
    lines = [
        f"{images['indexed']:,} images, {images['queries']:,} queries, none of them trained on",
        f"{'':28}{'nDCG@10':>8}{'P@10':>7}{'idf-J':>7}{'mAP':>7}{'itself':>8}"
        + "".join(f"{edit:>11}" for edit in list(EDITS)[:-1])
        + f"{'quadrant':>10}{'in ten':>8}",
    ]
    lines += [
        f"{r['label']:28}{r['ndcg']:8.3f}{r['precision']:7.3f}{r['jaccard']:7.3f}{r['map']:7.3f}"
        f"{r['itself']:8.3f}"
        + "".join(f"{r['copies'][edit]:11.3f}" for edit in list(EDITS)[:-1])
        + f"{r['copies']['top-left quadrant']:10.3f}{r['quadrant_in_ten']:8.3f}"
        for r in content["quality"]
    ]
    titles = {
        "own": f"{images['indexed']:,} images, floats in full",
        "many": f"{content['settings']['many']:,} windows of images; floats are {COMPONENTS} "
        "principal components",
    }
    for size, rows in content["speed"].items():
        lines += ["", titles[size], speed_table(rows)]
    return "\n".join(lines) + "\n"


def speed_table(rows: list[Row]) -> str:
    head = f"{'':28}{'nDCG@10':>8}{'P@10':>7}{'idf-J':>7}{'as exhaustive':>15}{'bytes':>8}"
    lines = [head + f"{'QPS':>10}{'by processor time':>19}{'built in':>10}"]
    for r in rows:
        if r["note"]:
            lines.append(f"{r['label']:28}{r['note']}")
            continue
        same = "" if r["agreement"] is None else f"{r['agreement']:.4f}"
        lines.append(
            f"{r['label']:28}{r['ndcg']:8.3f}{r['precision']:7.3f}{r['jaccard']:7.3f}{same:>15}"
            f"{r['bytes_per_image']:8,.0f}{r['qps']:10,.0f}{r['cpu_qps']:19,.0f}"
            f"{r['build_s']:8.0f} s"
        )
    return "\n".join(lines)


def draw(content: dict[str, Any], path: Path) -> None:
    """nDCG@10 against queries per second, one panel per size; the area of a mark is its bytes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from mchindex.evaluation.plots import COLOURS, STYLE
    from mchindex.files import replacing

    speed = content["speed"]
    with rc_context(STYLE):
        figure = Figure(figsize=(4.6 * len(speed), 3.6), layout="constrained")
        for axis, (size, rows) in zip(
            figure.subplots(1, len(speed), squeeze=False)[0], speed.items(), strict=True
        ):
            for row in rows:
                if row["note"] or row["label"].endswith("threads"):
                    continue
                colour = COLOURS[1] if row["ours"] else COLOURS[0]
                place = (row["qps"], row["ndcg"])
                axis.scatter(
                    *place, s=6 * row["bytes_per_image"] ** 0.5, color=colour, alpha=0.6, lw=0
                )
                axis.annotate(row["label"], place, (0, 6), textcoords="offset points",
                              ha="center", fontsize=6, color=colour)  # fmt: skip
            axis.set_xscale("log")
            axis.margins(0.15)
            axis.set_xlabel("queries per second, one thread")
            axis.set_ylabel("nDCG@10")
            n = (
                content["settings"]["images"]["indexed"]
                if size == "own"
                else content["settings"]["many"]
            )
            axis.set_title(f"{n:,} images", loc="left", fontweight="bold")
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as stream:
            figure.savefig(stream, format="svg", metadata={"Date": None})
