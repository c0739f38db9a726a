"""The values each factor of `shapes` can take, with the numbers that draw them."""

SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "heart", "crescent")
TEXTURES = ("solid", "stripes", "checks", "dots", "rings", "rays", "gradient")
POSITIONS = tuple(
    f"{row} {column}"
    for row in ("top", "middle", "bottom")
    for column in ("left", "center", "right")
)
BACKGROUNDS = ("plain", "gradient", "horizon", "grid", "spots")

# Main color, and the accent that its textures are drawn with.
COLORS: dict[str, tuple[tuple[int, int, int], tuple[int, int, int]]] = {
    "red": ((214, 48, 49), (255, 205, 190)),
    "orange": ((240, 132, 28), (255, 234, 190)),
    "yellow": ((247, 206, 45), (150, 96, 10)),
    "green": ((52, 160, 72), (208, 245, 190)),
    "teal": ((22, 160, 165), (200, 250, 240)),
    "blue": ((44, 98, 214), (196, 222, 255)),
    "purple": ((132, 66, 190), (234, 210, 255)),
    "pink": ((238, 92, 160), (255, 226, 240)),
}
BACKGROUND_COLORS: dict[str, tuple[int, int, int]] = {
    "sand": (226, 208, 178),
    "sky": (178, 204, 226),
    "sage": (176, 196, 168),
    "mauve": (196, 180, 200),
    "slate": (92, 104, 122),
    "charcoal": (56, 54, 60),
}

# Radius of the circumscribed circle, where the picture spans -1 to 1.
SIZES: dict[str, tuple[float, float]] = {
    "small": (0.41, 0.46),
    "medium": (0.52, 0.58),
    "large": (0.64, 0.70),
}
# Degrees clockwise; the gaps keep neighboring values apart.
ROTATIONS: dict[str, tuple[float, float]] = {
    "left": (-30.0, -16.0),
    "upright": (-7.0, 7.0),
    "right": (16.0, 30.0),
}
