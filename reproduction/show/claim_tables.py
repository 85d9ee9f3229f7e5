"""The verdicts on the paper's claims as tables: of all streams, and of one suite on one stream."""

from collections import Counter
from collections.abc import Sequence

from reproduction.claims import CLAIMS, Claim, contrasts_of
from reproduction.show.table_formats import Sheet
from reproduction.study import Study
from reproduction.verdicts import Contrast, failing, judge, signed

_VERDICTS = ("holds", "does not hold", "cannot tell", "cannot be tested", "not run")
_TERMS = "Budgets and label rates are named as in the paper."


def with_claims(studies: Sequence[Study]) -> list[Study]:
    """Return the studies that measured something on which a claim rests; all if none did."""
    some = [study for study in studies if any(each.values for claim in CLAIMS for each in contrasts_of(claim, study))]
    return some or list(studies)


def claim_sheet(studies: Sequence[Study]) -> Sheet:
    """Return the verdict on every claim by stream, with the differences that decide it."""
    rows = tuple(
        (claim.text, claim.paper, claim.suite, *(_cell(claim, study) for study in studies)) for claim in CLAIMS
    )
    title = f"Differences in points, paired by seed, with 95 % intervals; of several, the deciding one. {_TERMS}"
    return Sheet(title, ("claim", "in the paper", "suite", *(study.dataset.title for study in studies)), rows)


def verdict_sheet(studies: Sequence[Study]) -> Sheet:
    """Return the bare verdicts by stream, for a narrow place."""
    rows = tuple((claim.text, *(_verdict(claim, study) for study in studies)) for claim in CLAIMS)
    return Sheet("The paper's claims on each stream", ("claim", *(study.dataset.title for study in studies)), rows)


def tally_sheet(studies: Sequence[Study]) -> Sheet:
    """Return how many claims got which verdict, by stream."""
    rows = []
    for study in studies:
        found = Counter(_verdict(claim, study) for claim in CLAIMS)
        rows.append((study.dataset.title, *(str(found[verdict]) for verdict in _VERDICTS)))
    return Sheet(f"How many of {len(CLAIMS)} claims got which verdict.", ("stream", *_VERDICTS), tuple(rows))


def suite_claims(study: Study, name: str) -> list[Sheet]:
    """Return every difference on which the claims that a suite tests rest, as far as it was measured."""
    rows = []
    for claim in (claim for claim in CLAIMS if claim.suite == name):
        contrasts = contrasts_of(claim, study)
        measured = [contrast for contrast in contrasts if contrast.values]
        reason = claim.untestable(study.dataset)
        if measured:
            missing = len(contrasts) - len(measured)
            verdict = f"cannot be tested: {reason}" if reason else judge(contrasts)
            rows.append((claim.text, claim.paper, "", f"{missing} not run" if missing else "", verdict))
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


def _verdict(claim: Claim, study: Study) -> str:
    contrasts = contrasts_of(claim, study)
    if claim.untestable(study.dataset):
        return "cannot be tested"
    return judge(contrasts) if any(contrast.values for contrast in contrasts) else "not run"


def _cell(claim: Claim, study: Study) -> str:
    verdict, contrasts = _verdict(claim, study), contrasts_of(claim, study)
    if verdict == "not run":
        return verdict
    if verdict == "cannot be tested":
        return f"{verdict} ({claim.untestable(study.dataset)})"
    measured = [contrast for contrast in contrasts if contrast.values]
    hold, missing = sum(each.verdict == "holds" for each in measured), len(contrasts) - len(measured)
    if missing and hold == len(measured):
        return f"{verdict} ({hold} of {hold} measured hold; {missing} not run)"
    worst = min(_deciding(contrasts), key=lambda contrast: contrast.support)
    remarks = [str(worst), f"{len(worst.values)} seeds"]
    if worst.bound or not worst.is_above:
        remarks.append(f"claimed: {_claimed(worst)}")
    if verdict == "cannot tell" and worst.verdict == "does not hold":
        remarks.append("alone it would not hold; among several differences that may be chance")
    if len(contrasts) > 1:
        remarks.append(f"{hold} of {len(measured)} hold")
    if missing:
        remarks.append(f"{missing} not run")
    return f"{verdict} ({'; '.join(remarks)})"
