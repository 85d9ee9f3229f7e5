"""Benchmarks build configurations by the public function, not by parsing a command line of their own making."""

import ast
from pathlib import Path

import benchmarks


def test_no_benchmark_imports_the_parser_of_the_command():
    files = sorted(Path(benchmarks.__file__).parent.rglob("*.py"))
    nodes = [(path.name, node) for path in files for node in ast.walk(ast.parse(path.read_text()))]
    taken = [(name, alias.name) for name, node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert len(taken) > 50
    assert not [each for each in taken if each[1] == "parse_run"]
