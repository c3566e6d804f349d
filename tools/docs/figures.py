"""The drawings of the site: `python tools/docs/figures.py` writes docs/figures/*.svg.

What is computed in a drawing (weights of a curve, a mean, a temperature) follows the formula that its page shows;
what is measured is in docs/results.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from drawing import AMBER, BLUE, GREEN, GREY, Drawing

FOLDER = Path(__file__).parents[2] / "docs" / "figures"

CLASSES = ("cat", "dog", "fox")


def idea_train() -> Drawing:
    """Two modes, the straight line between them, and the curve."""
    d = Drawing("idea-train", 440, 314)
    d.text(220, 22, "In training: weight space", "middle", size=15)
    for x, y in ((95, 215), (345, 215)):
        for rx, ry in ((62, 40), (40, 26), (20, 13)):
            d.ring(x, y, rx, ry, GREEN, fill=0.1)
    d.path("M95 215C120 130 160 92 220 88C280 92 320 130 345 215", GREEN, 34, end=' stroke-opacity="0.13"')
    d.line([(95, 215), (345, 215)], GREY, 1.5, "5 5")
    d.text(220, 205, "high loss in between", "middle", GREY, 13)
    d.path("M95 215Q220 -40 345 215", BLUE, 3)
    d.dot(95, 215), d.dot(345, 215)
    d.text(95, 274, "mode θ_1", "middle"), d.text(345, 274, "mode θ_2", "middle")
    d.dot(220, 87.5, AMBER, 7)
    d.text(220, 70, "midpoint θ(½)", "middle", AMBER)
    d.text(220, 118, "low-loss curve", "middle", BLUE, 13)
    d.text(220, 294, "Train modes, a curve between two of them, and a small", "middle", GREY, 13)
    d.text(220, 310, "bridge network that imitates the midpoint.", "middle", GREY, 13)
    return d


def idea_use() -> Drawing:
    """One network, a small one with heads that reads a feature of it, and the mean of all."""
    d = Drawing("idea-use", 520, 262)
    d.box(8, 50, 58, 44, "image")
    for k in range(3):
        d.box(92 + 60 * k, 42, 46, 60, "", GREEN)
        d.arrow([(66 if k == 0 else 78 + 60 * k, 72), (91 + 60 * k, 72)])
    d.text(175, 30, "your network   (x1.00)", "middle", GREEN)
    d.arrow([(258, 72), (372, 72)])
    d.text(316, 64, "its prediction", "middle", GREEN, 13)
    d.arrow([(205, 72), (205, 176), (224, 176)], AMBER)
    d.dot(205, 72, AMBER, 4)
    d.text(196, 140, "a feature", "end", AMBER, 13)
    d.box(226, 146, 64, 60, "", AMBER)
    d.text(258, 172, "small", "middle"), d.text(258, 190, "network", "middle")
    d.text(258, 226, "(+x0.05)", "middle", AMBER, 13)
    for k, y in enumerate((152, 176, 200)):
        d.arrow([(290, y), (308, y)], AMBER)
        d.box(310, y - 10, 54, 20, f"head {k + 1}", AMBER)
        d.line([(364, y), (400, y)], AMBER)
    d.arrow([(400, 200), (400, 94)], AMBER)
    d.text(408, 140, "what the others", color=AMBER, size=13)
    d.text(408, 156, "would have said", color=AMBER, size=13)
    d.box(374, 50, 58, 42, "mean", BLUE)
    d.arrow([(432, 71), (462, 71)], BLUE)
    d.text(468, 76, "answer", color=BLUE)
    d.text(260, 252, "One forward pass and a little more; the other networks are not run.", "middle", GREY, 13)
    return d


def modes() -> Drawing:
    """The loss along a line through two modes."""
    d = Drawing("modes", 480, 252)

    def loss(s: float) -> float:
        return (
            0.12 + 0.75 * math.sin(math.pi * (s - 0.2) / 0.6) ** 2
            if 0.2 <= s <= 0.8
            else 0.12 + 9 * min(abs(s - 0.2), abs(s - 0.8)) ** 2 * 2
        )

    d.line([(40, 20), (40, 200), (460, 200)], GREY)
    d.plot(loss, (40, 30, 420, 170), BLUE, 2.5)
    for s, label in ((0.2, "mode θ_1"), (0.8, "mode θ_2")):
        x = 40 + 420 * s
        d.dot(x, 30 + 170 * (1 - loss(s)))
        d.text(x, 222, label, "middle")
    d.arrow([(250, 176), (250, 58)], AMBER, 1.5, "4 4")
    d.text(258, 125, "barrier", color=AMBER)
    d.text(48, 28, "loss", color=GREY, size=13)
    d.text(250, 244, "straight line in weight space", "middle", GREY, 13)
    return d


def curve() -> Drawing:
    """The weights of start, pin and end along the curve."""
    d = Drawing("curve", 480, 250)
    frame = (50, 20, 390, 180)
    d.line([(50, 20), (50, 200), (440, 200)], GREY)
    weights: list[tuple[Callable[[float], float], str]] = [
        (lambda r: (1 - r) ** 2, GREEN),
        (lambda r: 2 * r * (1 - r), AMBER),
        (lambda r: r**2, BLUE),
    ]
    for weight, color in weights:
        d.plot(weight, frame, color, 2.5)
        d.dot(245, 20 + 180 * (1 - weight(0.5)), color, 4)
    d.line([(245, 112), (245, 200)], GREY, 1, "4 4")
    d.text(96, 50, "(1 − r)²  start", color=GREEN)
    d.text(245, 100, "2r(1 − r)  pin", "middle", AMBER)
    d.text(394, 50, "end  r²", "end", BLUE)
    d.text(245, 40, "at r = ½:  ¼, ½, ¼", "middle", GREY, 13)
    for x, label in ((50, "0"), (245, "½"), (440, "1")):
        d.text(x, 218, label, "middle", size=13)
    d.text(245, 240, "r", "middle")
    d.text(44, 27, "1", "end", size=13)
    d.text(44, 204, "0", "end", size=13)
    return d


def bridge() -> Drawing:
    """Type I reads one mode, type II reads two."""
    d = Drawing("bridge", 480, 320)

    def network(y: float, label: str, color: str) -> None:
        d.arrow([(20, y), (70, y)])
        d.box(72, y - 18, 60, 36, "", color), d.box(160, y - 18, 60, 36, "", color)
        d.arrow([(132, y), (158, y)]), d.arrow([(220, y), (250, y)])
        d.text(260, y + 5, label)
        d.dot(145, y, AMBER, 4)

    d.text(20, 20, "Type I: h(z_1)", size=15)
    network(56, "p_1", GREEN)
    d.arrow([(145, 56), (145, 112), (288, 112)], AMBER)
    d.text(232, 105, "z_1", color=AMBER)
    d.box(290, 94, 70, 36, "bridge", AMBER)
    d.arrow([(360, 112), (384, 112)], AMBER), d.text(390, 117, "≈ midpoint", color=AMBER)
    d.text(20, 172, "Type II: H(z_1, z_2)", size=15)
    network(208, "p_1", GREEN)
    network(292, "p_2", BLUE)
    d.arrow([(145, 208), (145, 242), (288, 242)], AMBER), d.arrow([(145, 292), (145, 258), (288, 258)], AMBER)
    d.text(232, 236, "z_1", color=AMBER), d.text(232, 274, "z_2", color=AMBER)
    d.box(290, 232, 70, 36, "bridge", AMBER)
    d.arrow([(360, 250), (384, 250)], AMBER), d.text(390, 255, "≈ midpoint", color=AMBER)
    return d


def _bars(d: Drawing, x: float, title: str, values: tuple[float, ...], color: str) -> None:
    d.text(x + 45, 20, title, "middle")
    d.line([(x, 150), (x + 90, 150)], GREY, 1)
    for k, value in enumerate(values):
        d.bar(x + 6 + 28 * k, 150 - 110 * value, 22, 110 * value, color)
        d.text(x + 17 + 28 * k, 144 - 110 * value, f"{value:.2f}".removeprefix("0"), "middle", size=11)
        d.text(x + 17 + 28 * k, 166, CLASSES[k], "middle", GREY, 12)


def ensemble() -> Drawing:
    """Three members and their mean."""
    d = Drawing("ensemble", 480, 176)
    members = ((0.72, 0.20, 0.08), (0.42, 0.48, 0.10), (0.57, 0.28, 0.15))
    for k, (title, color) in enumerate((("mode", GREEN), ("bridge", AMBER), ("bridge", AMBER))):
        _bars(d, 8 + 116 * k, title, members[k], color)
    for x, sign in ((111, "+"), (227, "+"), (343, "→")):
        d.text(x, 100, sign, "middle", size=18)
    _bars(d, 362, "mean", tuple(sum(column) / 3 for column in zip(*members, strict=True)), BLUE)
    return d


def alignment() -> Drawing:
    """The same function with its hidden units in another order."""
    d = Drawing("alignment", 480, 230)
    colors = (GREEN, AMBER, BLUE)

    def network(x: float, order: tuple[int, int, int], title: str) -> None:
        for k, unit in enumerate(order):
            y = 70 + 50 * k
            for left in (95, 145):
                d.line([(x, left), (x + 55, y)], GREY, 1), d.line([(x + 55, y), (x + 110, left)], GREY, 1)
            d.dot(x + 55, y, colors[unit], 9)
        for left in (95, 145):
            d.dot(x, left, GREY, 5), d.dot(x + 110, left, GREY, 5)
        d.text(x + 55, 40, title, "middle")

    network(20, (0, 1, 2), "θ_1")
    network(185, (2, 0, 1), "θ_2")
    network(350, (0, 1, 2), "θ_2 aligned")
    d.arrow([(302, 120), (338, 120)], "currentColor", 2)
    d.text(320, 110, "P", "middle")
    d.text(405, 215, "the same function", "middle", GREY, 13)
    d.text(240, 215, "other order of units", "middle", GREY, 13)
    return d


def distillation() -> Drawing:
    """Teachers, their mean, and the student that learns it."""
    d = Drawing("distillation", 480, 250)
    d.box(8, 102, 84, 50, "mixed\nimage")
    for k in range(3):
        y = 34 + 56 * k
        d.box(140, y - 18, 84, 36, f"teacher {k + 1}", GREEN)
        d.arrow([(92, 127), (138, y)])
        d.arrow([(224, y), (272, 90)])
    d.box(274, 70, 64, 40, "mean", GREEN)
    d.box(140, 200, 84, 36, "student", AMBER)
    d.arrow([(92, 127), (138, 218)])
    d.arrow([(224, 218), (418, 218), (418, 146)], AMBER)
    d.arrow([(338, 90), (418, 90), (418, 108)], GREEN)
    d.box(370, 110, 98, 34, "KL", BLUE)
    d.text(232, 238, "kept: one network", color=AMBER, size=13)
    return d


def calibration() -> Drawing:
    """One probability at three temperatures."""
    d = Drawing("calibration", 480, 176)
    p = (0.70, 0.22, 0.08)
    for k, (temperature, color) in enumerate(((0.5, GREY), (1.0, BLUE), (2.0, AMBER))):
        powers = [value ** (1 / temperature) for value in p]
        _bars(d, 30 + 160 * k, f"T = {temperature:g}", tuple(value / sum(powers) for value in powers), color)
    return d


def cost() -> Drawing:
    """FLOPs and parameters of rows of docs/results.md (CIFAR-10, filter response norm)."""
    d = Drawing("cost", 480, 250)
    rows = (("DE-1", 1.00, 1.00), ("DE-1 + 1 bridge", 1.06, 1.14), ("DE-2", 2.00, 2.00), ("DE-4", 4.00, 4.00))
    for k, (name, flops, params) in enumerate(rows):
        y = 34 + 52 * k
        d.text(122, y + 20, name, "end")
        d.bar(130, y, 72 * flops, 15, BLUE), d.text(136 + 72 * flops, y + 12, f"x{flops:.2f}", size=12)
        d.bar(130, y + 18, 72 * params, 15, AMBER), d.text(136 + 72 * params, y + 30, f"x{params:.2f}", size=12)
    d.line([(130, 26), (130, 236)], GREY)
    d.bar(300, 40, 12, 12, BLUE), d.text(318, 51, "FLOPs per image", size=13)
    d.bar(300, 62, 12, 12, AMBER), d.text(318, 73, "parameters", size=13)
    return d


def cascades() -> Drawing:
    """Confident images stop at the first network."""
    d = Drawing("cascades", 480, 230)
    d.box(8, 50, 62, 40, "image")
    d.arrow([(70, 70), (98, 70)])
    d.box(100, 50, 84, 40, "network 1", GREEN)
    d.arrow([(184, 70), (222, 70)])
    d.line([(290, 34), (356, 70), (290, 106), (224, 70), (290, 34)], BLUE, 2)
    d.text(290, 75, "max p ≥ t ?", "middle")
    d.arrow([(356, 70), (404, 70)])
    d.text(362, 60, "yes", size=13)
    d.box(406, 50, 66, 40, "p_1", GREEN)
    d.arrow([(290, 106), (290, 158)])
    d.text(298, 134, "no", size=13)
    d.box(226, 160, 128, 48, "all the others,\nmean of all", AMBER)
    d.arrow([(354, 184), (404, 184)])
    d.box(406, 164, 66, 40, "p_all", AMBER)
    return d


FIGURES: dict[str, Callable[[], Drawing]] = {
    "idea-train": idea_train,
    "idea-use": idea_use,
    "modes": modes,
    "curve": curve,
    "bridge": bridge,
    "ensemble": ensemble,
    "alignment": alignment,
    "distillation": distillation,
    "calibration": calibration,
    "cost": cost,
    "cascades": cascades,
}


def main() -> None:
    """Write all of them."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in FIGURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg())


if __name__ == "__main__":
    main()
