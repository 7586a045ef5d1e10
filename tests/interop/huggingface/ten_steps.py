"""Run ten steps of `Trainer` on an exported model, alone or under `accelerate launch`.

python ten_steps.py FOLDER TEXT OUT BATCHES_PER_UPDATE
"""

import sys
from pathlib import Path

import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
from transformers.data.data_collator import DataCollatorForLanguageModeling

import zipflm.interop.huggingface  # noqa: F401  # registers the architecture


def train(folder, text, out, batches_per_update):
    """Save the trained model and return the losses of ten updates."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with open(text) as lines:
        rows = [dict(tokenizer(line)) for line in lines]
    trainer = Trainer(
        AutoModelForCausalLM.from_pretrained(folder),
        TrainingArguments(
            output_dir=out,
            max_steps=10,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=batches_per_update,
            # Adam would amplify rounding errors of tiny gradients.
            optim="sgd",
            learning_rate=0.5,
            lr_scheduler_type="constant",
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
        ),
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        train_dataset=rows,
    )
    trainer.train()
    trainer.save_model(out)
    (Path(out) / "processes.txt").write_text(str(trainer.accelerator.num_processes))
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


if __name__ == "__main__":
    folder, text, out, batches_per_update = sys.argv[1:]
    train(folder, text, out, int(batches_per_update))
    if dist.is_initialized():
        dist.barrier()  # a process that leaves early can abort the other one
        dist.destroy_process_group()
