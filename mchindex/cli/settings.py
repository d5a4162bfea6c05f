"""`--set name=value`: of the method, and with a prefix of the agent, the backbone's training or the
labels that are made for it.

The names, types and defaults are the settings' dataclasses; nothing is listed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mchindex.models.settings import Settings

AGENT, BACKBONE, LABELS = "agent", "backbone", "labels"


def settings_of(method: str, labels: str = "images") -> dict[str, Settings]:
    """Every group of settings with its defaults: "" is the method's own."""
    from mchindex.models.methods import METHODS
    from mchindex.training.agent import agent_settings
    from mchindex.training.backbone import BackboneSettings
    from mchindex.training.options import LABELLINGS

    return {
        "": METHODS[method].settings_type(),
        AGENT: agent_settings(method),
        BACKBONE: BackboneSettings(),
        LABELS: LABELLINGS[labels](),
    }


def read_changes(
    method: str, given: Sequence[str], labels: str = "images"
) -> dict[str, dict[str, Any]]:
    """Texts `name=value` -> for each group of settings the changed ones, read as their types."""
    groups = settings_of(method, labels)
    changes: dict[str, dict[str, Any]] = {group: {} for group in groups}
    for text in given:
        full, equals, value = text.partition("=")
        prefix, dot, name = full.strip().rpartition(".")
        if not equals or not name:
            raise ValueError(f"--set {text}: expected name=value, such as lr=0.001")
        if prefix not in groups or (dot and not prefix):
            raise ValueError(
                f"--set {text}: {prefix!r} has no settings: there are {method}'s, without a "
                f"prefix, {AGENT}.…, {BACKBONE}.… and {LABELS}.…"
            )
        if prefix == LABELS and labels == "images":
            raise ValueError(
                f"--set {text}: the images' own labels have no settings: --crop-labels and "
                "--unsupervised make some that have"
            )
        known = groups[prefix].names()
        if name not in known:
            whose = f"the {prefix}" if prefix else method
            raise ValueError(
                f"--set {text}: {whose} has no setting {name!r}: there are "
                f"{', '.join(known) or 'none'}{_elsewhere(groups, prefix, name)}"
            )
        changes[prefix][name] = getattr(groups[prefix].updated({name: value.strip()}), name)
    return changes


def as_text(settings: Settings) -> str:
    """`name=value`, as `--set` takes them."""
    return "  ".join(f"{name}={value}" for name, value in settings.to_json().items())


def _elsewhere(groups: dict[str, Settings], prefix: str, name: str) -> str:
    """Where the name would have been right."""
    others = [
        f"{group}.{name}" if group else name
        for group, settings in groups.items()
        if group != prefix and name in settings.names()
    ]
    return f" (did you mean {' or '.join(others)}?)" if others else ""
