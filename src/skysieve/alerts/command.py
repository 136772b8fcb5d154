"""``skysieve alerts``: the periods of objects, kept up to date while alert packets arrive."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from skysieve.core.command import (
    FAILED_SOME,
    OUTPUT,
    RUN,
    STDIO,
    DeviceOption,
    FormatOption,
    MemoryOption,
    Messages,
    MetricsOption,
    OverwriteOption,
    QuietOption,
    ThreadsOption,
    VerboseOption,
    check_output,
    check_outputs,
    counted,
    needs,
    option,
    report_errors,
    table_format,
)
from skysieve.periodogram.command.options import SAMPLES_HELP, SEARCH, TERMS_HELP, PeaksOption

PACKETS = "Packets"


def alerts(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE...", help="Further files to read after those of --avro.", show_default=False),
    ] = None,
    avro: Annotated[
        list[Path] | None,
        option(
            "--avro",
            help="Files to read: Avro containers, tar archives of them, or folders. By default packets come from "
                 "--kafka.",
            panel=PACKETS,
            metavar="FILE...",
        ),
    ] = None,
    watch: Annotated[
        bool,
        option(
            "--watch",
            help="Keep reading new files, and files that grow, until Ctrl-C. By default the command ends after the "
                 "last file.",
            panel=PACKETS,
        ),
    ] = False,
    kafka: Annotated[
        str | None,
        option("--kafka", help="Kafka brokers to read from. By default files are read.",
                               panel=PACKETS, metavar="HOST:PORT,..."),
    ] = None,
    topic: Annotated[
        str | None, option("--topic", help="Topic of the packets; needed with --kafka.", panel=PACKETS, metavar="TOPIC")
    ] = None,
    group: Annotated[
        str, option("--group", help="Consumer group. The default is skysieve.", panel=PACKETS, metavar="GROUP")
    ] = "skysieve",
    from_end: Annotated[
        bool,
        option(
            "--from-end",
            help="Start new partitions of the topic at their end. The default is their beginning.",
            panel=PACKETS,
        ),
    ] = False,
    stop_at_end: Annotated[
        bool,
        option("--stop-at-end", help="Stop at the end of the topic. By default the command waits for more packets.",
                                     panel=PACKETS),
    ] = False,
    schema: Annotated[
        list[str] | None,
        option(
            "--schema",
            help="Schema file for a schema ID of Confluent's wire format; may be repeated. The default is none.",
            panel=PACKETS,
            metavar="ID=FILE",
        ),
    ] = None,
    retry: Annotated[
        bool,
        option(
            "--retry",
            help="First read again the messages that were set aside, with the schemas given now. By default they stay "
                 "set aside.",
            panel=PACKETS,
        ),
    ] = False,
    max_set_aside: Annotated[
        int,
        option(
            "--max-set-aside",
            help="Stop when more packets than this cannot be read. The default is 1000.",
            panel=PACKETS,
            metavar="N",
            min=0,
        ),
    ] = 1000,
    kafka_option: Annotated[
        list[str] | None,
        option(
            "--kafka-option",
            help="Setting of librdkafka, such as security.protocol=SASL_SSL; may be repeated. The default is none.",
            panel=PACKETS,
            metavar="NAME=VALUE",
        ),
    ] = None,
    no_forced: Annotated[
        bool,
        option(
            "--no-forced",
            help="Search only detections. By default forced photometry of exposures without a detection is added.",
            panel=SEARCH,
        ),
    ] = False,
    min_period: Annotated[
        float, option("--min-period", help="Shortest period in days. The default is 0.05.", panel=SEARCH, metavar="P")
    ] = 0.05,
    max_period: Annotated[
        float, option("--max-period", help="Longest period in days. The default is 50.", panel=SEARCH, metavar="P")
    ] = 50.0,
    samples_per_peak: Annotated[
        float,
        option(
            "--samples-per-peak",
            help=f"{SAMPLES_HELP} The default is 5.",
            panel=SEARCH,
            metavar="N",
        ),
    ] = 5.0,
    nterms: Annotated[
        int | None, option("--nterms", help=f"{TERMS_HELP}.", panel=SEARCH, metavar="N", min=1)
    ] = None,
    peaks: PeaksOption = 5,
    min_rows: Annotated[
        int,
        option("--min-rows", help="Search only objects with at least this many rows. The default is 20.", panel=SEARCH,
               metavar="N", min=4),
    ] = 20,
    every: Annotated[
        float,
        option("--every", help="Time between two searches. The default is 10.", panel=RUN, metavar="SECONDS"),
    ] = 10.0,
    batch: Annotated[
        int,
        option("--batch", help="Search earlier if this many packets are waiting. The default is 5000.",
                               panel=RUN, metavar="N",
               min=1),
    ] = 5000,
    metrics: MetricsOption = None,
    store: Annotated[
        Path,
        option(
            "--store",
            help="SQLite file of light curves, periods and offsets; an existing file is continued. The default is "
                 "alerts.db.",
            panel=OUTPUT,
            metavar="FILE",
        ),
    ] = Path("alerts.db"),
    output: Annotated[
        Path | None,
        option(
            "-o",
            "--output",
            help="File for the table of periods, rewritten while the command runs. By default no file is written.",
            panel=OUTPUT,
            metavar="OUT",
        ),
    ] = None,
    format_: FormatOption = None,
    table_every: Annotated[
        float,
        option("--table-every", help="Time between two writes of the table. The default is 60.", panel=OUTPUT,
               metavar="SECONDS"),
    ] = 60.0,
    to_topic: Annotated[
        str | None,
        option("--to-topic", help="Send the periods to this topic; needs --kafka. By default they are not sent.",
                                  panel=OUTPUT,
               metavar="TOPIC"),
    ] = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    memory: MemoryOption = None,
    overwrite: OverwriteOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:  # fmt: skip
    """Keep the periods of objects up to date from alert packets of LSST or ZTF.

    The packets come from Avro files or from Kafka. The light curve of each object grows in the store; every few
    seconds the objects that changed are searched. Light curves, periods and the place in the stream advance together,
    so that a process that is killed loses and repeats nothing: start it again.

    Examples:

    - skysieve alerts --avro night/*.avro -o periods.parquet
    - skysieve alerts --avro ztf_public_20260801.tar.gz -o periods.csv
    - skysieve alerts --kafka broker:9092 --topic lsst-alerts --schema 10=lsst.v10_0.alert.avsc --metrics 9100
    """
    from skysieve.core.metrics.server import PageServer, format_address, metrics_page, parse_address

    from .files import FileSource
    from .intake import Intake, Source
    from .kafka import KafkaSink, KafkaSource, settings_of
    from .metrics import METRICS, PREFIX
    from .packets import Decoder
    from .schemas import read_schema
    from .search import PeriodSearch
    from .service import Service
    from .store import Store, describe_error, most_columns

    failed: dict[str, str] = {}
    again = f"interrupted; {store} holds what was searched so far, and the same command continues from there"
    with report_errors(again), ExitStack() as stack:
        messages = Messages(quiet, verbose)
        paths = [*(avro or []), *(files or [])]
        if bool(paths) == (kafka is not None):
            raise ValueError("expected one of --avro and --kafka")
        if (kafka is None) != (topic is None):
            raise ValueError("expected both of --kafka and --topic")
        needs("--kafka", kafka, "--to-topic", "--group", "--from-end", "--stop-at-end", "--kafka-option")
        needs("--avro", paths, "--watch")
        needs("-o", output, "--format", "--table-every")
        if not (every > 0 and table_every > 0):
            raise ValueError(f"--every {every:g}, --table-every {table_every:g}: expected positive numbers of seconds")
        address = None if metrics is None else parse_address(metrics, "--metrics")
        schemas = dict(map(_schema, schema or []))
        check_outputs({"--store": store, "--output": output}, [*paths, *schemas.values()])
        check_output(store, overwrite=True)
        if output is not None:
            format_ = _checked_format(output, format_, paths)
        options = settings_of(kafka_option or [])
        decoder = Decoder({number: read_schema(path) for number, path in schemas.items()})
        search = stack.enter_context(
            PeriodSearch(
                min_period=min_period, max_period=max_period, samples_per_peak=samples_per_peak, n_peaks=peaks,
                nterms=nterms, min_rows=min_rows, forced=not no_forced, device=device, threads=threads, memory=memory,
            )
        )  # fmt: skip
        if peaks > (largest := search.most_peaks(most_columns())):
            raise ValueError(f"--peaks {peaks}: expected at most {largest}, as SQLite limits the number of columns")
        of_files = None if kafka is not None else FileSource(paths, decoder, messages.say, watch=watch)
        try:
            if not store.exists():  # a refused output makes no store
                check_output(output, overwrite)
            kept = stack.enter_context(Store(store))
            if output is not None:
                check_output(output, overwrite or kept.table == output.resolve())
                kept.table = output.resolve()
            source: Source
            if of_files is not None:
                source, failed = of_files, of_files.failed
            else:
                source = KafkaSource(
                    str(kafka), str(topic), group, decoder, messages.say, from_end=from_end, stop_at_end=stop_at_end,
                    options=options,
                )  # fmt: skip
            sink = None if to_topic is None else KafkaSink(str(kafka), to_topic, messages.say, options)
            if sink is not None:
                stack.callback(sink.close)
            service = Service(
                kept, search, every=every, most=batch, table=output, table_format=format_, table_every=table_every,
                publisher=sink, most_set_aside=max_set_aside, patient=watch or kafka is not None,
                say=messages.say, detail=messages.detail,
            )  # fmt: skip
            if address is not None:
                pages: dict[str, Any] = {
                    "/metrics": metrics_page(service.metrics, METRICS, PREFIX),
                    "/health": lambda: (503 if service.fault else 200, "text/plain", f"{service.fault or 'ok'}\n"),
                }
                server = stack.enter_context(PageServer(pages, *address))
                messages.say(f"metrics are on http://{format_address(address[0], server.port)}/metrics")
            before = service.totals
            kept.use(search.settings)
            if retry:
                service.retry(decoder)
                before["set_aside"] = service.totals["set_aside"]  # without those that can be read now
            intake = Intake(source, service.places, 2 * batch)
            stack.callback(intake.close)
            service.run(intake)
        except sqlite3.Error as error:
            raise OSError(f"{store}: {describe_error(error, store)}") from None
        new = {name: value - before[name] for name, value in service.totals.items()}
        messages.wrote(store, _summary(new, kept.n_waiting(), min_rows))
        if new["set_aside"] > 0:
            messages.say(f"{counted(new['set_aside'], 'packet')} could not be read: see the table set_aside of {store}")
        if output is not None and output.exists():
            messages.wrote(output)
    if failed or new["set_aside"] > 0:
        raise typer.Exit(FAILED_SOME)


def _checked_format(output: Path, wanted: str | None, paths: list[Path]) -> str:
    """Refuse an ``--output`` that cannot be written, or would be read as packets from ``paths``; return its format."""
    from skysieve.core.table_files import FORMATS, check_format

    if output == STDIO:
        raise ValueError("--output -: expected the name of a file, which is replaced while the command runs")
    check_output(output, overwrite=True)
    folders = {path.resolve() for path in paths if path.is_dir()}
    if output.suffix == ".avro" and not folders.isdisjoint(output.resolve().parents):
        raise ValueError(f"--output {output}: would be read as packets")
    format_ = table_format(output, wanted, FORMATS)
    check_format(output, format_)
    return format_


def _summary(new: Mapping[str, int], waiting: int, min_rows: int) -> str:
    """The totals of this run in words; ``waiting`` objects have fewer than ``min_rows`` rows."""
    done = [
        counted(new["packets"], "packet"), counted(new["rows_added"], "new row"),
        counted(new["searches"], "search", "searches"),
    ]  # fmt: skip
    if new["rows_left_out"]:
        done.append(f"{counted(new['rows_left_out'], 'row')} left out")
    if new["without_object"]:
        done.append(f"{counted(new['without_object'], 'packet')} without an object")
    if waiting:
        done.append(f"{counted(waiting, 'object')} with fewer than {min_rows} rows (--min-rows)")
    return ", ".join(done)


def _schema(text: str) -> tuple[int, Path]:
    number, equals, path = text.partition("=")
    if not (equals and number.isdecimal() and path):
        raise ValueError(f"--schema {text}: expected ID=FILE, such as 10=lsst.v10_0.alert.avsc")
    return int(number), Path(path)


__all__ = ["alerts"]
