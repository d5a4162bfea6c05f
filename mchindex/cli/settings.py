"""`--set name=value` changes a setting of the method or, with a prefix, of the agent, the training
of the backbone, of its last blocks, or the labels that `--crop-labels` and `--unsupervised` make.

Names, types and defaults come from the dataclasses of the settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mchindex.models.settings import Settings
    from mchindex.training import TrainingOptions

AGENT, BACKBONE, LABELS, TUNE = "agent", "backbone", "labels", "tune"


def settings_of(method: str, labels: str = "images") -> dict[str, Settings]:
    """Every group of settings with its defaults, by prefix; the method has the prefix ""."""
    from mchindex.models.methods import METHODS
    from mchindex.training.agent import agent_settings
    from mchindex.training.backbone import BackboneSettings
    from mchindex.training.options import LABELLINGS
    from mchindex.training.tuning import TuningSettings

    return {
        "": METHODS[method].settings_type(),
        AGENT: agent_settings(method),
        BACKBONE: BackboneSettings(),
        LABELS: LABELLINGS[labels](),
        TUNE: TuningSettings(),
    }


def read_changes(
    method: str, given: Sequence[str], labels: str = "images"
) -> dict[str, dict[str, Any]]:
    """Parses texts `name=value` into the changed settings of each group, with their types."""
    groups = settings_of(method, labels)
    changes: dict[str, dict[str, Any]] = {group: {} for group in groups}
    for text in given:
        full, equals, value = text.partition("=")
        prefix, dot, name = full.strip().rpartition(".")
        if not equals or not name:
            raise ValueError(f"--set {text}: expected name=value, such as lr=0.001")
        if prefix not in groups or (dot and not prefix):
            raise ValueError(
                f"--set {text}: {prefix!r} has no settings: expected a setting of {method}, "
                f"without a prefix, or {AGENT}.…, {BACKBONE}.…, {LABELS}.… or {TUNE}.…"
            )
        if prefix == LABELS and labels == "images":
            raise ValueError(
                f"--set {text}: labels that come with the images have no settings; --crop-labels "
                "and --unsupervised make some that do"
            )
        names = groups[prefix].names()
        if name not in names:
            owner = f"the {prefix}" if prefix else method
            raise ValueError(
                f"--set {text}: {owner} has no setting {name!r}: there are "
                f"{', '.join(names) or 'none'}{_suggestion(groups, prefix, name)}"
            )
        changes[prefix][name] = getattr(groups[prefix].updated({name: value.strip()}), name)
    return changes


def training_options(changes: Sequence[str], paper_agent: bool, **options: Any) -> TrainingOptions:
    """The training options from the command line, checked; `changes` are the texts of `--set`."""
    from dataclasses import asdict, replace

    from mchindex.training import TrainingOptions
    from mchindex.training.agent import PAPER

    plain = TrainingOptions(**options)
    plain.check()
    read = read_changes(plain.method, changes, plain.labels)
    if not plain.agent and (paper_agent or read[AGENT]):
        raise ValueError("--no-agent trains no agent, so agent settings cannot be changed")
    agent = (asdict(PAPER) if paper_agent else {}) | read[AGENT]
    full = replace(
        plain,
        settings=read[""],
        agent_settings=agent,
        backbone_settings=read[BACKBONE],
        labels_settings=read[LABELS],
        tuning_settings=read[TUNE],
    )
    if read[TUNE] and not full.tune:
        raise ValueError(f"no blocks are tuned, so {TUNE}.… has no effect: add --tune blocks=2")
    full.check()
    return full


def read_blocks(text: str | None) -> int:
    """How many blocks `--tune blocks=N` names; 0 without it."""
    if text is None:
        return 0
    name, _, number = text.partition("=")
    if name != "blocks" or not number.isascii() or not number.isdigit() or int(number) < 1:
        raise ValueError(f"--tune {text}: expected blocks=N, such as blocks=2")
    return int(number)


def as_text(settings: Settings) -> str:
    """Settings as `name=value`, the form that `--set` takes."""
    return "  ".join(f"{name}={value}" for name, value in settings.to_json().items())


def _suggestion(groups: dict[str, Settings], prefix: str, name: str) -> str:
    """The other groups that have a setting with this name."""
    others = [
        f"{group}.{name}" if group else name
        for group, settings in groups.items()
        if group != prefix and name in settings.names()
    ]
    return f" (did you mean {' or '.join(others)}?)" if others else ""
