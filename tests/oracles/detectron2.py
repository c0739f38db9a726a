"""Detectron2's names and shapes of the weights of a ResNet-50, written out as its C4 models have them."""

BLOCKS = {2: 3, 3: 4, 4: 6, 5: 3}


def resnet50_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}

    def convolution(name: str, outputs: int, inputs: int, side: int) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs, side, side)
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.norm.{part}"] = (outputs,)

    convolution("stem.conv1", 64, 3, 7)
    inputs = 64
    for stage, blocks in BLOCKS.items():
        width = 64 * 2 ** (stage - 2)
        for block in range(blocks):
            name = f"res{stage}.{block}"
            if block == 0:
                convolution(f"{name}.shortcut", 4 * width, inputs, 1)
            convolution(f"{name}.conv1", width, inputs, 1)
            convolution(f"{name}.conv2", width, width, 3)
            convolution(f"{name}.conv3", 4 * width, width, 1)
            inputs = 4 * width
    return shapes
