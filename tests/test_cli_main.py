"""The command line as a stranger uses it: help, wrong input, and whole runs in real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from dietcl.cli.main import main
from dietcl.cli.train import parse_run
from dietcl.config import PRESETS
from dietcl.config_builder import build_config, method_options
from dietcl.methods import METHODS
from helpers.runs import small

VERBS = ("demo", "train", "compare", "pretrain", "streams", "methods", "encoders", "report", "doctor")


def dietcl(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, as if not in a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "dietcl", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        check=False,
    )


@pytest.fixture
def here(tmp_path, monkeypatch, capfd):
    """Carry out commands in this process, which has torch at hand, in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        try:
            code = main([*arguments])
        except SystemExit as end:
            code = end.code
        return subprocess.CompletedProcess(arguments, code, *capfd.readouterr())

    return command


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_with_examples(verb):
    result = dietcl(verb, "--help")
    assert result.returncode == 0
    assert f"dietcl {verb}" in result.stdout
    assert "Examples" in result.stdout


def test_the_list_of_verbs_is_complete():
    result = dietcl("--help")
    assert result.returncode == 0
    assert all(f"\n  {verb} " in result.stdout for verb in VERBS)
    assert dietcl("--version").stdout.startswith("dietcl ")


def test_help_does_not_load_torch():
    # What takes long at start is torch; the time itself is a benchmark's business.
    commands = [
        ["--help"],
        ["train", "--help"],
        ["methods"],
        *(["train", "--method", name, "--help"] for name in METHODS),
    ]
    code = (
        "import sys\nfrom dietcl.cli.main import main\n"
        f"for arguments in {commands!r}:\n"
        "    try:\n        main(arguments)\n    except SystemExit:\n        pass\n"
        "    heavy = {'torch', 'timm', 'matplotlib', 'pyarrow'} & set(sys.modules)\n"
        "    assert not heavy, (arguments, heavy)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], ["trian", "train"]),
        (["train", "--method", "dietlc"], ["--method dietlc", "dietcl"]),
        (["train", "--method", "dietcl:paper"], ["dietcl:paper", "dietcl:release"]),
        (["train", "--stream", "glyph"], ["--stream glyph", "glyphs"]),
        (["train", "--stream", "nowhere.parquet"], ["nowhere.parquet", "no such"]),
        (["train", "--preset", "huge"], ["--preset huge", "micro"]),
        (["train", "--budget", "lots"], ["--budget", "lots", "500"]),
        (["train", "--budget", "2h500"], ["2h500"]),
        (["train", "--label-rate", "2"], ["--label-rate 2", "from 0 to 1"]),
        (["train", "--time-steps", "0"], ["--time-steps 0"]),
        (["train", "--batch", "10", "--micro-batch", "4"], ["--batch 10", "multiple"]),
        (["train", "--lr", "-1"], ["--lr -1"]),
        (["train", "--beta1", "1.5"], ["--beta1 1.5"]),
        (["train", "--layer-decay", "nan"], ["--layer-decay nan"]),
        (["train", "--method", "dietcl", "--alpha", "-5"], ["--alpha -5"]),
        (["train", "--method", "dietcl", "--threshold", "most"], ["--threshold most", "80%"]),
        (["train", "--layer-decay", "1e300"], ["--layer-decay 1e"]),
        (["train", "--mixup", "0", "--cutmix", "inf"], ["--cutmix inf"]),
        (["train", "--image-size", "1000000"], ["--image-size 1000000"]),
        (["train", "--stream"], ["--stream", "expected one argument"]),
        (["train", "--threads", "0"], ["--threads 0"]),
        (["train", "--device", "cpu:"], ["--device cpu:"]),
        (["streams", "--stream", "glyphs", "--method", "er"], ["--method"]),
        (["train", "--test-images", "0"], ["--test-images 0"]),
        (["train", "--source.classes", "99999"], ["--source.classes 99999"]),
        (["train", "--stream", "digits", "--source.size", "9999"], ["--source.size 9999"]),
        (["train", "--first-time-steps", "0"], ["--first-time-steps 0"]),
        (["train", "--device", "tpu"], ["--device tpu"]),
        (["train", "--weights", "nowhere.pth"], ["nowhere.pth"]),
        (["train", "--encoder", "swin_tiny_patch4_window7_224", "--image-size", "224"], ["swin_tiny"]),
        (["train", "--no-such-option", "3"], ["no-such-option"]),
        (["report"], ["run"]),
        (["report", "nowhere"], ["nowhere"]),
        (["pretrain", "--updates", "0"], ["--updates 0"]),
        (["streams", "--stream", "nowhere.zip"], ["nowhere.zip"]),
    ],
)
def test_wrong_input_gets_a_sentence_and_exit_code_2(arguments, words, tmp_path, here):
    result = here(*arguments)
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    said = " ".join((result.stdout + result.stderr).split())
    assert all(word in said for word in words), said
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").glob("*/events.jsonl"))


@pytest.mark.long
def test_a_stranger_trains_reports_and_trains_again(blobs, tmp_path):
    train = ["train", "--method", "dietcl", *small(blobs, "--method", "er", "--json", "--curves", "2")]
    first = dietcl(*train, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    result = json.loads(first.stdout)
    folder = tmp_path / result["run"]
    expected = ("config.json", "environment.json", "events.jsonl", "counts.npz", "receipts.json", "model.json")
    assert all((folder / name).is_file() for name in expected)
    assert 0 <= result["final_mean"] <= 1
    again = dietcl(*train, cwd=tmp_path)  # finished runs are shown, not repeated
    assert json.loads(again.stdout) == result
    report = dietcl("report", str(folder), cwd=tmp_path)
    assert report.returncode == 0, report.stderr
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert list((folder / "figures").glob("*.png"))


@pytest.mark.long
def test_a_run_under_ctrl_c_goes_on_where_it_was(blobs, tmp_path, here):
    arguments = ["train", "--method", "dietcl", *small(blobs, "--out", "run", "--budget", "60")]
    child = subprocess.Popen(
        [sys.executable, "-m", "dietcl", *arguments],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "run/checkpoints").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 75
    assert "run: saved; run the same command to resume" in " ".join(said.split())
    again = here(*arguments)
    assert again.returncode == 0
    assert "run: resuming in time step 2, after update" in again.stderr
    assert (tmp_path / "run/finished").is_file()


@pytest.mark.long
def test_pretraining_leaves_weights_and_pictures(blobs, tmp_path, here):
    model = ["--image-size", "16", "--decoder-dim", "16", "--batch", "8", "--out", "upstream"]
    arguments = ["pretrain", "--stream", str(blobs), "--updates", "6", "--checkpoint-every", "3", *model]
    result = dietcl(*arguments, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for name in ("weights.safetensors", "loss.png", "reconstructions.png"):
        assert (tmp_path / "upstream" / name).stat().st_size > 1000
    whole = (tmp_path / "upstream/weights.safetensors").read_bytes()
    assert here(*arguments).returncode == 0
    assert (tmp_path / "upstream/weights.safetensors").read_bytes() == whole
    again = here(*arguments, "--lr", "1e-4")
    assert again.returncode == 2
    assert "upstream" in again.stderr
    train = here("train", "--method", "dietcl", *small(blobs), "--weights", "upstream/weights.safetensors")
    assert train.returncode == 0, train.stderr


def test_streams_lists_and_shows(blobs, here):
    listed = json.loads(here("streams", "--json").stdout)
    assert {entry["name"] for entry in listed} >= {"glyphs", "glyphs-drift", "glyphs-upstream", "digits"}
    shown = json.loads(here("streams", "--stream", str(blobs), "--time-steps", "3", "--json").stdout)
    assert len(shown["steps"]) == 3
    assert sum(step["unlabeled"] + step["labeled"] for step in shown["steps"]) == 120


@pytest.mark.parametrize("stream", ["glyphs", "glyphs-drift", "digits"])
def test_built_in_streams_can_be_cut_by_default(stream, here):
    result = here("streams", "--stream", stream, "--json")
    assert result.returncode == 0, result.stderr
    assert all(step["labeled"] and step["unlabeled"] and step["test"] for step in json.loads(result.stdout)["steps"])


def test_a_stream_that_reveals_no_label_is_refused_before_anything_is_spent(blobs, tmp_path, here):
    result = here("train", "--method", "dietcl", *small(blobs, "--label-rate", "0.001", "--out", "run"))
    assert result.returncode == 2
    assert "--label-rate 0.001" in result.stderr
    assert "--at-least-one" in result.stderr
    assert not (tmp_path / "run").exists()


def test_an_encoder_brings_its_image_size_and_the_rates_of_its_size():
    tiny, *_ = parse_run(["--encoder", "vit_tiny_patch16_224"])
    assert tiny.hash() == parse_run(["--preset", "tiny"])[0].hash()
    small, *_ = parse_run(["--encoder", "vit_small_patch16_384"])
    preset, *_ = parse_run(["--preset", "small"])
    own = {"image_size": 384, "pool": "auto", "crop_ratio": 1.0, "interpolation": "bicubic"}
    assert small.model == replace(preset.model, encoder="vit_small_patch16_384", **own)
    assert (small.training, small.budget, small.method_config) == (
        preset.training,
        preset.budget,
        preset.method_config,
    )
    assert small.weights == "vit_small_patch16_384"


def test_options_and_a_preset_that_are_given_win_over_an_encoders():
    own = ["--encoder", "vit_base_patch32_224", "--image-size", "64", "--lr", "0.5", "--decoder-depth", "3"]
    config, *_ = parse_run(own)
    assert (config.model.image_size, config.training.lr, config.model.decoder_depth) == (64, 0.5, 3)
    assert config.model.decoder_dim == parse_run(["--preset", "base"])[0].model.decoder_dim
    micro, *_ = parse_run(["--encoder", "vit_tiny_patch16_224", "--preset", "micro"])
    assert micro.training == parse_run([])[0].training
    assert micro.model.image_size == 224
    assert build_config(encoder="nano").hash() == build_config(preset="nano").hash()


def test_a_preset_brings_the_methods_options_to_its_scale():
    (micro, *_), (base, *_) = (parse_run(["--method", "dietcl", "--preset", preset]) for preset in ("micro", "base"))
    assert (micro.method_config.alpha, micro.method_config.threshold) == (1, "80%")
    assert (base.method_config.alpha, base.method_config.threshold) == (50, "400")
    told, *_ = parse_run(["--method", "dietcl", "--alpha", "7", "--threshold", "auto"])
    assert (told.method_config.alpha, told.method_config.threshold) == (7, "auto")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_its_options_from_the_command_line(method):
    for name in (method, *(f"{method}:{variant}" for variant in METHODS[method].variants)):
        config, *_ = parse_run(["--method", name])
        assert config.method == method
        assert config.method_config == method_options(name, PRESETS["micro"])


def test_methods_as_json_have_names():
    names = [entry["name"] for entry in json.loads(dietcl("methods", "--json").stdout)]
    paper = "dietcl er er_ace ewc mas gdumb l2p cassle dualnet ccic one_stage two_stage joint naive"
    beyond = "linear_probe ncm ranpac acm derpp fixmatch lwf larder"
    assert " ".join(names) == f"{paper} {beyond}"


@pytest.mark.parametrize("package", ["simplejpeg", "cv2", "matplotlib.figure", "PIL.Image"])
def test_doctor_says_which_package_is_broken(package):
    # In a process of its own: here, all of them are imported already.
    program = (
        f"import sys; sys.modules[{package!r}] = None; from dietcl.cli.main import main; sys.exit(main(['doctor']))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 1, result.stderr
    assert "BAD  packages     cannot import " in result.stdout
    assert package.partition(".")[0] in result.stdout
    assert not result.stderr


@pytest.mark.long
def test_doctor_finds_a_healthy_install_and_says_what_is_broken(tmp_path, here, monkeypatch):
    healthy = dietcl("doctor", "--json")
    findings = {finding["what"]: finding for finding in json.loads(healthy.stdout)}
    assert healthy.returncode == 0, healthy.stdout
    assert {"python", "packages", "images", "network", "device", "precision", "fonts", "figures", "cache"} <= set(
        findings
    )
    (tmp_path / "file").touch()
    monkeypatch.setenv("DIETCL_CACHE", str(tmp_path / "file" / "cache"))
    broken = here("doctor")
    assert broken.returncode == 1
    assert "BAD  cache" in broken.stdout


@pytest.mark.parametrize("verb", ["train", "pretrain"])
def test_a_file_in_the_place_of_the_folder_is_named(verb, blobs, tmp_path, here):
    (tmp_path / "taken").touch()
    arguments = small(blobs) if verb == "train" else ["--stream", str(blobs), "--image-size", "16", "--updates", "1"]
    result = here(verb, *arguments, "--out", "taken")
    assert result.returncode == 2
    assert "taken" in result.stderr
    assert "Traceback" not in result.stderr


def test_what_could_not_start_leaves_the_folder_free(blobs, here):
    arguments = small(blobs, "--out", "run")
    missing = here("train", *arguments, "--weights", "nowhere.pth")
    assert missing.returncode == 2
    assert here("train", *arguments).returncode == 0


def test_brackets_in_a_path_and_a_budget_below_one_update_are_shown_plainly(blobs, here):
    result = here("train", "--method", "dietcl", *small(blobs, "--out", "x[/b]", "--budget", "0.5"))
    assert result.returncode == 0, result.stderr
    assert "x[/b]" in result.stdout
    assert "nothing was learned" in result.stdout


def test_a_folder_of_images_is_a_stream_and_tells_what_of_it_is_left_out(tmp_path, here):
    photos = tmp_path / "photos"
    for name, gray in (("dark", 30), ("light", 220)):
        (photos / name).mkdir(parents=True)
        for i in range(6):
            Image.new("RGB", (40, 30), (gray + i,) * 3).save(photos / name / f"{i}.png")
    command = ("train", "--stream", "photos", "--method", "ncm", "--preset", "nano", "--time-steps", "1")
    good = here(*command, "--recipe", "data", "--out", "good")
    assert good.returncode == 0, good.stderr
    assert "problem" not in good.stderr
    (photos / "dark" / "broken.png").write_bytes(b"no image")
    bad = here(*command, "--recipe", "data", "--out", "bad")
    assert bad.returncode == 0, bad.stderr
    assert "photos: 1 problem, listed in " in bad.stderr
    assert "quarantine.csv; the rest is used" in bad.stderr
