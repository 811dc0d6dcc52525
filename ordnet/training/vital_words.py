"""The vitals of an epoch in words: whether the omni-range block is alive, and what its gate does."""

from typing import Any

_ALIVE, _IDLE = 0.10, 0.05
"""What depends on the place, by the size of the block's input. Runs that need context reached 0.3, idle blocks 0.02."""
_STILL = 0.05
"""A gate that moves less than this treats all positions alike."""
_CLOSED = 0.02


def in_words(vitals: dict[str, Any]) -> list[str]:
    """Sentences about an epoch's record; none where no vitals were measured."""
    if "added" not in vitals:
        return []
    added, varying = vitals["added"], vitals["varying"]
    alive = added * varying
    verdict = "is alive" if alive >= _ALIVE else "is nearly idle" if alive < _IDLE else "does little"
    words = [
        f"The block {verdict}: what it adds has {added:.0%} of its input's size, "
        f"and {varying:.0%} of that varies with the place in the picture."
    ]
    if alive < _IDLE:
        words.append(
            "This run's scores are the backbone's and the losses' rather than the block's. A block idles where the "
            "backbone sees the whole picture anyway, or where its features are small: larger pictures may help, or "
            "model.neck."
        )
    if "gate_mean" in vitals:
        moves = "opens and closes" if vitals["gate_spread"] >= _STILL else "hardly moves"
        if vitals["gate_mean"] < _CLOSED:
            moves = "lets next to nothing of the long range through"
        words.append(
            f"The gate {moves}: over positions its mean is {vitals['gate_mean']:.2f} "
            f"and its spread {vitals['gate_spread']:.3f}, on a scale from 0 to 1."
        )
    return words
