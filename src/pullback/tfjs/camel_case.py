"""The functions of this dialect under the names that TF.js gives them, for ported code; the arguments keep their order."""
# ruff: noqa: N812 (TF.js's spelling)

from pullback.tfjs.gradients import (
    get_gradient as getGradient,
)
from pullback.tfjs.gradients import (
    register_gradient as registerGradient,
)
from pullback.tfjs.gradients import (
    unregister_gradient as unregisterGradient,
)
from pullback.tfjs.grads import (
    custom_grad as customGrad,
)
from pullback.tfjs.grads import (
    value_and_grad as valueAndGrad,
)
from pullback.tfjs.grads import (
    value_and_grads as valueAndGrads,
)
from pullback.tfjs.grads import (
    variable_grads as variableGrads,
)
from pullback.tfjs.ops import (
    avg_pool as avgPool,
)
from pullback.tfjs.ops import (
    avg_pool3d as avgPool3d,
)
from pullback.tfjs.ops import (
    conv2d_transpose as conv2dTranspose,
)
from pullback.tfjs.ops import (
    conv3d_transpose as conv3dTranspose,
)
from pullback.tfjs.ops import (
    depthwise_conv2d as depthwiseConv2d,
)
from pullback.tfjs.ops import (
    max_pool as maxPool,
)
from pullback.tfjs.ops import (
    max_pool3d as maxPool3d,
)
from pullback.tfjs.ops import (
    max_pool_with_argmax as maxPoolWithArgmax,
)
from pullback.tfjs.registry import (
    copy_registered_kernels as copyRegisteredKernels,
)
from pullback.tfjs.registry import (
    find_backend as findBackend,
)
from pullback.tfjs.registry import (
    get_backend as getBackend,
)
from pullback.tfjs.registry import (
    get_kernel as getKernel,
)
from pullback.tfjs.registry import (
    get_kernels_for_backend as getKernelsForBackend,
)
from pullback.tfjs.registry import (
    register_backend as registerBackend,
)
from pullback.tfjs.registry import (
    register_kernel as registerKernel,
)
from pullback.tfjs.registry import (
    remove_backend as removeBackend,
)
from pullback.tfjs.registry import (
    run_kernel as runKernel,
)
from pullback.tfjs.registry import (
    set_backend as setBackend,
)
from pullback.tfjs.registry import (
    unregister_kernel as unregisterKernel,
)

__all__ = [
    "avgPool",
    "avgPool3d",
    "conv2dTranspose",
    "conv3dTranspose",
    "copyRegisteredKernels",
    "customGrad",
    "depthwiseConv2d",
    "findBackend",
    "getBackend",
    "getGradient",
    "getKernel",
    "getKernelsForBackend",
    "maxPool",
    "maxPool3d",
    "maxPoolWithArgmax",
    "registerBackend",
    "registerGradient",
    "registerKernel",
    "removeBackend",
    "runKernel",
    "setBackend",
    "unregisterGradient",
    "unregisterKernel",
    "valueAndGrad",
    "valueAndGrads",
    "variableGrads",
]
