"""What the commands of `qir` do with a model, each as one function that a Python program can call.

`qir.load` gives the model. The functions write the result and return what the command shows.
"""

from qir.workflows.certification import CertifiedModel, certify_model
from qir.workflows.grouping import GroupedModel, group_model
from qir.workflows.optimizing import optimize_model
from qir.workflows.quantization import QuantizedModel, SampleData, quantize_model
from qir.workflows.verification import VerifiedModel, verify_model

__all__ = [
    "CertifiedModel",
    "GroupedModel",
    "QuantizedModel",
    "SampleData",
    "VerifiedModel",
    "certify_model",
    "group_model",
    "optimize_model",
    "quantize_model",
    "verify_model",
]
