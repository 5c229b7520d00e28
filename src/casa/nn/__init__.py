"""Networks: backbones, the recurrent core, and output heads of two fully connected layers each."""

from casa.nn.backbones import BACKBONES
from casa.nn.core import LSTMCore
from casa.nn.network import Network, OutputHead
from casa.nn.noisy import NoisyLinear

__all__ = ["BACKBONES", "LSTMCore", "Network", "NoisyLinear", "OutputHead"]
