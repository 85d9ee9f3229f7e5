"""The verdicts on the paper's claims as tables: of all streams, and of one suite on one stream."""

from collections.abc import Sequence

from dietcl.experiments.claims import CLAIMS, Claim, contrasts_of
from dietcl.experiments.evidence import Contrast, failing, judge, signed
from dietcl.experiments.show.sheets import Sheet
from dietcl.experiments.study import Study

_TERMS = "Budgets and label rates are named as in the paper."


def claim_sheet(studies: Sequence[Study]) -> Sheet:
    """Return the verdict on every claim by stream, with the differences that decide it."""
    rows = tuple(
        (claim.text, claim.paper, claim.suite, *(_cell(claim, study) for study in studies)) for claim in CLAIMS
    )
    title = f"Differences in points, paired by seed, with 95 % intervals; of several, the deciding one. {_TERMS}"
    return Sheet(title, ("claim", "in the paper", "suite", *(study.setup.title for study in studies)), rows)


def suite_claims(study: Study, name: str) -> list[Sheet]:
    """Return every difference on which the claims that a suite tests rest, as far as it was measured."""
    rows = []
    for claim in (claim for claim in CLAIMS if claim.suite == name):
        contrasts = contrasts_of(claim, study)
        measured = [contrast for contrast in contrasts if contrast.values]
        reason = claim.untestable(study.setup)
        if measured:
            missing = len(contrasts) - len(measured)
            verdict = f"cannot be tested: {reason}" if reason else judge(contrasts)
            rows.append((claim.text, claim.paper, "", f"{missing} without a result" if missing else "", verdict))
        rows += [
            (f"· {each}", "", _claimed(each), str(len(each.values)), "" if reason else each.verdict)
            for each in measured
        ]
    header = ("claim, and the differences it rests on", "in the paper", "claimed", "seeds", "verdict")
    title = f"The claims: points, paired by seed, with 95 % intervals. {_TERMS}"
    return [Sheet(title, header, tuple(rows))] if rows else []


def _claimed(contrast: Contrast) -> str:
    return f"{'above' if contrast.is_above else 'below'} {signed(contrast.bound) if contrast.bound else '0'}"


def _deciding(contrasts: Sequence[Contrast]) -> list[Contrast]:
    """Return the differences to which the verdict on all of them is owed."""
    measured = [contrast for contrast in contrasts if contrast.values]
    return failing(contrasts) or [each for each in measured if each.verdict != "holds"] or measured


def _cell(claim: Claim, study: Study) -> str:
    contrasts, reason = contrasts_of(claim, study), claim.untestable(study.setup)
    if reason:
        return f"cannot be tested ({reason})"
    measured = [contrast for contrast in contrasts if contrast.values]
    if not measured:
        return "not run"
    hold = sum(contrast.verdict == "holds" for contrast in measured)
    worst = min(_deciding(contrasts), key=lambda contrast: contrast.support)
    many = f"; {hold} of {len(contrasts)} hold" if len(contrasts) > 1 else ""
    if len(measured) < len(contrasts):
        many += f", {len(contrasts) - len(measured)} without a result"
    return f"{judge(contrasts)} ({worst}; {len(worst.values)} seeds{many})"
