"""The deep ensemble equivalent: how many modes a deep ensemble needs for the same NLL."""

from __future__ import annotations

import math
from collections.abc import Sequence

from modebridge.errors import ModebridgeError

__all__ = ["dee"]


def dee(nll: float, reference: Sequence[float]) -> float:
    r"""The smallest (real-valued) size at which the deep ensemble is at least as good.

    .. math:: \mathrm{DEE} = \min \{ m : \mathrm{NLL}_{\mathrm{DE-}m} \le \mathrm{NLL} \}

    with NLL_DE interpolated linearly between integer sizes. (The paper prints the inequality the other way round,
    which would give every better model the DEE of the worst.) If the reference is not monotonic, the first segment
    in which it falls to the value counts, so the DEE never grows with the NLL.

    Like the authors, it extrapolates: below 1 with the slope from DE-1 to DE-2, above the largest size with the slope
    of the last segment. A segment that does not fall cannot be extended: the DEE is then `inf` for a value better than
    the whole reference, and `-inf` for one worse than DE-1.

    Args:
        nll: the (calibrated) NLL to convert.
        reference: NLLs of DE-1, DE-2, ... DE-m on the same data, m at least 2.

    >>> reference = [1.75, 1.5, 1.375]
    >>> dee(1.4375, reference), dee(1.25, reference)
    (2.5, 4.0)

    Reference: Ashukha et al., Pitfalls of in-domain uncertainty estimation and ensembling in deep learning, 2020.
    """
    values = [float(value) for value in reference]
    if len(values) < 2:
        raise ModebridgeError(
            f"Expected the reference to have at least DE-1 and DE-2, but got {len(values)} value"
            f"{'' if len(values) == 1 else 's'}; evaluate a deep ensemble of two modes."
        )
    if not all(map(math.isfinite, values)):
        raise ModebridgeError(f"Expected the reference to be finite, but got {values}; check the deep ensembles.")
    if math.isnan(nll):
        raise ModebridgeError("Expected the NLL to be a number, but got nan; check for a network that diverged.")
    if nll > values[0]:
        drop = values[0] - values[1]
        return 1.0 - (nll - values[0]) / drop if drop > 0 else -math.inf
    for size, value in enumerate(values, start=1):
        if value <= nll:
            # The reference was above the value up to here, so this segment falls. At size 1 they are equal.
            before = values[max(size - 2, 0)]
            return size - (nll - value) / (before - value) if nll > value else float(size)
    drop = values[-2] - values[-1]
    return len(values) + (values[-1] - nll) / drop if drop > 0 else math.inf
