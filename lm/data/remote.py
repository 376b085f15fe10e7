"""Files behind s3://, gs:// and other addresses: copied once to this machine, then read there.

fsspec speaks the protocols (extras s3 and gs) and finds credentials as their own tools do. Copies
lie under ISOFLOP_CACHE (~/.cache/isoflop by default); one whose original has changed is copied
again.
"""

import errno
import json
import os
from pathlib import Path
from typing import Any

from lm.errors import BadInput, CannotSave, installed_by
from lm.progress import Progress, say

EXTRAS = {"s3": "s3", "gs": "gs", "gcs": "gs"}  # protocol -> extra of this package
TOGETHER = 16  # files copied at a time
# What says that a file is another than it was, under the names of different stores.
VERSION = ("ETag", "etag", "md5Hash", "generation", "LastModified", "mtime", "created")


def is_remote(path: str) -> bool:
    return "://" in path


def files(path: str) -> list[Path]:
    """Copies of what a remote path or glob names, in the order of their names; none for no match.

    Raises BadInput where the store cannot be read and CannotSave where the copies cannot be kept.
    """
    return _copied(path, lambda fs, key: _found(fs, key))


def is_folder(path: str) -> bool:
    return bool(asked(path, lambda fs, key: fs.isdir(key)))


def folder(path: str) -> Path:
    """The folder with copies of the files that lie directly in a remote one."""
    key = path.rstrip("/")
    _copied(key, lambda fs, key: _found(fs, f"{key}/*"))
    return _place(*asked(key, lambda fs, key: (fs, key)))


def _found(fs, key: str) -> list[str]:
    if any(c in key for c in "*?["):
        return sorted(k for k in fs.glob(key) if fs.isfile(k))
    return [key] if fs.isfile(key) else []


def asked(path: str, ask, verb: str = "read") -> Any:
    """ask(file system, key); raises BadInput where that cannot be done, and ask's own errors."""
    protocol = path.split("://", 1)[0]
    try:
        import fsspec

        fs, key = fsspec.core.url_to_fs(path)
        return ask(fs, key)
    except ImportError:
        extra = EXTRAS.get(protocol)
        how = installed_by(extra) if extra else f"install what speaks {protocol}"
        raise BadInput(f"{path} needs a library that speaks {protocol}://: {how}") from None
    except (BadInput, CannotSave):
        raise
    except Exception as e:  # each store has errors of its own
        if getattr(e, "errno", None) == errno.ENOSPC:
            raise CannotSave(f"no room for copies in {cache()}: set ISOFLOP_CACHE") from e
        reason = (str(e) or type(e).__name__).splitlines()[0]
        raise BadInput(
            f"cannot {verb} {path} ({reason}): check the address and your credentials"
        ) from e


def _copied(path: str, find) -> list[Path]:
    fs, keys = asked(path, lambda fs, key: (fs, find(fs, key)))
    versions = asked(path, lambda fs, _: {key: _version(fs.info(key)) for key in keys})
    missing = [key for key in keys if not _is_kept(_place(fs, key), versions[key])]
    if missing:
        size = sum(versions[key]["size"] or 0 for key in missing)
        say(f"copying {len(missing)} files, {size / 1e6:,.0f} MB, of {path} to {_root()}")
        progress = Progress("copying", len(missing), unit="file")
        for i in range(0, len(missing), TOGETHER):
            _copy(path, fs, missing[i : i + TOGETHER], versions)
            progress.update(min(i + TOGETHER, len(missing)))
        progress.close()
    return [_place(fs, key) for key in keys]


def _copy(path: str, fs, keys: list[str], versions: dict[str, dict[str, Any]]) -> None:
    places = [_place(fs, key) for key in keys]
    temporary = [p.with_name(f".{p.name}.{os.getpid()}.tmp") for p in places]
    try:
        for p in places:
            p.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise CannotSave(
            f"cannot keep copies in {_root()} ({e.strerror}): set ISOFLOP_CACHE to a folder that "
            "can be written"
        ) from e
    try:
        asked(path, lambda fs, _: fs.get(keys, [str(t) for t in temporary]))
        for key, place, copy in zip(keys, places, temporary, strict=True):
            os.replace(copy, place)
            _note(place).write_text(json.dumps(versions[key]))
    finally:
        for copy in temporary:
            copy.unlink(missing_ok=True)


def _version(info: dict[str, Any]) -> dict[str, Any]:
    return {"size": info.get("size")} | {k: str(info[k]) for k in VERSION if k in info}


def _is_kept(place: Path, version: dict[str, Any]) -> bool:
    try:
        return json.loads(_note(place).read_text()) == version and (
            place.stat().st_size == version["size"]
        )
    except (OSError, ValueError):
        return False


def _note(place: Path) -> Path:
    """Says which version of the original a copy is of."""
    return place.with_name(f".{place.name}.version")


def cache() -> Path:
    """Returns the folder of everything that is kept on this machine of other places."""
    return Path(os.environ.get("ISOFLOP_CACHE", "~/.cache/isoflop")).expanduser()


def _root() -> Path:
    return cache() / "remote"


def _place(fs, key: str) -> Path:
    protocol = fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]
    return _root() / protocol / key.lstrip("/")
