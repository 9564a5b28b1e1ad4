"""fio as cases: one for each job and direction."""

from __future__ import annotations

from collections import Counter
from typing import Any

from clusterbench.importing.nccl import Facts
from clusterbench.importing.output import Output, Read
from clusterbench.importing.records import ImportedCase
from clusterbench.tools import fio_jobs
from clusterbench.tools.fio_jobs import FioJob
from clusterbench.types import metric_key


class FioJobs(Output):
    """Rate, requests a second and the latency of their completion; a job with an error is a case that failed.

    Jobs of one name, as several processes have without ``group_reporting``, are numbered.
    """

    tool = "fio"
    question = "How fast does this file system or device take and give data, by fio?"

    def holds(self, text: str) -> bool:
        return fio_jobs.is_fio(text)

    def read(self, name: str, text: str, facts: Facts) -> Read:
        jobs = fio_jobs.parse(text)
        places = Counter((job.name, job.direction, job.host) for job in jobs)
        numbers: Counter[tuple[str, str, str]] = Counter()
        cases = []
        for job in jobs:
            key = job.name, job.direction, job.host
            numbers[key] += 1
            cases.append(_case(name, job, numbers[key] if places[key] > 1 else 0))
        return Read(cases)


def _case(name: str, job: FioJob, number: int) -> ImportedCase:
    about = {"job": job.name, "direction": job.direction, "host": job.host, "process": number}
    point: dict[str, Any] = {key: value for key, value in about.items() if value}
    point |= job.options
    where = f"{name}:{job.where}" if job.where.isdigit() else f"{name} {job.where}"
    hosts = (job.host,) if job.host else ()
    if job.error:
        reason = f"{where} reports error {job.error}"
        return ImportedCase(where, point, 1, 1, status="failed", reason=reason, hosts=hosts)
    figures = {
        metric_key("latency", **({"statistic": statistic} if statistic else {})): latency
        for statistic, latency in job.latencies_s.items()
    }
    figures |= {"bandwidth": job.bytes_per_s, "message_rate": job.requests_per_s}
    return ImportedCase(where, point, 1, 1, figures=figures, time_s=job.seconds, hosts=hosts)
