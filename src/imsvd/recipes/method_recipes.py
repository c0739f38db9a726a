"""How every other method departs from IMSVD's recipes. `METHOD_RECIPES` is the whole table."""

from __future__ import annotations

from collections.abc import Callable

from imsvd.config import Config
from imsvd.recipes.barlow_twins import barlow_twins
from imsvd.recipes.byol import byol
from imsvd.recipes.corinfomax import corinfomax
from imsvd.recipes.dissl import dissl
from imsvd.recipes.la import la
from imsvd.recipes.moco_v2 import moco_v2
from imsvd.recipes.npid import npid
from imsvd.recipes.pcl import pcl
from imsvd.recipes.scale import Scale
from imsvd.recipes.simclr import simclr
from imsvd.recipes.simsiam import simsiam
from imsvd.recipes.swav import swav
from imsvd.recipes.vicreg import vicreg
from imsvd.recipes.wmse import wmse

METHOD_RECIPES: dict[str, Callable[[Config, Scale], Config]] = {
    "npid": npid,
    "vicreg": vicreg,
    "simclr": simclr,
    "byol": byol,
    "simsiam": simsiam,
    "barlow_twins": barlow_twins,
    "moco_v2": moco_v2,
    "corinfomax": corinfomax,
    "la": la,
    "wmse": wmse,
    "pcl": pcl,
    "swav": swav,
    "dissl": dissl,
}
