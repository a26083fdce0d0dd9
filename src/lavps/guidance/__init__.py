r"""Guidance: how the midpoint :math:`x_s` of a step is drawn.

MGDM, its training-free relative and LAVPS run the same loop and differ in this alone:

===================================  ===================================================================
guidance                             x_s ~ q, an approximation of l(y | A, D(x_s, s)) q(x_s | x_0, x_t)
===================================  ===================================================================
:class:`Gradient`                    q by gradient steps through the denoiser, from the bridge (MGDM)
:class:`Linearized`                  q in closed form, the denoiser replaced by a scalar slope
:class:`Amortized`                   q predicted by an inference model, safeguarded, then refined (LAVPS)
:func:`switch`                       one guidance early, another one late
===================================  ===================================================================

A guidance of your own is a subclass of :class:`Guidance` with one method,
:meth:`~lavps.guidance.base.Guidance.draw`.
"""

from .amortized import Amortized
from .base import Guidance, GuidedStep, MidpointDraw, MidpointModel
from .gradient import Gradient
from .linearized import Linearized, linearized_step
from .switch import Switch, switch

__all__ = [
    "Amortized",
    "Gradient",
    "Guidance",
    "GuidedStep",
    "Linearized",
    "MidpointDraw",
    "MidpointModel",
    "Switch",
    "linearized_step",
    "switch",
]
