"""One training step (forward, backward, SGD) of ONNX models on pullback.onnx, against PyTorch, plain and accelerated, in turns.

python examples/train_onnx_step.py                        # all networks
python examples/train_onnx_step.py resnet18-64 --memory   # one, with the peak memory of each in a process of its own

The models are exported from PyTorch. With make peers the gradients are also run by ONNX Runtime's last training build, where it
can: our training graph in its session, without an optimizer.
"""

from __future__ import annotations

import argparse
import gc
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

RUNTIME = Path(".peers/ort/bin/python")
RATE, MOMENTUM, WARMUPS = 3e-5, 0.9, 3
NAMES = ("resnet18-64", "resnet18-224", "vgg11-64", "mobilenetv2-128", "unet3d-32")
PLAIN, PLAIN_LAST, ACCELERATED, OURS, ORT = "PyTorch", "PyTorch channels_last", "accelerate", "pullback.onnx", "ORT 1.19.2"


def export(name: str, folder: Path) -> tuple[Path, Path]:
    """The model as an ONNX file, and a batch with its labels."""
    import torch
    from train_step import CASES

    torch.manual_seed(0)
    make, shape = CASES[name]
    model, x = make(), torch.randn(shape)
    labels = torch.randint(3, (shape[0], *(shape[2:] if name.startswith("unet") else ())))
    file, batch = folder / f"{name}.onnx", folder / f"{name}.npz"
    torch.onnx.export(model, (x,), str(file), dynamo=False, opset_version=17, training=torch.onnx.TrainingMode.TRAINING,
                      do_constant_folding=False, input_names=["x"], output_names=["y"])  # fmt: skip
    np.savez(batch, x=x.numpy(), labels=labels.numpy())
    return file, batch


def torch_step(who: str, name: str, batch: Path) -> Callable[[], float]:
    """One of PyTorch's participants, all from the same weights and batch."""
    import torch
    from train_step import CASES, Training

    from pullback.torch import accelerate

    torch.manual_seed(0)
    model, data = CASES[name][0](), np.load(batch)
    x, labels = torch.from_numpy(data["x"]), torch.from_numpy(data["labels"])
    if who == PLAIN_LAST:
        form = torch.channels_last if x.ndim == 4 else torch.channels_last_3d
        model, x = model.to(memory_format=form), x.contiguous(memory_format=form)
    return Training(accelerate(model) if who == ACCELERATED else model, x, labels).step


def our_step(file: Path, batch: Path) -> Callable[[], float]:
    import pullback.onnx as px

    data = np.load(batch)
    trainer = px.Trainer(str(file), optimizer=px.SGD(lr=RATE, momentum=MOMENTUM))
    return lambda: trainer.step(data["x"], data["labels"])


def ort_step(file: Path, batch: Path, threads: int) -> Callable[[], float]:
    """Our training graph in a session of ONNX Runtime, in its own process."""
    import pullback.onnx as px

    graph = file.with_suffix(".training.onnx")
    graph.write_bytes(px.training_graph(str(file)).SerializeToString())
    code = (
        "import sys, time, numpy as np, onnxruntime as ort\n"
        f"options = ort.SessionOptions(); options.intra_op_num_threads = {threads}\n"
        f"session = ort.InferenceSession({str(graph)!r}, options, ['CPUExecutionProvider'])\n"
        f"data = np.load({str(batch)!r}); names = [i.name for i in session.get_inputs()]\n"
        "feeds = {names[0]: data['x'], names[1]: data['labels']}\n"
        "print('ready', flush=True)\n"
        "for line in sys.stdin:\n"
        "    start = time.perf_counter(); loss = session.run(None, feeds)[0]; taken = time.perf_counter() - start\n"
        "    print(taken, float(loss), flush=True)\n"
    )
    process = subprocess.Popen(
        [str(RUNTIME), "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    pipe_in, pipe_out = process.stdin, process.stdout
    if pipe_out.readline() != "ready\n":
        raise RuntimeError(process.stderr.read().strip().splitlines()[-1])

    def step() -> float:
        pipe_in.write("go\n")
        pipe_in.flush()
        return float(pipe_out.readline().split()[0])

    return step


def in_turns(steps: dict[str, Callable[[], float]], rounds: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds and losses of each, one step each per round, the order turning by one place."""
    times: dict[str, list[float]] = {who: [] for who in steps}
    losses: dict[str, list[float]] = {who: [] for who in steps}
    for step in steps.values():
        for _ in range(WARMUPS):
            step()
    order = list(steps)
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        for who in order:
            time.sleep(0.01)  # threads of the one before may still be spinning
            start = time.perf_counter()
            answer = steps[who]()
            times[who].append(answer if who == ORT else time.perf_counter() - start)
            losses[who].append(answer)
        order = order[1:] + order[:1]
    gc.enable()
    return times, losses


def kilobytes(what: str) -> int:
    found = re.search(what + r":\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1))


def peak_megabytes(who: str, name: str, file: Path, batch: Path, threads: int) -> float:
    """Of five steps in a fresh process, beyond what it had after its imports and before its model."""
    command = [sys.executable, __file__, name, "--threads", str(threads), "--peak-of", who, str(file), str(batch)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def print_peak(name: str, who: str, file: Path, batch: Path) -> None:
    if who == OURS:
        import pullback as pb
        import pullback.onnx as px

        assert px.Trainer
        pb.conv(np.zeros((1, 9, 9, 8), np.float32), np.zeros((3, 3, 8, 8), np.float32))  # loads the kernels' libraries
    else:
        import train_step

        assert train_step.accelerate
    before = kilobytes("VmRSS")
    step = our_step(file, batch) if who == OURS else torch_step(who, name, batch)
    for _ in range(5):
        step()
    print((kilobytes("VmHWM") - before) / 1024)


def compare(name: str, given: argparse.Namespace, folder: Path) -> None:
    file, batch = export(name, folder)
    steps = {who: torch_step(who, name, batch) for who in (PLAIN, PLAIN_LAST, ACCELERATED)}
    steps[OURS] = our_step(file, batch)
    if RUNTIME.exists() and not given.no_ort:
        try:
            steps[ORT] = ort_step(file, batch, given.threads)
        except RuntimeError as error:
            print(f"{name}: ONNX Runtime does not run it: {error}")
    times, losses = in_turns(steps, given.steps)
    for who in steps:
        ratios = [statistics.median(times[who]) / statistics.median(times[OURS]), min(times[who]) / min(times[OURS])]
        line = f"{name:<16} {who:<22} {statistics.median(times[who]) * 1e3:8.1f} ms {ratios[0]:6.2f} {ratios[1]:6.2f}"
        if who != ORT:
            apart = max(abs(a - b) / abs(a) for a, b in zip(losses[PLAIN], losses[who], strict=True))
            line += f"   loss {losses[who][-1]:.4f} apart {apart:.0e}"
            if given.memory:
                line += f"   peak {peak_megabytes(who, name, file, batch, given.threads):6.0f} MB"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=", ".join(NAMES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--memory", action="store_true", help="peak memory too, each in a process of its own")
    parser.add_argument("--no-ort", action="store_true", help="leave ONNX Runtime out")
    parser.add_argument("--peak-of", nargs=3, metavar=("WHO", "FILE", "BATCH"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    import pullback as pb

    pb.set_num_threads(given.threads)
    if given.peak_of and given.peak_of[0] == OURS:
        print_peak(given.cases[0], OURS, *map(Path, given.peak_of[1:]))
        return
    import torch

    torch.set_num_threads(given.threads)
    if given.peak_of:
        print_peak(given.cases[0], given.peak_of[0], *map(Path, given.peak_of[1:]))
        return
    print(f"PyTorch {torch.__version__}, NumPy {np.__version__}, Python {platform.python_version()}, {given.threads} threads")
    print("network          who                      median    x ours: by medians, by best")
    with tempfile.TemporaryDirectory() as folder:
        for name in given.cases or NAMES:
            compare(name, given, Path(folder))


if __name__ == "__main__":
    main()
