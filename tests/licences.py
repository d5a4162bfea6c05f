"""Lists the licences of what `pip install mchindex` brings, and of its extras for users.

Exits with 1 if a package has a licence that is not in ALLOWED, or none that can be read: then
somebody has to look at it. Extras that are not installed are not checked.
"""

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement

EXTRAS = ("", "client", "serve", "cluster", "heic", "raw")
# What may be combined with Apache-2.0 and passed on without further duties than a notice. LGPL is
# allowed for a library that is linked when the program runs.
ALLOWED = re.compile(
    r"\b(MIT|BSD|Apache|ISC|PSF|Python Software Foundation|HPND|Historical Permission|MPL|"
    r"Mozilla Public|Unlicense|CC0|Zlib|0BSD|LGPL|Lesser General Public)\b",
    re.IGNORECASE,
)
REFUSED = re.compile(r"\b(A?GPL|Affero|(?<!Lesser )General Public|SSPL|BUSL|Commons Clause)", re.I)


def licence(package: Distribution) -> str:
    """What the package says, in the first of the fields that says anything."""
    about = package.metadata
    if found := (about.get_all("License-Expression") or []):
        return str(found[0])
    marks = [c for c in about.get_all("Classifier", []) if c.startswith("License ::")]
    if marks:
        return ", ".join(mark.rpartition(" :: ")[2] for mark in marks)
    lines = "".join(about.get_all("License") or []).strip().splitlines()
    return lines[0] if lines else "none stated"


def needed(name: str, extras: frozenset[str], found: dict[str, Distribution]) -> None:
    """Adds a package and all that it needs, if they are installed."""
    try:
        package = distribution(name)
    except PackageNotFoundError:
        return
    key = re.sub(r"[-_.]+", "-", package.name).lower()
    if key in found and not extras:
        return
    found[key] = package
    for text in package.requires or ():
        one = Requirement(text)
        if one.marker is None or any(
            one.marker.evaluate({"extra": extra}) for extra in (extras or {""})
        ):
            needed(one.name, frozenset(one.extras), found)


def is_surprise(text: str) -> bool:
    return bool(REFUSED.search(re.sub(r"LGPL\S*|Lesser General Public", "", text, flags=re.I))) or (
        not ALLOWED.search(text)
    )


def main() -> int:
    found: dict[str, Distribution] = {}
    needed("mchindex", frozenset(EXTRAS), found)
    del found["mchindex"]
    rows = [(name, package.version, licence(package)) for name, package in sorted(found.items())]
    surprises = [row for row in rows if is_surprise(row[2])]
    for name, version, text in rows:
        print(f"{name:28}{version:16}{text}{'   <-- look at this' if is_surprise(text) else ''}")
    return bool(surprises)


if __name__ == "__main__":
    sys.exit(main())
