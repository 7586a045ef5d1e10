"""A folder whose files are changed and restored."""

import json

from fuzz.mutations import put_back

from zipflm.messages import quoted
from zipflm.storage import CHECKSUMS, file_hash, seal

MAX_MESSAGE = 2_000  # characters


class Folder:
    """Keeps the original files of a folder in memory to restore them."""

    def __init__(self, path, names):
        self.path = path
        self.originals = {name: (path / name).read_bytes() for name in names}
        self._changed = {}

    def write(self, name, data, *, sealed=False):
        """Change a file. `sealed` updates the checksums of its folder."""
        self.touch(name)
        path = self.path / name
        path.write_bytes(data)
        if sealed and path.suffix == ".tokens":
            self._update_data_json(path)
        if sealed:
            sums = path.with_name(CHECKSUMS)
            self._changed[sums] = sums.read_bytes()
            seal(path.parent)

    def _update_data_json(self, path):
        """data.json also has the checksums of token files."""
        metadata_path = path.with_name("data.json")
        self._changed[metadata_path] = metadata_path.read_bytes()
        metadata = json.loads(metadata_path.read_bytes())
        metadata["splits"][path.stem]["sha256"] = file_hash(path)
        metadata_path.write_text(json.dumps(metadata))

    def touch(self, name):
        """Mark a file to be restored."""
        self._changed[self.path / name] = self.originals[name]

    def restore(self):
        for path, data in self._changed.items():
            put_back(path, data)
        self._changed.clear()


def require_named(error, root, names):
    """Check that an error names the folder `root` and one of these files."""
    message = str(error)
    assert len(message) < MAX_MESSAGE, message
    assert str(root) in message, f"folder is not named: {quoted(message)}"
    assert any(name in message for name in names), f"file is not named: {message}"
