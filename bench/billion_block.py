"""What docs/billion.md says about a large table, from bench/results/billion.json."""

from __future__ import annotations

from typing import Any

from answer_blocks import read_record

GB = 1e9


def size_in_words(n: int) -> str:
    return f"{n / 1e9:g} billion" if n >= 1e9 else f"{n / 1e6:,g} million"


def billion_block() -> str:
    record = read_record("billion.json", "bench/billion.py")
    rows: dict[str, Any] = {row["step"]: row for row in record["rows"]}
    n, machine = record["settings"]["n"], record["machine"]
    build, search, flat, check = (rows[step] for step in ("build", "search", "flat", "check"))
    extrapolated = (
        f", extrapolated from {size_in_words(flat['codes'])}" if flat["codes"] < n else ""
    )
    lines = [
        f"{size_in_words(n)} {record['settings']['data']} 64-bit codes,",
        f"{machine['cpu']}, {machine['cores']} cores,",
        f"{int(machine['memory'].split()[0]) / 1e6:.0f} GB of memory:",
        "",
        "| | |",
        "|---|---|",
        f"| build | {build['seconds'] / 60:.1f} minutes |",
        f"| codes per second | {build['codes_per_s'] / 1e6:.1f} million |",
        f"| file | {build['file_bytes'] / GB:.2f} GB, {build['bytes_a_code']:.1f} bytes per code |",
        f"| largest size of the working folder | {build['folder_bytes'] / GB:.1f} GB |",
        f"| memory that the build allocates at most | {build['peak_allocated'] / GB:.2f} GB |",
        f"| `load(mmap=True, verify=False)` | {search['open_ms']:.1f} ms |",
        f"| first answer, with nothing of the file in memory | {search['first_answer_s']:.1f} s |",
        f"| exact 10-NN, one thread: median | {search['median_ms']:.2f} ms |",
        f"| exact 10-NN, one thread: 99th percentile | {search['p99_ms']:.2f} ms |",
        f"| `IndexBinaryFlat`, one thread{extrapolated} | {flat['extrapolated_ms']:,.0f} ms |",
        f"| times as fast as that scan | {search['to_flat']:,.0f} |",
        f"| answers that a scan of all codes confirms | {check['same']} of {check['answers']} |",
    ]
    if machine["load"] > 2 * machine["cores"]:
        lines += [
            "",
            "Other programs kept the machine busy, so times are longer than they would be alone.",
        ]
    return "\n".join(lines) + "\n"
