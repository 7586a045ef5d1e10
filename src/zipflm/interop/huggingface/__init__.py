"""zipflm models in Hugging Face `transformers`. Import this module to register them:

    import zipflm.interop.huggingface
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained("exported")
    tokenizer = AutoTokenizer.from_pretrained("exported")

`trust_remote_code` is not needed.
"""

from __future__ import annotations

try:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
except ImportError as _error:
    raise ImportError(
        "zipflm.interop.huggingface needs transformers; pip install "
        f"'zipflm[hf] @ git+https://github.com/zipflm/zipflm' ({_error})"
    ) from _error

from zipflm.interop.huggingface.config import ZipfConfig
from zipflm.interop.huggingface.modeling import ZipfForCausalLM
from zipflm.interop.huggingface.tokenizer import ZipfTokenizer

__all__ = ["ZipfConfig", "ZipfForCausalLM", "ZipfTokenizer"]

AutoConfig.register(ZipfConfig.model_type, ZipfConfig, exist_ok=True)
AutoModelForCausalLM.register(ZipfConfig, ZipfForCausalLM, exist_ok=True)
AutoTokenizer.register(ZipfConfig, fast_tokenizer_class=ZipfTokenizer, exist_ok=True)
# Trainer and lm-evaluation-harness recognize causal models by these names.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault(ZipfConfig.model_type, ZipfForCausalLM.__name__)
