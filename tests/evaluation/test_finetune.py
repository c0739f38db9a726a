from imsvd.evaluation.finetune import FINETUNE_SETTINGS


def test_everything_trains_and_the_head_faster() -> None:
    settings = FINETUNE_SETTINGS
    assert not settings.frozen
    assert (settings.backbone_lr, settings.head_lr, settings.weight_decay) == (0.01, 0.1, 0)
    assert (settings.epochs, settings.batch_size, settings.milestones) == (20, 256, ())
    assert settings.crop_scale == (0.08, 1.0)
