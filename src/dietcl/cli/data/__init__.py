"""`dietcl data`: from images to a stream; one file per verb."""

from dietcl.cli.verbs import run_verb

VERBS = {
    "prepare": "turn a folder, a table, an archive or a known dataset into a manifest",
    "pack": "resize the images of a manifest and copy them into files that are quick to read",
    "check": "read and decode every image of a manifest, and list those that cannot be",
    "stats": "count classes, images and labels along a stream, against published numbers if wanted",
    "show": "draw a contact sheet of a stream, its label rate and its classes",
}

EXAMPLES = """Examples:
  dietcl data prepare photos/ --out data/photos
  dietcl data check data/photos/manifest.parquet
  dietcl data show data/photos/manifest.parquet --recipe time --time-steps 10
  dietcl data VERB --help"""


def main(arguments: list[str]) -> int:
    """Run one of the verbs."""
    return run_verb(arguments, VERBS, "Makes streams of your own images.", EXAMPLES, "data")
