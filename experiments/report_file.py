"""From a sweep's folder to its report.html and figures/: what the report and the sweep call."""

from pathlib import Path

from experiments import sweep_folder
from lm.errors import BadInput
from lm.whole_file import replacing


def write(workdir: Path) -> Path:
    """Writes WORKDIR/report.html and WORKDIR/figures; returns the page's path.

    Raises BadInput where the folder holds nothing to report or cannot be written.
    """
    from lm.laws.figures import ablation, curves, gallery, style
    from lm.laws.report import Contents, report

    workdir = Path(workdir)
    frame = sweep_folder.table(workdir / "runs.csv")
    law, reason = None, "there is no runs.csv"
    if frame is not None:
        try:
            law = sweep_folder.material(workdir / "law.json", frame)
        except BadInput as e:
            reason = str(e)
    plan = sweep_folder.json_object(workdir / "plan.json")
    if frame is None and plan is None:
        raise BadInput(
            f"{workdir} holds neither runs.csv nor plan.json: give the --workdir of a sweep"
        )
    compared = sweep_folder.json_object(workdir / "ablation.json")
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
            held_out=sweep_folder.table(workdir / "held_out.csv"),
            evidence=law.evidence if law else None,
            no_law=reason,
            plan=plan,
            ablation=compared,
            validation=sweep_folder.json_object(workdir / "validation.json"),
            prediction=sweep_folder.json_object(workdir / "prediction.json"),
            figures=pictures,
            undrawn=undrawn,
            commands=sweep_folder.commands(workdir),
        )
    )
    return _replace(workdir / "report.html", page)


def _replace(path: Path, text: str) -> Path:
    try:
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as e:
        raise BadInput(f"{path} cannot be written ({e.strerror}): free it or its folder") from e
    return path
