"""`tal push`: prepare the files of a run, show them, or upload them in one commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HTTPError, OfflineModeIsEnabled  # type: ignore[attr-defined]  # HTTPError: of httpx or httpx2, as the version has it

from think_as_locals.hub.card import model_card
from think_as_locals.hub.files import HubFile, collect_files, is_pushed_path
from think_as_locals.hub.leaks import scan_for_leaks
from think_as_locals.hub.source_run import read_judge_run, read_scalar_run
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.types import ConfigError, ThinkAsLocalsError, first_of


class HubError(ThinkAsLocalsError, RuntimeError):
    """The Hub did not accept a push; the message names the reason and a remedy."""


@dataclass(frozen=True, slots=True)
class Push:
    """The scanned files of a push, and the reasons why others in the model's folder are left out."""

    repo: str
    files: tuple[HubFile, ...]
    left_out: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """Yield each file with size and SHA-256, and the text of those that were written for the Hub."""
        for file in self.files:
            yield f"{file.size:>14,}  {file.sha256}  {file.path}"
        for reason in self.left_out:
            yield f"left out  {reason}"
        for file in self.files:
            if file.generated:
                yield f"\n==== {file.path}\n{file.text().decode()}"


@dataclass(frozen=True, slots=True)
class Pushed:
    """A finished push."""

    url: str  # of the commit
    private: bool
    removed: tuple[str, ...]  # files of an earlier push that are not part of this one


def prepare(
    run: Path,
    repo: str,
    *,
    model: str | None = None,
    adapter: bool = False,
    evaluations: Sequence[Path] = (),
    licence: str | None = None,
) -> Push:
    """Collect and scan the files of a push, without network; the arguments are those of `tal push`."""
    if repo.count("/") != 1:
        raise ConfigError(f"--repo: got {repo!r}, expected owner/name")
    steered = model is not None or RunFolder(run).steering.is_file()
    source = read_scalar_run(run, model, evaluations) if steered else read_judge_run(run, evaluations)
    files, left_out = collect_files(source, adapter)
    if licence is not None:
        if licence == "other" and not any(file.path == "LICENSE" for file in files):
            raise ConfigError(f"--license other: put its text into {source.model / 'LICENSE'}, which is then pushed")
        source = replace(source, stated_licence=licence)
    files.append(model_card(source, repo, adapter))
    scan_for_leaks(files, source)
    return Push(repo, tuple(sorted(files, key=lambda file: file.path)), tuple(left_out))


def upload(
    files: Sequence[HubFile], repo: str, *, public: bool, update: bool, revision: str | None, api: HfApi
) -> Pushed:
    """Upload the scanned bytes to a branch (`None`: main) in one commit; the Hub keeps what it has already."""
    try:
        if not api.repo_exists(repo):
            api.create_repo(repo, private=not public, exist_ok=True)
        private = bool(api.model_info(repo).private)
        if not private and not public:
            raise ConfigError(f"{repo} is public: pass --public to push there, or choose another --repo")
        if revision:
            api.create_branch(repo, branch=revision, exist_ok=True)
        present = {*api.list_repo_files(repo, revision=revision)} - {".gitattributes"}
        if present and not update:
            first = first_of(sorted(present), 3)
            raise HubError(f"{repo} holds {len(present)} files already ({first}): --update replaces what differs")
        # Other weights of an earlier push could be loaded in place of these.
        removed = sorted(path for path in present - {file.path for file in files} if is_pushed_path(path))
        added = [CommitOperationAdd(file.path, file.content) for file in files]
        commit = api.create_commit(  # the scanned bytes; `upload_folder` would read the files again
            repo,
            [*added, *map(CommitOperationDelete, removed)],
            commit_message="Upload a reward model with think-as-locals",
            revision=revision,
        )
        return Pushed(commit.commit_url, private, tuple(removed))
    except ThinkAsLocalsError:
        raise
    except (HTTPError, OfflineModeIsEnabled, RuntimeError, ValueError) as error:
        remedy = "log in with a token that may write to it (`hf auth login`), and run the same command again"
        raise HubError(f"{repo}: {error}. To fix it: {remedy}") from error
