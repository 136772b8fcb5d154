"""Expected times of the direct and the ring engine on a GPU, and the choice between them.

Times are known before an engine is set up or compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skysieve.sphere.contract import Spec
    from skysieve.sphere.kernels.radial import Radial

    from .direct.zones import Zones

__all__ = ["direct_seconds", "prefers_direct", "ring_seconds"]

NS_BELT, NS_CAPS, NS_ANY = (2e-3, 3.5e-5), (6e-3, 1.35e-4), (0.0, 4e-3)
"""Nanoseconds of a pixel of the result, and of one term of its sum, in each zone; float32, measured on an H100."""
NS_RING = 1.55e-2, 2.4
"""Nanoseconds of the ring engine for a pixel of the map: a constant, and a factor of 1 / (pixels within the support),
with which the number of modes falls."""
WIDE = {"direct": 2.1, "ring": 2.7}
"""Time in float64 over time in float32."""
RING_SPIN = (4.0, 2.0)
"""Time of Q and U over the time of one map, for both parts of ``NS_RING``."""
LAUNCHES = {"direct": 1e-4, "ring": 3e-4}
"""Seconds of all launches of one map."""
PLANS = {"direct": (3e-3, 2e-7), "ring": (8e-3, 2.2e-6)}
"""Seconds to set up a plan: a constant, and for each ring."""
PLAN_SPIN = 1.5
"""Time to set up the direct engine for Q and U, over the time for scalar maps."""
FEW, MANY = 1, 100
"""Numbers of maps that a plan may serve; the method is chosen to be close to the faster one for both."""


def _inside(spec: Spec, radial: Radial) -> float:
    """Pixels within the support."""
    return radial.xmax / 4 * spec.table.npix


def direct_seconds(spec: Spec, radial: Radial, zones: Zones) -> float:
    """Expected seconds of one scalar map."""
    t, inside = spec.table, _inside(spec, radial)
    pixels = [(NS_ANY, float(zones.few))]
    if zones.belt is not None:
        pixels.append((NS_BELT, (zones.belt.high - zones.belt.low) * float(t.n[zones.belt.zero])))
    if zones.caps is not None:
        pixels.append((NS_CAPS, 4.0 * (zones.caps.high - zones.caps.low) * (zones.caps.high + zones.caps.low)))
    total = sum(n * (alone + each * inside) for (alone, each), n in pixels)
    return 1e-9 * total * _wide(spec, "direct") + LAUNCHES["direct"]


def ring_seconds(spec: Spec) -> float:
    """Expected seconds of the ring engine for one map."""
    total = 0.0
    for r in spec.radials:
        alone, modes = NS_RING
        if spec.spin:
            alone, modes = alone * RING_SPIN[0], modes * RING_SPIN[1]
        # a map is transformed once for all kernels
        total += (1 + 1 / len(spec.radials)) / 2 * (alone + modes / max(1.0, _inside(spec, r)))
    return 1e-9 * spec.table.npix * total * _wide(spec, "ring") + LAUNCHES["ring"]


def _wide(spec: Spec, method: str) -> float:
    return WIDE[method] if spec.dtype.itemsize == 8 else 1.0


def prefers_direct(spec: Spec, direct: float) -> bool:
    """Whether the direct engine, which takes ``direct`` seconds a map, is the better choice for 1 and for 100 maps.

    The engine is chosen whose larger ratio to the other one's time is smaller.
    """

    def cost(method: str, seconds: float, maps: int) -> float:
        fixed, each = PLANS[method]
        spin = PLAN_SPIN if spec.spin and method == "direct" else 1.0
        return spin * (fixed + each * len(spec.table.n)) + maps * seconds

    ratios = [cost("direct", direct, maps) / cost("ring", ring_seconds(spec), maps) for maps in (FEW, MANY)]
    return max(ratios) <= 1 / min(ratios)
