"""Maps mT5 to transformers' `MT5ForConditionalGeneration`, `MT5ForSequenceClassification` and others."""

from t5x_like.interop import t5
from t5x_like.models.mt5 import MT5Config

FAMILY = t5.family("MT5", "mt5", MT5Config)
