"""What a load says of itself."""

from __future__ import annotations

from pathlib import Path

from common.model_files import default_model_folder
from common.settings import Settings
from tests.tiny_checkpoint import write_tiny_checkpoint
from workers.engine.default_model import ensure_default_model
from workers.engine.model_loader import load_runner


def test_stages_come_in_order_with_how_much_of_them(tmp_path: Path) -> None:
    ensure_default_model(Settings.of(), lambda stage, fraction: None)
    write_tiny_checkpoint(tmp_path / "model", default_model_folder(Settings.of()))
    told: list[tuple[str, float]] = []
    settings = Settings.of(model_id=str(tmp_path / "model"), device="cpu", max_batch_total_tokens=1024)
    load_runner(settings, lambda stage, fraction: told.append((stage, fraction)))
    stages = list(dict.fromkeys(stage.partition(": ")[0] for stage, _ in told))
    assert stages == ["loading the weights", "warming up", "ready"]
    fractions = [fraction for _, fraction in told]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert "loading the weights: 20 of 20 tensors" in [stage for stage, _ in told]
