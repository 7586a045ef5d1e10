"""A folder whose files are changed and restored."""

from fuzz.mutations import put_back

from zipflm.messages import quoted


class Folder:
    """Keeps the original files of a folder in memory to restore them."""

    def __init__(self, path, names):
        self.path = path
        self.originals = {name: (path / name).read_bytes() for name in names}
        self._changed = {}

    def write(self, name, data):
        self.touch(name)
        (self.path / name).write_bytes(data)

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
    assert str(root) in message, f"folder is not named: {quoted(message)}"
    assert any(name in message for name in names), f"file is not named: {message}"
