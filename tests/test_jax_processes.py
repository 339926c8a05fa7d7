"""pullback.jax in processes of their own: threads, devices, kept and exported programs, examples, a missing JAX. Marker `jax`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.jax


def _run(script: str, *arguments: str, **variables: str) -> str:
    """What a script prints; a deadlock is a failure after two minutes."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *arguments],
        env=os.environ | variables, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


CROWD = """
import threading, jax, jax.numpy as jnp, numpy as np, pullback as pb, pullback.jax as pj
pb.set_num_threads(2)
x = np.random.default_rng(0).normal(size=(4, 32, 32, 16)).astype(np.float32)
f = np.random.default_rng(1).normal(size=(3, 3, 16, 16)).astype(np.float32)
def loss(w, a):
    # two branches that XLA may run at the same time, each on our pool
    left, right = pj.conv(a, w, padding="same"), pj.max_pool(a, 3, stride=1, padding="same")
    return (pj.avg_pool(left, 2) * pj.avg_pool(right, 2)).mean()
step = jax.jit(jax.value_and_grad(loss))
expected = jax.device_get(step(f, x))
wrong = []
def work():
    pending = [step(f, x) for _ in range(10)]  # dispatched before any is waited for
    for got in jax.block_until_ready(pending):
        pb.avg_pool(x, 2)  # and NumPy calls in between
        if not all(np.array_equal(a, b) for a, b in zip(got, expected)):
            wrong.append(got)
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
print("same" if not wrong else "differs")
"""


def test_many_threads_and_pending_steps_neither_block_nor_differ() -> None:
    assert _run(CROWD) == "same\n"


SHARDS = """
import functools, jax, jax.numpy as jnp, numpy as np, pullback as pb, pullback.jax as pj
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
x = np.random.default_rng(0).normal(size=(4, 8, 8, 2)).astype(np.float32)
f = np.random.default_rng(1).normal(size=(3, 3, 2, 4)).astype(np.float32)
dy = np.ones((4, 6, 6, 4), np.float32)
expected = pb.conv_grad_filter(dy, x, f.shape)
loss = lambda w, a: pj.conv(a, w).sum()
mesh = Mesh(np.array(jax.devices()), ("n",))
split = jax.device_put(x, NamedSharding(mesh, P("n")))
halves = jax.pmap(jax.grad(loss), in_axes=(None, 0))(f, x.reshape(2, 2, 8, 8, 2))
for got in (jax.jit(jax.grad(loss))(f, split), jax.grad(loss)(f, split), halves.sum(0)):
    np.testing.assert_allclose(got, expected, rtol=1e-5)
try:
    shard_map, unchecked = jax.shard_map, {"check_vma": False}
except AttributeError:  # an older JAX
    from jax.experimental.shard_map import shard_map
    unchecked = {"check_rep": False}
parts = functools.partial(shard_map, mesh=mesh, in_specs=(P(), P("n")), out_specs=P())
mapped = parts(lambda w, a: jax.lax.psum(jax.grad(loss)(w, a), "n"), **unchecked)
np.testing.assert_allclose(jax.jit(mapped)(f, x), expected, rtol=1e-5)
try:  # would give the gradient of one part only, since JAX sums what it sees to differ
    parts(jax.grad(loss))(f, x)
except NotImplementedError as error:
    assert "check_vma=False" in str(error) or "check_rep=False" in str(error), error
else:
    raise AssertionError("not refused")
second = jax.device_put(x, jax.devices()[1])
print(len(jax.devices()), pj.avg_pool(second, 2).devices() == second.devices())
"""


def test_arrays_on_several_devices() -> None:
    assert _run(SHARDS, XLA_FLAGS="--xla_force_host_platform_device_count=2") == "2 True\n"


KEPT = """
import sys, jax, numpy as np, pullback.jax as pj
window = int(sys.argv[1])
pj_first = jax.jit(lambda a: pj.avg_pool(a, window))  # the first program of this process
print(jax.device_get(pj_first(np.arange(16, dtype=np.float32).reshape(1, 16, 1)))[0, :2, 0].tolist())
"""


def test_programs_kept_on_disk_mean_the_same_in_another_process(tmp_path: Path) -> None:
    kept = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    kept["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    for _ in range(2):
        assert _run(KEPT, "2", **kept) == "[0.5, 2.5]\n"
        assert _run(KEPT, "4", **kept) == "[1.5, 5.5]\n"
    assert any(tmp_path.iterdir())


EXPORTED = """
import sys, jax, numpy as np, pullback as pb, pullback.jax as pj
from jax import export
(batch,) = export.symbolic_shape("b")
with pb.backend("reference"):
    program = export.export(
        jax.jit(lambda a: pj.max_pool(a, 2) ** 2), disabled_checks=[export.DisabledSafetyCheck.custom_call("pullback_op")]
    )(jax.ShapeDtypeStruct((batch, 4, 1), np.float32))
sys.stdout.write(program.serialize(vjp_order=1).hex())
"""
IMPORTED = """
import sys, jax, numpy as np
from jax import export
if sys.argv[2] == "knows": import pullback.jax
program = export.deserialize(bytearray.fromhex(sys.argv[1]))
x = np.arange(8, dtype=np.float32).reshape(2, 4, 1)
try:
    print(program.call(x).ravel().tolist(), jax.grad(lambda a: program.call(a).sum())(x).ravel().tolist())
except Exception as error:
    print("pullback_op" in str(error))
"""


def test_an_exported_program_runs_where_pullback_is_imported() -> None:
    pytest.importorskip("flatbuffers", reason="flatbuffers is not installed, which JAX writes exported programs with")
    program = _run(EXPORTED)
    values, gradients = [1.0, 9.0, 25.0, 49.0], [0.0, 2.0, 0.0, 6.0, 0.0, 10.0, 0.0, 14.0]
    assert _run(IMPORTED, program, "knows") == f"{values} {gradients}\n"
    assert _run(IMPORTED, program, "does not") == "True\n"


@pytest.mark.parametrize("name", ["digits_jax.py", "digits_equinox.py"])
def test_the_digits_examples_learn(name: str) -> None:
    if name == "digits_equinox.py":
        pytest.importorskip("equinox", reason="Equinox is not installed: pip install equinox")
    example = Path(__file__).parents[1] / "examples" / name
    done = subprocess.run(
        [sys.executable, str(example), "--epochs", "4"], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.count("epoch") == 4
    assert float(done.stdout.splitlines()[-1].removeprefix("final accuracy ").removesuffix("%")) > 90


def test_importing_the_library_imports_no_jax_and_says_when_it_is_missing() -> None:
    assert _run("import sys, pullback; print('jax' in sys.modules)") == "False\n"
    missing = "import sys; sys.modules['jax'] = None\ntry: import pullback.jax\nexcept ImportError as error: print(error)"
    assert _run(missing) == "pullback.jax needs JAX, which is not installed: pip install 'pullback[jax]'\n"
