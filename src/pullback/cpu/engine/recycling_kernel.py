"""The native half of recycling memory, in LLVM's own language: NumPy calls it without the interpreter."""

from __future__ import annotations

from pullback.cpu.engine.sizes import LINE

BUCKETS = 4096  # rings of blocks of the same few sizes

# Words of the shelf, in order; NEXT and PREVIOUS are the ring of all blocks on it, the newest first. The buckets come last.
LOCK, LIMIT, SMALLEST, KEPT, LENT, NEXT, PREVIOUS, ALLOCATE, FREE, CONTEXT, HANDLER, SET_HANDLER, EMPTY = range(13)
INCREF, DECREF, FETCH, RESTORE = range(13, 17)
FIRST_BUCKET = 18

# A block is a header in the line before its data: 0 where the allocator put it, 1 its size, 2 and 3 its place in the ring of all
# blocks, 4 and 5 in the ring of its bucket. Rings are pairs (next, previous), joined in a circle with that of their owner.
_TEXT = f"""
declare void @llvm.memcpy.p0i8.p0i8.i64(i8*, i8*, i64, i1)
declare void @llvm.memset.p0i8.i64(i8*, i8, i64, i1)

define internal i64 @word(i64* %at, i64 %number) {{
  %place = getelementptr i64, i64* %at, i64 %number
  %value = load i64, i64* %place
  ret i64 %value
}}

define internal void @put(i64* %at, i64 %number, i64 %value) {{
  %place = getelementptr i64, i64* %at, i64 %number
  store i64 %value, i64* %place
  ret void
}}

define internal void @add(i64* %shelf, i64 %number, i64 %value) {{
  %place = getelementptr i64, i64* %shelf, i64 %number
  %before = atomicrmw add i64* %place, i64 %value seq_cst
  ret void
}}

define internal void @lock(i64* %shelf) {{
  br label %try
try:
  %before = atomicrmw xchg i64* %shelf, i64 1 seq_cst
  %free = icmp eq i64 %before, 0
  br i1 %free, label %taken, label %try
taken:
  ret void
}}

define internal void @unlock(i64* %shelf) {{
  store atomic i64 0, i64* %shelf release, align 8
  ret void
}}

define internal void @link(i64* %owner, i64* %ring) {{
  %first = call i64 @word(i64* %owner, i64 0)
  %owner.at = ptrtoint i64* %owner to i64
  %ring.at = ptrtoint i64* %ring to i64
  %next = inttoptr i64 %first to i64*
  call void @put(i64* %ring, i64 0, i64 %first)
  call void @put(i64* %ring, i64 1, i64 %owner.at)
  call void @put(i64* %next, i64 1, i64 %ring.at)
  call void @put(i64* %owner, i64 0, i64 %ring.at)
  ret void
}}

define internal void @unlink(i64* %ring) {{
  %next.at = call i64 @word(i64* %ring, i64 0)
  %previous.at = call i64 @word(i64* %ring, i64 1)
  %next = inttoptr i64 %next.at to i64*
  %previous = inttoptr i64 %previous.at to i64*
  call void @put(i64* %previous, i64 0, i64 %next.at)
  call void @put(i64* %next, i64 1, i64 %previous.at)
  ret void
}}

define internal i64* @bucket(i64* %shelf, i64 %size) {{
  %mixed = mul i64 %size, -7046029254386353131
  %number = lshr i64 %mixed, {64 - (BUCKETS.bit_length() - 1)}
  %twice = shl i64 %number, 1
  %place = add i64 %twice, {FIRST_BUCKET}
  %found = getelementptr i64, i64* %shelf, i64 %place
  ret i64* %found
}}

define internal void @take_off(i64* %shelf, i64* %block) {{
  %size = call i64 @word(i64* %block, i64 1)
  %less = sub i64 0, %size
  call void @add(i64* %shelf, i64 {KEPT}, i64 %less)
  %all = getelementptr i64, i64* %block, i64 2
  call void @unlink(i64* %all)
  %alike = getelementptr i64, i64* %block, i64 4
  call void @unlink(i64* %alike)
  ret void
}}

define internal void @discard(i64* %shelf, i64* %block) {{
  %origin = call i64 @word(i64* %block, i64 0)
  %size = call i64 @word(i64* %block, i64 1)
  %whole = add i64 %size, {2 * LINE}
  %context = call i64 @word(i64* %shelf, i64 {CONTEXT})
  %address = call i64 @word(i64* %shelf, i64 {FREE})
  %free = inttoptr i64 %address to void (i64, i64, i64)*
  call void %free(i64 %context, i64 %origin, i64 %whole)
  ret void
}}

; Let go of the oldest blocks until at most so many bytes are kept. The shelf is locked.
define internal void @trim(i64* %shelf, i64 %most) {{
  br label %look
look:
  %kept = call i64 @word(i64* %shelf, i64 {KEPT})
  %many = icmp sgt i64 %kept, %most
  br i1 %many, label %oldest, label %done
oldest:
  %ring.at = call i64 @word(i64* %shelf, i64 {PREVIOUS})
  %block.at = sub i64 %ring.at, 16
  %block = inttoptr i64 %block.at to i64*
  call void @take_off(i64* %shelf, i64* %block)
  call void @discard(i64* %shelf, i64* %block)
  br label %look
done:
  ret void
}}

; The address of memory, 0 where there is none.
define i64 @shelf_allocate(i64* %shelf, i64 %size) {{
  call void @lock(i64* %shelf)
  %bucket = call i64* @bucket(i64* %shelf, i64 %size)
  %end = ptrtoint i64* %bucket to i64
  br label %next
next:
  %before = phi i64* [ %bucket, %0 ], [ %ring, %look ]
  %ring.at = call i64 @word(i64* %before, i64 0)
  %ring = inttoptr i64 %ring.at to i64*
  %none = icmp eq i64 %ring.at, %end
  br i1 %none, label %fresh, label %look
look:
  %block = getelementptr i64, i64* %ring, i64 -4
  %its.size = call i64 @word(i64* %block, i64 1)
  %fits = icmp eq i64 %its.size, %size
  br i1 %fits, label %found, label %next
found:
  call void @take_off(i64* %shelf, i64* %block)
  call void @unlock(i64* %shelf)
  call void @add(i64* %shelf, i64 {LENT}, i64 %size)
  %block.at = ptrtoint i64* %block to i64
  %data = add i64 %block.at, {LINE}
  ret i64 %data
fresh:
  call void @unlock(i64* %shelf)
  %whole = add i64 %size, {2 * LINE}
  %context = call i64 @word(i64* %shelf, i64 {CONTEXT})
  %address = call i64 @word(i64* %shelf, i64 {ALLOCATE})
  %allocate = inttoptr i64 %address to i64 (i64, i64)*
  %origin = call i64 %allocate(i64 %context, i64 %whole)
  %failed = icmp eq i64 %origin, 0
  br i1 %failed, label %nothing, label %made
made:
  call void @add(i64* %shelf, i64 {LENT}, i64 %size)
  %beyond = add i64 %origin, {2 * LINE - 1}
  %new.data = and i64 %beyond, -{LINE}
  %new.at = sub i64 %new.data, {LINE}
  %new = inttoptr i64 %new.at to i64*
  call void @put(i64* %new, i64 0, i64 %origin)
  call void @put(i64* %new, i64 1, i64 %size)
  ret i64 %new.data
nothing:
  ret i64 0
}}

define i64 @shelf_allocate_zeros(i64* %shelf, i64 %count, i64 %each) {{
  %size = mul i64 %count, %each
  %data = call i64 @shelf_allocate(i64* %shelf, i64 %size)
  %failed = icmp eq i64 %data, 0
  br i1 %failed, label %done, label %clear
clear:
  %bytes = inttoptr i64 %data to i8*
  call void @llvm.memset.p0i8.i64(i8* %bytes, i8 0, i64 %size, i1 false)
  br label %done
done:
  ret i64 %data
}}

define void @shelf_free(i64* %shelf, i64 %data, i64 %unused) {{
  %nothing = icmp eq i64 %data, 0
  br i1 %nothing, label %done, label %something
something:
  %block.at = sub i64 %data, {LINE}
  %block = inttoptr i64 %block.at to i64*
  %size = call i64 @word(i64* %block, i64 1)
  %less = sub i64 0, %size
  call void @add(i64* %shelf, i64 {LENT}, i64 %less)
  %limit = call i64 @word(i64* %shelf, i64 {LIMIT})
  %smallest = call i64 @word(i64* %shelf, i64 {SMALLEST})
  %large = icmp sge i64 %size, %smallest
  %fits = icmp sle i64 %size, %limit
  %worth = and i1 %large, %fits
  br i1 %worth, label %keep, label %refuse
keep:
  call void @lock(i64* %shelf)
  call void @add(i64* %shelf, i64 {KEPT}, i64 %size)
  %everything = getelementptr i64, i64* %shelf, i64 {NEXT}
  %all = getelementptr i64, i64* %block, i64 2
  call void @link(i64* %everything, i64* %all)
  %bucket = call i64* @bucket(i64* %shelf, i64 %size)
  %alike = getelementptr i64, i64* %block, i64 4
  call void @link(i64* %bucket, i64* %alike)
  call void @trim(i64* %shelf, i64 %limit)
  call void @unlock(i64* %shelf)
  ret void
refuse:
  call void @discard(i64* %shelf, i64* %block)
  ret void
done:
  ret void
}}

define i64 @shelf_resize(i64* %shelf, i64 %data, i64 %size) {{
  %new = call i64 @shelf_allocate(i64* %shelf, i64 %size)
  %failed = icmp eq i64 %new, 0
  br i1 %failed, label %done, label %old
old:
  %nothing = icmp eq i64 %data, 0
  br i1 %nothing, label %done, label %copy
copy:
  %block.at = sub i64 %data, {LINE}
  %block = inttoptr i64 %block.at to i64*
  %before = call i64 @word(i64* %block, i64 1)
  %less = icmp ult i64 %before, %size
  %common = select i1 %less, i64 %before, i64 %size
  %to = inttoptr i64 %new to i8*
  %from = inttoptr i64 %data to i8*
  call void @llvm.memcpy.p0i8.p0i8.i64(i8* %to, i8* %from, i64 %common, i1 false)
  call void @shelf_free(i64* %shelf, i64 %data, i64 0)
  br label %done
done:
  ret i64 %new
}}

define i64 @shelf_clear(i64* %shelf) {{
  call void @lock(i64* %shelf)
  %kept = call i64 @word(i64* %shelf, i64 {KEPT})
  call void @trim(i64* %shelf, i64 0)
  call void @unlock(i64* %shelf)
  ret i64 %kept
}}

; numpy.empty with our allocator in force for this one call; what is in force otherwise is never ours, whatever interrupts Python.
; Its arguments, in one block since each would cost as much as the rest: the shelf, the dtype, the number of axes, the shape.
define i64 @shelf_new_array(i64* %arguments) {{
  %shelf.at = call i64 @word(i64* %arguments, i64 0)
  %shelf = inttoptr i64 %shelf.at to i64*
  %dtype = call i64 @word(i64* %arguments, i64 1)
  %count = call i64 @word(i64* %arguments, i64 2)
  %axes = trunc i64 %count to i32
  %shape = getelementptr i64, i64* %arguments, i64 3
  %error = alloca i64, i32 3
  %kind.at = getelementptr i64, i64* %error, i64 0
  %value.at = getelementptr i64, i64* %error, i64 1
  %trace.at = getelementptr i64, i64* %error, i64 2
  %hold.at = call i64 @word(i64* %shelf, i64 {INCREF})
  %hold = inttoptr i64 %hold.at to void (i64)*
  %drop.at = call i64 @word(i64* %shelf, i64 {DECREF})
  %drop = inttoptr i64 %drop.at to void (i64)*
  %set.at = call i64 @word(i64* %shelf, i64 {SET_HANDLER})
  %set = inttoptr i64 %set.at to i64 (i64)*
  %empty.at = call i64 @word(i64* %shelf, i64 {EMPTY})
  %empty = inttoptr i64 %empty.at to i64 (i32, i64*, i64, i32)*
  %ours = call i64 @word(i64* %shelf, i64 {HANDLER})
  %before = call i64 %set(i64 %ours)
  %refused = icmp eq i64 %before, 0
  br i1 %refused, label %failed, label %make
make:
  call void %hold(i64 %dtype)
  %array = call i64 %empty(i32 %axes, i64* %shape, i64 %dtype, i32 0)
  %fetch.at = call i64 @word(i64* %shelf, i64 {FETCH})
  %fetch = inttoptr i64 %fetch.at to void (i64*, i64*, i64*)*
  call void %fetch(i64* %kind.at, i64* %value.at, i64* %trace.at)
  %replaced = call i64 %set(i64 %before)
  call void %drop(i64 %replaced)
  call void %drop(i64 %before)
  %restore.at = call i64 @word(i64* %shelf, i64 {RESTORE})
  %restore = inttoptr i64 %restore.at to void (i64, i64, i64)*
  %kind = load i64, i64* %kind.at
  %value = load i64, i64* %value.at
  %trace = load i64, i64* %trace.at
  call void %restore(i64 %kind, i64 %value, i64 %trace)
  ret i64 %array
failed:
  ret i64 0
}}
"""

FUNCTIONS = ("shelf_allocate", "shelf_allocate_zeros", "shelf_resize", "shelf_free", "shelf_new_array", "shelf_clear")


def assembly() -> tuple[str, tuple[str, ...]]:
    return _TEXT, FUNCTIONS
