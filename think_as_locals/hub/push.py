"""`tal push`: prepare the files of a run, show them, or upload them in one commit."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError: of httpx or httpx2, as the version has it
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
from huggingface_hub.utils.sha import git_hash

from think_as_locals.hub.card import eval_results, model_card
from think_as_locals.hub.files import HubFile, collect_files, is_pushed_path
from think_as_locals.hub.leaks import scan_for_leaks
from think_as_locals.hub.source_run import read_judge_run, read_steered_run
from think_as_locals.runtime.run_folder import RunFolder
from think_as_locals.types import ConfigError, ThinkAsLocalsError, first_of

_WAITS_S = (1.0, 2.0, 4.0)
_LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_TRANSIENT = (408, 429, 500, 502, 503, 504)


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
            yield f"{file.size:>14,}  {file.sha256()}  {file.path}"
        for reason in self.left_out:
            yield f"left out  {reason}"
        for file in self.files:
            if file.generated:
                yield f"\n==== {file.path}\n{file.text().decode()}"


@dataclass(frozen=True, slots=True)
class Pushed:
    """A finished push."""

    url: str  # of the commit; the last one if nothing was to send
    private: bool
    sent: tuple[str, ...]  # files that were missing or different
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
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ConfigError(f"--repo: {error}") from error
    if "/" not in repo:
        raise ConfigError(f"--repo: got {repo!r}, expected owner/name")
    steered = model is not None or RunFolder(run).steering.is_file()
    source = read_steered_run(run, model, evaluations) if steered else read_judge_run(run, evaluations)
    files, left_out = collect_files(source, adapter)
    if licence is not None:
        _check_licence(licence, has_text=any(file.path == "LICENSE" for file in files), model=source.model)
        source = replace(source, stated_licence=licence)
    files += [model_card(source, repo, adapter), *eval_results(source.results)]
    scan_for_leaks(files, source)
    return Push(repo, tuple(sorted(files, key=lambda file: file.path)), tuple(left_out))


def _check_licence(licence: str, *, has_text: bool, model: Path) -> None:
    """Raise a ConfigError for what cannot be an id of the Hub, which itself refuses ids that it does not know."""
    if not _LICENCE.fullmatch(licence):
        likely = licence.lower().replace(" ", "-")
        nearest = f"; perhaps {likely}" if _LICENCE.fullmatch(likely) else ""
        raise ConfigError(
            f"--license: got {licence!r}, expected an id of huggingface.co/docs/hub/repositories-licenses, such as "
            f"apache-2.0, cc-by-nc-4.0 or other{nearest}"
        )
    if licence == "other" and not has_text:
        raise ConfigError(f"--license other: put its text into {model / 'LICENSE'}, which is then pushed")


def upload(
    files: Sequence[HubFile], repo: str, *, public: bool, update: bool, revision: str | None, api: HfApi
) -> Pushed:
    """Upload what is missing to a branch (`None`: main), in one commit; called again, it sends the rest."""
    if not (api.token or get_token()):
        raise HubError("not logged in to the Hub: `hf auth login`, or set HF_TOKEN, with a token that may write")
    waits = iter(_WAITS_S)
    while True:  # the library does not retry requests that create repositories and commits
        try:
            return _upload(files, repo, public, update, revision, api)
        except ThinkAsLocalsError:
            raise
        except (HTTPError, OfflineModeIsEnabled, RuntimeError, ValueError) as error:
            # The library wraps errors while it sends several large files.
            cause = error.__cause__ or error if isinstance(error, RuntimeError) else error
            status = cause.response.status_code if isinstance(cause, HfHubHTTPError) else None
            transient = isinstance(cause, HTTPError) and (status is None or status in _TRANSIENT)
            wait = next(waits, None)
            if wait is None or not transient:
                raise HubError(f"{repo}: {_message(cause)}") from error
        time.sleep(wait)


def _upload(
    files: Sequence[HubFile], repo: str, public: bool, update: bool, revision: str | None, api: HfApi
) -> Pushed:
    try:
        repository = api.model_info(repo)
    except RepositoryNotFoundError:
        api.create_repo(repo, private=not public, exist_ok=True)
        repository = api.model_info(repo)
    private = bool(repository.private)
    if not private and not public:
        raise ConfigError(f"{repo} is public: pass --public to push there, or choose another --repo")
    if revision:
        api.create_branch(repo, branch=revision, exist_ok=True)
    head = api.model_info(repo, revision=revision or "main").sha
    tree = api.list_repo_tree(repo, recursive=True, revision=head)
    present = {file.path: file for file in tree if isinstance(file, RepoFile) and file.path != ".gitattributes"}
    missing = [file for file in files if not _same(present.get(file.path), file)]
    stale = sorted(path for path in present.keys() - {file.path for file in files} if is_pushed_path(path))
    if not missing and not stale:
        return Pushed(f"{api.endpoint}/{repo}/commit/{head}", private, (), ())
    if present and not update:
        first = first_of(sorted(present), 3)
        raise HubError(f"{repo} holds {len(present)} files already ({first}): --update replaces what differs")
    additions = [CommitOperationAdd(file.path, file.content) for file in missing]
    commit = api.create_commit(  # exactly the scanned bytes; `upload_folder` may make several commits
        repo,
        [*additions, *map(CommitOperationDelete, stale)],
        commit_message="Upload a reward model with think-as-locals",
        revision=revision,
        parent_commit=head,  # refuses to overwrite a commit made in the meantime
    )
    return Pushed(commit.commit_url, private, tuple(file.path for file in missing), tuple(stale))


def _same(present: RepoFile | None, file: HubFile) -> bool:
    if present is None or present.size != file.size:
        return False
    if present.lfs:
        return present.lfs.sha256 == file.sha256()
    content = file.content if isinstance(file.content, bytes) else file.content.read_bytes()
    return present.blob_id == git_hash(content)


def _message(cause: BaseException) -> str:
    """Return the reason and a remedy, without the request, whose headers hold the token."""
    again = "the same command sends what is still missing"
    if isinstance(cause, HfHubHTTPError):
        status = cause.response.status_code
        if status in (401, 403):
            return f"the Hub refused ({status}): log in with a token that may write to it (`hf auth login`)"
        if status == 412:
            return f"somebody else committed in the meantime ({status}): {again}"
        return f"the Hub answered {status} {cause.server_message or ''}: {again}"
    if isinstance(cause, ValueError):
        return f"the Hub refused: {cause}"
    if isinstance(cause, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set: unset it to push"
    return f"the upload was interrupted ({type(cause).__name__}): {again}"
