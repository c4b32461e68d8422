"""The four parameterizations of Sec. 3: which of the two circuits is a product of two matrices."""

from enum import StrEnum

from qkdyn.errors import reject


class Parameterization(StrEnum):
    """F = factorized, C = collapsed; A = attention (query-key circuit), O = output-value circuit (Sec. 3)."""

    FAFO = "FAFO"
    CAFO = "CAFO"
    FACO = "FACO"
    CACO = "CACO"

    @property
    def factorized_qk(self) -> bool:
        """True where the query-key circuit is W_K W_Q^T, False where it is the single matrix W_QK."""
        return self.value.startswith("FA")

    @property
    def factorized_ov(self) -> bool:
        """True where the output-value circuit is W_O W_V, False where it is the single matrix W_OV."""
        return self.value.endswith("FO")

    @classmethod
    def parse(cls, value: "str | Parameterization") -> "Parameterization":
        """Accept a member or its name in any case.

        Raises:
            InputError: `value` is neither; the message lists the four names.
        """
        try:
            return cls(str(value).upper())
        except ValueError:
            reject("parameterization", value, "one of " + ", ".join(cls))
