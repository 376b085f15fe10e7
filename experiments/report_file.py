"""From a sweep's folder to its report.html and figures/: what the report and the sweep call."""

from pathlib import Path

from experiments import sweep_folder
from lm.errors import BadInput
from lm.laws import kinds
from lm.laws.stored import read
from lm.progress import say
from lm.whole_file import write as write_file


def write(workdir: Path) -> Path:
    """Writes WORKDIR/report.html and WORKDIR/figures; returns the page's path.

    Raises BadInput where the folder holds nothing to report, a damaged file, or cannot be written;
    CannotSave where the disk is full.
    """
    from lm.laws.figures import ablation, curves, gallery, style
    from lm.laws.report import Contents, report

    workdir = Path(workdir)
    plan, compared = sweep_folder.plan(workdir), sweep_folder.ablation(workdir)
    validation = read(workdir / "validation.json", kinds.VALIDATION)
    prediction = read(workdir / "prediction.json", kinds.PREDICTION)
    frame = sweep_folder.table(workdir / "runs.csv")
    law, reason = None, "there is no runs.csv"
    if frame is not None:
        try:
            law = sweep_folder.material(workdir / "law.json", frame)
        except BadInput as e:
            reason = str(e)
            if (workdir / "law.json").is_file():
                say(f"the report is without the law: {reason}")
    if frame is None and plan is None:
        raise BadInput(
            f"{workdir} holds neither runs.csv nor plan.json: give the --workdir of a sweep"
        )
    held_out, commands = (
        sweep_folder.table(workdir / "held_out.csv"),
        sweep_folder.commands(workdir),
    )
    drawn, undrawn = gallery.draw(gallery.FITTED, law) if law else ({}, {})
    if compared is not None:
        drawn["ablation"] = ablation.differences(compared)
    if law is None and (found := sweep_folder.learning_curves(workdir)):
        drawn["learning_curves"] = curves.learning_curves(found)
    pictures = {}
    for name, made in drawn.items():
        _, svg = style.write(made, workdir / "figures", name)
        pictures[name] = svg.read_text()
    page = report(
        Contents(
            title=f"Scaling report: {workdir.resolve().name}",
            frame=frame,
            held_out=held_out,
            evidence=law.evidence if law else None,
            no_law=reason,
            plan=plan,
            ablation=compared,
            validation=validation,
            prediction=prediction,
            figures=pictures,
            undrawn=undrawn,
            commands=commands,
        )
    )
    path = workdir / "report.html"
    write_file(path, page, "free it or its folder")
    return path
