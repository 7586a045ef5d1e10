"""A folder of which one file at a time is changed and put back."""

import json

from fuzz.mutations import put_back

from zipflm.messages import quoted
from zipflm.storage import CHECKSUMS, file_hash, seal

MAX_MESSAGE = 2_000  # characters


class Folder:
    """Files of a folder, held in memory to be put back."""

    def __init__(self, path, names):
        self.path = path
        self.originals = {name: (path / name).read_bytes() for name in names}
        self._changed = {}

    def write(self, name, data, *, sealed=False):
        """Change a file; `sealed` makes the checksums of its folder match."""
        self.touch(name)
        path = self.path / name
        path.write_bytes(data)
        if sealed and path.suffix == ".tokens":
            self._certify(path)
        if sealed:
            sums = path.with_name(CHECKSUMS)
            self._changed[sums] = sums.read_bytes()
            seal(path.parent)

    def _certify(self, path):
        """data.json holds the checksums of token files, too."""
        facts_path = path.with_name("data.json")
        self._changed[facts_path] = facts_path.read_bytes()
        facts = json.loads(facts_path.read_bytes())
        facts["splits"][path.stem]["sha256"] = file_hash(path)
        facts_path.write_text(json.dumps(facts))

    def touch(self, name):
        """Remember to put a file back."""
        self._changed[self.path / name] = self.originals[name]

    def restore(self):
        for path, data in self._changed.items():
            put_back(path, data)
        self._changed.clear()


def require_named(error, root, names):
    """A refusal says which file it is about, of those with these names in the folder `root`."""
    message = str(error)
    assert len(message) < MAX_MESSAGE, message
    assert str(root) in message, f"does not name the folder: {quoted(message)}"
    assert any(name in message for name in names), f"names no file: {message}"
