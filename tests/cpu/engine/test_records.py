"""Records: named words that plans write and kernels read; what is not declared, or declared twice, is an error."""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb
from pullback.cpu.engine.plan import make_plan
from pullback.cpu.engine.records import Record
from pullback.cpu.machine_code.variants import Variant
from pullback.registry import kernels_for


class Base(Record):
    ints = "first second"
    floats = "scale"


class Derived(Base):
    ints = "third"


def test_fields_of_a_parent_come_first() -> None:
    assert Derived.FIELDS == (("first", "int"), ("second", "int"), ("scale", "float"), ("third", "int"))
    assert (Derived.BYTES, Derived.place("scale"), Derived.place("third")) == (32, 2, 3)


def test_packing() -> None:
    words = Derived.pack({"first": 1, "second": -2, "scale": 0.5, "third": 2**62, "more": 7})
    assert words.tolist()[:2] == [1, -2]
    assert words[2:3].view(np.float64)[0] == 0.5
    assert words[3] == 2**62
    with pytest.raises(KeyError, match="third"):
        Derived.pack({"first": 1, "second": 2, "scale": 0.0})


def test_tables() -> None:
    class Pair(Record):
        ints = "a b"

    assert Pair.table([{"a": 1, "b": 2}, {"a": 3, "b": 4}]).tolist() == [[1, 2], [3, 4]]
    assert Pair.columns(a=[1, 3], b=9).tolist() == [[1, 9], [3, 9]]
    with pytest.raises(TypeError, match="has the fields"):
        Pair.columns(a=[1])


def test_a_field_is_named_once() -> None:
    with pytest.raises(TypeError, match="twice"):

        class Twice(Base):
            ints = "first"


def test_a_plan_with_the_record_of_another_kernel_is_refused() -> None:
    pb.backends()
    with pytest.raises(TypeError, match="takes another record than Base"):
        make_plan(Variant("engine.roofs", "copy"), Base, 1, 0, 0, {"first": 0, "second": 0, "scale": 0.0})


def test_every_kernel_says_what_it_cannot_and_when_it_loses() -> None:
    """By names of the field: an older name still finds its kernels."""
    x, f = np.ones((1, 8, 8, 4), np.float32), np.ones((3, 3, 1, 4), np.float32)
    with pb.kernel("depthwise"):
        assert pb.explain("conv", x, f, groups=4).chosen.name == "group_cells"
    names = {kernel.name for op in ("conv", "conv_grad_filter") for kernel in kernels_for(op, "cpu")}
    assert {"slide", "flat", "group_planes", "group_cells"} < names
