"""A run's folder: the only place where the stages meet.

``observations.jsonl`` is the one file that cannot be made again. It only grows, a line a case, on disk before the next
case starts. A line counts once its outcome is on disk too. A line that is cut off or damaged is left out and named. The
first line of the plan must be readable: it names the cluster that the plan was made for.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from clusterbench.cluster import Cluster, is_same_host
from clusterbench.errors import DiskError, RunFolderError, SuiteError
from clusterbench.run_folder.disk import remedy
from clusterbench.run_folder.fast import FastReader
from clusterbench.run_folder.lock import NAME as LOCK
from clusterbench.run_folder.lock import Lock, is_lock
from clusterbench.run_folder.passes import SPANS_NAME
from clusterbench.run_folder.records import document_of, line_of, parsed, record_of
from clusterbench.run_folder.redaction import REMOVED
from clusterbench.types import Case, Floor, Observation, Outcome, Plan, Refusal, Replanned, split_key
from clusterbench.units import UNITS
from clusterbench.words import short

LOST_HOSTS, SILENT_HOSTS, ABSENT_HOSTS = "lost hosts", "silent hosts", "absent hosts"
HOSTS_WITHOUT_LINK = "hosts without link"
SPARES, RETURNED_HOSTS = "spares", "returned hosts"
"""Headings of environment.json under which a host has a sentence: it was lost while no case ran on it; it fell silent
and no third host was there to say whose link it was; it did not answer when it was to take part; its own link went
down; it was named to replace others. And how many times a host had been lost that took part again."""

COPIES = "copies of clusterbench"
"""Under which environment.json has the version of every copy that ran here, by the digits that tell its sources."""

RATES = "rates.yaml"
"""The file of rates that a run was given, as it was given: docs/prediction.md."""

BUNDLE = ".clusterbench.tar.gz"
"""How the name of a run's archive ends."""

_RECORDS = ("observations.jsonl", "outcomes.jsonl")
TRACES = "traces.jsonl"
"""The file of what ran when in traced steps, a line a case; not there where no case recorded any."""

RECORDED = ("plan.jsonl", *_RECORDS, TRACES, "environment.json", "suite.yaml")
"""The files from which a report is made again, and which nothing makes again."""

_BEFORE_THE_PLAN = ("logs", "suite.yaml", RATES, "suite_files", "environment.json", "plan.jsonl.new")
"""What a run has in its folder before it has a plan, beside records that are empty."""

_MOST_LEVELS = 16  # of environment.json; ours has five

NO_FILES: Mapping[str, bytes] = MappingProxyType({})

Read = TypeVar("Read")


def copy_of_named(folder: Path, told: str) -> Path:
    """Where the folder of a run has its copy of a file that its suite names by the path ``told``.

    >>> copy_of_named(Path("reports/1"), "../models/config.json").as_posix()
    'reports/1/suite_files/..%2Fmodels%2Fconfig.json'
    """
    return folder / "suite_files" / quote(told, safe="")


@dataclass
class RunFolder:
    """One run on disk.

    Attributes
    ----------
    lock
        The right to write into a folder in which runs write. Who only reads, or makes a folder of its own, needs none.
    problems
        What could not be read, each a sentence.
    """

    path: Path
    lock: Lock | None = None
    problems: list[str] = field(default_factory=list)
    _named: set[str] = field(default_factory=set, repr=False, compare=False)

    @classmethod
    def create(
        cls,
        path: Path,
        suite_text: bytes,
        plan: Plan,
        environment: Mapping[str, Any],
        lock: Lock | None = None,
        rates: bytes | None = None,
        named_files: Mapping[str, bytes] = NO_FILES,
    ) -> RunFolder:
        """A new run's folder with everything that is known before the first case.

        The plan comes last and in one step: whoever sees it can resume the run. Until then the folder counts as empty.

        Parameters
        ----------
        rates
            A file of rates, by which later reports price its training steps.
        named_files
            The files that the suite names, by their paths as written: it is read again with these copies.

        Raises
        ------
        RunFolderError
            If the folder exists and is not empty, or cannot be written.
        """
        run = cls(path, lock)
        run.expect_empty()
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(PermissionError):  # a folder that another user made, or a disk without modes
                path.chmod(0o700)
            for name in _RECORDS:
                (path / name).touch()
            shutil.rmtree(path / "suite_files", ignore_errors=True)  # of a run that was killed just here
            (path / RATES).unlink(missing_ok=True)
            (path / "logs").mkdir(exist_ok=True)
            (path / "suite.yaml").write_bytes(suite_text)
            if rates is not None:
                (path / RATES).write_bytes(rates)
            for told, data in named_files.items():
                copy = copy_of_named(path, told)
                copy.parent.mkdir(exist_ok=True)
                copy.write_bytes(data)
            described = document_of(environment)
            (path / "environment.json").write_text(described, encoding="utf-8")
            new = path / "plan.jsonl.new"
            new.write_text("".join(line_of(record) for record in _plan_records(plan)), encoding="utf-8")
            os.replace(new, path / "plan.jsonl")
        except OSError as error:
            raise RunFolderError(run._unwritable(error, is_begun=False)) from None
        return run

    def expect_empty(self) -> None:
        """Makes sure that nothing would be written over; a lock is nothing, nor what a run leaves that got no plan.

        Raises
        ------
        RunFolderError
            If there is something in the folder, or it cannot be looked into.
        """
        try:
            if not self.path.exists() or self._holds_nothing():
                return
        except OSError as error:
            raise RunFolderError(self._unwritable(error, is_begun=False)) from None
        is_run = (self.path / "plan.jsonl").is_file() and "imported" not in self.environment()
        going_on = f"; 'clusterbench run --resume {self.path}' continues the run in it" if is_run else ""
        raise RunFolderError(f"{self.path} exists and is not empty.\nhint: name another folder with --out{going_on}")

    def _holds_nothing(self) -> bool:
        names = {entry.name for entry in self.path.iterdir() if not is_lock(entry.name)}
        if not names:
            return True
        is_ours = names & {*_RECORDS} and names <= {*_RECORDS, *_BEFORE_THE_PLAN}
        return bool(is_ours) and not any((self.path / name).stat().st_size for name in names & {*_RECORDS})

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of a run that was started before.

        Raises
        ------
        RunFolderError
            If ``path`` is not such a folder.
        """
        needed = ("plan.jsonl", *_RECORDS)
        missing = [name for name in needed if not (path / name).is_file()]
        if not missing:
            return cls(path)
        if not path.exists():
            what = f"{path}: there is no such folder."
        elif is_run(path) and path.is_file():
            raise RunFolderError(
                f"{path} is a bundle, and not the folder of a run.\n"
                f"hint: 'clusterbench report {path}' unpacks the folder beside it; name that"
            )
        elif not path.is_dir():
            what = f"{path} is a file, and not the folder of a run."
        else:
            what = f"{path} is not the folder of a run: it has no file {', '.join(missing)}."
        raise RunFolderError(
            f"{what}\nhint: name the folder that 'clusterbench run' printed, e.g. reports/2026-03-02-1410-tp_scale"
        )

    @property
    def rates(self) -> Path | None:
        """The file of rates that the run was given; None where it was given none."""
        path = self.path / RATES
        return path if path.is_file() else None

    @property
    def name(self) -> str:
        return os.fsencode(self.path.resolve().name).decode(errors="replace")

    def plan(self) -> Plan:
        """The plan as it was written before the run; a line that is damaged, or there twice, is a problem.

        Raises
        ------
        RunFolderError
            If the line is damaged that says for what cluster it was made.
        """
        heads: list[_Head] = []
        cases: dict[str, Case] = {}
        refusals: dict[str, Refusal] = {}
        replanned: dict[tuple[str, str], Replanned] = {}
        for number, record in self._read("plan.jsonl", _planned, _planned_case):
            if isinstance(record, _Head):
                heads.append(record)
                is_new = len(heads) == 1
            elif isinstance(record, Replanned):
                is_new = (record.copy, record.hash) not in replanned
                replanned.setdefault((record.copy, record.hash), record)
            elif isinstance(record, Case):
                is_new = record.id not in cases and record.id not in refusals
                cases.setdefault(record.id, record)
            else:
                is_new = record.id not in cases and record.id not in refusals
                refusals.setdefault(record.id, record)
            if not is_new:
                self._name(f"plan.jsonl:{number} says again what an earlier line says, and was left out")
        if not heads:
            raise self._without_head()
        plan = self._counted(heads[0], tuple(cases.values()), tuple(refusals.values()))
        return replace(plan, replanned=tuple(replanned.values())) if replanned else plan

    def plan_anew(self, replanned: Iterable[Replanned]) -> None:
        """Adds to the plan what another copy of the package expects, which goes on with the run."""
        self._expect_lock()
        for record in replanned:
            self._append("plan.jsonl", {"kind": "expected", **vars(record)})

    def environment(self) -> dict[str, Any]:
        """What was captured of the hosts: ``hosts`` and ``loaded`` by host, and whatever else was noted.

        What cannot be read is a problem and left out.
        """
        try:
            environment = parsed((self.path / "environment.json").read_bytes())
            if not isinstance(environment, dict) or _levels(environment, _MOST_LEVELS) > _MOST_LEVELS:
                raise ValueError
        except (OSError, ValueError, RecursionError):
            self._name("environment.json is not a whole object of JSON and was left out")
            return {}
        for name in ("hosts", "loaded"):
            by_host = environment.get(name, {})
            if not isinstance(by_host, dict) or not all(isinstance(host, dict) for host in by_host.values()):
                self._name(f"environment.json: '{name}' does not describe hosts and was left out")
                del environment[name]
        return environment

    def add_hosts(self, environments: Mapping[str, Any]) -> None:
        """Adds to environment.json the hosts on which the run goes on, and which of them were lost before."""
        environment = self.environment()
        environment["hosts"] = {**environment.get("hosts", {}), **environments}
        losses = Counter(host for outcome in self.outcomes() for host in outcome.lost_hosts)
        for heading in (LOST_HOSTS, SILENT_HOSTS, ABSENT_HOSTS):
            known = noted(environment, heading)
            back = [host for host in known if any(is_same_host(host, name) for name in environments)]
            losses += Counter(host for host in back if host not in losses)
            environment[heading] = {host: why for host, why in known.items() if host not in back}
        returned = {host: count for host, count in losses.items() if any(is_same_host(host, n) for n in environments)}
        environment[RETURNED_HOSTS] = {**noted(environment, RETURNED_HOSTS), **returned}
        self._write_environment(environment)

    def note(self, heading: str, facts: Mapping[str, str]) -> None:
        """Adds to environment.json what is known of hosts beside what they say of themselves."""
        environment = self.environment()
        environment[heading] = {**noted(environment, heading), **facts}
        self._write_environment(environment)

    def _write_environment(self, environment: Mapping[str, Any]) -> None:
        said = {name: value for name, value in environment.items() if value != {} or name == "hosts"}
        self.write("environment.json", document_of(said))

    def outcomes(self) -> list[Outcome]:
        """How every attempt so far ended, in order of time."""
        return [outcome for _, outcome in self._read("outcomes.jsonl", partial(record_of, Outcome), _outcome)]

    def observations(self) -> Iterator[Observation]:
        """What was seen, in order of time."""
        for _, observation in self._read("observations.jsonl", partial(record_of, Observation), _observation):
            yield observation

    def traces(self) -> Iterator[Observation]:
        """What ran when in the traced step of each case: observations that hold nothing else."""
        if (self.path / TRACES).exists():
            for _, observation in self._read(TRACES, partial(record_of, Observation), _observation):
                yield observation

    def record(self, outcome: Outcome, observation: Observation | None) -> None:
        """Puts one case on disk, its observation before its outcome, and returns once the disk has it.

        What ran when goes into a file of its own.

        Raises
        ------
        DiskError
            If the disk is full or the folder is gone. What was there before is unharmed.
        FolderLost
            If another run has taken over.
        """
        self._expect_lock()
        if observation is not None:
            if any(spans := observation.passes.get(SPANS_NAME, ())):
                self._append(TRACES, _of_spans(observation, spans))
            of_report = {name: ranks for name, ranks in observation.passes.items() if name != SPANS_NAME}
            self._append("observations.jsonl", replace(observation, passes=of_report))
        self._append("outcomes.jsonl", outcome)

    def write(self, name: str, text: str | Iterable[str]) -> Path:
        """Replaces a derived file in one step, so that no reader sees half of it; ``text`` may come in pieces."""
        self._expect_lock()
        target = self.path / name
        new = target.with_name(target.name + ".new")
        try:
            with open(new, "w", encoding="utf-8") as file:
                file.writelines([text] if isinstance(text, str) else text)
            os.replace(new, target)
        except OSError as error:
            raise DiskError(self._not_derived(error)) from None
        finally:
            with suppress(OSError):
                new.unlink(missing_ok=True)  # half a file must not fill what is left of a full disk
        return target

    def remove(self, name: str) -> None:
        """Removes a derived file, if it is there."""
        self._expect_lock()
        try:
            (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            raise DiskError(self._not_derived(error)) from None

    def _expect_lock(self) -> None:
        if self.lock is not None:
            self.lock.expect()

    @property
    def logs(self) -> Path:
        """Where the output of ranks goes, see :func:`log_name`."""
        return self.path / "logs"

    def under_way(self, what: Mapping[str, Any]) -> None:
        """Notes in the file ``alive`` which case is under way and how far it got.

        Raises
        ------
        FolderLost
            If another run has taken over.
        """
        if self.lock is not None:
            self.lock.note(what)

    def give_sign(self) -> None:
        """Has the file ``alive`` say that the run goes on, by which a supervisor sees it."""
        if self.lock is not None:
            self.lock.sign()

    def release(self) -> None:
        """The run has ended; what it left is another's to go on with."""
        if self.lock is not None:
            self.lock.release()

    def cut_off(self) -> dict[str, Any] | None:
        """The case that was under way when the last run was killed; None where the run ended in order.

        None, too, where it was killed between two cases: the case that was noted last has its outcome then.
        """
        try:
            note = json.loads((self.path / LOCK).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        kinds = {"case": str, "hash": str, "repeat": int, "attempt": int, "phase": str}
        right = isinstance(note, dict) and all(isinstance(note.get(key), kind) for key, kind in kinds.items())
        if not right or any(
            (outcome.hash, outcome.repeat, outcome.attempt) == (note["hash"], note["repeat"], note["attempt"])
            for outcome in self.outcomes()
        ):
            return None
        return {key: note[key] for key in kinds}

    def _append(self, name: str, record: object) -> None:
        data = line_of(record).encode()
        try:
            handle = os.open(self.path / name, os.O_RDWR | os.O_APPEND | (os.O_CREAT if name == TRACES else 0), 0o644)
            try:
                size = os.fstat(handle).st_size
                if size and os.pread(handle, 1, size - 1) != b"\n":
                    data = b"\n" + data  # the last run was cut off in the middle of a line
                try:
                    while data:
                        data = data[os.write(handle, data) :]  # a disk that is filling up takes a part first
                    os.fsync(handle)
                except OSError:
                    os.ftruncate(handle, size)
                    raise
            finally:
                os.close(handle)
        except OSError as error:
            raise DiskError(self._unwritable(error)) from None

    def _not_derived(self, error: OSError) -> str:
        """Of a derived file; without a lock no run is under way that could be continued."""
        if self.lock is not None:
            return self._unwritable(error)
        return f"{self._unwritable(error, is_begun=False)}, or copy the folder and take the copy"

    def _unwritable(self, error: OSError, is_begun: bool = True) -> str:
        what = error.strerror or str(error)
        hint = remedy(error, self.path)
        if is_begun and not self.path.exists():
            hint = "it was moved or deleted while the run wrote there; --resume with the new name does the rest"
        saved = f", then continue with --resume {self.path}" if is_begun and (self.path / "plan.jsonl").exists() else ""
        return f"{error.filename or self.path} cannot be written: {what}.\nhint: {hint}{saved}"

    def _read(
        self, name: str, of: Callable[[dict[str, Any]], Read], fast: Callable[[bytes], Read | None]
    ) -> Iterator[tuple[int, Read]]:
        """Number and record of every line; what neither ``fast`` nor ``of`` can read is named and left out."""
        for number, line in enumerate(self._lines(name), 1):
            try:
                read = fast(line)
            except SuiteError:  # a cluster that cannot be: what is wrong with it is said below
                read = None
            if read is not None:
                yield number, read
                continue
            if line.isspace():
                continue
            try:
                fields = parsed(line)
                if not isinstance(fields, dict):
                    raise ValueError
            except ValueError:
                self._name(f"{name}:{number} is not a whole line of JSON and was left out")
                continue
            try:
                record = of(fields)
            except RecursionError:
                self._name(f"{name}:{number} was left out: it is nested too deeply")
            except (SuiteError, ValueError) as error:
                self._name(f"{name}:{number} was left out: {error}")
            else:
                yield number, record

    def _lines(self, name: str) -> Iterator[bytes]:
        try:
            with open(self.path / name, "rb") as lines:
                yield from lines
        except OSError as error:
            raise RunFolderError(
                f"{self.path / name} cannot be read: {error.strerror}.\nhint: make it a file that can be read"
            ) from None

    def _name(self, problem: str) -> None:
        if problem not in self._named:
            self._named.add(problem)
            self.problems.append(problem)

    def _without_head(self) -> RunFolderError:
        file = self.path / "plan.jsonl"
        if not file.stat().st_size:
            return RunFolderError(f"{file} is empty: the run was stopped before it had a plan.\nhint: start it again")
        why = f" ({self.problems[0]})" if self.problems else ""
        return RunFolderError(
            f"{file} has no line of kind 'plan' that can be read{why}, so the cluster of the run is unknown.\n"
            "hint: put the file back from a copy of the folder, or start the run again"
        )

    def _counted(self, head: _Head, cases: tuple[Case, ...], refusals: tuple[Refusal, ...]) -> Plan:
        """The plan, checked against the counts in its first line: whole lines may be missing."""
        most = max((case.repeats for case in cases), default=head.repeats)
        if most != head.repeats:
            raise RunFolderError(
                f"{self.path / 'plan.jsonl'} asks for {head.repeats} repeats, but its cases ask for {most}.\n"
                "hint: put the file back from a copy of the folder, or start the run again"
            )
        for what, count, records in (("cases", head.num_cases, cases), ("refusals", head.num_refusals, refusals)):
            if count is not None and count != len(records):
                self._name(f"plan.jsonl: {len(records)} of {count} {what} can be read")
        return Plan(head.suite, head.question, head.cluster, head.repeats, cases, refusals, head.fail_on, head.for_s)


@dataclass(frozen=True)
class _Head:
    """The first line of plan.jsonl. The counts came later than the first runs."""

    suite: str
    question: str
    cluster: Cluster
    repeats: int
    num_cases: int | None = None
    num_refusals: int | None = None
    fail_on: tuple[str, ...] = ()
    for_s: float = 0.0


def is_run(path: Path) -> bool:
    """Whether a path names a run: its folder, or a bundle, of which the folder has to be made first."""
    return path.is_dir() or path.name.endswith(BUNDLE)


def expect_no_record(path: Path, option: str) -> None:
    """That what an option writes is no record of a run.

    Raises
    ------
    SuiteError
        If it is one: the run would be lost.
    """
    folder = path.resolve().parent
    if path.resolve().name in RECORDED and (folder / "plan.jsonl").is_file():
        raise SuiteError(
            f"{option} {path} is a record of the run in {path.parent}, and cannot be made again; name another file."
        )


def noted(environment: Mapping[str, Any], heading: str) -> dict[str, Any]:
    """What environment.json says of hosts under a heading; nothing where it is not there or not readable."""
    known = environment.get(heading)
    return dict(known) if isinstance(known, dict) else {}


def log_name(start: int, rank: int) -> str:
    """The file for the output of one rank of one start."""
    return f"start-{start:04d}-rank-{rank:04d}.log"


def default_path(root: Path, suite: str, now: datetime) -> Path:
    """``reports/2026-03-02-1410-tp_scale``, with a number behind it if that minute already has one."""
    stem = f"{now:%Y-%m-%d-%H%M}-{suite}"
    candidate, number = root / stem, 2
    while candidate.exists():
        candidate, number = root / f"{stem}-{number}", number + 1
    return candidate


def _of_spans(seen: Observation, spans: Sequence[Any]) -> Observation:
    return Observation(seen.case, seen.hash, seen.repeat, seen.attempt, seen.hosts, [], passes={SPANS_NAME: spans})


def _plan_records(plan: Plan) -> Iterator[dict[str, Any]]:
    head = {name: value for name, value in vars(plan).items() if name not in ("cases", "refusals", "replanned")}
    yield {"kind": "plan", **head, "num_cases": len(plan.cases), "num_refusals": len(plan.refusals)}
    for case in plan.cases:
        yield {"kind": "case", "hash": case.hash, **vars(case)}
    for refusal in plan.refusals:
        yield {"kind": "refusal", **vars(refusal)}


def _planned(fields: dict[str, Any]) -> _Head | Case | Refusal | Replanned:
    """A line of plan.jsonl. A case is held against the identity it was written with."""
    kind = fields.pop("kind", None)
    if kind == "plan":
        return record_of(_Head, fields)
    if kind == "expected":
        again = record_of(Replanned, fields)
        _expect_figures(again.expected)
        return again
    if isinstance(point := fields.get("point"), dict) and not _is_plain(point):
        raise ValueError("'point' holds more than plain values")
    if kind == "refusal":
        return record_of(Refusal, fields)
    if kind != "case":
        raise ValueError(f"'kind' is {json.dumps(kind)[:60]}, not one of plan, case, refusal, expected")
    written = fields.pop("hash", None)
    case = record_of(Case, fields)
    _expect_figures(case.expected)
    if unjudged := [floor for floor in case.floors if not _is_readable(floor)]:
        asked = short(f"{unjudged[0].metric} in {unjudged[0].unit}", 60)
        raise ValueError(f"'floors' asks for {asked}, which does not name a figure and its unit")
    if written and _lacks_a_secret(case):
        case.__dict__["hash"] = str(written)  # the name by which its records are found
    if case.hash != written:
        raise ValueError(f"it is not what was planned: its identity is {case.hash}, and {written!s:.60} was written")
    return case


def _expect_figures(expected: Iterable[str]) -> None:
    if unreadable := [key for key in expected if not _names_a_figure(key)]:
        raise ValueError(f"'expected' holds {short(json.dumps(unreadable[0]), 60)}, which does not name a figure")


def _lacks_a_secret(case: Case) -> bool:
    """Whether something was taken out of the case when its folder was bundled."""
    values = (*case.environment.values(), *case.point.values())
    return any(isinstance(value, str) and REMOVED in value for value in values)


def _is_plain(point: Mapping[str, object]) -> bool:
    return not any(isinstance(value, (list, dict)) for value in point.values())


@cache
def _names_a_figure(key: str) -> bool:
    """Whether a key of ``expected`` can be taken apart."""
    try:
        split_key(key)
    except ValueError:
        return False
    return True


def _is_readable(floor: Floor) -> bool:
    return _names_a_figure(floor.metric) and floor.unit in UNITS


_outcome, _observation = FastReader(Outcome), FastReader(Observation)
_case = FastReader(Case, {"kind": Literal["case"], "hash": str}, repeated=("expected",))


def _planned_case(line: bytes) -> Case | None:
    """The case of a line of plan.jsonl; None where :func:`_planned` has to read it."""
    fields = _case.fields(line)
    if fields is None or not _is_plain(fields.point):
        return None
    case = _case.record(fields)
    is_readable = all(map(_names_a_figure, case.expected)) and all(map(_is_readable, case.floors))
    return case if case.hash == fields.hash and is_readable else None


def _levels(value: object, most: int) -> int:
    """How deeply lists and objects are nested, counted no further than just beyond ``most``."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max((_levels(item, most - 1) for item in inner), default=0) if most >= 0 else 1
