"""Runs a verb from a table of verbs, or prints the table."""

import difflib
import importlib
from collections.abc import Collection, Mapping

from dietcl.errors import UserError


def hint(name: str, known: Collection[str]) -> str:
    """Suggest the known name that is most like an unknown one, or list them all."""
    similar = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {similar[0]}?" if similar else f"choose from {', '.join(known)}"


def run_verb(arguments: list[str], verbs: Mapping[str, str], about: str, examples: str, *group: str) -> int:
    """Run the verb that the first argument names, from the module of that name; without a verb, print the help."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        lines = "\n".join(f"  {name:<10}{summary}" for name, summary in verbs.items())
        print(f"usage: {' '.join(['dietcl', *group, 'VERB'])} [options]\n\n{about}\n\nverbs:\n{lines}\n\n{examples}")
        return 0
    verb, *rest = arguments
    if verb not in verbs:
        raise UserError(f"{' '.join([*group, verb])}: no such verb; {hint(verb, verbs)}")
    code: int = importlib.import_module(".".join(["dietcl.cli", *group, verb])).main(rest)
    return code
