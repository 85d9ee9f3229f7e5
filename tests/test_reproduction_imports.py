"""The reproduction stands on the public interface alone, as a researcher's own code outside the repository would."""

import ast
from pathlib import Path

import dietcl
import reproduction

PUBLIC = ("dietcl", "dietcl.clusters", "dietcl.errors", "dietcl.files", "dietcl.metrics", "dietcl.report.style")
# Controls are methods, made of other methods' parts; the oracle is the one place that reads hidden labels.
OF_CONTROLS = ("dietcl.methods", "dietcl.models.network", "dietcl.models.presets")
EXCEPT = {("oracle.py", "dietcl.run", "stream_of")}


def imported(source: str) -> set[tuple[str, str]]:
    """Return what Python code takes from dietcl, wherever in it: (module, name), or (module, "") for a whole module."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "", alias.name) for alias in node.names}
    return {(module, name) for module, name in found if module.partition(".")[0] == "dietcl"}


def test_it_imports_public_names_of_public_modules_only():
    files = sorted(Path(reproduction.__file__).parent.rglob("*.py"))
    used = {(path.name, *taken) for path in files for taken in imported(path.read_text())}
    assert len(used) > 20
    offered = {*dietcl.__all__, "__version__"}
    used -= EXCEPT
    methods = ("controls.py", "oracle.py", "tried.py", "tried_losses.py")
    used -= {each for each in used if each[0] in methods and each[1].startswith(OF_CONTROLS)}
    assert not {each for each in used if each[1] not in PUBLIC or (each[1] == "dietcl" and each[2] not in offered)}


def test_a_private_import_is_found_wherever_it_hides():
    code = "def f():\n    from dietcl.run import execute\n    import dietcl.engine.loop as loop\nimport numpy\n"
    assert imported(code) == {("dietcl.run", "execute"), ("dietcl.engine.loop", "")}


def test_every_public_name_can_be_loaded():
    assert {name for name in dietcl.__all__ if not hasattr(dietcl, name)} == set()
