"""The attributes of TF.js's kernels: which each of them knows, and what becomes of others.

TF.js reads what it knows and ignores the rest, so that a misspelt attribute is lost without a word. Here one that no TF.js kernel
has is refused outside `quirks()`. Those of other kernels are ignored as there: gradients are handed what their forward was given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pullback.nearest import did_you_mean
from pullback.shown import shown

POOL_2D = ("filterSize", "strides", "pad", "dimRoundingMode")
POOL_3D = (*POOL_2D, "dataFormat")
ARGMAX = ("filterSize", "strides", "pad", "includeBatchInIndex")
STEPS = ("strides", "pad", "dilations")
CONV_2D = (*STEPS, "dataFormat", "dimRoundingMode")
UNDILATED_2D = ("strides", "pad", "dataFormat", "dimRoundingMode")
UNDILATED_3D = ("strides", "pad")
OF_INPUT, OF_FILTER = ("inputShape",), ("filterShape",)

_ELSEWHERE = """
activation alignCorners alpha axis batchDims begin beginMask beta bias binaryOutput blockShape blockSize center clipValueMax
clipValueMin constantValue cropSize crops depth depthRadius dim dims dtype ellipsisMask end endMask equation exclusive
extrapolationValue fillMode fillValue halfPixelCenters interpolation iouThreshold k keepDims leakyreluAlpha maxOutputSize
method mode newAxisMask normalized num numChannels numOrSizeSplits numSamples numSegments offValue onValue outputShape
padToMaxOutputSize paddings perm radians reductionIndices reps reverse scoreThreshold seed shape shrinkAxisMask side size
softNmsSigma sorted start step stop transposeA transposeB value varianceEpsilon
"""  # of kernels that are not here
OF_SOME_KERNEL = frozenset({*POOL_3D, *ARGMAX, *CONV_2D, *OF_INPUT, *OF_FILTER, *_ELSEWHERE.split()})


def check_attributes(kernel: str, known: tuple[str, ...], attrs: Mapping[str, Any]) -> None:
    """Refuse an attribute that no TF.js kernel has; None is JavaScript's undefined, and not given."""
    for name, value in attrs.items():
        if name not in known and value is not None and name not in OF_SOME_KERNEL:
            hint = did_you_mean(name, known, f"The attributes of {kernel}")
            raise ValueError(f"{kernel}: there is no attribute {shown(name)}{hint}")
