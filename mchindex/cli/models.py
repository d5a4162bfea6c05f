"""`mch models`: list the models that can fill an index."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from mchindex.cli import show
from mchindex.cli.learning_options import result_option

# The keys under which a model may store a figure.
MAP, RECALL = ("map", "mAP"), ("r0", "R@H=0")


def models(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR", help="More folders to search for models."),
    ] = None,
    name: Annotated[
        list[str] | None,
        result_option("--name", metavar="NAME", help="Only this model; may be repeated."),
    ] = None,
    export: Annotated[
        Path | None,
        result_option(
            "--export",
            metavar="DIR",
            help="Write each model as an ONNX graph for other runtimes, DIR/NAME.onnx. This needs "
            "the extra train: torch.",
        ),
    ] = None,
    as_json: Annotated[bool, result_option("--json", help="Print a JSON array.")] = False,
) -> None:
    """List the models that ship with mchindex, your own, and those in the current folder.

    Your own models are in $MCH_MODELS, by default ~/.local/share/mchindex/models; commands
    find them by name. Models elsewhere are given by their folder.

    Examples:
      mch models
      mch models trained --json | jq -r '.[].name'
      mch models --name coco-64 --export graphs
      mch add photos --model coco-64
    """
    from mchindex.catalogue import listed

    for folder in folders or []:
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a folder")
    found: dict[Path, dict[str, Any]] = {}
    for model in listed(Path(), *(folders or [])):
        about = model.config.get("about")
        figures = about if isinstance(about, dict) else {}
        backbone = model.config.get("backbone")
        network = backbone if isinstance(backbone, dict) else {}
        found.setdefault(
            model.path.resolve(),
            {
                "name": model.name,
                "method": model.config["method"],
                "bits": model.config.get("bits"),
                "regions": model.config.get("regions"),
                "policy": model.config.get("policy") is not None,
                "backbone": network.get("name"),
                "size": network.get("size"),
                "tuned": network.get("tuned", 0),
                "map": _figure(figures, MAP),
                "r0": _figure(figures, RECALL),
                "ships": model.ships,
                "fingerprint": model.config["fingerprint"],
                "path": str(model.path),
            },
        )
    if name:
        found = {path: facts for path, facts in found.items() if facts["name"] in name}
        if unknown := set(name) - {facts["name"] for facts in found.values()}:
            raise ValueError(f"there is no model {min(unknown)}: mch models lists them")
    if export is not None:
        for path, facts in found.items():
            facts["onnx"] = str(_export(path, export))
    if as_json:
        show.print_json(list(found.values()))
        return
    if not found:
        typer.echo("no models found: train one with mch train")
        return
    _print(list(found.values()))
    for facts in found.values():
        if export is not None:
            typer.echo(f"wrote {facts['onnx']}")


def _export(model: Path, folder: Path) -> Path:
    """Writes a model as an ONNX graph; returns its file."""
    from mchindex.models import MCHModel
    from mchindex.models.graph import export_whole

    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{model.name}.onnx"
    export_whole(MCHModel.load(model), target)
    return target


def _network(model: Mapping[str, Any]) -> str | None:
    """The backbone of a model, for people."""
    if not model["backbone"]:
        return None
    tuned = f", {model['tuned']} tuned blocks" if model["tuned"] else ""
    return f"{model['backbone']} at {model['size']} px{tuned}"


def _figure(about: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    """A figure from what a model says about itself: under `figures` or directly, and there by
    itself or as one of MCH or the base method."""
    groups = [g for g in (about.get("figures"), about) if isinstance(g, dict)]
    by_way = [g[way] for g in groups for way in ("mch", "base") if isinstance(g.get(way), dict)]
    for place in (*groups, *by_way):
        for name in names:
            value = place.get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return float(value)
    return None


def _print(found: list[dict[str, Any]]) -> None:
    table = show.listing("name", "method", "bits", "regions", "backbone", "mAP", "R@H=0", "path")
    for model in found:
        cells = [
            model["name"],
            ("MCH-" if model["policy"] else "") + str(model["method"]).upper(),
            model["bits"],
            model["regions"],
            _network(model),
            None if model["map"] is None else f"{model['map']:.3f}",
            None if model["r0"] is None else f"{model['r0']:.3f}",
            "ships with mchindex" if model["ships"] else model["path"],
        ]
        table.add_row(*(show.line("-" if cell is None else str(cell)) for cell in cells))
    show.output(show.LONG_WIDTH).print(table)
