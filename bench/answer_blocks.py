"""What README and docs say about answers, regions, duplicates, words, recipes and the demo, from
the records in bench/results/."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from answer_report import by_label
from common import RESULTS
from mchindex.catalogue import read_config
from mchindex.datasets.edits import EDITS

Row = Mapping[str, Any]
SHIPPED = Path(__file__).parents[1] / "mchindex" / "models" / "shipped"
QUADRANT = "top-left quadrant"
RECIPES = {
    "as shipped": "HashNet, EfficientNet-Lite0, 224 px, frozen",
    "labels for crops": "labels for crops",
    "dch": "DCH",
    "mmhh": "MMHH",
    "lite2, 260 px": "EfficientNet-Lite2, 260 px",
    "lite2, labels for crops": "EfficientNet-Lite2, labels for crops",
    "two tuned blocks": "two tuned blocks",
    "two, weight 0": "two tuned blocks, fine codes of the frozen ones",
    "two, weight 1": "two tuned blocks, which weigh as much in fine codes",
    "five tuned blocks": "five tuned blocks",
}
SHOWN = {
    "best": "**ours, `best`**",
    "fine": "ours, `fine`",
    "code": "ours, `code`: the paper's order",
    "fine, one code per image": "one fine code per image",
    "float cosine, flat": "the backbone's 1,280 floats, cosine",
    "float cosine, with tuned features": "the same with 1,280 tuned floats, cosine",
}


# The rows of the README's table. Who reads it has not met the terms of the docs.
IN_README = {
    "float cosine, flat": "1,280 floats of the same network, by cosine",
    "float cosine, with tuned features": "the same with 1,280 tuned floats, too",
    "code": 'mchindex, `rank="code"`: the paper\'s order',
    "best": '**mchindex, `rank="best"`, the default**',
}


def read_record(name: str, script: str) -> dict[str, Any]:
    path = RESULTS / name
    if not path.exists():
        sys.exit(f"there is no {path}: run {script}")
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content


def short(figure: float, digits: int = 3) -> str:
    """A share without its leading zero."""
    return f"{figure:.{digits}f}".removeprefix("0")


def lines_of(head: list[str], rows: list[list[str]]) -> list[str]:
    """A table in Markdown."""
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def paragraph(*sentences: str) -> str:
    return textwrap.fill(" ".join(sentences), 119, break_long_words=False, break_on_hyphens=False)


def answers() -> dict[str, Any]:
    return read_record("answers.json", "bench/answers.py")


def answers_block() -> str:
    """For the README: how good answers are, and how fast at a million."""
    content = answers()
    images, many = content["settings"]["images"], content["settings"]["many"]
    found = by_label(content["quality"])
    sizes = {
        "best": by_label(content["speed"]["many"])["ours, best"]["bytes_per_image"],
        "code": by_label(content["speed"]["many"])["ours, code"]["bytes_per_image"],
        "float cosine, flat": by_label(content["speed"]["own"])["float cosine, flat"][
            "bytes_per_image"
        ],  # which does not depend on their number
    }
    sizes["float cosine, with tuned features"] = 2 * sizes["float cosine, flat"]
    rows = []
    for label, name in IN_README.items():
        row = found[label]
        copies = [short(row["copies"][edit], 2) for edit in ("JPEG q30", "half size", "grey")]
        rows.append([
            name, short(row["ndcg"]), short(row["precision"]), short(row["map"]),
            " / ".join(copies),
            f"{short(row['copies'][QUADRANT], 2)} / {short(row['quadrant_in_ten'], 2)}",
            f"{sizes[label]:,.0f}",
        ])  # fmt: skip
    head = [
        "", "nDCG@10", "P@10", "mAP", "copies: JPEG / half size / grey",
        "quadrants: first / in ten", "bytes per image",
    ]  # fmt: skip
    fast = by_label(content["speed"]["many"])
    best, every = fast["ours, best"], fast["ours, exhaustive"]
    lines = [
        paragraph(
            f"{images['indexed']:,} photographs of COCO in the index and {images['queries']:,}",
            "others as queries; the model has seen none of them in training:",
        ),
        "",
        *lines_of(head, rows),
        "",
        paragraph(
            "nDCG@10, P@10 and mAP say how many hits share labels with the query and how early",
            "they come; 1 is perfect. Copies: how often an edited copy of an indexed picture finds",
            "its original first. Quadrants: how often a quarter of a picture finds the picture",
            f"first, and among the first ten. Bytes: with {many:,} images. `code` orders hits by",
            "the codes of the paper alone. `best` also compares a second code of every region, a",
            "*fine code*, which tells pictures of the same things apart.",
        ),
        "",
        paragraph(
            f"Among {many:,} images, `best` answers {best['qps']:,.0f} queries per second on one",
            f"thread, {best['cpu_qps'] / every['cpu_qps']:.1f} times as many as when it compares",
            f"every image, and finds {best['agreement']:.1%} of the same first ten hits.",
            *slower(best, content["speed"]["many"]),
            "`python bench/answers.py --data DIR` measures all this;",
            "[how hits are ranked](docs/answers.md) has every figure, beside FAISS and usearch.",
        ),
    ]
    return "\n".join(lines) + "\n"


def slower(best: Row, rows: list[Row]) -> list[str]:
    """A sentence about the fastest peer whose answers are as good, if it is faster."""
    peers = [r for r in rows if not r["ours"] and not r["note"]]
    peers = [r for r in peers if r["ndcg"] >= best["ndcg"] and r["cpu_qps"] > best["cpu_qps"]]
    if not peers:
        return []
    first = max(peers, key=lambda r: float(r["cpu_qps"]))
    times = first["cpu_qps"] / best["cpu_qps"]
    return [
        f"That is not the fastest: {first['label']}, on the floats of whole images, answers",
        f"{times:.0f} times as many there with the same nDCG@10, but floats find fewer parts.",
    ]


def quality_block() -> str:
    """For docs/answers.md: every figure of a run."""
    content = answers()
    images = content["settings"]["images"]
    edits = list(EDITS)[:-1]
    head = ["", "nDCG@10", "P@10", "weighted Jaccard@10", "mAP", "itself first"]
    rows, copies = [], []
    for row in content["quality"]:
        name = SHOWN[row["label"]]
        measures = ("ndcg", "precision", "jaccard", "map", "itself")
        rows.append([name, *(short(row[key]) for key in measures)])
        copies.append([
            name, *(short(row["copies"][edit], 2) for edit in edits),
            short(row["copies"]["top-left quadrant"], 2), short(row["quadrant_in_ten"], 2),
        ])  # fmt: skip
    missed = [t["what"] for t in content["targets"] if not t["meets"]]
    lines = [
        paragraph(
            f"`coco-64`, {images['indexed']:,} indexed images and {images['queries']:,} queries of",
            "COCO, none of them used in training. Settings were chosen on",
            f"{images['validation']:,} other images.",
        ),
        "",
        *lines_of(head, rows),
        "",
        paragraph(
            "How often an edited copy of an indexed image finds it first; the last two columns:",
            "its top left quadrant, first and among the first ten:",
        ),
        "",
        *lines_of(["", *edits, "quadrant", "in ten"], copies),
    ]
    many = f"{content['settings']['many']:,} windows of images"
    titles = {
        "own": f"{images['indexed']:,} images; peers have all 1,280 floats",
        "many": f"{many}; peers have 128 principal components",
    }
    for size, title in titles.items():
        lines += ["", f"{title}:", "", *speed_lines(content["speed"][size])]
    lines += [
        "",
        paragraph(
            "Speeds are of one thread unless it says two; by processor time, waiting for other",
            "programs does not count. Windows of one image have its labels, so the nDCG@10 of a",
            "million differs from that of the images.",
            f"Targets missed: {'; '.join(missed).replace('many:', 'at a million,') or 'none'}.",
        ),
    ]
    return "\n".join(lines) + "\n"


def speed_lines(rows: list[Row]) -> list[str]:
    head = ["", "nDCG@10", "same first ten as exhaustive", "bytes per image",
            "queries per second", "by processor time"]  # fmt: skip
    out = []
    for row in rows:
        if row["note"]:
            out.append([row["label"], row["note"], "", "", "", ""])
            continue
        same = "" if row["agreement"] is None else short(row["agreement"])
        out.append([
            row["label"], short(row["ndcg"]), same, f"{row['bytes_per_image']:,.0f}",
            f"{row['qps']:,.0f}", f"{row['cpu_qps']:,.0f}",
        ])  # fmt: skip
    return lines_of(head, out)


def regions_block() -> str:
    """For docs/answers.md: what regions find, and whether they say where."""
    content = read_record("regions.json", "bench/regions.py")
    settings, rows = content["settings"], content["rows"]
    parts = rows[0]["parts"]
    low, high = settings["sides"]
    table = []
    for row in rows:
        best, fine, floats = (row["things"][rank] for rank in ("best", "fine", "floats"))
        words, asked = row["words"], row["queries"]
        table.append([
            row["layout"], str(row["bytes"]),
            *(f"{short(x['first'], 2)} / {short(x['in_ten'], 2)}" for x in (best, fine, floats)),
            f"{short(fine['inside'], 2)} ({short(fine['inside_by_chance'], 2)})",
            f"{short(words['inside'], 2)} ({short(words['inside_by_chance'], 2)})",
            short(asked["region"], 2),
        ])  # fmt: skip
    head = [
        "regions", "bytes", "found by `best`: first / in ten", "by `fine`", "by their floats",
        "region inside the box (chance)", "by words (chance)", "P@10 of region queries",
    ]  # fmt: skip
    asked = rows[0]["queries"]
    lines = [
        paragraph(
            f"Parts that are cut out of {settings['cut']:,} indexed images and encoded as pictures",
            f"of their own find the image first in {short(parts['fine']['first'], 2)} of all cases",
            f"with `fine` ({short(parts['best']['first'], 2)} with `best`,",
            f"{short(parts['floats']['first'], 2)} by floats), and the hit names the right part in",
            f"{short(parts['fine']['names_the_part'], 2)} (chance: {short(1 / 6, 2)}). P@10 is",
            f"{short(asked['whole'], 2)} with whole images as queries,",
            f"{short(asked['region'], 2)} with their regions, {short(asked['cut_out'], 2)} with",
            f"the same parts cut out, and {short(asked['chance'], 2)} by chance.",
        ),
        "",
        paragraph(
            f"Things with boxes: {settings['pasted']:,} photographs, each pasted into another one",
            f"with {low:g} to {high:g} of its sides:",
        ),
        "",
        *lines_of(head, table),
        "",
        paragraph(
            "The region that a hit names is about twice as likely to show the thing as another,",
            "and finer grids say better where it is. But a thing that fills a tenth to a third of",
            "a picture is seldom enough to find the picture, by floats or with finer grids.",
        ),
    ]
    return "\n".join(lines) + "\n"


def duplicates_block() -> str:
    """For docs/duplicates.md: precision and recall of the levels, and the time."""
    content = read_record("duplicates.json", "bench/duplicates.py")
    levels = [row for row in content["rows"] if "precision" in row]
    times = [row for row in content["rows"] if "seconds" in row]
    mild = content["settings"]["mild"]
    edits = [*mild, *(edit for edit in EDITS if edit not in mild)]
    rows = [["precision", *(short(row["precision"]) for row in levels)]]
    for edit in edits:
        rows.append([f"recall: {edit}", *(f"{row['recall'][edit]:.2f}" for row in levels)])
        if edit == mild[-1]:
            rows.append([
                "mean recall of these five mild edits",
                *(f"{row['mild recall']:.2f}" for row in levels),
            ])  # fmt: skip
    spent = " and ".join(f"{row['seconds']:.0f} s at `{row['level']}`" for row in times)
    lines = lines_of(["", *(f"`{row['level']}`" for row in levels)], rows)
    if times:
        lines += [
            "",
            paragraph(
                f"{times[0]['images']:,} pseudo images (windows of photos) took {spent} on",
                f"{content['machine']['cores']} cores, without reading the records of the images.",
            ),
        ]
    return "\n".join(lines) + "\n"


def words_block() -> str:
    """For docs/words.md: how well words find things, and where."""
    data = read_record("words.json", "bench/word_search.py")
    words, floats, share = data["words"], data["floats"], data["share"]
    general, pairs, regions = data["general"], data["pairs"], data["regions"]
    shown = [name for name in general if name not in ("words", "map", "p10")]
    few = ", ".join(f'"{name}" {short(general[name], 1)}' for name in shown)
    model = data["settings"]["model"]
    things = json.loads((SHIPPED / model / "config.json").read_text("utf-8"))["words"]["names"]
    names = sum(len(thing.split(", ")) for thing in things)
    return f"""`{model}` knows {names:,} names of {len(things):,} things. Measured by
`python bench/word_search.py --data DIR` on {data["settings"]["images"]:,} images that it was not trained on:

| COCO's 80 classes | mAP | P@10 |
|---|---|---|
| words on fine codes (192 bytes per image) | {short(words["map"])} | {short(words["p10"])} |
| classifiers learnt in the same way on the features (six times 1,280 floats) | {short(floats["map"])} | {short(floats["p10"])} |
| share | **{short(share["map"])}** | {short(share["p10"])} |

| general words | mAP | P@10 |
|---|---|---|
| {general["words"]} words above COCO's classes | {short(general["map"])} | {short(general["p10"])} |

P@10 of some: {few}.
An image counts as right if it has a label below the word. What COCO has no label for, such as a tomato for "food",
counts as wrong.

| two words, up to 200 pairs of classes | mAP | by the first word alone |
|---|---|---|
| "a, b": both | {short(pairs["both"])} | {short(pairs["both_by_first_word"])} |
| "a, -b": the first without the second | {short(pairs["without"])} | {short(pairs["without_by_first_word"])} |

**Where**: the data has no boxes. So the five parts of a picture were cut out, encoded as pictures of their own, and judged by the classifiers on features. Of {regions["hits"]} right hits
that showed a part, that part was the most probable one of the five in {short(regions["shown_is_most_probable"], 2)} (chance: .20). The classifiers saw
the thing in {short(regions["shown_has_the_thing"], 2)} of the parts shown, and in {short(regions["any_has_the_thing"], 2)} of all parts. The judge shares its backbone with the
words, so this is evidence and no proof. [answers.md](answers.md#regions) has a test with pasted things, whose boxes are
known.
"""  # noqa: E501


def recipe_rows(name: str) -> tuple[dict[str, Any], list[str]]:
    """A record of recipes.py, and its table."""
    content = read_record(name, "bench/recipes.py")
    table = []
    for row in content["rows"]:
        more = f"{row['gain']:+.4f} ± {row['gain_error']:.4f}" if "gain" in row else ""
        table.append([
            RECIPES[row["name"]], short(row["ndcg"]), more, short(row["precision"]),
            short(row["map"]), f"{short(row[QUADRANT])} / {short(row['quadrant_in_ten'])}",
            f"{row['codes']:.2f}", f"{row['encode_ms']:.0f} ms",
        ])  # fmt: skip
    head = [
        "recipe", "nDCG@10", "gain", "P@10", "mAP",
        "a quadrant finds its picture: first / in ten", "codes per image",
        "processor time per image",
    ]  # fmt: skip
    return content, lines_of(head, table)


def tuning_block() -> str:
    """For docs/learning.md: what the tuned blocks of coco-64 bring, from the models' own cards."""
    about = {name: read_config(SHIPPED / name)["about"] for name in ("coco-64-frozen", "coco-64")}
    rows = []
    for name, facts in about.items():
        base, mch = (facts["figures"][way] for way in ("base", "mch"))
        best, words = facts["ranks"]["best"], facts["words"]["words"]
        rows.append([
            f"`{name}`",
            *(f"{short(base[key])} → {short(mch[key])}" for key in ("map", "r0", "f1_own")),
            f"{mch['anhc']:.2f}", short(best["ndcg"]), short(best["precision"]),
            f"{short(best['quadrant'])} / {short(best['quadrant_in_ten'])}", short(words["map"]),
        ])  # fmt: skip
    head = [
        "", "mAP", "R@H=0", "F1 there", "codes per image", "nDCG@10 of `best`", "P@10",
        "a quadrant finds its picture: first / in ten", "mAP of words",
    ]  # fmt: skip
    facts = about["coco-64"]
    queries, images = facts["measured_on"]["queries"], facts["measured_on"]["database"]
    lines = [
        paragraph(
            "`python bench/ship.py --data DIR`: two tuned blocks, and none. Codes of",
            f"{queries:,} queries among {images:,} images, one code per image → MCH, then answers",
            "as in [docs/answers.md](answers.md), all of images that no model has seen:",
        ),
        "",
        *lines_of(head, rows),
    ]
    return "\n".join(lines) + "\n"


def recipes_block() -> str:
    """For docs/learning.md: other recipes and backbones than those of the shipped models."""
    content, table = recipe_rows("recipes.json")
    settings, rows = content["settings"], {row["name"]: row for row in content["rows"]}
    base, larger, crops = (rows[n] for n in ("as shipped", "lite2, 260 px", "labels for crops"))
    ratio = crops["gain"] / crops["gain_error"]
    doubt = "which may be chance" if ratio < 2 else "and they take longer to train"
    lines = [
        paragraph(
            f"`python bench/recipes.py --data DIR`: models of {settings['bits']} bits, trained on",
            f"{settings['images']:,} images with one seed, and compared by `best` on",
            f"{settings['validation']:,} validation images in {settings['folds']} parts: each part",
            "asks once, and the others are indexed. A gain in nDCG@10 is the mean over the parts,",
            f"with its standard error; quadrants are of {settings['copies']:,} images.",
        ),
        "",
        *table,
        "",
        paragraph(
            f"EfficientNet-Lite2 at {larger['size']} px changes nDCG@10 by {larger['gain']:+.3f},",
            f"takes {larger['encode_ms'] / base['encode_ms']:.1f} times the processor time per",
            f"image, and finds the picture of a quadrant first in {short(larger[QUADRANT])} of all",
            f"cases instead of {short(base[QUADRANT])}. It also needs another package.",
            f"The gain of labels for crops is {ratio:.1f} times its standard error, {doubt}.",
            "So the shipped models keep EfficientNet-Lite0 and HashNet.",
        ),
    ]
    return "\n".join(lines) + "\n"


def demo_block() -> str:
    """What the demo found, as bench/hits.py recorded it."""
    demo = read_record("demo.json", "bench/hits.py")
    shares, parts, words = demo["first"]["shares"], demo["parts"]["first"], demo["words"]
    text = paragraph(
        "`make demo` draws pictures and trains a model on some of them, in a few minutes on two",
        f"cores. Of the first {demo['hits']} hits, {shares['best']:.1%} share a class with the",
        f"query (at random: {demo['first']['chance']:.1%}; by one code per image:",
        f"{shares['base']:.1%}; by the nearest of several codes: {shares['code']:.1%}).",
        f"A quarter of a picture finds its picture first in {parts['best']:.0%} of cases (by",
        f"codes: {parts['code']:.0%}), and",
        f"{words['share']:.0%} of the first {demo['hits']} hits for a word show the thing. The",
        "pictures below are its first examples.",
    )
    return text + "\n"
