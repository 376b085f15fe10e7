"""The scaling laws by name: a new law is one file here, one entry in LAWS, one row in its test."""

from lm.laws.forms.accuracy_exponential import accuracy_exponential
from lm.laws.forms.accuracy_sigmoid import accuracy_sigmoid
from lm.laws.forms.bnsl import bnsl
from lm.laws.forms.chinchilla import chinchilla
from lm.laws.forms.data_constrained import data_constrained
from lm.laws.forms.joint import joint
from lm.laws.forms.kaplan_d import kaplan_d
from lm.laws.forms.kaplan_n import kaplan_n
from lm.laws.forms.kaplan_nd import kaplan_nd
from lm.laws.forms.overtraining import overtraining
from lm.laws.forms.power import power
from lm.laws.forms.power_floor import power_floor
from lm.laws.forms.three_phase import three_phase
from lm.laws.law import Law

LAWS: dict[str, Law] = {
    "power": power,
    "power_floor": power_floor,
    "kaplan_n": kaplan_n,
    "kaplan_d": kaplan_d,
    "kaplan_nd": kaplan_nd,
    "joint": joint,
    "chinchilla": chinchilla,
    "three_phase": three_phase,
    "bnsl": bnsl(breaks=1),
    "data_constrained": data_constrained,
    "overtraining": overtraining,
    "accuracy_sigmoid": accuracy_sigmoid,
    "accuracy_exponential": accuracy_exponential,
}
