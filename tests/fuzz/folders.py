"""A folder of which one file at a time is changed and put back."""

from zipflm.checksums import CHECKSUMS, seal
from zipflm.quoting import quoted

MAX_MESSAGE = 2_000  # characters


class Folder:
    """Files of a folder, held in memory to be put back."""

    def __init__(self, path, names):
        self.path = path
        self.originals = {name: (path / name).read_bytes() for name in names}
        self._sealed = None

    def write(self, name, data, *, sealed=False):
        """Change a file; `sealed` makes the checksums of its folder match."""
        path = self.path / name
        path.write_bytes(data)
        if sealed:
            self._sealed = path.parent / CHECKSUMS
            self._sums = self._sealed.read_bytes()
            seal(path.parent)

    def restore(self, name):
        path = self.path / name
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        path.write_bytes(self.originals[name])
        if self._sealed is not None:
            self._sealed.write_bytes(self._sums)
            self._sealed = None


def require_named(error, root, names):
    """A refusal says which file it is about, of those with these names in the folder `root`."""
    message = str(error)
    assert len(message) < MAX_MESSAGE, message
    assert str(root) in message, f"does not name the folder: {quoted(message)}"
    assert any(name in message for name in names), f"names no file: {message}"
