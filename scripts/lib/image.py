#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Kernel images: what a file is, as far as that is known before it is booted.

usage: image.py FILE

Prints the architecture and, if the image says it, the kernel's release. Exits with 1 and
the reason in one line on standard error for what is no kernel image that QEMU boots:
another kind of file, another architecture, a file that is damaged, not whole or unreadable.
"""
import gzip
import re
import struct
import sys
import zlib

ELF_MACHINES = {3: "i386", 21: "powerpc64", 22: "s390", 40: "arm", 62: "x86_64", 183: "arm64",
                243: "riscv", 258: "loongarch"}
# The type of Xen's note with the address at which QEMU starts an x86 kernel
XEN_PHYS32_ENTRY = 18


class NoImage(Exception):
    """Why a file cannot be booted."""


def number(data, offset, form):
    """A little-endian number; a file that ends before it is not whole."""
    if offset + struct.calcsize(form) > len(data):
        raise NoImage("it is not whole: it ends in its header")
    return struct.unpack_from("<" + form, data, offset)[0]


def need(data, size):
    """Something that is there by its header ends at that offset."""
    if len(data) < size:
        raise NoImage(f"it is not whole: {len(data)} of {size} bytes")


def release_in(data):
    """The release in the kernel's banner."""
    found = re.search(rb"Linux version (\d[\w.+~-]*) ", data)
    return found.group(1).decode() if found else ""


def elf(data):
    """A vmlinux: only of x86_64 does QEMU boot it."""
    arch = ELF_MACHINES.get(number(data, 18, "H"), "an unknown machine")
    if arch == "arm64":
        raise NoImage("it is an ELF file for arm64, of which QEMU boots arch/arm64/boot/Image")
    if arch != "x86_64":
        raise NoImage(f"it is an ELF file for {arch}, not for x86_64")
    sections, size, count = number(data, 40, "Q"), number(data, 58, "H"), number(data, 60, "H")
    need(data, sections + size * count)
    if not any(kind == XEN_PHYS32_ENTRY for kind in xen_notes(data)):
        raise NoImage("it is an ELF file, but no vmlinux with CONFIG_PVH, which QEMU boots")
    return arch, release_in(data)


def xen_notes(data):
    """The types of Xen's notes in its segments."""
    start, size, count = number(data, 32, "Q"), number(data, 54, "H"), number(data, 56, "H")
    if not size:  # an object or a module has no segments
        return
    for header in range(start, start + size * count, size):
        if number(data, header, "I") != 4:  # PT_NOTE
            continue
        offset, end = number(data, header + 8, "Q"), 0
        end = offset + number(data, header + 32, "Q")
        while offset + 12 <= end:
            name, desc, kind = (number(data, offset + i, "I") for i in (0, 4, 8))
            if data[offset + 12:offset + 12 + name] == b"Xen\0":
                yield kind
            offset += 12 + (name + 3 & ~3) + (desc + 3 & ~3)


def bzimage(data):
    """arch/x86/boot/bzImage: Documentation/arch/x86/boot.rst"""
    setup = data[0x1f1] or 4
    need(data, (setup + 1) * 512 + number(data, 0x1f4, "I") * 16)
    protocol = number(data, 0x206, "H")
    if protocol >= 0x20c and not number(data, 0x236, "H") & 1:
        raise NoImage("it is a bzImage for i386, not for x86_64")
    version = number(data, 0x20e, "H") + 0x200
    text = data[version:version + 100].split(b"\0")[0].split(b" ")[0]
    return "x86_64", text.decode("ascii", "replace")


def image(data):
    """arch/arm64/boot/Image; with an EFI stub it says how long it is."""
    header = number(data, 60, "I")
    if data[header:header + 4] == b"PE\0\0" and header:
        sections = header + 24 + number(data, header + 20, "H")
        for i in range(number(data, header + 6, "H")):
            need(data, number(data, sections + 40 * i + 16, "I") + number(data, sections + 40 * i + 20, "I"))
    return "arm64", release_in(data)


def look(data):
    """Architecture and release of an image."""
    if data[:4] == b"\x7fELF":
        return elf(data)
    if data[514:518] == b"HdrS":
        return bzimage(data)
    if data[56:60] == b"ARM\x64":
        return image(data)
    if data[:3] == b"\x1f\x8b\x08":
        try:
            inner = look(gzip.decompress(data))
        except (OSError, EOFError, zlib.error) as error:
            raise NoImage(f"it is compressed, but damaged or not whole: {error}") from error
        if inner[0] != "arm64":
            raise NoImage("only an Image of arm64 may be compressed by gzip")
        return inner
    if data[48:56] == b"RISCV\0\0\0" or data[56:60] == b"RSC\x05":
        raise NoImage("it is an Image for riscv; supported are x86_64 and arm64")
    raise NoImage("it is neither an ELF file (vmlinux), nor a bzImage, nor arm64's Image")


def main():
    """Prints what the file is."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        with open(sys.argv[1], "rb") as file:
            data = file.read()
        print(*look(data))
    except OSError as error:
        sys.exit(f"it cannot be read: {error.strerror}")
    except NoImage as why:
        sys.exit(str(why))


if __name__ == "__main__":
    main()
