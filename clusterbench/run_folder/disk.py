"""What a person can do about a disk that does not take a file."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path


def remedy(error: OSError, folder: Path) -> str:
    """The beginning of a hint, for what was refused in ``folder`` or where it should have been made."""
    if error.errno == errno.ENOSPC and not _has_inodes(folder):
        return "delete files: the disk has room, but no inode for another file ('df -i' tells)"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free space"
    if error.errno in (errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ESHUTDOWN):
        return "have the disk mounted again or repaired ('dmesg' tells what failed)"
    if error.errno == errno.EFBIG:
        return "raise the limit on the size of a file ('ulimit -f'), or that of its file system"
    if error.errno in (errno.ENOTDIR, errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP):
        return "name a folder that can be made"
    return "make it writable"


def _has_inodes(folder: Path) -> bool:
    """True also where the disk does not count them, as btrfs and some network disks do not."""
    for there in (folder, *folder.absolute().parents):
        with suppress(OSError):
            disk = os.statvfs(there)
            return disk.f_files == 0 or disk.f_favail > 0 or disk.f_bavail == 0
    return True
