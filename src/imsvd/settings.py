"""The base of every configuration object: immutable, and strict about unknown keys."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A frozen group of settings in which each default lives exactly once."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
