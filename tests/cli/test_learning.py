"""The learning commands: exit codes, output, figures, and resuming after an interruption."""

import inspect
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import mchindex
from helpers.pictures import write, write_pictures
from helpers.script import run_script
from mchindex import training
from mchindex.cli import copies, run
from mchindex.cli import train as train_file
from mchindex.cli.settings import read_blocks
from mchindex.datasets import load_split, open_dataset
from mchindex.datasets.scenes import SceneSource
from mchindex.models.backbones import BACKBONES
from mchindex.models.methods import METHODS
from mchindex.progress import Display, Step
from mchindex.training import TrainingOptions, checkpoints
from mchindex.training.agent import PAPER

WEIGHTS = "model.safetensors"
# Trains in seconds. One thread, because the weights depend on the number of threads.
TINY = shlex.split(
    "--data scenes:240 --backbone small --bits 32 --crops 3 --seed 3 --engine torch --threads 1 "
    "--set backbone.epochs=2 --set epochs=3 --set agent.steps=150 --set agent.width=32"
)


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model from a training run without interruption."""
    out = tmp_path_factory.mktemp("trained") / "model"
    assert run(["train", *TINY, "--out", str(out), "--no-eval", "--quiet"]) == 0
    return out


@pytest.fixture(scope="module")
def base_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("base") / "model"
    assert run(["train", *_without(TINY, "agent."), "--out", str(out), "-q", "--no-agent"]) == 0
    return out


def _without(arguments: tuple[str, ...] | list[str], prefix: str) -> list[str]:
    """The arguments without --set for settings that start with the prefix."""
    drop = {i for i, a in enumerate(arguments) if a.startswith(prefix)}
    return [a for i, a in enumerate(arguments) if i not in drop and i + 1 not in drop]


def quick() -> list[str]:
    """mch train with LSH, which needs no training of its own, and without an evaluation."""
    fast = ["--method", "lsh", "--no-eval", "--quiet"]
    return ["train", *_without(TINY, "epochs"), *fast]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(mchindex.__file__).resolve().parents[1])}


def in_process(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs mch in another process and in a folder."""
    command = [sys.executable, "-m", "mchindex.cli", *arguments]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The message of a command that is refused: one line on stderr, exit code 2."""
    capsys.readouterr()
    assert run(arguments) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("mch: ")
    assert error.count("\n") == 1
    return error


class Watch:
    """Records all progress, and presses Ctrl-C at one step."""

    def __init__(self, patch: pytest.MonkeyPatch, stop: tuple[str, int] | None = None) -> None:
        self.seen: list[tuple[str, int]] = []
        before = Display.__call__

        def call(display: Display, step: Step) -> None:
            self.seen.append((step.stage, step.done))
            before(display, step)
            if (step.stage, step.done) == stop:
                raise KeyboardInterrupt

        patch.setattr(Display, "__call__", call)


# Help


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    script = (
        "import sys; from mchindex.cli import run; code = run(['train', '--help']); "
        "heavy = {'torch', 'numpy', 'PIL', 'matplotlib'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    run_script(script, folder=tmp_path)


@pytest.mark.parametrize("name", [(), ("train",), ("eval",), ("methods",), ("models",)])
def test_help(name: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*name, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Usage: " + " ".join(["mch", *name]) in text
    assert "Examples:" in text


def test_no_command_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert "Usage: mch [OPTIONS] COMMAND" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"mchindex {mchindex.__version__}\n"


def test_methods_lists_all_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["methods"]) == 0
    text = capsys.readouterr().out
    for method in METHODS.values():
        assert method.name in text
        assert all(f"{name}=" in text for name in method.settings_type.names())
    assert "agent.…" in text
    assert run(["methods", "itq"]) == 0
    assert "anchors" not in capsys.readouterr().out
    assert "dch" in refusal(capsys, "methods", "nonsense")


def test_the_command_has_the_defaults_of_the_library() -> None:
    options = inspect.signature(train_file.train).parameters
    for field in fields(TrainingOptions):
        if field.name in options and field.name != "method":  # which depends on --unsupervised
            default = options[field.name].default
            if field.name == "tune":
                default = read_blocks(default)
            assert default == getattr(TrainingOptions(), field.name), field.name


def test_help_names_all_built_in_methods_and_backbones(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert run(["train", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    methods, backbones = (
        ", ".join(name for name, kind in kinds.items() if kind.__module__.startswith("mchindex."))
        for kinds in (METHODS, BACKBONES)
    )
    assert f"Base method: {methods}, or" in text
    assert f"Network: {backbones}, or" in text
    assert f"[default: ({TrainingOptions().method}; " in text


# Training


def test_train_repeats_its_weights_and_prints_a_summary(
    model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The same options give the same weights; checks the files and the output as well."""
    out = tmp_path / "again"
    capsys.readouterr()
    assert run(["train", *TINY, "--out", str(out)]) == 0
    text, progress = capsys.readouterr()
    assert (out / WEIGHTS).read_bytes() == (model / WEIGHTS).read_bytes()
    left = {"config.json", WEIGHTS, "training.json", "split.json"}
    left |= {"learning-curve.svg", "learning-curve.png"}
    assert {file.name for file in out.iterdir()} == left
    data = open_dataset("scenes:240", seed=3)
    split = load_split(data, out / "split.json").splits
    assert all((split[name] == data.splits[name]).all() for name in split)
    for word in ("base", "MCH", "mAP", "R@H=0", "P@H=0", "F1 ", "ANHC", "skipped"):
        assert word in text
    whole = "".join(text.split())  # a long path may be wrapped
    for word in ("24 queries against 216 images", str(out), "backbone ", "agent ", "svg"):
        assert "".join(word.split()) in whole
    # stderr is not a terminal, so there is one line per stage.
    stages = [line.split(":")[0] for line in progress.splitlines()]
    assert stages == [
        "backbone", "features", "base dch", "rewards", "agent", "fine codes",
        "words", "query features", "database features", "evaluation",
    ]  # fmt: skip


def training_report(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "training.json").read_text())
    return report


def test_settings_reach_the_training(model: Path) -> None:
    options = training_report(model)["options"]
    assert options["settings"] == {"epochs": 3}
    assert options["backbone_settings"] == {"epochs": 2}
    agent = options["agent_settings"]
    assert (agent["steps"], agent["width"]) == (150, 32)


def test_paper_agent_sets_the_settings_of_the_paper(tmp_path: Path) -> None:
    """The paper's settings, of which --set can still change some."""
    out = tmp_path / "model"
    paper = ["--paper-agent", "--set", "agent.steps=7"]
    assert run([*_without(quick(), "agent."), *paper, "--out", str(out)]) == 0
    assert training_report(out)["options"]["agent_settings"] == asdict(PAPER.updated({"steps": 7}))


def test_without_matplotlib_a_hint_replaces_the_plot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    out = tmp_path / "model"
    assert run([*quick(), "--no-cache", "--out", str(out)]) == 0
    text, progress = capsys.readouterr()
    assert progress == ""
    assert "mchindex[plot]" in text
    assert not list(out.glob("learning-curve.*"))


def test_training_succeeds_on_data_that_cannot_be_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "photos"
    names = [f"{i}.jpg" for i in range(8)]
    write_pictures(root / "images", names)
    rows = [f"{name},{'query' if i > 5 else 'train'},{'ab'[i % 2]}" for i, name in enumerate(names)]
    write(root / "labels.csv", "\n".join(["file,split,labels", *rows]))
    for name in names[6:]:
        (root / "images" / name).write_bytes(b"not an image")
    out = tmp_path / "model"
    data = ["--data", str(root), "--method", "lsh", "--bits", "8", "--no-agent"]
    small = ["--backbone", "small", "--set", "backbone.epochs=1", "--engine", "torch"]
    assert run(["train", *data, *small, "--out", str(out), "-q"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "not measured: none of the query images of photos can be read" in text


@pytest.mark.parametrize(
    ("codes", "words"),
    [
        (1.0, "no region worth a code: with 1.00 codes"),
        (1.06, "few regions worth a code"),
        (1.1, ""),
    ],
)
def test_a_model_that_keeps_next_to_nothing_comes_with_advice(
    codes: float, words: str, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    measured = training.measure

    def as_if(*args: Any, **options: Any) -> dict[str, Any]:
        found = measured(*args, **options)
        return found | {"mch": replace(found["mch"], anhc=codes)}

    monkeypatch.setattr(training, "measure", as_if)
    arguments = [word for word in quick() if word != "--no-eval"]
    assert run([*arguments, "--out", str(tmp_path / "model")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "nDCG@10" in text
    assert (words in text) if words else ("advice" not in text)
    assert ("--codes 1.3" in text) == bool(words)


# Interruptions


def test_eval_looks_for_edited_copies(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A picture finds itself; one that is nothing but grey finds whatever is first.
    edits = {"none": lambda image: image, "lost": lambda image: Image.new("RGB", image.size)}
    monkeypatch.setattr(copies, "EDITS", edits)
    arguments = ["eval", str(model), "--data", "scenes:100", "--quiet", "--copies", "20"]
    assert run([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["edited"] == 20
    assert found["copies"]["none"] == {"first": 1.0, "ten": 1.0}
    assert found["copies"]["lost"]["first"] <= 1 / 20
    assert run(arguments) == 0
    assert re.search(r"none +100.0% +100.0%", capsys.readouterr().out)
    monkeypatch.setattr(copies, "EDITS", {})
    assert run([*arguments[:-1], "1000", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["edited"] == 90  # all images of the database


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves a checkpoint at every step instead of every 20 seconds."""
    monkeypatch.setattr(checkpoints, "EVERY", 0.0)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("stop", "not_repeated"),
    [
        (("backbone", 1), ("backbone", 1)),
        (("features", 97), ("backbone", 2)),
        (("dch", 2), ("dch", 1)),
        (("rewards", 97), ("dch", 3)),
        (("agent", 100), ("agent", 100)),
    ],
)
def test_resume_gives_the_same_weights(
    model: Path,
    stop: tuple[str, int],
    not_repeated: tuple[str, int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "model"
    arguments = ["train", *TINY, "--out", str(out), "--no-eval"]
    with monkeypatch.context() as patch:
        Watch(patch, stop)
        capsys.readouterr()
        assert run(arguments) == 130
    assert capsys.readouterr().err.splitlines()[-1].startswith("mch: interrupted: ")
    assert "--resume" in refusal(capsys, *arguments)
    assert "options" in refusal(capsys, *arguments, "--resume", "--set", "lr=0.5")
    assert "interrupted training" in refusal(capsys, "eval", str(out), "--data", "scenes:240")
    watch = Watch(monkeypatch)
    assert run([*arguments, "--resume"]) == 0
    assert not_repeated not in watch.seen  # it continued and did not start over
    assert ("agent", 150) in watch.seen
    assert (out / WEIGHTS).read_bytes() == (model / WEIGHTS).read_bytes()
    assert not (out / "checkpoint").exists()
    assert training_report(out)["curve"] == training_report(model)["curve"]


def test_a_killed_training_can_be_resumed(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    arguments = ["train", *TINY, "--out", str(out), "--no-eval"]
    script = (
        "import sys; from mchindex.training import checkpoints; checkpoints.EVERY = 0.0; "
        "from mchindex.cli import run; sys.exit(run(sys.argv[1:]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        cwd=tmp_path,  # not the source folder, whose package may not be compiled
        env=environment(),
        stderr=subprocess.PIPE,
    ) as process:
        until = time.monotonic() + 60
        while not list(out.glob("checkpoint/*.pt")) and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    assert process.returncode == -signal.SIGKILL
    assert not (out / WEIGHTS).exists()
    assert "--resume" in refusal(capsys, *arguments)
    assert run([*arguments, "--resume"]) == 0
    assert (out / WEIGHTS).read_bytes() == (model / WEIGHTS).read_bytes()


def test_an_interrupted_evaluation_keeps_the_model(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    Watch(monkeypatch, ("query features", 24))
    assert run(["train", *TINY, "--out", str(out)]) == 130
    assert "the model is saved" in capsys.readouterr().err
    assert (out / WEIGHTS).read_bytes() == (model / WEIGHTS).read_bytes()
    assert run(["eval", str(out), "--data", "scenes:240"]) == 130


def test_a_model_is_replaced_only_with_overwrite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    arguments = [*_without(quick(), "agent."), "--no-agent", "--out", str(out)]
    assert run(arguments) == 0
    first = (out / WEIGHTS).read_bytes()
    assert "--overwrite" in refusal(capsys, *arguments)
    assert "--overwrite" in refusal(capsys, *arguments, "--resume")
    assert run([*arguments, "--overwrite", "--seed", "4"]) == 0
    assert (out / WEIGHTS).read_bytes() != first


# Evaluation

FIGURES = {"map", "map_tie_aware", "p0", "p0_nonempty", "r0", "empty", "anhc", "f1_buckets"}


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["eval", *arguments, "--json", "--quiet"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_eval_prints_one_json_object(model: Path) -> None:
    """In another process and with its default engine, stdout has one line of JSON."""
    done = in_process(model, "eval", str(model), "--data", "scenes:240", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    result = json.loads(done.stdout)
    assert list(result)[-4:] == ["base", "mch", "random_keep", "keep_all"]
    for way in ("base", "mch", "random_keep", "keep_all"):
        assert set(result[way]) >= FIGURES
        assert [point[0] for point in result[way]["f1_buckets"]][:4] == [1, 2, 5, 10]
        assert all(len(point) == 2 for point in result[way]["f1_buckets"])
    expected = {"model": str(model), "data": "scenes:240", "queries": 24, "images": 216}
    expected |= {"skipped": {}, "sigma": 0.5, "xi": 0.5, "seed": 3, "trained_queries": 0}
    assert {key: result[key] for key in expected} == expected
    assert result["base"]["anhc"] == 1
    assert result["random_keep"]["anhc"] == pytest.approx(result["mch"]["anhc"], abs=0.02)
    stages = [line.split(":")[0] for line in done.stderr.splitlines()]
    assert stages == ["query features", "database features", "evaluation"]


def test_eval_gives_the_figures_of_the_library(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mchindex.models import MCHModel
    from mchindex.training import encode_dataset, measure

    result = as_json(capsys, str(model), "--data", "scenes:240", "--engine", "torch", "--radius=2")
    loaded = MCHModel.load(model, engine="torch")
    coded = encode_dataset(loaded, open_dataset("scenes:240", seed=3))
    for way, evaluation in measure(coded, 0.5, seed=3, radius=2).items():
        assert result[way] == evaluation.to_json()


def test_sigma_and_xi_can_be_changed(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (str(model), "--data", "scenes:240", "--engine", "torch")
    whole = as_json(capsys, *arguments, "--sigma", "1")
    assert whole["sigma"] == 1
    assert whole["mch"]["anhc"] == whole["keep_all"]["anhc"] == 1
    assert whole["mch"]["map"] == whole["base"]["map"]
    every = as_json(capsys, *arguments, "--xi", "0")
    assert every["mch"] == every["keep_all"]
    few, many = (as_json(capsys, *arguments, "--xi", xi)["mch"]["anhc"] for xi in ("0.8", "0.2"))
    assert 1 <= few <= many <= every["mch"]["anhc"]


def test_eval_prints_tables_and_plots(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "deeper" / "curves.svg"
    arguments = [str(model), "--data", "scenes:240", "--per-class", "--plot", str(plot), "--quiet"]
    assert run(["eval", *arguments, "--engine", "torch"]) == 0
    text, progress = capsys.readouterr()
    assert progress == ""
    for word in (
        "base",
        "MCH",
        "random",
        "all regions",
        "F1 after 1,000 buckets",
        "spiral",
    ):
        assert word in text
    assert "24 queries against 216 images" in text
    assert plot.read_text().count("MCH-DCH") >= 1


def test_eval_on_other_classes(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pictures and classes that are new to the model; one of the files is truncated."""
    root = tmp_path / "photos"
    names = [f"{i}.jpg" for i in range(12)]
    write_pictures(root / "images", names)
    splits = ["query"] * 3 + ["database"] * 9
    rows = [
        f"{n},{s},{'cat' if i % 2 else '[dog]'}"
        for i, (n, s) in enumerate(zip(names, splits, strict=True))
    ]
    write(root / "labels.csv", "\n".join(["file,split,labels", *rows]))
    cut = root / "images" / names[5]
    cut.write_bytes(cut.read_bytes()[:200])
    result = as_json(capsys, str(model), "--data", str(root), "--engine", "torch")
    assert (result["queries"], result["images"], result["skipped"]) == (3, 8, {"unreadable": 1})
    assert set(result["mch"]["per_class"]) == {"cat", "[dog]"}
    assert run(["eval", str(model), "--data", str(root), "--engine", "torch", "--per-class"]) == 0
    text = capsys.readouterr().out
    assert "[dog]" in text
    assert "1 unreadable" in text


def test_eval_warns_of_queries_that_were_trained_on(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """scenes:100 has the first pictures of scenes:240, with another split."""
    capsys.readouterr()
    assert run(["eval", str(model), "--data", "scenes:100", "-q", "--json", "--engine=torch"]) == 0
    out, error = capsys.readouterr()
    result = json.loads(out)
    trained = open_dataset("scenes:240", seed=3)
    queries = open_dataset("scenes:100", seed=3).splits["query"]
    assert result["trained_queries"] == len(np.intersect1d(trained.splits["train"], queries)) > 0
    assert error.startswith("mch: warning: the model was trained on ")
    other = as_json(capsys, str(model), "--data", "scenes:100", "--seed", "4", "--engine=torch")
    assert other["trained_queries"] == 0


def test_eval_with_a_saved_split(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ("--data", "scenes:240?queries=5&train=0", "--engine", "torch")
    assert as_json(capsys, str(model), *data)["queries"] == 5
    result = as_json(capsys, str(model), *data, "--split", str(model / "split.json"))
    assert (result["queries"], result["trained_queries"]) == (24, 0)


def test_eval_of_a_model_without_a_policy(
    base_only: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = as_json(capsys, str(base_only), "--data", "scenes:240", "--engine", "torch")
    assert list(result)[-2:] == ["base", "keep_all"]
    assert result["keep_all"]["anhc"] > 1
    assert run(["eval", str(base_only), "--data", "scenes:240", "-q", "--engine", "torch"]) == 0
    assert "--no-agent" in capsys.readouterr().out


# Refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--method nonsense", "no method is called 'nonsense': there are lsh, "),
        ("--backbone nonsense", "no backbone is called 'nonsense': there are "),
        ("--bits 63", "multiple of 8"),
        ("--fine-bits 63", "multiple of 8"),
        ("--sigma 2", "sigma"),
        ("--xi 2", "xi"),
        ("--crops 0", "at least 1"),
        ("--device nonsense", "device 'nonsense' cannot be used"),
        ("--engine nonsense", "'nonsense'"),
        ("--data nonsense", "coco:DIR"),
        ("--data scenes:many", "whole number"),
        ("--data scenes:240?colour=red", "its options: queries, train, size"),
        ("--set lr", "expected name=value"),
        ("--set rl=1", "dch has no setting 'rl': there are epochs, "),
        ("--set steps=1", "did you mean agent.steps?"),
        ("--set agent.rl=1", "the agent has no setting 'rl': there are reward, "),
        ("--set backbone.rl=1", "the backbone has no setting 'rl': there are epochs, "),
        ("--set nonsense.lr=1", "'nonsense' has no settings"),
        ("--set lr=fast", "lr=fast"),
        ("--set agent.estimator=guess", "exact, reinforce"),
        ("--set agent.steps=0", "at least 1, not 0"),
        ("--no-agent --paper-agent", "--no-agent"),
        ("--resume --overwrite", "give one of them"),
        ("--cache x --no-cache", "give one of them"),
        ("--split nonsense.json", "nonsense.json is missing"),
        ("--weights nonsense.pth", "nonsense.pth: No such file"),
        ("--backbone alexnet --regions pooled", "crops"),
        ("--method itq --finetune", "can be fine-tuned"),
        ("--tune 2", "--tune 2: expected blocks=N, such as blocks=2"),
        ("--tune blocks=0", "expected blocks=N"),
        ("--tune blocks=9", "from 1 to 3 blocks of small can be tuned, not 9"),
        ("--tune blocks=2 --finetune", "give one"),
        ("--set tune.lr=1", "no blocks are tuned"),
        ("--nonsense", "(see mch train --help)"),
        ("--threads 0", "threads"),
    ],
)
def test_train_refuses_bad_input(
    arguments: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = ["--data", "scenes:40", "--backbone", "small", "--out", str(tmp_path / "model")]
    assert message in refusal(capsys, "train", *plain, *arguments.split())
    assert not (tmp_path / "model").exists()


def test_data_without_labels_needs_unsupervised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pictures(tmp_path / "photos", ["a.jpg", "b.jpg"])
    out = ("--out", str(tmp_path / "model"))
    for spec in (str(tmp_path / "photos"), f"photos:{tmp_path / 'photos'}"):
        assert "--unsupervised" in refusal(capsys, "train", "--data", spec, *out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--data nonsense", "coco:DIR"),
        ("--device nonsense", "device 'nonsense' cannot be used"),
        ("--sigma 0", "must be above 0 and at most 1, not 0.0"),
        ("--xi 2", "xi must be a probability"),
        ("--radius 33", "exceeds the 32 bits"),
        ("--plot curves.pdf", ".svg or .png"),
        ("--seed -1", "seed"),
        ("--split nonsense.json", "nonsense.json is missing"),
    ],
)
def test_eval_refuses_bad_input(
    model: Path, arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refusal(capsys, "eval", str(model), "--data", "scenes:40", *arguments.split())


def test_eval_refuses_other_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ("--data", "scenes:40")
    assert "is not a model" in refusal(capsys, "eval", str(tmp_path), *data)
    assert "is not a model" in refusal(capsys, "eval", str(tmp_path / "gone"), *data)
    (tmp_path / "config.json").write_text("{")
    assert "damaged" in refusal(capsys, "eval", str(tmp_path), *data)


def test_a_refusal_shows_no_traceback(tmp_path: Path) -> None:
    done = in_process(tmp_path, "eval", str(tmp_path), "--data", "nonsense", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def test_out_must_not_be_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "file", "")
    assert str(file) in refusal(capsys, "train", *TINY, "--out", str(file))


def test_unexpected_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(SceneSource, "__init__", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        run(["train", *TINY, "--out", "nowhere"])


def test_mch_traceback_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCH_TRACEBACK", "1")
    with pytest.raises(ValueError, match="nonsense"):
        run(["methods", "nonsense"])
