"""Numbers of the pooling plans that were measured, and cost models. `make fit` measures the costs again."""

from __future__ import annotations

PLANE_BYTES = 160 << 10  # bytes of the unpacked rows of a block (kernel planes)
SCATTER_BYTES = 512 << 10  # bytes of a block of dx at most, where it is made in scratch
PHASE_BYTES = 12 << 10  # bytes of the phases of a block, which are made and interleaved in the first-level cache
TOGETHER_BYTES, TOGETHER_OUTPUTS = 24 << 10, 1024  # of dx and dy of whole images that are taken together (kernel scatter)
MOST_IMAGE_BYTES, MOST_IMAGE_OUTPUTS = 128 << 10, 16 << 10  # of an image that is taken whole
MOST_BORDER = (
    0.4  # of the outputs of an image: where more stick out, it is quicker to look at each of them than to trust the others
)
SPAN_ELEMENTS = 256  # outputs whose windows' first cells are tabulated (kernel scatter)
MOST_UNPACKED_BYTES = 64 << 20  # bytes of unpacked rows, or twice the input: beyond, mostly padding would be unpacked
SPLIT_STRIDES = (1, 2, 4)  # cells: strides by which the kernel rows splits a row in registers; by 3 it takes long

# Costs of the max-pool gradients from winners, in nanoseconds on one core.
SCATTER_ELEMENT = 0.085  # to zero an element of dx
SCATTER_OUTPUT = 0.55  # per output, added to its winner where windows do not overlap
SCATTER_OVERLAP = 0.85  # per output where they do, and additions wait for each other
PHASES_WRITE, PHASES_ELEMENT = 0.03, 0.09  # to write an element of dx, and to make one lane of the registers that hold it
PHASES_PACK_3, PHASES_PACK, PHASES_ROW = 0.15, 0.5, 4.0  # to interleave an element by a stride of 3, by one beyond 4; and a row
PHASES_TAP = 0.035  # to compare one winner with one tap
# Of gather, in nanoseconds per input cell: a cell, a load of four registers of channels, and of two or fewer; and for each tap.
GATHER_CELL, GATHER_FOUR, GATHER_FOUR_TAP, GATHER_TWO, GATHER_TWO_TAP = 5.0, 2.5, 2.1, 2.5, 1.4

TRANSPOSED_BYTES = 256 << 10  # bytes of a transposed block, sources and targets
LEAST_TRANSPOSED_BYTES = 96 << 10  # the same where there is little work: below, rows are transposed too often
MOST_TRANSPOSED_BYTES = 4 << 20  # bytes of one target row with its sources, of a vector of planes
# Costs of transposed planes, in nanoseconds on one core: to move an element in or out, a target cell of a band of planes, and a tap
# of a register of these.
TRANSPOSED_ELEMENT, TRANSPOSED_CELL = 0.26, 1.5
TRANSPOSED_TAP = {"max_pool": 0.75, "avg_pool": 0.17, "max_pool_grad_from_winners": 0.35, "avg_pool_grad": 0.25}
# Of rows: a load of two registers of outputs, and each tap of it (an average's) or each register that is loaded (a maximum's); how
# much more a load under a mask takes, in loads.
ROWS_LOAD, ROWS_TAP, ROWS_REGISTER, ROWS_MASKED = 5.0, 0.9, 2.0, 1.5
# Of planes: an element that is unpacked, a tap of an output, an output row, an input row.
PLANES_ELEMENT, PLANES_TAP, PLANES_OUT_ROW, PLANES_IN_ROW = 0.6, 0.03, 15.0, 8.0
# Of the average gradient by phases: an element of dx, a tap of an output, a row of dx, and each phase of it.
SHARES_ELEMENT, SHARES_TAP, SHARES_ROW, SHARES_PHASE = 0.1, 0.03, 7.0, 3.0
# Of vectors over few channels, beside planes: what a cell takes, and each group of registers of its channels; a tap of one masked
# register, of two, and of four, which wait for the one before. The unit is a tap of a register of planes.
CHANNELS_CELL, CHANNELS_GROUP = 24.0, 8.0
CHANNELS_TAPS = {"max": (2.05, 2.7, 3.15), "average": (1.75, 1.75, 2.5)}
# Of planes, in the same unit: a register of results, a register unpacked; taken apart by a stride, a cell, and a register of it.
PLANES_RESULT, PLANES_UNPACKED = {"max": 20.0, "average": 25.0}, {"max": 3.3, "average": 8.0}
PLANES_SPLIT_CELL, PLANES_SPLIT = 8.0, 1.5
PLANES_GAIN = 0.9  # of the cost of vectors over channels at most
FEW_PIECES = 32  # of whole rows, below which rows are cut as well
