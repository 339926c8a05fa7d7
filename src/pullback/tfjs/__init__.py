"""The TensorFlow.js dialect: its kernels, registry and geometry over pullback's kernels, NumPy arrays in and out.

`run_kernel(name, inputs, attrs)` or each kernel by its own name, as `max_pool_grad(inputs=..., attrs=...)`; the ops, as
`max_pool(x, 2, 1, "valid")`; and with the package autograd `grads(f)` and its relatives. TF.js's rules are kept; its defects are
mended, and reproduced value for value inside `with quirks():`.
"""

from pullback.tfjs.gradients import GradConfig, get_gradient, register_gradient, unregister_gradient
from pullback.tfjs.grads import (
    ValueAndGrad,
    ValueAndGrads,
    custom_grad,
    grad,
    grads,
    value_and_grad,
    value_and_grads,
    variable_grads,
)
from pullback.tfjs.kernels_conv import (
    conv2d_backprop_filter,
    conv2d_backprop_input,
    conv3d_backprop_filter_v2,
    conv3d_backprop_input_v2,
    depthwise_conv2d_native,
    depthwise_conv2d_native_backprop_filter,
    depthwise_conv2d_native_backprop_input,
)
from pullback.tfjs.kernels_dilation import dilation2d_backprop_filter, dilation2d_backprop_input
from pullback.tfjs.kernels_pool import avg_pool3d_grad, avg_pool_grad, max_pool3d_grad, max_pool_grad
from pullback.tfjs.ops import (
    avg_pool,
    avg_pool3d,
    conv2d,
    conv2d_transpose,
    conv3d,
    conv3d_transpose,
    depthwise_conv2d,
    dilation2d,
    max_pool,
    max_pool3d,
    max_pool_with_argmax,
    pool,
)
from pullback.tfjs.quirks import quirks
from pullback.tfjs.registry import (
    KernelConfig,
    copy_registered_kernels,
    find_backend,
    get_backend,
    get_kernel,
    get_kernels_for_backend,
    register_backend,
    register_kernel,
    remove_backend,
    run_kernel,
    set_backend,
    unregister_kernel,
)
from pullback.tfjs.variables import Variable, variable

__all__ = [
    "GradConfig",
    "KernelConfig",
    "ValueAndGrad",
    "ValueAndGrads",
    "Variable",
    "avg_pool",
    "avg_pool3d",
    "avg_pool3d_grad",
    "avg_pool_grad",
    "conv2d",
    "conv2d_backprop_filter",
    "conv2d_backprop_input",
    "conv2d_transpose",
    "conv3d",
    "conv3d_backprop_filter_v2",
    "conv3d_backprop_input_v2",
    "conv3d_transpose",
    "copy_registered_kernels",
    "custom_grad",
    "depthwise_conv2d",
    "depthwise_conv2d_native",
    "depthwise_conv2d_native_backprop_filter",
    "depthwise_conv2d_native_backprop_input",
    "dilation2d",
    "dilation2d_backprop_filter",
    "dilation2d_backprop_input",
    "find_backend",
    "get_backend",
    "get_gradient",
    "get_kernel",
    "get_kernels_for_backend",
    "grad",
    "grads",
    "max_pool",
    "max_pool3d",
    "max_pool3d_grad",
    "max_pool_grad",
    "max_pool_with_argmax",
    "pool",
    "quirks",
    "register_backend",
    "register_gradient",
    "register_kernel",
    "remove_backend",
    "run_kernel",
    "set_backend",
    "unregister_gradient",
    "unregister_kernel",
    "value_and_grad",
    "value_and_grads",
    "variable",
    "variable_grads",
]
