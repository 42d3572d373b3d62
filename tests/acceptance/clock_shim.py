"""Clocks that are wrong: a library loaded before libc, and the offsets a test sets while processes run.

It shifts CLOCK_REALTIME, as a host whose time is not kept, and CLOCK_BOOTTIME, as a host that was suspended:
CLOCK_MONOTONIC stands still then. Linux with glibc and a C compiler only.
"""

import mmap
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offsets;  /* seconds: of the wall clock, of boot time */
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("WRONG_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) offsets = found;
    close(file);
}

int clock_gettime(clockid_t which, struct timespec *at) {
    if (!real) begin();
    int failed = real(which, at);
    if (!failed && offsets && which == CLOCK_REALTIME) at->tv_sec += offsets[0];
    if (!failed && offsets && which == CLOCK_BOOTTIME) at->tv_sec += offsets[1];
    return failed;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *kept) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return (time_t)-1;
    if (kept) *kept = now.tv_sec;
    return now.tv_sec;
}
"""


def why_not() -> str | None:
    """Why this machine cannot have wrong clocks; None when it can."""
    if sys.platform != "linux":
        return "a library before libc is Linux's"
    return None if shutil.which("gcc") else "there is no gcc"


def built(folder: Path) -> Path:
    """The library, compiled."""
    source, library = folder / "clock_shim.c", folder / "clock_shim.so"
    source.write_text(SOURCE)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    return library


class WrongClock:
    """The clocks of whatever is started with `env`; each offset in whole seconds."""

    def __init__(self, library: Path, file: Path, wall_s: int = 0) -> None:
        self.env = {"LD_PRELOAD": str(library), "WRONG_CLOCK": str(file)}
        file.write_bytes(struct.pack("=qq", wall_s, 0))
        self._file = file.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), 0)

    def suspend(self, seconds: int) -> None:
        """What a suspended host does: boot time goes on without it."""
        (slept,) = struct.unpack_from("=q", self._map, 8)
        struct.pack_into("=q", self._map, 8, slept + seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._map.close()
        self._file.close()
