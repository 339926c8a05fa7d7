"""The native half of a team: taking it, and running the pieces of jobs on OpenMP's threads, in LLVM's own language."""

from __future__ import annotations

from string import Template

from pullback.cpu.engine.kernel_records import Job, SequenceJob
from pullback.cpu.engine.sizes import LINE

# The caller's part: take the team, copy the job to where its threads count it down, run it on all of them, give the team back. It
# is one call from Python, so that no signal handler can interrupt it. 0: another caller has the team.
#
# One thread's part: take a slot, then pieces until none is left, those of its own range first. The places ($) are those of a
# `Job`; a kernel takes two places for results that it never writes, the record of its arguments, the piece and the working memory.
#
# A sequence: `count` steps, one after the other, in the same working memory; those without slots, and all while another caller has
# the team, on the calling thread alone. It ends after a step that has set its flag: the number of that step, else of all.
_TEXT = """
declare void @llvm.memcpy.p0i8.p0i8.i64(i8*, i8*, i64, i1)
declare void @llvm.memset.p0i8.i64(i8*, i8, i64, i1)

define i32 @team_lead(i64* %busy, i64 %parallel, i8* %given, i32 %size) {
begin:
  %job = alloca i64, i32 $words, align 64
  %before = atomicrmw add i64* %busy, i64 1 seq_cst
  %free = icmp eq i64 %before, 0
  br i1 %free, label %taken, label %given.back
taken:
  %bytes = bitcast i64* %job to i8*
  call void @llvm.memcpy.p0i8.p0i8.i64(i8* %bytes, i8* %given, i64 $bytes, i1 false)
  %tickets.at = getelementptr i64, i64* %job, i64 $tickets
  %tickets = load i64, i64* %tickets.at
  %start = inttoptr i64 %tickets to i8*
  %ranges.at = getelementptr i64, i64* %job, i64 $ranges
  %ranges = load i64, i64* %ranges.at
  %tickets.bytes = mul i64 %ranges, $line
  call void @llvm.memset.p0i8.i64(i8* %start, i8 0, i64 %tickets.bytes, i1 false)
  %run = inttoptr i64 %parallel to void (void (i64*)*, i64*, i32, i32)*
  call void %run(void (i64*)* @team_member, i64* %job, i32 %size, i32 0)
  br label %given.back
given.back:
  %after = atomicrmw sub i64* %busy, i64 1 seq_cst
  %done = zext i1 %free to i32
  ret i32 %done
}

define i64 @team_sequence(i64* %busy, i64 %parallel, i64* %steps, i64 %count, i32 %size, i64 %scratch) {
begin:
  %places = alloca i64, i32 2
  br label %next
next:
  %number = phi i64 [ 0, %begin ], [ %number.next, %goes.on ]
  %more = icmp slt i64 %number, %count
  br i1 %more, label %step, label %over
step:
  %offset = mul i64 %number, $step_words
  %job = getelementptr i64, i64* %steps, i64 %offset
  %scratch.at = getelementptr i64, i64* %job, i64 $scratch
  store i64 %scratch, i64* %scratch.at
  %slots.at = getelementptr i64, i64* %job, i64 $slots
  %slots = load i64, i64* %slots.at
  %shared = icmp sgt i64 %slots, 0
  br i1 %shared, label %together, label %alone
together:
  %given = bitcast i64* %job to i8*
  %done = call i32 @team_lead(i64* %busy, i64 %parallel, i8* %given, i32 %size)
  %ran = icmp ne i32 %done, 0
  br i1 %ran, label %ended, label %alone
alone:
  %pieces.at = getelementptr i64, i64* %job, i64 $pieces
  %pieces = load i64, i64* %pieces.at
  %function.at = getelementptr i64, i64* %job, i64 $function
  %address = load i64, i64* %function.at
  %function = inttoptr i64 %address to i32 (i64*, i64*, i64, i64, i64)*
  %arguments.at = getelementptr i64, i64* %job, i64 $arguments
  %arguments = load i64, i64* %arguments.at
  br label %claim
claim:
  %piece = phi i64 [ 0, %alone ], [ %piece.next, %work ]
  %left = icmp slt i64 %piece, %pieces
  br i1 %left, label %work, label %ended
work:
  call i32 %function(i64* %places, i64* %places, i64 %arguments, i64 %piece, i64 %scratch)
  %piece.next = add i64 %piece, 1
  br label %claim
ended:
  fence seq_cst
  %flag.at = getelementptr i64, i64* %job, i64 $flag
  %flag = load i64, i64* %flag.at
  %asks = icmp ne i64 %flag, 0
  br i1 %asks, label %look, label %goes.on
look:
  %flag.place = inttoptr i64 %flag to i64*
  %found = load i64, i64* %flag.place
  %stops = icmp ne i64 %found, 0
  br i1 %stops, label %over, label %goes.on
goes.on:
  %number.next = add i64 %number, 1
  br label %next
over:
  ret i64 %number
}

define void @team_member(i64* %job) {
begin:
  %places = alloca i64, i32 2
  %slots = getelementptr i64, i64* %job, i64 $slots
  %slot = atomicrmw sub i64* %slots, i64 1 seq_cst
  %joins = icmp sge i64 %slot, 0
  br i1 %joins, label %joined, label %done
joined:
  %pieces.at = getelementptr i64, i64* %job, i64 $pieces
  %pieces = load i64, i64* %pieces.at
  %function.at = getelementptr i64, i64* %job, i64 $function
  %address = load i64, i64* %function.at
  %function = inttoptr i64 %address to i32 (i64*, i64*, i64, i64, i64)*
  %arguments.at = getelementptr i64, i64* %job, i64 $arguments
  %arguments = load i64, i64* %arguments.at
  %scratch.at = getelementptr i64, i64* %job, i64 $scratch
  %scratch = load i64, i64* %scratch.at
  %stride.at = getelementptr i64, i64* %job, i64 $stride
  %stride = load i64, i64* %stride.at
  %offset = mul i64 %slot, %stride
  %memory = add i64 %scratch, %offset
  %ranges.at = getelementptr i64, i64* %job, i64 $ranges
  %ranges = load i64, i64* %ranges.at
  %each.at = getelementptr i64, i64* %job, i64 $each
  %each = load i64, i64* %each.at
  %tickets.at = getelementptr i64, i64* %job, i64 $tickets
  %tickets = load i64, i64* %tickets.at
  %number.at = getelementptr i64, i64* %job, i64 $number_function
  %number.address = load i64, i64* %number.at
  %number.function = inttoptr i64 %number.address to i32 ()*
  %number32 = call i32 %number.function()
  %number = zext i32 %number32 to i64
  br label %range
range:
  %turn = phi i64 [ 0, %joined ], [ %turn.next, %ended ]
  %more = icmp slt i64 %turn, %ranges
  br i1 %more, label %enter, label %done
enter:
  %place = add i64 %number, %turn
  %own = urem i64 %place, %ranges
  %first = mul i64 %own, %each
  %behind = add i64 %first, %each
  %short = icmp slt i64 %pieces, %behind
  %end = select i1 %short, i64 %pieces, i64 %behind
  %line = mul i64 %own, $line
  %ticket.address = add i64 %tickets, %line
  %ticket = inttoptr i64 %ticket.address to i64*
  br label %next
next:
  %claimed = atomicrmw add i64* %ticket, i64 1 seq_cst
  %piece = add i64 %first, %claimed
  %left = icmp slt i64 %piece, %end
  br i1 %left, label %work, label %ended
work:
  call i32 %function(i64* %places, i64* %places, i64 %arguments, i64 %piece, i64 %memory)
  br label %next
ended:
  %turn.next = add i64 %turn, 1
  br label %range
done:
  ret void
}
"""


def assembly() -> tuple[str, tuple[str, ...]]:
    places = {name: SequenceJob.place(name) for name, _ in SequenceJob.FIELDS}
    sizes = {"words": len(Job.FIELDS), "bytes": Job.BYTES, "step_words": len(SequenceJob.FIELDS), "line": LINE}
    return Template(_TEXT).substitute(places, **sizes), ("team_lead", "team_sequence")
