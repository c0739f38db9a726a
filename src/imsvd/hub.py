"""Encoders on the Hugging Face Hub: a folder of `model.safetensors`, `config.json` and a model card.

`model.safetensors` alone rebuilds the encoder. `config.json` repeats its description for people and for
the Hub, which counts downloads by it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from huggingface_hub import ModelCard, ModelCardData, ModelHubMixin, hf_hub_download

from imsvd.errors import InputError
from imsvd.files import write_atomically
from imsvd.model_card import LIBRARY, PIPELINE, TAGS, card_text

PREFIX = "hf:"
"""Begins the name of an encoder on the Hub, such as `hf:OWNER/NAME`."""
WEIGHTS = "model.safetensors"


class SharedEncoder(ModelHubMixin):
    """Saving to and loading from a folder or the Hub, for `imsvd.Encoder`."""

    description: Any
    num_features: int
    epoch: int | None
    run: Path | None

    def serialize(self) -> bytes:
        """Return weights and description as the content of a safetensors file."""
        raise NotImplementedError

    @classmethod
    def open_file(cls, path: Path) -> Self:
        """Return the encoder of a folder or safetensors file."""
        raise NotImplementedError

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> Self:
        """Return an encoder from the Hub or from a folder, in evaluation mode.

        Args:
            pretrained_model_name_or_path: `OWNER/NAME` on the Hugging Face Hub, or a folder: a run, or
                what `save_pretrained` or `imsvd export` wrote. A folder of that name comes first.
            options: `revision`, `token`, `cache_dir`, `force_download` and `local_files_only`, as
                `huggingface_hub` documents them.
        """
        name = str(pretrained_model_name_or_path)
        folder = Path(name).expanduser()
        if folder.exists():
            return cls.open_file(folder)
        with _one_sentence(f"the encoder {name} could not be fetched from the Hugging Face Hub"):
            encoder: Self = super().from_pretrained(name, **options)
        return encoder

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> Self:
        return cls.open_file(Path(hf_hub_download(model_id, WEIGHTS, **options)))

    def save_pretrained(  # type: ignore[override]
        self, save_directory: str | Path, *, config: dict[str, Any] | None = None, **options: Any
    ) -> str | None:
        """Write `model.safetensors`, `config.json` and `README.md`, the model card, to a folder.

        A card that is already there is kept.

        Args:
            save_directory: the folder; it is created.
            config: content of `config.json`; the encoder's description if left out.
            options: `repo_id`, `push_to_hub` and `model_card_kwargs` (see `generate_model_card`), as
                `huggingface_hub` documents them.
        """
        described = {"encoder": self.description.model_dump(mode="json"), "epoch": self.epoch}
        options["model_card_kwargs"] = {
            "place": options.get("repo_id") or Path(save_directory).name,  # no private folders
            **(options.get("model_card_kwargs") or {}),
        }
        saved: str | None = super().save_pretrained(
            save_directory, config=config or described, **options
        )
        return saved

    def _save_pretrained(self, save_directory: Path) -> None:
        write_atomically(save_directory / WEIGHTS, self.serialize())

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the encoder with its model card to the Hugging Face Hub and return the commit's address.

        Log in first with `hf auth login`.

        Args:
            repo_id: `OWNER/NAME`; the repository is created if it does not exist.
            options: `private`, `token`, `branch`, `commit_message`, `create_pr` and `model_card_kwargs` (see
                `generate_model_card`), as `huggingface_hub` documents them.
        """
        given = options.pop("model_card_kwargs", None) or {}
        options.setdefault("commit_message", "Upload an encoder of imsvd")
        with _one_sentence(f"the encoder could not be uploaded to {repo_id}"):
            address: str = super().push_to_hub(
                repo_id, model_card_kwargs={"place": repo_id, **given}, **options
            )
        return address

    def generate_model_card(
        self,
        *,
        place: str = "FOLDER",
        **metadata: Any,
    ) -> ModelCard:
        """Return the model card, filled from the run folder that the encoder was loaded from.

        Args:
            place: where the example of use loads the encoder from.
            metadata: further fields of the card's header, such as `license="mit"`.
        """
        header = ModelCardData(
            library_name=LIBRARY,
            pipeline_tag=PIPELINE,
            tags=list(TAGS),
            **metadata,
        )
        return ModelCard(f"---\n{header.to_yaml()}\n---\n\n{card_text(self, place)}")


@contextmanager
def _one_sentence(what: str) -> Iterator[None]:
    """Turn whatever the Hub or the network raises into one sentence."""
    retries = logging.getLogger("huggingface_hub")
    level = retries.level
    retries.setLevel(logging.ERROR)
    try:
        yield
    except InputError:
        raise
    # The exception depends on the version of huggingface_hub, its HTTP library and the proxy.
    except Exception as error:
        first = str(error).strip().partition("\n")[0].partition(". ")[0] or type(error).__name__
        raise InputError(
            f"{what} ({first.rstrip('.')}); check the name and the internet connection, and log in with "
            "`hf auth login` if the repository is private."
        ) from error
    finally:
        retries.setLevel(level)
