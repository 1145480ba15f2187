"""What a stated privacy figure is worth: the claim, its guarantee, and what it assumes."""

from randquant_papers.claims.checking import ClaimCheck, Reading, check
from randquant_papers.claims.claim import PrivacyClaim

__all__ = ["ClaimCheck", "PrivacyClaim", "Reading", "check"]
