"""Whether object code can be loaded: LLVM's loader believes what it reads, and ends the process over what it cannot resolve.

An ELF file is looked through as the loader will read it: everything lies within the file, every relocation within its section, and
every name is known. Other formats (macOS, Windows) are known by their first bytes alone.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from pullback.cpu.machine_code.levels import level

_MACHINES = {"x86_64": 62, "aarch64": 183}
# Kinds of relocations that the loader knows and LLVM writes into kernels.
_RELOCATIONS = {"x86_64": {1, 2, 4, 10, 11, 24}, "aarch64": {*range(257, 287), 299}}
_WIDE = {"x86_64": {1, 24}, "aarch64": {257, 260}}  # those of 8 bytes; the others have 4
_NOTHING, _SYMBOLS, _STRINGS, _RELOCATED, _NO_BITS, _REL = 0, 2, 3, 4, 8, 9  # kinds of sections
_CODE, _OF_A_THREAD = 4, 1024  # flags of a section
_UNDEFINED, _ABSOLUTE, _COMMON = 0, 0xFFF1, 0xFFF2  # places of a symbol that are no sections
_FILE = 4  # the last of the kinds of symbols in kernels, and the only one that no relocation may name
_MOST_ZEROS, _MOST_ALIGNED = 1 << 20, 4096
_FIRST_BYTES = {"darwin": b"\xcf\xfa\xed\xfe", "win32": b"\x64\x86"}


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    each: int


class _Unfit(Exception):  # noqa: N818 (a finding, not an error)
    """The object file cannot be loaded."""


def _demand(condition: bool) -> None:
    if not condition:
        raise _Unfit


def _is_alignment(number: int) -> bool:
    return 0 < number <= _MOST_ALIGNED and number & (number - 1) == 0


def _entries(data: bytes, section: _Section, layout: str) -> Iterator[tuple[Any, ...]]:
    _demand(section.each == struct.calcsize(layout) and section.size % section.each == 0)
    return struct.iter_unpack(layout, data[section.offset : section.offset + section.size])


def _sections(data: bytes, machine: str) -> list[_Section]:
    """All sections, each of which lies within the file."""
    _demand(len(data) >= 64 and data[:7] == b"\x7fELF\x02\x01\x01")
    kind, built_for = struct.unpack_from("<HH", data, 16)
    start = struct.unpack_from("<Q", data, 40)[0]
    each, count, names = struct.unpack_from("<HHH", data, 58)
    _demand(kind == 1 and built_for == _MACHINES[machine] and each == 64 and names < count)
    _demand(start % 8 == 0 and start + each * count <= len(data))
    sections = [_Section(*struct.unpack_from("<IIQQQQIIQQ", data, start + each * number)) for number in range(count)]
    for section in sections:
        if section.kind == _NOTHING:
            continue
        _demand(section.kind != _REL and not section.flags & _OF_A_THREAD and _is_alignment(section.align))
        if section.kind == _NO_BITS:
            _demand(section.size <= _MOST_ZEROS)
        else:
            _demand(section.offset + section.size <= len(data))
        if section.kind == _STRINGS:
            _demand(data[section.offset + section.size - 1 : section.offset + section.size] == b"\0")
    _demand(sections[names].kind == _STRINGS and all(section.name < sections[names].size for section in sections))
    return sections


def _check_symbols(data: bytes, sections: list[_Section], table: _Section, wanted: Collection[str]) -> list[int]:
    """The kinds of all symbols; the wanted ones are among them and lie in code."""
    _demand(table.link < len(sections) and sections[table.link].kind == _STRINGS)
    names = sections[table.link]
    kinds, found = [], set()
    for name, info, _, where, value, size in _entries(data, table, "<IBBHQQ"):
        _demand(name < names.size and info & 15 <= _FILE)
        begin = names.offset + name
        text = data[begin : data.index(b"\0", begin)].decode("ascii", "replace")
        if where in (_UNDEFINED, _ABSOLUTE):
            _demand(value == size == 0 and (where == _ABSOLUTE or text == "" or _is_known(text)))
        elif where == _COMMON:
            _demand(_is_alignment(value) and size <= _MOST_ZEROS)
        else:
            _demand(where < len(sections) and value + size <= sections[where].size)
            if sections[where].flags & _CODE and size > 0:
                found.add(text)
        kinds.append(info & 15)
    _demand(found.issuperset(wanted))
    return kinds


def _is_known(name: str) -> bool:
    """Whether the loader finds a function of this name in the process."""
    from llvmlite import binding

    return name in ("memcpy", "memset", "memmove") or binding.address_of_symbol(name) is not None


def is_loadable(data: bytes, symbols: Collection[str]) -> bool:
    """Whether LLVM can load this object file, and finds the code of these symbols in it."""
    machine = level().machine
    if sys.platform != "linux" or machine not in _MACHINES:
        return data.startswith(_FIRST_BYTES.get(sys.platform, b""))
    try:
        sections = _sections(data, machine)
        tables = [section for section in sections if section.kind == _SYMBOLS]
        _demand(len(tables) == 1)
        kinds = _check_symbols(data, sections, tables[0], symbols)
        for section in sections:
            if section.kind == _RELOCATED:
                _demand(section.info < len(sections) and section.link < len(sections) and sections[section.link] is tables[0])
                room = sections[section.info].size
                for offset, info, _ in _entries(data, section, "<QQq"):
                    kind, symbol = info & 0xFFFFFFFF, info >> 32
                    _demand(kind in _RELOCATIONS[machine] and offset + (8 if kind in _WIDE[machine] else 4) <= room)
                    _demand(symbol < len(kinds) and kinds[symbol] != _FILE)
    except (_Unfit, struct.error, ValueError):
        return False
    return True
