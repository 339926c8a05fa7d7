"""The records that plans of winograd write and its kernels read, and the numbers that both must agree on."""

from __future__ import annotations

from pullback.cpu.engine.records import Record

TAPS = 3  # of a transformed axis at a time: a longer window is cut into tap blocks of so many
OUTPUTS = 4  # of a tile along a transformed axis
SOURCE, TARGET = 0, 1  # places in a table of TiledArray: what is read through the filter, and the outputs


class TiledArray(Record):
    """An array that tiles lie over."""

    ints = (
        "depth rows columns "  # cells
        "group_pitch image_pitch depth_pitch row_pitch column_pitch channel_pitch "  # bytes
        "pad_h pad_w"  # cells from the first of a tile to its first output
    )


class Tiles(Record):
    """Base of the kernels that read tiles: where these lie, the blocks of them that are in scratch at a time, and that scratch.

    Tiles of all images are numbered by their position: image, tile row, tile column. A k-block of the products is a tap of the
    depth together with a tap block.
    """

    ints = (
        "arrays "  # a table of TiledArray: SOURCE, TARGET
        "in_channels out_channels "  # of a group, of the source and the target
        "positions tiles_h tiles_w "  # tiles of all images; of one, down and across
        "depth_taps tap_blocks_h tap_blocks_w "
        "dilation_d dilation_h dilation_w pad_d "  # cells
        "blocks block depth_blocks depth_block "  # how many blocks there are and how large: positions, output depths
        "offsets_start table_start zeros_start stage_start "  # in scratch: offsets of k-blocks, addresses of a tile's cells, zeros,
        "stage_pitch"  # rows of transposed cells (channels_first), so many bytes apart
    )


class PackedFilter(Record):
    """Base: the transformed filter, in panels of as many output channels as the register tile is wide; pitches in bytes."""

    ints = "packed panel_pitch packed_point_pitch packed_group_pitch"


class Filter(Record):
    """Base: a filter, or the gradient of one, as it lies in memory, and the taps of its k-blocks."""

    ints = (
        "filter nonfinite "  # addresses: the weights; a flag that is set where one is not finite
        "in_channels out_channels taps k_blocks "  # of a group
        "group_pitch tap_pitch in_channel_pitch out_channel_pitch "  # bytes
        "tap_numbers"  # a table: of each k-block the taps in the filter, -1 where there is none
    )


class TransformFilter(Filter, PackedFilter):
    """A chunk of the input channels of one group of a filter into panels, for all output channels or a part of them."""

    ints = (
        "chunk chunks "  # input channels of a piece, and pieces of a part
        "parts part_channels "  # of a group; output channels of one
        "panel "  # output channels of one
        "stage_start"  # in scratch: zeros, then transposed weights
    )


class Convolve(Tiles, PackedFilter):
    """A block of tiles of x to as many of y, for all panels of output channels or a block of them.

    Of an input gradient these are dy and dx. Results that are not finite set a flag. Where `transform` is no address, the filter
    has been transformed before; else each piece has it done for its panels, `k_chunk` input channels at a time, in scratch.
    """

    ints = (
        "x y nonfinite "  # addresses: the first cells, the flag
        "panel_blocks panel_block "  # how many there are, and panels of one
        "panels_apart "  # whether pieces of one block of panels follow each other, or those of one block of tiles
        "tile_pitch "  # bytes between transformed tiles
        "products_start "  # in scratch
        "transform transform_record "  # addresses: the machine code of TransformFilter, and a record of it to be filled in
        "filter weights_nonfinite "  # what is filled in
        "k_chunk "  # channels
        "record_start transform_start packed_start"  # in scratch: the record, the transform's own scratch, what it makes
    )


class Sums(Record):
    """Base: partial sums of the transformed filter gradient, for each split of the tiles and block of channels of x and of dy."""

    ints = (
        "sums "
        "sum_bytes sum_point_pitch sum_pitch "  # bytes of one split's sums of a block; between points; between channels of x
        "splits x_blocks x_block dy_blocks dy_block"  # how many there are; channels of a block
    )


class PartialSums(Tiles, Sums):
    """The sums of one split of the tiles for one block of channels of x and one of dy, of one group.

    Where `finish` is an address, there is one split: the sums lie in scratch, and the piece makes its part of the gradient of them.
    """

    ints = (
        "x dy "
        "tile_pitch "  # bytes between transformed tiles of x; those of dy are sum_pitch apart
        "dy_start "  # in scratch: the transformed tiles of dy
        "finish finish_record "  # addresses: the machine code of Finish, and a record of it to be filled in
        "filter nonfinite "  # what is filled in
        "record_start finish_start sums_start"  # in scratch: the record, Finish's own scratch, the sums
    )


class Finish(Filter, Sums):
    """The gradient of one channel of x with all channels of dy, of one group, from the sums of all splits."""

    ints = "table_start stage_start"  # in scratch: addresses of a tile's taps; a cell for absent taps, then transposed weights
