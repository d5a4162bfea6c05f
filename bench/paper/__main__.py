"""Repeats every table and figure of the paper's experiments on labelled images.

Trains and measures eight methods at four widths with three seeds, then studies the results:
sensitivity to sigma and xi, distances of pairs, search time, pictures. Writes paper.html (one file
to read or print), paper.md (a summary), paper.json (every number) and plots to --out, and says
which of the paper's statements hold.

    python bench/paper --data DIR                            # the report is in paper-NAME
    python bench/paper --data DIR --out report --report      # only draw, from what is stored
    python bench/paper --data scenes:400 --out report --methods lsh dch --bits 32 --seeds 1
    python bench/paper --from docs/paper/paper.json --out report   # draw a record again

It can be stopped at any time: the next run resumes. Features, cells and studies are kept in
--cache, and the time each stage took is added up over interrupted runs.
"""

from __future__ import annotations

import signal
import sys
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # bench/, whose scripts import one another

from mchindex.errors import MCHError
from mchindex.storage.folder import Folder
from mchindex.storage.lock import WriterLock
from paper.experiments import Experiments, read_record
from paper.options import parse
from paper.report import add_pictures, write_report


def main() -> None:
    options = parse(__doc__)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        if options.record:
            made = read_record(options.record)
            add_pictures(made, options.record.with_name("paper.html"))
        else:
            options.work.mkdir(parents=True, exist_ok=True)
            lock = WriterLock(Folder(options.work), str(options.work)).hold()
            # A report may be drawn while another run computes.
            with nullcontext() if options.report else lock:
                made = Experiments(options).run()
    except MCHError as error:
        sys.exit(f"bench/paper: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; run again to resume")
    write_report(made, options.out)


if __name__ == "__main__":
    main()
