"""Make a small language model and its tokenizer, without the network: the folder ``model``.

The model is a Llama of 300,000 parameters, which are random numbers; a token is a byte.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

FOLDER = Path("model")

alphabet = ["<pad>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
tokenizer = Tokenizer(models.BPE({token: n for n, token in enumerate(alphabet)}, []))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokens = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens)
fast.chat_template = (
    "{% for each in messages %}{{ each['role'] }}: {{ each['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
fast.save_pretrained(FOLDER)

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=len(alphabet), hidden_size=96, intermediate_size=192, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
    pad_token_id=0, bos_token_id=1, eos_token_id=2, initializer_range=0.3,
)  # fmt: skip
model = LlamaForCausalLM(config)
model.save_pretrained(FOLDER)
print(f"{FOLDER}: {sum(each.numel() for each in model.parameters()):,} parameters")
