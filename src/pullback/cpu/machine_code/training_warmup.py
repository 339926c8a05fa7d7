"""What the kernels of training steps ask for: small calls of each, planned and not run, in both forms of memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pullback.cpu import elementwise, norm
from pullback.cpu.engine.dense import NATIVE
from pullback.cpu.machine_code import dry_run
from pullback.cpu.machine_code.variants import Variant


def _plan_all(dtype: str) -> None:
    x = np.ones((2, 4, 3, 3), dtype)
    elementwise.relu(x)
    elementwise.relu_grad(x, x)
    elementwise.add(x, x)
    elementwise.add_relu(x, x)
    elementwise.relu_grad_of_sum(x, x, x)
    elementwise.clip(x, 0, 6)
    elementwise.clip_grad(x, x, 0, 6)
    elementwise.sum_of_squares(x)
    elementwise.sgd_step(x, x, None, lr=0.1)
    for nesterov in (False, True):
        elementwise.sgd_step(x, x, x, lr=0.1, momentum=0.9, nesterov=nesterov)
    elementwise.adam_step(x, x, x, x, lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, decoupled=False, step=1)
    one = np.ones(4, dtype)
    for image in (x, x.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)):
        norm.batch_norm_train(image, one, one, 1e-5)
        norm.batch_norm_grad(image, image, one, one, one)


def training_variants(dtypes: Sequence[str]) -> list[Variant]:
    """All variants of the families elementwise and norm, of those of these dtypes that they know."""
    with dry_run.dry_run(faulty=False) as run:
        for dtype in dtypes:
            if dtype in [known.name for known in NATIVE]:
                _plan_all(dtype)
    return list(run.wanted)
