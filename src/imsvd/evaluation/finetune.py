"""Fine-tuning: a linear classifier is put on the backbone, and everything trains on all labels.

Nobody has published settings for IMSVD with all labels. These are VICReg's for 10 % of them
(https://github.com/facebookresearch/vicreg: 20 epochs, batch 256, SGD with cosine and without
weight decay, backbone 0.01, classifier 0.1, crops from 0.08 on), the largest share that its
authors give any for.
"""

from imsvd.evaluation.classification import ClassificationSettings

FINETUNE_SETTINGS = ClassificationSettings(
    frozen=False, epochs=20, backbone_lr=0.01, head_lr=0.1, crop_scale=(0.08, 1.0)
)
