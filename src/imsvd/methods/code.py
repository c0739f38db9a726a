"""The compact head that gives features a discrete code: its settings, in one place for all users.

`imsvd discretize` trains it on cached features, and pretraining beside any method.
"""

from __future__ import annotations

from pydantic import Field

from imsvd.methods.imsvd import IMSVDSettings
from imsvd.settings import Settings

CODE_TEMPERATURE = 0.01
"""Temperature of the saved code's softmax, which makes it sharp."""


class CodeSettings(Settings):
    """A head of two layers, trained on features without changing them."""

    variables: int = Field(32, ge=1, description="number of discrete variables of the code")
    units: int = Field(4, ge=2, description="units of each variable")
    hidden: int = Field(1024, ge=1, description="width of the head's hidden layer")
    off_diagonal_weight: float = Field(
        15.0,
        ge=0,
        description="weight of the entropy of pairs of variables, taken within each view",
    )
    lr: float = Field(
        2e-3, gt=0, description="peak learning rate of the head (AdamW), for any batch size"
    )
    weight_decay: float = Field(1e-4, ge=0, description="decay of the head's weights")

    def as_method(self) -> IMSVDSettings:
        """Return the loss in the form that keeps a code's variables decided and independent.

        It differs from the paper's in four ways: pairs of variables are judged within each view,
        with fifteen times the weight; the temperature falls while training; the saved code is sharp.
        """
        return IMSVDSettings(
            projector=(self.hidden, self.variables * self.units),
            units=self.units,
            joint="within",
            off_diagonal_weight=self.off_diagonal_weight,
            final_temperature=0.1,
            code_temperature=CODE_TEMPERATURE,
        )
